"""How much a scrub reads, in which order, and how it goes on where it was stopped; beside a collector too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cairn.core.clock import Clock
from cairn.core.ids import CheckpointId, ContentId
from cairn.gc.collect import Collector
from cairn.gc.depth import FULL, Depth
from cairn.gc.record import record
from cairn.gc.report import VerifyReport
from cairn.gc.scrub import verify
from cairn.gc.scrub_memory import ScrubMemory
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.fold import TAG
from cairn.registry.models import move_ref
from cairn.registry.registry import Registry
from cairn.store.backends.contract import Listed
from cairn.store.backends.faults import Crash, FaultyBackend, Stopped
from cairn.store.index import Location
from tests.support.stores import Site, commit_tree, tip
from tests.support.twins import short_packs, tree

__all__ = ["short_packs", "tree"]
DAY = 86400.0


@pytest.fixture
def packs(site: Site, tree: Path) -> dict[str, str]:
    """Names of packs by what only needs them: `oldest`, `tagged`, `older`, `tip`."""
    found, model = {}, None
    for step, name in enumerate(("oldest", "tagged", "older", "tip"), 1):
        before = set(site.names(".pack"))
        (tree / "own").write_bytes(name.encode() * 20_000)
        made = commit_tree(site.registry(), tree, step=step)
        model = made.model
        if name == "tagged":
            move_ref(site.registry(), model, "v1", TAG, None, made.checkpoint)
        fresh = sorted(set(site.names(".pack")) - before, key=site.backend.size)
        found[name] = fresh[-1]
    assert model is not None
    # The content of all steps but `own` came with the first.
    registry = site.registry()
    first = [registry.state.pack(n).name for n in range(registry.state.pack_count)]
    own = next(name for name in first if site.backend.size(name) > 60_000 and name not in found.values())
    found["shared"] = own
    return found


def reads(backend: FaultyBackend) -> list[str]:
    return [call.name for call in backend.calls if call.op == "read_into"]


def memory_of(site: Site, max_age_seconds: float = 7 * DAY, clock: Clock | None = None) -> ScrubMemory:
    opened = site.open()
    return ScrubMemory(site.home.scrub_file(opened.store), opened.store, clock or site.clock, max_age_seconds)


def test_what_matters_most_is_read_first(site: Site, packs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cairn.gc.scrub_chunks.threads_within_budget", lambda size: 1)
    through = FaultyBackend(site.backend)
    verify(site.registry(through), full=True)
    order = list(dict.fromkeys(reads(through)))
    at = {name: order.index(packs[name]) for name in ("tip", "tagged", "older", "oldest", "shared")}
    assert at["tip"] < at["tagged"] < at["older"] < at["oldest"]
    assert at["shared"] < at["tagged"], "what the tip shares with others is the tip's"


def test_a_sample_opens_at_least_one_chunk_of_every_pack_and_is_drawn_by_its_seed(
    site: Site, packs: dict[str, str]
) -> None:
    through = FaultyBackend(site.backend)
    report = verify(site.registry(through), depth=Depth(0.01, "a seed"))
    assert report.ok and (report.depth, report.seed, report.full) == ("sampled", "a seed", False)
    assert set(reads(through)) == set(site.names(".pack"))
    full = verify(site.registry(), full=True)
    assert len(site.names(".pack")) <= report.chunks_opened < full.chunks_opened


def test_a_seed_chooses_the_same_each_time_and_about_as_much_as_was_asked_for() -> None:
    listed = [(ContentId(n.to_bytes(32, "big")), Location(7, n * 100, 100)) for n in range(1000)]
    chosen = [Depth(0.1, seed).chosen(listed) for seed in "aab"]
    assert chosen[0] == chosen[1] != chosen[2]
    assert all(50 < len(some) < 200 and some == sorted(some) for some in chosen)
    assert len(Depth(1e-9, "a").chosen(listed)) == 1
    assert Depth(1.0).chosen(listed) == listed and Depth(0.5, "a").chosen([]) == []


@pytest.mark.parametrize("depth", [FULL, Depth(0.5, "s")], ids=["full", "sampled"])
def test_an_interrupted_run_goes_on_where_it_was(site: Site, packs: dict[str, str], depth: Depth) -> None:
    total = len(site.names(".pack"))
    memory = memory_of(site)
    memory.begin(depth)
    with pytest.raises(Stopped):
        verify(site.registry(FaultyBackend(site.backend, [Crash(op="read_into", call=6)])), depth=depth, memory=memory)
    memory.close()
    memory = memory_of(site)
    assert memory.begin(Depth(depth.part)).seed == depth.seed
    through = FaultyBackend(site.backend)
    report = verify(site.registry(through), depth=depth, memory=memory)
    assert report.ok and 0 < report.packs_remembered < total
    assert len(set(reads(through))) == total - report.packs_remembered
    assert len(report.whole) == 4
    memory.finish()
    memory.close()
    memory = memory_of(site)
    memory.begin(depth)
    assert verify(site.registry(), depth=depth, memory=memory).packs_remembered == 0, "a run that ended is over"
    memory.close()


def _noted(site: Site) -> int:
    """Have all packs read and noted by a run that does not come to its end; returns their number."""
    memory = memory_of(site)
    memory.begin(FULL)
    verify(site.registry(), full=True, memory=memory)
    memory.close()
    return len(site.names(".pack"))


def _remembered(site: Site, **options: Any) -> VerifyReport:
    memory = memory_of(site, **options)
    memory.begin(FULL)
    report = verify(site.registry(), full=True, memory=memory)
    memory.close()
    return report


def test_what_is_too_long_ago_or_new_or_of_another_depth_is_read_again(
    site: Site, packs: dict[str, str], tree: Path
) -> None:
    count = _noted(site)
    assert _remembered(site).packs_remembered == count
    (tree / "own").write_bytes(b"newer still" * 9000)
    commit_tree(site.registry(), tree, step=9)
    report = _remembered(site)
    assert report.packs_remembered == count < len(site.names(".pack"))
    assert report.chunks_opened > 0
    memory = memory_of(site)
    memory.begin(Depth(0.5, "other"))
    assert verify(site.registry(), depth=Depth(0.5, "other"), memory=memory).packs_remembered == 0
    memory.close()
    _noted(site)
    assert _remembered(site, max_age_seconds=-1.0).packs_remembered == 0
    memory = memory_of(site)
    memory.begin(FULL, restart=True)
    assert verify(site.registry(), full=True, memory=memory).packs_remembered == 0
    memory.close()


def test_damage_is_never_noted_as_read(site: Site, packs: dict[str, str]) -> None:
    data = site.backend.read(packs["tip"])
    site.backend.delete(packs["tip"])
    site.backend.create(packs["tip"], [data[:100] + bytes([data[100] ^ 1]) + data[101:]])
    count = _noted(site)
    for _ in range(2):
        report = _remembered(site)
        assert not report.ok and report.packs_remembered == count - 1


def test_a_memory_that_is_torn_or_held_by_another_costs_a_repetition_only(site: Site, packs: dict[str, str]) -> None:
    _noted(site)
    path = site.home.scrub_file(site.open().store)
    path.write_bytes(path.read_bytes()[:-9])
    report = _remembered(site)
    assert report.ok and report.packs_remembered == len(site.names(".pack")) - 1
    holder = memory_of(site)
    assert _remembered(site).packs_remembered == 0
    holder.close()
    path.write_bytes(b"\x00 nonsense\n[]")
    assert _remembered(site).packs_remembered == 0


# --- beside a collector -------------------------------------------------------------------------


class _Collecting(FaultyBackend):
    """Runs a collection of another machine at one moment: when the objects have been listed, or a pack is read."""

    def __init__(self, site: Site, at: str) -> None:
        super().__init__(site.backend)
        self._site, self._at, self._left = site, at, 1

    def list(self, prefix: str = "") -> "Iterator[Listed]":
        found = list(super().list(prefix))
        if prefix == "objects":
            self._collect("list")
        return iter(found)

    def read_into(self, name: str, offset: int, target: Any) -> int:
        self._collect("read_into")
        return super().read_into(name, offset, target)

    def _collect(self, at: str) -> None:
        if at == self._at and self._left:
            self._left = 0
            Collector(self._site.registry(cold=True)).run()


def _delete(registry: Registry, *checkpoints: CheckpointId) -> None:
    model = tip(registry)[0]
    registry.append(lambda state: Tombstone(model, checkpoints, 0, "test"))
    registry.append(lambda state: Drop(model, checkpoints))


@pytest.mark.parametrize("at", ["list", "read_into"])
def test_what_a_collector_takes_meanwhile_is_no_damage(site: Site, tree: Path, at: str) -> None:
    made = []
    for step in range(4):
        (tree / "own").write_bytes(bytes((step, 1)) * 60_000)
        made.append(commit_tree(site.registry(), tree, step=step).checkpoint)
    _delete(site.registry(), made[0], made[2])
    before = set(site.names(".pack"))
    report = verify(site.registry(_Collecting(site, at)), full=True)
    assert before - set(site.names(".pack")), "something was collected"
    assert report.ok, report.errors
    assert report.checkpoints == 2


# --- what the log is told -----------------------------------------------------------------------


def test_what_was_found_whole_is_recorded_and_a_quick_look_takes_no_thorough_one_back(
    site: Site, packs: dict[str, str]
) -> None:
    registry = site.registry()
    model = registry.state.models[tip(registry)[0]]
    assert {one.verified for one in model.checkpoints.values()} == {""}
    assert record(registry, verify(registry, full=True)) == 4
    held = registry.state.models[tip(registry)[0]].checkpoints
    assert {one.verified for one in held.values()} == {"full"}
    assert {one.verified_at for one in held.values()} == {site.clock.wall_ns()}
    length = registry.state.length
    assert record(registry, verify(registry)) == 0
    assert registry.state.length == length
    site.backend.delete(packs["tip"])
    assert record(registry, verify(registry, full=True)) == 3
