"""Faults of storage that only several ranks can meet; ranks are threads here, each with a backend of its own."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import cairn
from cairn.core.clock import SystemClock
from cairn.core.errors import CairnError, ObjectNotFound, TryAgain, UsageError
from cairn.registry.registry import Registry
from cairn.store.backends.contract import Backend, Listed
from cairn.store.backends.faults import Fail, FaultyBackend
from tests.cases.training import Net
from tests.support.stores import Site, copied, new_site
from tests.support.threads import ThreadRendezvous, run_threads

# Every rank knows what happened after so long.
BOUND_SECONDS = 8.0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A store in memory, at a clock that goes on."""
    return new_site(tmp_path / "home", clock=SystemClock())


def opened(site: Site, backends: Sequence[Any]) -> list[Registry]:
    """The store as each rank sees it through its own backend, on a host of its own."""
    return [site.registry(backend, cold=True) for backend in backends]


def job(registries: Sequence[Registry], do: Callable[[Any, int], Any]) -> list[Any]:
    """What each rank returned or raised."""

    def one(rendezvous: ThreadRendezvous) -> Any:
        registry = registries[rendezvous.rank]
        with cairn.Checkpointer(registry, "m", rendezvous=rendezvous, attempt_seconds=20) as checkpointer:
            return do(checkpointer, rendezvous.rank)

    begun = time.monotonic()
    found = run_threads(len(registries), one)
    assert time.monotonic() - begun < BOUND_SECONDS, found
    return found


def state_of(rank: int, step: int, ranks: int = 2) -> dict[str, Any]:
    """A replicated net, a part of a common tensor, and a tensor of one's own."""
    rows = cairn.ShardedSlice(torch.full((64, 64), float(step)), (64 * ranks, 64), (64 * rank, 0))
    return {"model": Net(seed=step), "w": rows, f"of rank {rank}": torch.full((10_000,), float(rank + step))}


def saved(step: int) -> Callable[[Any, int], Any]:
    """Saves on every rank."""

    def do(checkpointer: Any, rank: int) -> Any:
        checkpointer.save(step, state_of(rank, step), blocking=True)
        return step

    return do


def loaded(checkpointer: Any, rank: int) -> Any:
    """Loads on every rank; the step, or None."""
    report = checkpointer.load({"model": Net(seed=99)}, missing_ok=True)
    return None if report is None else report.step


def test_D07_two_ranks_that_storage_refuses_hold_up_nobody(site: Site) -> None:
    busy = Fail(op="create", name="objects/*", error=TryAgain)
    backends = [FaultyBackend(site.backend, [busy] if rank in (1, 2) else []) for rank in range(4)]

    def do(checkpointer: Any, rank: int) -> Any:
        told = []
        for step in (1, 2):
            try:
                checkpointer.save(step, state_of(rank, step, 4), blocking=True)
            except CairnError as error:
                told.append(error.message)
        backends[rank]._run.script = ()
        checkpointer.save(3, state_of(rank, 3, 4), blocking=True)
        return told

    for rank, told in enumerate(job(opened(site, backends), do)):
        assert len(told) == 2, told
        for step, message in enumerate(told, start=1):
            assert f"step {step}" in message and "cannot create" in message
            assert rank in (1, 2) or "rank 1 failed" in message or "rank 2 failed" in message
    assert job(opened(site, [site.backend] * 2), loaded) == [3] * 2


class Lagging:
    """From `begin` on, shows for a while only what was there."""

    def __init__(self, inner: Backend) -> None:
        self._inner, self._end, self._known = inner, 0.0, set[str]()

    def begin(self, seconds: float) -> None:
        """Begin to lag."""
        self._end, self._known = time.monotonic() + seconds, {listed.name for listed in self._inner.list()}

    def end(self) -> None:
        """Show everything."""
        self._end = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _hidden(self, name: str) -> bool:
        return time.monotonic() < self._end and name not in self._known

    def _check(self, name: str) -> None:
        if self._hidden(name):
            raise ObjectNotFound(f"there is no object {name}")

    def create(self, name: str, parts: Any) -> None:
        self._inner.create(name, parts)
        self._known.add(name)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._check(name)
        return self._inner.read(name, offset, length)

    def read_into(self, name: str, offset: int, target: Any) -> int:
        self._check(name)
        return self._inner.read_into(name, offset, target)

    def size(self, name: str) -> int:
        self._check(name)
        return self._inner.size(name)

    def list(self, prefix: str = "") -> Iterator[Listed]:
        return (listed for listed in self._inner.list(prefix) if not self._hidden(listed.name))


@pytest.mark.parametrize("known", [False, True], ids=["a new model", "a known model"])
def test_D05_ranks_that_see_different_things_do_the_same(site: Site, known: bool) -> None:
    lagging = Lagging(site.backend)
    both, views = opened(site, [site.backend] * 2), opened(site, [site.backend, lagging])
    if known:
        assert job(both, saved(1)) == [1, 1]
    lagging.begin(60)
    assert job(both, saved(2)) == [2, 2]
    found = job(views, loaded)
    assert found == [2, 2] or all(isinstance(one, CairnError) for one in found), found
    again = job(views, saved(3))
    assert again == [3, 3] or all(isinstance(one, CairnError) for one in again), again
    lagging.end()
    assert job(views, loaded) == [3 if again == [3, 3] else 2] * 2


def test_D05_one_rank_decides_whether_there_is_a_checkpoint(site: Site) -> None:
    lagging = Lagging(site.backend)
    views = opened(site, [lagging, site.backend])
    assert job(views, loaded) == [None, None]
    lagging.begin(60)
    assert job(opened(site, [site.backend] * 2), saved(1)) == [1, 1]
    assert job(views, loaded) == [None, None], "the coordinator sees none, so nobody loads one"
    lagging.end()
    assert job(views, loaded) == [1, 1]


def test_D26_ranks_at_different_roots_are_told_before_anything_is_committed(site: Site) -> None:
    assert job(opened(site, [site.backend] * 2), saved(1)) == [1, 1]
    views = opened(site, [site.backend, copied(site.backend)])
    found = job(views, saved(2))
    assert all(isinstance(one, CairnError) and "rank 1" in one.message for one in found), found
    for registry in views:
        with cairn.Checkpointer(registry, "m") as checkpointer:
            assert checkpointer.latest()[1] == 1


def test_D26_ranks_at_different_stores_are_told_at_once(tmp_path: Path, site: Site) -> None:
    other = new_site(tmp_path / "other", clock=SystemClock(), seed=1)

    def one(rendezvous: ThreadRendezvous) -> None:
        registry = (site, other)[rendezvous.rank].registry()
        try:
            with cairn.Checkpointer(registry, "m", rendezvous=rendezvous, silence_seconds=2) as checkpointer:
                checkpointer.save(1, state_of(rendezvous.rank, 1), blocking=True)
        finally:
            registry.close()

    found = run_threads(2, one)
    assert isinstance(found[1], UsageError) and "different stores" in found[1].message
    assert isinstance(found[0], CairnError)
