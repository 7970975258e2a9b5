"""Both readers find the same in a store that was collected, repacked and merged, and what was put into it."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cairn.core.errors import MissingData
from cairn.core.ids import CheckpointId, ContentId, ModelId
from cairn.registry.indexing import locations_of
from cairn.registry.localfiles import KeyHome
from cairn.registry.opened import KeySource, open_store
from cairn.registry.pins import PIN, read_pin
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.session import open_sessions, read_session
from cairn.store.backends.posix import PosixBackend
from cairn.workspace.checkout import checkout
from tests.support.stores import home_in
from tests.vectors.format import make
from tests.vectors.format.make_collected import describe_fold
from tests.vectors.format.reader import Damaged, Vault
from tests.vectors.format.reader_collection import RULES, Collection
from tests.vectors.format.reader_content import pack_place
from tests.vectors.format.reader_log import Log, merkle_root
from tests.vectors.format.reader_sessions import pins, sessions
from tests.vectors.format.reader_tree import Store

VECTORS = Path(__file__).parents[1] / "vectors" / "format"
FOLDER, KEY = VECTORS / "collected", VECTORS / "collected.key"
FACTS: dict[str, Any] = json.loads((VECTORS / "collected.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the store: who reads it writes a pin."""
    shutil.copytree(FOLDER, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def registry(folder: Path, home: KeyHome) -> Iterator[Registry]:
    """The store, read by Cairn."""
    opened = Registry(open_store(PosixBackend(folder), home, KeySource(key_file=KEY)))
    opened.refresh()
    yield opened
    opened.close()


@pytest.fixture
def home(tmp_path: Path) -> KeyHome:
    """A machine that has never seen the store."""
    return home_in(tmp_path / "home")


@pytest.fixture(scope="module")
def store() -> Store:
    """The store, read by the second reader."""
    return Store(FOLDER, KEY.read_bytes())


def fold_of(log: Log) -> dict[str, Any]:
    """What the second reader finds in the log, as in `collected.json`."""
    held = log.collection
    models = log.models.values()
    return {
        "epoch": held.epoch, "floor": held.floor, "live n": held.live_n, "packs": len(held.packs),
        "began": {str(epoch): n for epoch, n in sorted(held.began.items()) if epoch >= max(held.floor, 1)},
        "condemned": {str(one): epoch for one, epoch in _sorted(held, int)},
        "condemned objects": {one.hex(): epoch for one, epoch in _sorted(held, bytes)},
        "swept": sorted(held.swept),
        "pieces": [[piece["name"].hex(), first, count] for piece, first, count in held.pieces],
        "checkpoints": {
            one.hex(): [body["reachability"]["name"].hex(), body.get("quarantined", False), body.get("verified", "")]
            for model in models for one, body in sorted(model["checkpoints"].items())
        },
        "deleted": {one.hex(): gone is not None for model in models for one, gone in sorted(model["deleted"].items())},
        "void": sorted(log.void),
    }  # fmt: skip


def _sorted(held: Collection, kind: type) -> list[tuple[Any, int]]:
    return sorted((one, epoch) for one, epoch in held.condemned.items() if isinstance(one, kind))


def test_both_readers_fold_the_log_alike(registry: Registry, store: Store) -> None:
    assert describe_fold(registry.state) == FACTS["fold"] == fold_of(store.log)
    assert {"length": len(store.log.leaves), "root": merkle_root(store.log.leaves).hex()} == FACTS["head"]
    joined = b"".join(store.log.collection.packs)
    assert (registry.state.length, registry.state.packs) == (FACTS["head"]["length"], joined)


def test_each_entry_of_collection_occurs_in_effect_and_void(monkeypatch: pytest.MonkeyPatch) -> None:
    applied, apply = Counter[tuple[str, bool]](), Log._apply

    def counted(log: Log, entry: dict[str, Any]) -> None:
        apply(log, entry)
        applied[entry["type"], entry["n"] in log.void] += 1

    monkeypatch.setattr(Log, "_apply", counted)
    Store(FOLDER, KEY.read_bytes())
    assert {(kind, void) for kind in (*RULES, "commit") for void in (False, True)} <= set(applied)
    assert FACTS["fold"]["swept"] and FACTS["fold"]["condemned objects"]
    assert set(FACTS["fold"]["condemned"].values()) == {FACTS["fold"]["floor"], FACTS["fold"]["epoch"]}
    assert any(count > 1 for _, _, count in FACTS["fold"]["pieces"])


def test_both_readers_find_the_same_places(registry: Registry, store: Store) -> None:
    state, found = registry.state, set()
    for piece in state.pieces:
        places, complete = locations_of(registry.opened, state, piece)
        assert complete
        for identifier, at in places:
            if state.in_force(at.pack):
                found.add((identifier, state.pack(at.pack).name, at.offset, at.length))
    assert found == {
        (one, pack_place(pack)[0], offset, length)
        for one, places in store.content.places.items()
        for pack, offset, length in places
    }
    for identifier in store.content.places:
        assert registry.chunks().index.locations(ContentId(identifier))


def test_both_readers_find_every_checkpoint_bit_for_bit(registry: Registry, store: Store, tmp_path: Path) -> None:
    (name,) = store.models()
    model = store.models()[name]
    whole = [one for one, (_, quarantined, _) in FACTS["fold"]["checkpoints"].items() if not quarantined]
    assert len(whole) == 3
    for checkpoint in whole:
        expected, identifier = FACTS["saved"][checkpoint]["files"], CheckpointId(bytes.fromhex(checkpoint))
        checkout(registry, ModelId(model), identifier, tmp_path / checkpoint)
        assert make.describe(tmp_path / checkpoint) == expected
        opened = store.checkpoint(model, identifier)
        for entry in opened.files:
            kind, mode, digest = expected[entry["path"].decode()]
            assert (kind, mode) == (entry["kind"], entry.get("mode", 0o644))
            assert hashlib.sha256(opened.file(entry["path"])).hexdigest() == digest
        assert sorted(opened.used) == opened.reachable
        held = registry.state.models[ModelId(model)].checkpoints[identifier]
        assert list(read_reachability(registry.opened, held)) == opened.reachable


def test_both_readers_miss_what_a_quarantined_checkpoint_alone_needed(
    registry: Registry, store: Store, tmp_path: Path
) -> None:
    ((model, held),) = store.log.models.items()
    (gone,) = (one for one, body in held["checkpoints"].items() if body.get("quarantined"))
    with pytest.raises(MissingData, match="in no pack"):
        checkout(registry, ModelId(model), CheckpointId(gone), tmp_path / "gone")
    with pytest.raises(Damaged, match="in no pack"):
        store.checkpoint(model, gone)


def test_both_readers_find_who_is_at_work(registry: Registry, folder: Path) -> None:
    vault = Store(folder, KEY.read_bytes()).vault
    opened = registry.opened
    (session,) = open_sessions(opened)
    said = msgspec.to_builtins(read_session(opened, session), builtin_types=(bytes,))
    assert said == sessions(vault)[session]
    assert said["epoch"] == registry.state.epoch > read_session(opened, session, ()).epoch
    (name,) = (one.name for one in opened.backend.list("pins"))
    assert name.endswith(PIN)
    pin = msgspec.to_builtins(read_pin(opened, name), builtin_types=(bytes,))
    assert pin == pins(vault)[pin["pin"]]
    assert pin["objects"][:29].hex() in FACTS["fold"]["condemned objects"]


@pytest.mark.parametrize("n", range(FACTS["head"]["length"] - 1))
def test_the_second_reader_notices_a_flipped_byte_in_each_entry(folder: Path, n: int) -> None:
    path = folder / f"log/00000000/{n:012d}"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged):
        Log(Vault(folder, KEY.read_bytes()))


@pytest.mark.parametrize("kind", ["sessions", "pins"])
def test_the_second_reader_notices_a_flipped_byte_of_who_is_at_work(folder: Path, kind: str) -> None:
    for path in (folder / kind).iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(Damaged):
        {"sessions": sessions, "pins": pins}[kind](Store(folder, KEY.read_bytes()).vault)


def test_the_second_reader_follows_what_is_written_today(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        make.make_collected_store(tmp_path / name)
    facts = json.loads((tmp_path / "one" / "collected.json").read_text())
    store = Store(tmp_path / "one" / "collected", (tmp_path / "one" / "collected.key").read_bytes())
    assert fold_of(store.log) == facts["fold"]
    tops = [tmp_path / name for name in ("one", "other")]
    files = [{path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()} for top in tops]
    assert files[0] == files[1], "the same bytes each time"
