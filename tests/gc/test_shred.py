"""Destroying the keys of deleted models: what it takes away, what it leaves, and what keeps it from happening."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from cairn.core.errors import CairnError, ConflictError, GoneError, IntegrityError, ObjectExists, RefusedError
from cairn.core.ids import CheckpointId, ContentId, ModelId
from cairn.gc.collect import Collector, Options
from cairn.gc.doctor import examine
from cairn.gc.due import due_to_shred, to_destroy
from cairn.gc.operator import quarantine
from cairn.gc.plan import shredded_packs
from cairn.gc.scrub import verify
from cairn.gc.shred import shred_due
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.contents import Named, contents
from cairn.registry.deletion import restore, tombstone
from cairn.registry.holding import add_hold, lift_hold
from cairn.registry.modeldeletion import delete_model, restore_model
from cairn.registry.models import find_model
from cairn.registry.opened import KeySource
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.retaining import retain
from cairn.registry.retention import Retention
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_root
from cairn.registry.state import Model, name_of_key, objects_of
from cairn.store.backends.faults import Crash, FaultyBackend, Stopped
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto import keyfile
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.provider import RootKey, WrapContext, WrapPurpose
from cairn.store.crypto.sealed_wrap import unwrap_as
from tests.support.members import give, join
from tests.support.rivals import interleaved
from tests.support.stores import Site, checkout_to, commit_tree, copied, home_in, new_site, tip
from tests.support.trees import snapshot, write_files


def no_passphrase() -> None:
    """Of a store with key files."""


@dataclass
class Two:
    """Models `a` (two checkpoints) and `b`, which shares the file `both` with it, and what else there was before."""

    site: Site
    folder: Path

    def __post_init__(self) -> None:
        self.registry = self.site.registry()
        for step in (1, 2):
            commit_tree(self.registry, self.tree("a", step), "a", step=step)
        commit_tree(self.registry, self.tree("b", 1), "b", step=1)
        self.a, self.b = find_model(self.registry, "a"), find_model(self.registry, "b")

    def tree(self, model: str, step: int) -> Path:
        own = Random(f"{model}{step}").randbytes(300_000)
        return write_files(self.folder / f"{model}{step}", {"both": Random(0).randbytes(400_000), "own": own})

    def delete(self, grace: float = 0.0) -> None:
        delete_model(self.registry, self.a, "deleted", grace)

    def alone(self) -> set[ContentId]:
        """Ids that only `a` needs."""
        found = {}
        for model in (self.a, self.b):
            states = self.registry.state.models[model].checkpoints.values()
            found[model] = {one for state in states for one in read_reachability(self.registry.opened, state)}
        return found[self.a] - found[self.b]


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(new_site(tmp_path / "home"), tmp_path)


def sealed_chunks(registry: Registry, ids: set[ContentId]) -> list[bytes]:
    """Their ciphertext."""
    index, found = registry.index(), []
    for one in ids:
        for at in index.locations(one):
            found.append(registry.opened.backend.read(registry.state.pack(at.pack).name, at.offset, at.length))
    return found


def holds_any(backend: MemoryBackend, pieces: list[bytes]) -> bool:
    everything = [backend.read(listed.name) for listed in backend.list()]
    return any(piece in data for piece in pieces for data in everything)


# --- what is taken away -----------------------------------------------------------------------------


def test_with_its_keys_a_model_is_gone_and_what_others_share_stays(two: Two, tmp_path: Path) -> None:
    alone = two.alone()
    pieces = sealed_chunks(two.registry, alone)
    assert alone and holds_any(two.site.backend, pieces)
    two.delete()
    done = shred_due(two.registry, no_passphrase)
    assert done is not None and done.models == (two.a,)
    with pytest.raises(GoneError, match="its keys are destroyed and it cannot be restored"):
        find_model(two.registry, "a")
    with pytest.raises(GoneError):
        two.registry.model_keys(two.a)
    Collector(two.registry).run()
    assert not holds_any(two.site.backend, pieces)
    for registry in (two.registry, two.site.registry(), two.site.registry(cold=True)):
        checkout_to(registry, "b", tmp_path / "out" / str(id(registry)))
        assert snapshot(tmp_path / "out" / str(id(registry))) == snapshot(two.folder / "b1")
        assert verify(registry, full=True).ok


class Thief:
    """Has all objects of a store as it was, but for some keys; all keys that are left; and our own internals."""

    def __init__(self, two: Two, objects: MemoryBackend, remembered: Model, tmp_path: Path) -> None:
        home = home_in(tmp_path / "thief")
        if not home.data.exists():
            shutil.copytree(two.site.home.data, home.data)
            shutil.copytree(two.site.home.state, home.state, ignore=lambda folder, names: {"heads"} & set(names))
        self.registry = replace(two.site, home=home, backend=objects).registry(cold=True)
        # He remembers what the log said of the model, and cares for no entry that says otherwise.
        self.registry.state.deleted.pop(two.a, None)
        self.registry.state.models.setdefault(two.a, remembered)
        self._model, self._place = two.a, tmp_path / "stolen"

    def ways(self, alone: set[ContentId]) -> set[str]:
        """Which ways lead to what is the model's alone."""
        tried = {"checkout": self._checkout, "wraps": self._wraps, "digests": partial(self._digests, alone)}
        found = set()
        for name, way in tried.items():
            with suppress(CairnError):
                found |= {name} if way() else set()
        return found

    def _checkout(self) -> bool:
        checkout_to(self.registry, "a", self._place)
        return True

    def _wraps(self) -> bool:
        """Whether any object that holds keys opens as one of the model's."""
        opened = self.registry.opened
        root = opened.root
        assert isinstance(root, RootKey)
        return any(
            self._opens(lambda wrapped, where: root.unwrap(wrapped, where, ""), name)
            or self._opens(lambda wrapped, where: unwrap_as(opened.identity, wrapped, where, ""), name)
            for name in (listed.name for listed in opened.backend.list("keys"))
        )

    def _opens(self, unwrap: Callable[[bytes, WrapContext], bytes], name: str) -> bool:
        for purpose in (WrapPurpose.MODEL_KEYS, WrapPurpose.GRANTED_KEYS):
            with suppress(CairnError):
                where = WrapContext(self.registry.opened.store, purpose, self._model)
                return bool(unwrap(self.registry.opened.backend.read(name), where))
        return False

    def _digests(self, alone: set[ContentId]) -> bool:
        """Whether a digest that some manifest tells opens a chunk of the model's alone."""
        keys, chunks = self.registry.opened.keys, self.registry.chunks()
        for kind, digest in self._told():
            if keys.of(kind).content_id(digest) in alone:
                return bool(chunks.read(kind, digest))
        return False

    def _told(self) -> Iterator[Named]:
        for identifier, model in self.registry.state.kept_models().items():
            for checkpoint in model.checkpoints:
                with suppress(CairnError):
                    manifest = CheckpointManifest(self.registry, ModelId(identifier), CheckpointId(checkpoint))
                    for component in manifest.components:
                        yield from contents(manifest, component)


def test_who_kept_all_objects_and_has_all_keys_that_are_left_reads_none_of_it(two: Two, tmp_path: Path) -> None:
    alone, before = two.alone(), copied(two.site.backend)
    every_way = {"checkout", "wraps", "digests"}
    remembered = two.registry.state.copy().models[two.a]
    assert Thief(two, copied(before), remembered, tmp_path / "control").ways(alone) == every_way
    two.delete()
    shred_due(two.registry, no_passphrase)
    for listed in list(before.list("keys")):
        before.delete(listed.name)
    for listed in [*two.site.backend.list("keys"), *two.site.backend.list("log")]:
        with suppress(ObjectExists):
            before.create(listed.name, [two.site.backend.read(listed.name)])
    thief = Thief(two, before, remembered, tmp_path / "after")
    assert sealed_chunks(thief.registry, alone), "what he lacks is keys"
    assert thief.ways(alone) == set()
    checkout_to(thief.registry, "b", tmp_path / "b")
    assert snapshot(tmp_path / "b") == snapshot(two.folder / "b1")


def test_old_key_files_and_old_wraps_go_from_where_they_were_kept(two: Two) -> None:
    path = two.site.home.key_file(two.registry.opened.store)
    rotate_root(two.registry)
    assert path.with_name(f"{path.name}.0").exists()
    two.delete()
    done = shred_due(two.registry, no_passphrase)
    assert done is not None and done.key_file == path
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    kept = {wrap for model in two.registry.state.kept_models().values() for wrap in (model.wrap,)}
    names = two.site.names()
    assert {name for name in names if name.startswith("keys/model/")} == kept
    assert len([name for name in names if name.startswith("keys/store/")]) == 1


def test_a_passphrase_goes_on_and_the_old_record_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfile, "_MEMORY_KIB", 64)
    two = Two(new_site(tmp_path / "home", passphrase="one"), tmp_path)
    two.delete()
    done = shred_due(two.registry, lambda: "two")
    assert done is not None and done.key_file is None
    assert len([name for name in two.site.names() if name.startswith("keys/root/")]) == 1
    changed = replace(two.site, source=KeySource(passphrase="two"))
    checkout_to(changed.registry(cold=True), "b", tmp_path / "out")


def test_members_who_could_read_it_find_nothing_to_read_it_with(two: Two, tmp_path: Path) -> None:
    reader, owner = join(two.site, "reader", Role.READER), join(two.site, "owner", Role.OWNER)
    for name in ("a", "b"):
        give(two.site, reader, name, ComponentClass.FILES)
    two.registry.refresh()
    two.delete()
    assert [one.name for one in two.site.backend.list("keys/grant")] != []
    shred_due(two.registry, no_passphrase)
    assert {one.name for one in two.site.backend.list("keys/grant")} == set(
        two.registry.state.models[two.b].readers.values()
    )
    for number, member in enumerate((reader, owner)):
        registry = member.registry(cold=True)
        with pytest.raises(GoneError):
            checkout_to(registry, "a", tmp_path / "no")
        checkout_to(registry, "b", tmp_path / f"b-{number}")


# --- how much stays, and when -----------------------------------------------------------------------


def test_packs_of_it_go_however_little_of_them_was_its_own(two: Two) -> None:
    """A chunk that others need is copied out of them."""
    pieces = sealed_chunks(two.registry, two.alone())
    two.delete()
    shred_due(two.registry, no_passphrase)
    assert shredded_packs(two.registry.state)
    Collector(two.registry, Options(unused=1.0)).run()
    assert not shredded_packs(two.registry.state) and not holds_any(two.site.backend, pieces)
    assert verify(two.site.registry(), full=True).ok


def test_until_then_all_of_it_can_be_restored(two: Two, tmp_path: Path) -> None:
    names = set(two.site.names(".pack"))
    two.delete(grace=60.0)
    two.site.clock.sleep(59.0)
    assert due_to_shred(two.registry) == [] and shred_due(two.registry, no_passphrase) is None
    Collector(two.registry).run()
    assert set(two.site.names(".pack")) == names
    assert verify(two.site.registry(), full=True).ok
    assert restore_model(two.registry, two.a) and not restore_model(two.registry, two.a)
    checkout_to(two.site.registry(), "a@step:1", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(two.folder / "a1")
    two.delete(grace=60.0)
    two.site.clock.sleep(61.0)
    assert due_to_shred(two.registry) == [two.a]


def test_a_commit_that_comes_to_share_a_chunk_meanwhile_is_whole(two: Two, tmp_path: Path) -> None:
    """Between the accounts and the entry, another model takes up what was the first one's alone."""
    two.delete()
    taken = write_files(tmp_path / "taken", {"own": (two.folder / "a1" / "own").read_bytes()})
    before = two.site.registry()

    def meanwhile() -> None:
        commit_tree(before, taken, "c")

    registry = two.site.registry(interleaved(two.site.backend, meanwhile, op="create", name="log/*"))
    shred_due(registry, no_passphrase)
    Collector(two.site.registry()).run()
    checkout_to(two.site.registry(cold=True), "c", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(taken)
    assert verify(two.site.registry(), full=True).ok


def test_a_model_that_is_made_meanwhile_keeps_its_keys(two: Two, tmp_path: Path) -> None:
    """Its wraps lie there before an entry names them."""
    two.delete()
    maker = two.site.registry()
    tree = write_files(tmp_path / "new", {"f": b"new"})
    others = partial(shred_due, two.registry, no_passphrase)
    slow = two.site.registry(interleaved(two.site.backend, others, op="create", name="log/*"))
    with suppress(CairnError):
        commit_tree(slow, tree, "new")
    assert maker.refresh().deleted[two.a].destroyed_n is not None
    late = two.site.registry(cold=True)
    for model in late.state.models:
        assert late.model_keys(ModelId(model)).all()
    assert verify(late, full=True).ok


# --- holds ------------------------------------------------------------------------------------------


def test_a_hold_stands_in_the_way_of_every_path(two: Two, tmp_path: Path) -> None:
    checkpoint = tip(two.registry, "a@step:1")[1]
    before = set(two.site.names())
    hold = add_hold(two.registry, two.a, checkpoint, "case 17")
    with pytest.raises(RefusedError, match="hold"):
        two.delete()
    with pytest.raises(RefusedError, match="hold"):
        tombstone(two.registry, two.a, [checkpoint], "deleted", 0.0)
    retain(two.registry, two.a, "main", Retention(last=1))
    lift_hold(two.registry, hold)
    two.delete()
    add_hold(two.registry, two.a, None, "case 18")
    assert due_to_shred(two.registry) == [] and shred_due(two.registry, no_passphrase) is None
    rotate_root(two.registry)
    Collector(two.registry, Options(unused=0.0)).run()
    assert {name for name in before if name.endswith(".pack")} <= set(two.site.names())
    restore_model(two.registry, two.a)
    checkout_to(two.site.registry(cold=True), "a@step:1", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(two.folder / "a1")


def test_a_tombstoned_checkpoint_that_is_held_is_not_dropped(two: Two, tmp_path: Path) -> None:
    checkpoint = tip(two.registry, "a@step:1")[1]
    tombstone(two.registry, two.a, [checkpoint], "deleted", 0.0)
    hold = add_hold(two.registry, two.a, checkpoint, "case 19")
    Collector(two.registry, Options(unused=0.0)).run()
    restore(two.registry, two.a, [checkpoint])
    checkout_to(two.site.registry(), f"a@{checkpoint.hex()}", tmp_path / "out")
    lift_hold(two.registry, hold)
    tombstone(two.registry, two.a, [checkpoint], "deleted", 0.0)
    Collector(two.registry, Options(unused=0.0)).run()
    with pytest.raises(GoneError):
        restore(two.registry, two.a, [checkpoint])


def test_the_damaged_list_of_what_is_held_stops_collection(two: Two) -> None:
    """What it needs cannot be told, and must not go."""
    state = two.registry.state.models[two.a].checkpoints[tip(two.registry, "a@step:1")[1]]
    name = state.reachability.object_name("reach")
    two.site.backend.delete(name)
    two.site.backend.create(name, [b"torn"])
    checkpoint = tip(two.registry, "a@step:1")[1]
    hold = add_hold(two.registry, two.a, None, "case 20")
    with pytest.raises(ConflictError, match="a hold keeps it"):
        quarantine(two.registry, two.a, checkpoint)
    lift_hold(two.registry, hold)
    quarantine(two.registry, two.a, checkpoint)
    Collector(two.registry).plan()
    add_hold(two.registry, two.a, checkpoint, "case 21")
    with pytest.raises(IntegrityError, match="cannot be marked"):
        Collector(two.registry).plan()


def test_a_shred_that_is_not_done_yet_is_known(two: Two) -> None:
    two.delete()
    stopped = two.site.registry(FaultyBackend(two.site.backend, [Crash(op="create", call=2)]))
    with pytest.raises(Stopped):
        shred_due(stopped, no_passphrase)
    assert to_destroy(two.registry.refresh()) == [two.a]
    with pytest.raises(GoneError):
        restore_model(two.registry, two.a)
    shred_due(two.registry, no_passphrase)
    assert to_destroy(two.registry.state) == []


def test_the_doctor_tells_what_waits_for_an_owner(two: Two) -> None:
    def said(topic: str) -> list[str]:
        return [one.text for one in examine(two.registry) if one.topic == topic]

    add_hold(two.registry, two.b, None, "case 22")
    assert said("holds") == ["1 hold of 1 model: 'cairn hold list'"] and said("deleted") == []
    two.delete()
    assert "can be restored until an owner collects" in said("deleted")[0]
    stopped = two.site.registry(FaultyBackend(two.site.backend, [Crash(op="create", call=2)]))
    with pytest.raises(Stopped):
        shred_due(stopped, no_passphrase)
    assert "were to be destroyed, and may still be there" in said("deleted")[0]
    shred_due(two.registry, no_passphrase)
    assert said("deleted") == []


def test_objects_of_its_own_are_collected(two: Two) -> None:
    own = {name_of_key(key) for one in two.registry.state.models[two.a].checkpoints.values() for key in objects_of(one)}
    assert own <= set(two.site.names())
    two.delete()
    shred_due(two.registry, no_passphrase)
    Collector(two.registry).run()
    assert not own & set(two.site.names())
