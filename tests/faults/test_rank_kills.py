"""A rank dies at every call that it makes of the storage, on every rank in turn: three ranks, threads of this process.

`tests/training/test_kills.py` kills real processes.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from cairn.core.clock import SystemClock
from cairn.core.errors import CairnError, SaveFailed
from cairn.gc.scrub_open import verify_store
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Crash, Delay, Effect, Fail, Fault, FaultyBackend, LoseAnswer, Stopped
from cairn.training.checkpointer import Checkpointer
from cairn.training.sharded import ShardedSlice
from tests.support.points import Record, count_points
from tests.support.stores import Site, new_site
from tests.support.threads import ThreadRendezvous

RANKS = 3
SILENCE_SECONDS = 0.4
# With the default silence of 20 s the same sum is below 30 s.
RAISED_WITHIN_SECONDS = SILENCE_SECONDS + 5


class MortalRendezvous(ThreadRendezvous):
    """A rank's map until the rank dies: then nothing that it says arrives."""

    dead = False

    def put(self, key: str, value: bytes) -> None:
        if not self.dead:
            super().put(key, value)


@dataclass
class Outcome:
    """What became of one rank."""

    error: BaseException | None = None
    seconds: float = 0.0
    checkpoint: bytes | None = None


@dataclass
class Job:
    """Three ranks that save one sharded state."""

    site: Site
    outcomes: list[Outcome] = field(default_factory=lambda: [Outcome() for _ in range(RANKS)])

    def save(self, step: int, victim: int = -1, backend: Backend | None = None, **options: Any) -> list[Outcome]:
        """Each rank loads what there is and saves a step; the victim works through `backend`."""
        values: dict[str, bytes] = {}
        self.outcomes = [Outcome() for _ in range(RANKS)]
        threads = [
            threading.Thread(
                target=self._one,
                args=(MortalRendezvous(rank, RANKS, values), step, backend if rank == victim else None, options),
            )
            for rank in range(RANKS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a rank hangs"
        return self.outcomes

    def _one(self, rendezvous: MortalRendezvous, step: int, backend: Backend | None, options: dict[str, Any]) -> None:
        outcome, checkpointer = self.outcomes[rendezvous.rank], None
        begun = time.monotonic()
        registry = None
        try:
            registry = self.site.registry(backend)
            settings = {"silence_seconds": SILENCE_SECONDS, "close_seconds": 1.0, "attempt_seconds": 20.0} | options
            checkpointer = Checkpointer(registry, "m", rendezvous=rendezvous, check_replicas_every=1, **settings)
            state = state_of(rendezvous.rank, step)
            outcome.checkpoint = checkpointer.save(step, state).wait()
        except Stopped as error:
            rendezvous.dead = True
            outcome.error = error
        except CairnError as error:
            outcome.error = error
        finally:
            outcome.seconds = time.monotonic() - begun
            if checkpointer is not None:
                checkpointer._pending = None
                try:
                    checkpointer.close(0.1 if outcome.error else None)
                except (CairnError, Stopped) as error:
                    outcome.error = outcome.error or error
            if registry is not None:
                registry.close()

    def committed(self) -> dict[int, bool]:
        """Steps that a new client finds, and whether each loads whole."""
        found = {}
        registry = self.site.registry()
        try:
            with Checkpointer(registry, "m") as checkpointer:
                latest = checkpointer.latest()
                for step in range(1, (latest[1] or 0) + 1 if latest else 1):
                    whole = {"w": torch.zeros(RANKS * 30, 1000), "b": torch.zeros(5), "step": 0}
                    if checkpointer.load(whole, f"step:{step}", missing_ok=True, resume=False) is not None:
                        found[step] = bool((whole["w"] == step).all()) and whole["step"] == step
        finally:
            registry.close()
        return found


def state_of(rank: int, step: int) -> dict[str, Any]:
    """A tensor of which each rank holds a third that cuts tiles, one that all hold, and a value."""
    third = torch.full((30, 1000), float(step))
    return {
        "w": ShardedSlice(third, (RANKS * 30, 1000), (30 * rank, 0)),
        "b": torch.arange(5.0) + step,
        "step": step,
    }


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose first step is committed."""
    one = Job(new_site(tmp_path, clock=SystemClock()))
    assert [outcome.error for outcome in one.save(1)] == [None] * RANKS
    return one


def calls_of(job: Job, rank: int) -> int:
    """How many calls a rank makes in one run."""
    recorder = FaultyBackend(job.site.backend)
    job.save(2, rank, recorder)
    return len(recorder.calls)


def each_point(tmp_path: Path, rank: int, record: Record) -> Iterator[tuple[int, Job]]:
    """A fresh job for each call that a rank makes."""
    number, total = 1, 1
    while number <= total:
        one = Job(new_site(tmp_path / str(number), clock=SystemClock()))
        assert [outcome.error for outcome in one.save(1)] == [None] * RANKS
        if number == 1:
            probe = Job(new_site(tmp_path / "probe", clock=SystemClock()))
            probe.save(1)
            total = calls_of(probe, rank)
        yield number, one
        number += 1
    assert total >= 10
    count_points(record, f"save of {RANKS} ranks, rank {rank}", total, all_calls=True)


@pytest.mark.slow
@pytest.mark.parametrize("effect", [Effect.NONE, Effect.COMPLETE], ids=lambda effect: effect.value)
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_that_dies_in_any_call_is_named_and_nothing_is_lost(
    tmp_path: Path, rank: int, effect: Effect, record_property: Record
) -> None:
    for number, job in each_point(tmp_path, rank, record_property):
        outcomes = job.save(2, rank, FaultyBackend(job.site.backend, [Crash(call=number, effect=effect)]))
        where = f"rank {rank}, call {number}"
        survivors = [one for other, one in enumerate(outcomes) if other != rank]
        for one in survivors:
            assert one.seconds < RAISED_WITHIN_SECONDS, where
            if one.error is not None:
                assert isinstance(one.error, SaveFailed) and f"rank {rank}" in str(one.error), (where, one.error)
        steps = job.committed()
        assert steps in ({1: True}, {1: True, 2: True}), where
        if any(one.checkpoint for one in survivors):
            assert 2 in steps, where
        after = max(steps) + 1
        assert [one.error for one in job.save(after)] == [None] * RANKS, where
        assert job.committed() == {**steps, after: True}, where
        if number % 5 == 0:
            assert verify_store(job.site.backend, job.site.home, job.site.source, full=True).ok, where


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_whose_storage_refuses_fails_the_save_on_all(job: Job, rank: int) -> None:
    fault: Fault = Fail(op="create", name="*.pack")
    outcomes = job.save(2, rank, FaultyBackend(job.site.backend, [fault]))
    for other, one in enumerate(outcomes):
        assert isinstance(one.error, CairnError), other
        assert "a fault was injected" in str(one.error) and "step 2" in str(one.error)
        assert other == rank or f"rank {rank}" in str(one.error)
    assert job.committed() == {1: True}
    assert [one.error for one in job.save(2)] == [None] * RANKS


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_whose_storage_hangs_is_named_on_all(job: Job, rank: int) -> None:
    hang = Delay(op="create", name="*.pack", seconds=6.0)
    outcomes = job.save(2, rank, FaultyBackend(job.site.backend, [hang]), attempt_seconds=2.5)
    for other, one in enumerate(outcomes):
        assert isinstance(one.error, CairnError), other
        if other != rank:
            assert f"rank {rank}" in str(one.error) and ("hung" in str(one.error))
    assert [one.error for one in job.save(3)] == [None] * RANKS


@pytest.mark.parametrize("rank", range(RANKS))
def test_lost_answers_are_told_or_made_up_for(job: Job, rank: int) -> None:
    outcomes = job.save(2, rank, FaultyBackend(job.site.backend, [LoseAnswer(op="create", name="log/*", call=1)]))
    assert [one.error for one in outcomes] == [None] * RANKS
    outcomes = job.save(3, rank, FaultyBackend(job.site.backend, [LoseAnswer(op="create", name="*.pack")]))
    assert all(
        (isinstance(one.error, CairnError) and f"rank {rank}" in str(one.error)) or n == rank
        for n, one in enumerate(outcomes)
    )
    assert 3 not in job.committed()
