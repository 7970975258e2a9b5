"""The format document holds: a reader written from it alone opens stores, and both readers notice one flipped byte.

The readers are Cairn itself and `tests/vectors/format/reader*.py`, which import nothing of Cairn.
"""

import ast
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cairn.cli.app import run
from tests.vectors.format import make, make_training
from tests.vectors.format.make_training import place, shown
from tests.vectors.format.reader import Damaged, encode
from tests.vectors.format.reader_log import merkle_root
from tests.vectors.format.reader_tree import Checkpoint, Store

VECTORS = Path(__file__).parents[1] / "vectors" / "format"
GOLDEN = VECTORS / "golden"
KEY = VECTORS / "golden.key"
FACTS: dict[str, Any] = json.loads((VECTORS / "golden.json").read_text())
SELECTORS = list(FACTS["checkpoints"])

# Where fields begin (sections 4 to 13 of the document); negative offsets count from the end. Each gets a flipped bit.
SEALED = (0, 4, 5, 6, 8, 40, 72, -1)
WRAP = (0, 4, 5, 6, 8, 24, 36, -33, -1)
ROOT = (0, 4, 5, 6, 8, 40, 88, -1)
HPKE = (0, 31, 32, -17, -1)
PACK = (0, 4, 7, 8, 9, 10, 11, 12, 16, 48, 60, -1, -8, -12, -16, -17, -40)
JSON_TEXT = (0, 3, 17, 40, 75, -3, -1)
FIELDS = {
    "format": JSON_TEXT, "keys": WRAP, "log": SEALED, "sessions": SEALED,
    "pack": PACK, "index": SEALED, "root": ROOT, "body": SEALED, "reach": SEALED,
    "envelope": HPKE,
}  # fmt: skip


def kind_of(name: str) -> str:
    """What an object is, by its name."""
    return name.rpartition(".")[2] if name.startswith("objects/") else name.split("/")[0]


def defects() -> Iterator[tuple[str, int]]:
    """Object and offset of each flipped bit: all fields of one object a kind, the middle of all others."""
    seen = set()
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file() and path.stat().st_size:
            name = path.relative_to(GOLDEN).as_posix()
            offsets = (path.stat().st_size // 2,) if kind_of(name) in seen else FIELDS[kind_of(name)]
            yield from ((name, offset) for offset in offsets)
            seen.add(kind_of(name))


DEFECTS = list(defects())
DEFECT_IDS = [f"{kind_of(name)}{number}@{offset}" for number, (name, offset) in enumerate(DEFECTS)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the golden store, and a machine that has never seen it. Its cache stays in memory."""
    (tmp_path / "no-cache").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-cache"))
    for variable in ("CAIRN_STORE", "CAIRN_KEY_FILE", "CAIRN_PASSPHRASE"):
        monkeypatch.delenv(variable, raising=False)
    shutil.copytree(GOLDEN, tmp_path / "store")
    return tmp_path / "store"


def cairn(store: Path, *arguments: str, key: Path = KEY) -> int:
    """Exit code of a command."""
    return run(["--store", str(store), "--key-file", str(key), *arguments])


def flip(path: Path, offset: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def read_all(folder: Path, key: Path = KEY) -> dict[str, Any]:
    """Everything in a store by name and ref, or id where no ref leads, by the second reader, as in `golden.json`."""
    store = Store(folder, key.read_bytes())
    head = {"length": len(store.log.leaves), "root": merkle_root(store.log.leaves).hex()}
    if head != FACTS["head"]:
        raise Damaged("another log than the one that was seen before")
    found = {}
    for name, model in store.models().items():
        refs = {checkpoint: ref for ref, checkpoint in store.refs(model).items()}
        for checkpoint in store.log.models[model]["checkpoints"]:
            opened = store.checkpoint(model, checkpoint)
            read = state_of(opened) if opened.values else files_of(opened)
            found[f"{name}@{refs.get(checkpoint, checkpoint.hex())}"] = read
            store.envelope(model, checkpoint)
            assert sorted(opened.used) == opened.reachable, "the reachability list names what the manifest names"
    return found


def files_of(opened: Checkpoint) -> dict[str, list[object]]:
    """Kind, mode, and SHA-256 or target, by path."""
    for tensor in opened.tensors.values():
        opened.tensor(tensor)
    found: dict[str, list[object]] = {}
    for entry in opened.files:
        path, kind, mode = entry["path"], entry["kind"], entry.get("mode", 0o644)
        content = hashlib.sha256(opened.file(path)).hexdigest() if kind == "file" else entry.get("target", b"").decode()
        found[path.decode("latin-1")] = [kind, mode, content]
    return found


def state_of(opened: Checkpoint) -> dict[str, Any]:
    """Form and SHA-256 of tensors, and values as text, by name."""
    tensors, values = opened.state()
    forms = {
        (one["key"]["scope"], *one["key"]["path"]): [one["dtype"], one["shape"]] for one in opened.tensors.values()
    }
    return {
        "tensors": {
            place(scope, path): [*forms[scope, *path], hashlib.sha256(data).hexdigest()]
            for (scope, path), data in tensors.items()
        },
        "values": {place(*key): shown(value) for key, value in values.items()},
    }


def test_the_second_reader_imports_nothing_of_cairn() -> None:
    files = sorted(VECTORS.glob("reader*.py"))
    assert len(files) >= 7
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "cairn"], path


def test_the_second_reader_reads_every_file_of_the_golden_store() -> None:
    found = read_all(GOLDEN)
    runs = [found.pop(f"{make_training.MODEL}@{ref}") for ref in (next(iter(FACTS["runs"])), make_training.BRANCH)]
    assert found == {name: facts["files"] for name, facts in FACTS["checkpoints"].items()}
    assert runs == [{"tensors": facts["tensors"], "values": facts["values"]} for facts in FACTS["runs"].values()]


def test_the_second_reader_extracts_a_file_byte_for_byte(tmp_path: Path) -> None:
    make.make_tree(tmp_path / "tree")
    store = Store(GOLDEN, KEY.read_bytes())
    model = store.models()["golden model"]
    opened = store.checkpoint(model, store.refs(model)["v1"])
    for path in (b"config.json", b"zeros.bin", b"weights/model.safetensors", b"weights/optimizer.pt"):
        assert opened.file(path) == (tmp_path / "tree" / os.fsdecode(path)).read_bytes()


def test_the_second_reader_follows_the_log() -> None:
    store = Store(GOLDEN, KEY.read_bytes())
    assert store.log.void == {5: "its actor is no owner", 15: "another run has taken over its branch"}
    model = store.models()["golden model"]
    assert set(store.refs(model)) == {"main", "v1"}
    facts = [store.message(model, checkpoint) for checkpoint in store.log.models[model]["checkpoints"]]
    assert facts == [{"message": "first", "step": 10}, {"message": "second ☃", "step": None}]


def test_the_golden_store_uses_what_the_document_describes() -> None:
    store = Store(GOLDEN, KEY.read_bytes())
    records = store.log.collection.packs
    packs = [(GOLDEN / f"objects/{r[:16].hex()}/{r[16:28].hex()}.pack").read_bytes() for r in records]
    places = [place for found in store.content.places.values() for place in found]
    headers = {packs[records.index(pack)][at + 1 : at + 3] for pack, at, _ in places}
    assert {header[0] for header in headers} == {1, 2}
    assert {header[1] for header in headers} == {0, 1, 2, 3, 4}
    model = store.models()["golden model"]
    opened = store.checkpoint(model, store.refs(model)["main"])
    fields = {field for tensor in opened.tensors.values() for field in tensor}
    assert fields == {"key", "dtype", "shape", "inline", "tiles", "tile_pages", "tiles_per_page", "tied_to"}
    assert {segment["type"] for file in opened.files for segment in file.get("segments", [])} == {
        "inline", "bytes", "tensor",
    }  # fmt: skip
    assert max(file.get("part", 0) for file in opened.files) > 0


def test_both_readers_open_the_passphrase_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(VECTORS / "passphrase", store.parent / "passphrase")
    assert Store(store.parent / "passphrase", None, make.PASSPHRASE).models() == {}
    with pytest.raises(Damaged):
        Store(store.parent / "passphrase", None, "another")
    for passphrase, code in ((make.PASSPHRASE, 0), ("another", 7)):
        monkeypatch.setenv("CAIRN_PASSPHRASE", passphrase)
        assert run(["--store", str(store.parent / "passphrase"), "ls"]) == code


def test_cairn_verifies_the_golden_store(store: Path) -> None:
    assert cairn(store, "verify", "--full") == 0


@pytest.mark.parametrize("selector", SELECTORS)
def test_cairn_checks_out_the_golden_store(store: Path, selector: str) -> None:
    assert cairn(store, "checkout", selector, str(store.parent / "out")) == 0
    assert make.describe(store.parent / "out") == FACTS["checkpoints"][selector]["files"]


def test_the_second_reader_opens_what_is_written_today(tmp_path: Path) -> None:
    make.make_golden(tmp_path)
    facts = json.loads((tmp_path / "golden.json").read_text())
    store = Store(tmp_path / "golden", (tmp_path / "golden.key").read_bytes())
    assert merkle_root(store.log.leaves).hex() == facts["head"]["root"]
    for selector, expected in facts["checkpoints"].items():
        name, _, ref = selector.rpartition("@")
        model = store.models()[name]
        assert files_of(store.checkpoint(model, store.refs(model)[ref])) == expected["files"]
    model = store.models()[make_training.MODEL]
    for checkpoint, expected in facts["runs"].items():
        assert state_of(store.checkpoint(model, bytes.fromhex(checkpoint))).items() <= expected.items()


@pytest.mark.parametrize(("name", "offset"), DEFECTS, ids=DEFECT_IDS)
def test_cairn_names_a_flipped_byte(store: Path, name: str, offset: int, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / name, offset)
    assert cairn(store, "verify", "--full", "--quiet") == 6
    assert name in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("name", "offset"), DEFECTS, ids=DEFECT_IDS)
def test_cairn_checks_out_nothing_wrong_after_a_flipped_byte(
    store: Path, name: str, offset: int, capsys: pytest.CaptureFixture[str]
) -> None:
    older, selector = SELECTORS[:2]
    flip(store / name, offset)
    code = cairn(store, "checkout", selector, str(store.parent / "out"))
    # Who lost an entry of the log is told so, and gets what the others say: an older checkpoint, or none.
    log_is_damaged = (
        f"warning: log entry {int(name[-12:])} is damaged" in capsys.readouterr().err if "log/" in name else False
    )
    if code == 0:
        found, facts = make.describe(store.parent / "out"), FACTS["checkpoints"]
        assert found == facts[selector]["files"] or (log_is_damaged and found == facts[older]["files"])
    else:
        assert not (store.parent / "out").exists()
        assert code == 6 or (code == 5 and log_is_damaged)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("entry", range(FACTS["head"]["length"]))
def test_a_damaged_log_shows_checkpoints_or_says_that_they_are_not_found(
    store: Path, entry: int, selector: str
) -> None:
    flip(store / f"log/00000000/{entry:012d}", 100)
    assert cairn(store, "checkout", selector, str(store.parent / "out")) in (0, 5, 6)


@pytest.mark.parametrize(("name", "offset"), DEFECTS, ids=DEFECT_IDS)
def test_the_second_reader_notices_a_flipped_byte(store: Path, name: str, offset: int) -> None:
    flip(store / name, offset)
    if name.startswith("sessions/"):
        assert len(read_all(store)) == 5, "readers need no sessions"
        return
    with pytest.raises(Damaged):
        read_all(store)


@pytest.mark.parametrize("offset", JSON_TEXT)
def test_a_flipped_byte_of_the_key_file_is_noticed(store: Path, offset: int) -> None:
    key = store.parent / "some.key"
    shutil.copyfile(KEY, key)
    flip(key, offset)
    assert cairn(store, "ls", key=key) == 6
    with pytest.raises(Damaged):
        read_all(store, key)


@pytest.mark.parametrize("offset", JSON_TEXT)
def test_a_flipped_byte_of_the_root_record_is_noticed(
    store: Path, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.parent / "passphrase"
    shutil.copytree(VECTORS / "passphrase", folder)
    flip(next((folder / "keys/root").iterdir()), offset)
    monkeypatch.setenv("CAIRN_PASSPHRASE", make.PASSPHRASE)
    assert run(["--store", str(folder), "ls"]) == 6
    with pytest.raises(Damaged):
        Store(folder, None, make.PASSPHRASE)


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_a_missing_object_is_damage(store: Path, kind: str) -> None:
    names = [path for path in sorted(store.rglob("*")) if path.is_file() and path.stat().st_size]
    path = next(path for path in names if kind_of(path.relative_to(store).as_posix()) == kind)
    path.unlink()
    if kind != "sessions":
        assert cairn(store, "verify") == 6
        with pytest.raises(Damaged):
            read_all(store)


VALUES = [
    None, True, False, 0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1,
    -1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63), 0.0, 1.5, float("inf"),
    "", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 65536, "é☃", b"", b"x" * 255, b"x" * 256, b"x" * 65536,
    [], [1] * 15, [1] * 16, [[1, "a"], {"b": None}], {}, {"b": 1, "a": 2, "ab": 3, "é": 4, "B": 5},
    {str(i): i for i in range(16)},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_both_encoders_spell_a_value_alike(value: object) -> None:
    from cairn.core.canonical import encode as cairn_encode

    assert encode(value) == cairn_encode(value)
