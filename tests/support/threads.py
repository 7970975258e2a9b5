"""Ranks that are threads of this process: each has a checkpointer of its own, and they meet in a dict.

No process group takes part, so a job of eight ranks takes milliseconds. What a rank holds of a tensor is told by
`ShardedSlice`, by plain tensors, or by DTensors that were made on a fake process group beforehand.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from cairn.core.clock import SystemClock
from cairn.core.errors import CairnError, RankLost, SaveFailed
from cairn.core.ids import CheckpointId
from cairn.manifests.schema import TensorEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.selectors import resolve
from cairn.training.checkpointer import Checkpointer
from cairn.training.loading import LoadReport
from tests.support.stores import new_site

T = TypeVar("T")
State = dict[str, Any]
# A rank that waits for one that failed before it could say so must not hold up the whole run.
_ATTEMPT_SECONDS = 20.0


class ThreadRendezvous:
    """One thread's view of the shared map; see `Rendezvous`."""

    def __init__(self, rank: int, ranks: int, values: dict[str, bytes]) -> None:
        self.rank, self.ranks, self._values = rank, ranks, values

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        self._values[key] = value

    def peek(self, key: str) -> bytes | None:
        """Value of a key."""
        return self._values.get(key)

    def drop(self, key: str) -> None:
        """Forget a key."""
        self._values.pop(key, None)


def run_threads(ranks: int, function: Callable[[ThreadRendezvous], T]) -> list[T | CairnError]:
    """What each rank returned, or the error of ours that it raised; any other error is raised here."""
    values: dict[str, bytes] = {}
    begin = threading.Barrier(ranks)

    def one(rank: int) -> T | CairnError:
        begin.wait()
        try:
            return function(ThreadRendezvous(rank, ranks, values))
        except CairnError as error:
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


class Fleet:
    """Jobs of several ranks at one store in memory."""

    def __init__(self, folder: Path) -> None:
        self._site = new_site(folder, clock=SystemClock())

    def save(self, model: str, states: Sequence[State], step: int = 1, **options: Any) -> list[str]:
        """Save a state on each rank; returns the notes of the outcome.

        Args:
            options: of each `Checkpointer`.
        """
        return _all_well(self._save(model, states, step, options))[0]

    def refused_save(self, model: str, states: Sequence[State], **options: Any) -> str:
        """A save that fails on every rank and commits nothing; returns the cause."""
        before = self.latest(model)
        cause = _cause(self._save(model, states, 99, options))
        assert self.latest(model) == before, "a refused save committed something"
        return cause

    def load(self, model: str, states: Sequence[State], **options: Any) -> list[LoadReport]:
        """Load into a state on each rank.

        Args:
            options: of `Checkpointer.load`.
        """
        return _all_well(self._load(model, states, options))

    def refused_load(self, model: str, states: Sequence[State], **options: Any) -> str:
        """A load that fails on every rank; returns the cause."""
        return _cause(self._load(model, states, options))

    def whole(self, model: str, *scopes: str) -> State:
        """The named parts of a checkpoint, as one rank gets them that knows nothing of what they are."""
        state: State = dict.fromkeys(scopes)
        self.load(model, [state])
        return state

    def entries(self, model: str) -> dict[str, TensorEntry]:
        """Manifest entries of the tensors by name."""
        registry = self._site.registry()
        try:
            return {str(e.key): e for e in CheckpointManifest(registry, *resolve(registry, model)).tensors()}
        finally:
            registry.close()

    def latest(self, model: str) -> CheckpointId | None:
        """The newest checkpoint of a model."""
        registry = self._site.registry()
        try:
            return resolve(registry, model)[1]
        except CairnError:
            return None
        finally:
            registry.close()

    def _save(self, model: str, states: Sequence[State], step: int, options: State) -> list[list[str] | CairnError]:
        def one(checkpointer: Checkpointer, state: State) -> list[str]:
            handle = checkpointer.save(step, state, blocking=True)
            return list(handle.notes)

        return self._each(model, states, one, {"check_replicas_every": 1, **options})

    def _load(self, model: str, states: Sequence[State], options: State) -> list[LoadReport | CairnError]:
        def one(checkpointer: Checkpointer, state: State) -> LoadReport:
            report = checkpointer.load(state, **options)
            assert report is not None
            return report

        return self._each(model, states, one, {})

    def _each(
        self, model: str, states: Sequence[State], do: Callable[[Checkpointer, State], T], options: State
    ) -> list[T | CairnError]:
        def one(rendezvous: ThreadRendezvous) -> T:
            registry = self._site.registry()
            try:
                checkpointer = Checkpointer(
                    registry, model, rendezvous=rendezvous, attempt_seconds=_ATTEMPT_SECONDS, **options
                )
                with checkpointer:
                    return do(checkpointer, states[rendezvous.rank])
            finally:
                registry.close()

        return run_threads(len(states), one)


def _all_well(outcomes: Sequence[T | CairnError]) -> list[T]:
    good = [one for one in outcomes if not isinstance(one, CairnError)]
    if len(good) < len(outcomes):
        raise AssertionError(f"a rank failed: {_first_cause(outcomes)}")
    return good


def _cause(outcomes: Sequence[object]) -> str:
    well = [rank for rank, one in enumerate(outcomes) if not isinstance(one, CairnError)]
    assert not well, f"ranks {well} did not fail"
    return str(_first_cause(outcomes))


def _first_cause(outcomes: Sequence[object]) -> CairnError:
    """The error of the rank that found the fault, not of those that heard of it."""
    errors = [one for one in outcomes if isinstance(one, CairnError)]
    return next((e for e in errors if not isinstance(e, SaveFailed | RankLost)), errors[0])


@contextmanager
def fake_rank(rank: int, ranks: int) -> Iterator[None]:
    """This process as one rank of many, in a process group that sends nothing: for making DTensors."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    # It keeps the meshes of results, with the coordinate of the rank that this process was before.
    _clear_sharding_prop_cache()
    try:
        yield
    finally:
        dist.destroy_process_group()


def on_each(ranks: int, make: Callable[[int], T]) -> list[T]:
    """What each of several fake ranks makes, one after the other."""
    made = []
    for rank in range(ranks):
        with fake_rank(rank, ranks):
            made.append(make(rank))
    return made
