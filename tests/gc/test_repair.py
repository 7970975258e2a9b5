"""Repair: each kind of damage is mended from wherever there is a whole copy, and what has none stays named."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cairn.core.errors import CairnError
from cairn.gc.collect import Collector
from cairn.gc.depth import FULL, QUICK, Depth
from cairn.gc.repair import Repair, RepairReport
from cairn.gc.scrub import verify
from cairn.registry.delivery import Selection
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.registry import Registry
from cairn.registry.sync import SendOptions, send
from cairn.store.backends.faults import Crash, FaultyBackend, Stopped
from cairn.store.crypto.components import ComponentClass
from tests.support.stores import Site, checkout_to, commit_tree
from tests.support.trees import snapshot
from tests.support.twins import pair, short_packs, tree

__all__ = ["short_packs", "tree"]
KINDS = (".pack", ".index", ".body", ".root", ".reach", ".envelope")


def lost(data: bytes) -> bytes | None:
    return None


def changed(data: bytes) -> bytes | None:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def cut(data: bytes) -> bytes | None:
    return data[: len(data) // 2]


def harm(site: Site, names: list[str], by: Callable[[bytes], bytes | None]) -> None:
    for name in names:
        data = by(site.backend.read(name))
        site.backend.delete(name)
        if data is not None:
            site.backend.create(name, [data])


def repair(site: Site, *remotes: Site, depth: Depth = FULL) -> RepairReport:
    return Repair(site.registry(), {f"r{n}": one.registry() for n, one in enumerate(remotes)}, depth).run()


@pytest.fixture
def sites(tmp_path: Path, tree: Path) -> tuple[Site, Site]:
    """A store with two checkpoints, and a remote that has both."""
    here, there = pair(tmp_path)
    commit_tree(here.registry(), tree, step=1)
    (tree / "more").write_bytes(random.Random(5).randbytes(150_000))
    commit_tree(here.registry(), tree, step=2)
    send(here.registry(), there.registry(), "m", SendOptions())
    send(here.registry(), there.registry(), "m@step:1", SendOptions(to="old"))
    return here, there


def assert_whole(site: Site, tree: Path, room: Path) -> None:
    registry = site.registry(cold=True)
    report = verify(registry, full=True)
    assert report.ok and not report.superseded, (report.errors, report.superseded)
    checkout_to(registry, "m", room)
    assert snapshot(room) == snapshot(tree)


@pytest.mark.parametrize("by", [lost, changed, cut])
@pytest.mark.parametrize("ending", KINDS[:5])
def test_all_of_a_kind_is_mended_from_a_remote(
    sites: tuple[Site, Site], tree: Path, tmp_path: Path, ending: str, by: Callable[[bytes], bytes | None]
) -> None:
    here, there = sites
    harm(here, here.names(ending), by)
    done = repair(here, there)
    assert not done.before.ok and done.after.ok, done.after.errors
    named = {one.object for one in done.mended}
    assert named and all(name == "" or name.endswith(ending) for name in named)
    # Elsewhere, and with another cache, all is whole, and collection takes what is damaged.
    collected = Collector(here.registry(cold=True)).run()
    assert collected.objects_deleted or by is lost
    assert_whole(here, tree, tmp_path / "out")


def test_everything_at_once_is_mended_from_a_remote(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, there = sites
    for ending, by in zip(KINDS, (lost, changed, changed, lost, cut, lost), strict=True):
        harm(here, here.names(ending), by)
    done = repair(here, there)
    assert done.after.ok, done.after.errors
    Collector(here.registry(cold=True)).run()
    assert_whole(here, tree, tmp_path / "out")


@pytest.mark.parametrize("by", [lost, changed, cut])
def test_index_and_lists_are_made_anew_without_a_remote(
    sites: tuple[Site, Site], tree: Path, tmp_path: Path, by: Callable[[bytes], bytes | None]
) -> None:
    here, _ = sites
    harm(here, [*here.names(".index"), *here.names(".reach")], by)
    done = repair(here, depth=QUICK)
    assert done.after.ok, done.after.errors
    assert {one.source for one in done.mended} == {"the manifest", "the footers of its packs"}
    Collector(here.registry(cold=True)).run()
    assert_whole(here, tree, tmp_path / "out")


def test_a_pack_with_a_damaged_end_is_copied_and_goes(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, _ = sites
    names = here.names(".pack")
    harm(here, names, lambda data: data[:-3] + b"\0\0\0")
    done = repair(here)
    assert done.after.ok and done.after.superseded, done.after.errors
    Collector(here.registry(cold=True)).run()
    assert not set(names) & set(here.names(".pack"))
    assert_whole(here, tree, tmp_path / "out")


def test_a_good_copy_that_is_older_than_a_damaged_one_is_not_left_to_chance(
    sites: tuple[Site, Site], tree: Path, tmp_path: Path
) -> None:
    here, _ = sites
    names = here.names(".pack")
    whole = {name: here.backend.read(name) for name in names}
    harm(here, names, lost)
    commit_tree(here.registry(), tree, step=3, always=True)
    newer = [name for name in here.names(".pack") if name not in names]
    for name, data in whole.items():
        here.backend.create(name, [data])
    harm(here, newer, changed)
    # Nothing is lost; but a collector on another machine, which keeps what was stored last, would lose it.
    report = verify(here.registry(cold=True), full=True)
    assert not report.ok
    assert all("another copy serves, so nothing is lost" in one.what for one in report.errors if one.checkpoint)
    done = repair(here)
    assert done.after.ok and {one.source for one in done.mended} == {"this store"}
    Collector(here.registry(cold=True)).run()
    assert_whole(here, tree, tmp_path / "out")


def test_what_has_no_copy_stays_named_and_what_has_one_is_mended(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    registry = there.registry()
    harm(here, here.names(".pack"), lost)
    harm(there, [max(there.names(".pack"), key=there.backend.size)], lost)
    done = repair(here, there)
    assert done.mended and not done.after.ok
    assert len(done.after.whole) < 2
    again = Repair(here.registry(), {"r": registry}, FULL).run()
    assert not again.mended, "there is nothing left to mend"


def test_a_partial_checkpoint_is_mended_in_part(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    registry = here.registry()
    (tree / "again").write_bytes(b"x" * 9000)
    commit_tree(there.registry(), tree, step=9)
    only = SendOptions(selection=Selection(frozenset({ComponentClass.FILES})))
    send(there.registry(), registry, "m", only)
    held = registry.state
    partial = [one for model in held.models.values() for one in model.checkpoints.values() if one.partial]
    assert partial
    harm(here, [partial[0].reachability.object_name("reach")], lost)
    done = repair(here, there)
    assert done.after.ok, done.after.errors


def test_what_can_be_restored_is_looked_after_until_it_is_dropped(sites: tuple[Site, Site], tree: Path) -> None:
    here, _ = sites
    before = set(here.names(".pack"))
    (tree / "more").write_bytes(random.Random(6).randbytes(150_000))
    gone = commit_tree(here.registry(), tree, step=3)
    fresh = sorted(set(here.names(".pack")) - before, key=here.backend.size)
    (tree / "more").write_bytes(random.Random(7).randbytes(150_000))
    commit_tree(here.registry(), tree, step=4)
    registry = here.registry()
    registry.append(lambda state: Tombstone(gone.model, (gone.checkpoint,), 0, "test"))
    # Of a pack with a damaged end, all chunks can still be copied.
    harm(here, fresh[-1:], lambda data: data[:-3] + b"\0\0\0")
    report = verify(here.registry(), full=True)
    assert not report.ok and {one.object for one in report.errors} == {fresh[-1]}
    done = repair(here)
    assert done.after.ok and {one.object for one in done.after.superseded} == {fresh[-1]}
    harm(here, [name for name in here.names(".pack") if name not in {*before, *fresh}][-1:], lost)
    reach = registry.state.models[gone.model].gone[gone.checkpoint].checkpoint
    assert reach is not None
    harm(here, [reach.reachability.object_name("reach")], changed)
    report = verify(here.registry(), full=True)
    assert gone.checkpoint.hex() in {one.checkpoint for one in report.errors}
    registry.append(lambda state: Drop(gone.model, (gone.checkpoint,)))
    report = verify(here.registry(), full=True)
    assert gone.checkpoint.hex() not in {one.checkpoint for one in report.errors}


def test_it_can_be_stopped_anywhere_and_run_again(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, there = sites
    harm(here, [*here.names(".pack"), *here.names(".body"), *here.names(".index")], lost)
    for call in range(1, 200):
        faulty = FaultyBackend(here.backend, [Crash(op="create", call=call)])
        try:
            done = Repair(here.registry(faulty), {"r": there.registry()}, FULL).run()
        except Stopped:
            continue
        break
    assert done.after.ok and call > 3
    assert_readable(here.registry(cold=True), tree, tmp_path / "out")


def assert_readable(registry: Registry, tree: Path, room: Path) -> None:
    report = verify(registry, full=True)
    assert report.ok, report.errors
    checkout_to(registry, "m", room)
    assert snapshot(room) == snapshot(tree)


def test_a_damaged_log_forbids_it(sites: tuple[Site, Site]) -> None:
    here, there = sites
    harm(here, here.log()[2:3], changed)
    harm(here, here.names(".reach"), lost)
    with pytest.raises(CairnError, match="log entry 2 is damaged"):
        Repair(here.registry(cold=True), {"r": there.registry()}, FULL).run()
