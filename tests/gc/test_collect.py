"""Collection on a store in memory: what goes, what stays, and who is waited for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cairn.core.errors import ConflictError, NotFoundError, TryAgain
from cairn.core.ids import CheckpointId, ModelId
from cairn.gc.collect import Collected, Collector, Options
from cairn.gc.scrub import verify
from cairn.gc.usage import usage
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.pins import Pin
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.crypto.tenant import ContentType
from tests.support.stores import Site, checkout_to, commit_tree, new_site, tip

MIB = 1 << 20


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path / "home")


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[int], Path]:
    """A folder for a step: two MiB of its own in one file, and two MiB that all steps share in another."""

    def make(step: int) -> Path:
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        (folder / "own").write_bytes(os.urandom(MIB) + step.to_bytes(4, "big") * (MIB // 4))
        (folder / "shared").write_bytes(b"".join(bytes((n, 1)) * (MIB // 4) for n in range(4)))
        return folder

    return make


def commits(site: Site, tree: Callable[[int], Path], *steps: int, model: str = "m") -> list[CheckpointId]:
    registry = site.registry()
    return [commit_tree(registry, tree(step), model, step=step).checkpoint for step in steps]


def delete(registry: Registry, *checkpoints: CheckpointId, drop: bool = True) -> None:
    """Delete checkpoints, for good unless it is said otherwise."""
    model = tip(registry)[0]
    registry.append(lambda state: Tombstone(model, checkpoints, 1 << 62, "test"))
    if drop:
        registry.append(lambda state: Drop(model, checkpoints))


def collect(registry: Registry, **options: Any) -> Collected:
    return Collector(registry, Options(**options)).run()


def assert_whole(site: Site, folder: Path, *steps: int) -> None:
    """All checkpoints can be checked out by a newcomer, and nothing is damaged."""
    registry = site.registry(cold=True)
    report = verify(registry, full=True)
    assert report.ok, report.errors
    for step in steps:
        out = folder / f"out-{step}-{len(os.listdir(folder))}"
        checkout_to(registry, f"m@step:{step}" if step else "m", out)
        assert {p.name: p.read_bytes() for p in out.iterdir()} == {
            p.name: p.read_bytes() for p in (folder / f"step-{step}").iterdir()
        }


def test_nothing_goes_while_all_is_needed(site: Site, tree: Callable[[int], Path]) -> None:
    commits(site, tree, 1, 2)
    before = site.names()
    done = collect(site.registry())
    assert (done.rounds, done.objects_deleted) == (0, 0)
    assert site.names() == before


def test_what_only_a_deleted_checkpoint_needed_goes(site: Site, tree: Callable[[int], Path], tmp_path: Path) -> None:
    first, second, _ = commits(site, tree, 1, 2, 3)
    registry = site.registry()
    delete(registry, first, second)
    done = collect(registry)
    assert done.objects_deleted > 0 and done.rounds > 0
    used = usage(site.registry(cold=True))
    assert used.leftover_objects == 0 and used.bytes_unreferenced <= 0.06 * used.bytes_packs
    assert_whole(site, tmp_path, 3)
    fresh = new_site(tmp_path / "fresh")
    commit_tree(fresh.registry(), tmp_path / "step-3", "m", step=3)
    sizes = [sum(one.size for one in where.backend.list("objects")) for where in (site, fresh)]
    assert sizes[0] <= 1.1 * sizes[1]
    again = collect(site.registry())
    assert (again.rounds, again.objects_deleted) == (0, 0)


def test_a_collector_needs_no_key_of_a_model(site: Site, tree: Callable[[int], Path], tmp_path: Path) -> None:
    first, _ = commits(site, tree, 1, 2)
    delete(site.registry(), first)
    wraps = {one.name: site.backend.read(one.name) for one in site.backend.list("keys/model")}
    assert wraps
    for name in wraps:
        site.backend.delete(name)
    done = collect(site.registry(cold=True))
    assert done.objects_deleted > 0 and done.bytes_copied > 0, "it also repacks"
    for name, data in wraps.items():
        site.backend.create(name, [data])
    assert_whole(site, tmp_path, 2)


def test_a_deleted_checkpoint_that_can_be_restored_stays_whole(
    site: Site, tree: Callable[[int], Path], tmp_path: Path
) -> None:
    first, _ = commits(site, tree, 1, 2)
    registry = site.registry()
    delete(registry, first, drop=False)
    assert collect(registry).objects_deleted == 0
    model = tip(registry)[0]
    registry.append(lambda state: Restore(model, (first,)))
    assert_whole(site, tmp_path, 1, 2)


def test_leftovers_of_a_dead_writer_go_and_those_of_a_live_one_stay(
    site: Site, tree: Callable[[int], Path], tmp_path: Path
) -> None:
    commits(site, tree, 1)
    registry = site.registry()
    session = Session(registry)
    with session.save().writer() as writer:
        writer.put(ContentType.CHUNK, os.urandom(MIB))
    before = site.names("pack")
    assert collect(registry).objects_deleted == 0
    assert site.names("pack") == before
    session.abandon()
    done = Collector(registry, Options(dead=(session.id,))).run()
    assert done.sessions_ended == 1 and done.objects_deleted == 1
    assert len(site.names("pack")) == len(before) - 1 and not site.backend.folders("sessions")
    assert not list(site.backend.list("sessions"))
    assert_whole(site, tmp_path, 1)


def test_a_session_that_is_silent_too_long_is_given_up(site: Site, tree: Callable[[int], Path]) -> None:
    commits(site, tree, 1)
    registry = site.registry()
    session = Session(registry)
    session.ensure_open()
    session.abandon()
    assert collect(registry).sessions_ended == 0
    collector = Collector(registry)
    collector.plan()
    site.clock.sleep(registry.state.silence_seconds)
    assert collector.run().sessions_ended == 1


def test_an_older_session_is_waited_for(site: Site, tree: Callable[[int], Path]) -> None:
    first, _ = commits(site, tree, 1, 2)
    registry = site.registry()
    delete(registry, first)
    session = Session(registry)
    session.ensure_open()
    before = len(site.names("pack"))
    with pytest.raises(TryAgain, match="still lives"):
        collect(registry, wait_seconds=1.0)
    assert registry.state.condemned and len(site.names("pack")) >= before
    session.end()
    assert collect(registry).objects_deleted > 0


def test_a_session_that_advances_is_not_waited_for(site: Site, tree: Callable[[int], Path], tmp_path: Path) -> None:
    first, _ = commits(site, tree, 1, 2)
    registry = site.registry()
    delete(registry, first)
    writer = Session(site.registry())
    writer.ensure_open()
    with pytest.raises(TryAgain):
        collect(registry, wait_seconds=0.0)
    writer._beat()
    # Copying would be another round, for which the writer would have to beat again.
    assert collect(registry, unused=1.0).objects_deleted > 0
    assert writer.settle()[0] == registry.state.epoch
    writer.end()
    assert not list(site.backend.list("sessions"))
    assert_whole(site, tmp_path, 2)


def test_a_writer_takes_back_what_it_relies_on(site: Site, tree: Callable[[int], Path], tmp_path: Path) -> None:
    """A save that shares content with a deleted checkpoint begins before the collection and commits amid it."""
    (first, _), folder = commits(site, tree, 1, 2), tmp_path / "step-1"
    registry = site.registry()
    delete(registry, first)
    writing = site.registry()
    session = Session(writing)
    save = session.save()
    session.ensure_open()
    own = (folder / "own").read_bytes()[:MIB]
    with save.writer() as writer:
        writer.put(ContentType.CHUNK, own)
    assert save.written.relied and not save.written.packs
    for _ in range(2):  # first what nobody needs, then what is to be written anew
        with pytest.raises(TryAgain):
            collect(registry, wait_seconds=0.0)
    relied = set(save.written.relied)
    assert relied <= set(registry.state.condemned)
    assert session.settle()[0] < registry.state.epoch, "it does not advance over what is condemned"
    session.end()
    again = commit_tree(writing, folder, "m", step=1)
    collect(registry)
    assert again.created
    assert_whole(site, tmp_path, 1, 2)


def test_a_session_given_up_wrongly_costs_a_retry(site: Site, tree: Callable[[int], Path]) -> None:
    first, _ = commits(site, tree, 1, 2)
    registry = site.registry()
    delete(registry, first)
    late = Session(site.registry())
    save = late.save()
    with save.writer() as writer:
        writer.put(ContentType.CHUNK, os.urandom(MIB))
    Collector(registry, Options(dead=(late.id,))).run()
    assert save.written.packs[0].name not in site.names("pack")
    with pytest.raises(ConflictError, match="given up"):
        late.settle()
    late.end()


def test_a_pin_defers_what_its_reader_reads(site: Site, tree: Callable[[int], Path], tmp_path: Path) -> None:
    first, _ = commits(site, tree, 1, 2)
    registry, reading = site.registry(), site.registry()
    model = tip(reading)[0]
    pin = Pin(reading, model, first)
    assert pin.held
    delete(registry, first)
    done = collect(registry)
    assert done.objects_deferred > 0
    state = reading.state.models[model].checkpoints[first]
    assert state.body.object_name("body") in site.names("body")
    stale = reading.chunks()
    for identifier in _ids(reading, first):
        assert any(stale.index.pack(at.pack).name in site.names("pack") for at in stale.index.locations(identifier))
    pin.release()
    assert collect(registry).objects_deleted > 0
    assert not list(site.backend.list("pins"))
    assert_whole(site, tmp_path, 2)


def test_a_reader_that_comes_too_late_is_told(site: Site, tree: Callable[[int], Path]) -> None:
    first, _ = commits(site, tree, 1, 2)
    stale, registry = site.registry(), site.registry()
    delete(registry, first)
    with pytest.raises(NotFoundError):
        Pin(stale, tip(stale)[0], first)
    assert not list(site.backend.list("pins"))


def test_two_collectors_beside_each_other(site: Site, tree: Callable[[int], Path], tmp_path: Path) -> None:
    first, second, _ = commits(site, tree, 1, 2, 3)
    one, other = site.registry(), site.registry()
    delete(one, first)
    planned, marked = Collector(other)._observe_and_plan()
    collect(one)
    assert not Collector(other)._condemn(planned, marked), "what lies where has changed"
    delete(one, second)
    assert collect(other).objects_deleted > 0
    assert collect(one).objects_deleted == 0
    assert_whole(site, tmp_path, 3)


def test_a_commit_between_marking_and_condemning_keeps_what_it_needs(
    site: Site, tree: Callable[[int], Path], tmp_path: Path
) -> None:
    first, _ = commits(site, tree, 1, 2)
    registry = site.registry()
    delete(registry, first)
    collector = Collector(registry)
    plan, marked = collector._observe_and_plan()
    assert plan.dead or plan.repacked
    again = commit_tree(site.registry(), tmp_path / "step-1", "m", step=1)
    assert again.created and again.counts.bytes_new < MIB
    assert collector._condemn(plan, marked)
    collect(registry)
    assert_whole(site, tmp_path, 1, 2)


def _ids(registry: Registry, checkpoint: CheckpointId) -> list[object]:
    from cairn.registry.reachability import read_reachability

    model = tip(registry)[0]
    return list(read_reachability(registry.opened, registry.state.models[ModelId(model)].checkpoints[checkpoint]))
