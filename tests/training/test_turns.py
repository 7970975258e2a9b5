"""Threads that store leave training a processor while it computes, and take all while it waits."""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from cairn.core.clock import SystemClock, ThreadClock
from cairn.store.backends.contract import Backend
from cairn.store.backends.memory import MemoryBackend
from cairn.store.backends.posix import PosixBackend
from cairn.training import writing
from cairn.training.turns import Turns
from tests.cases.training import Runs


class Trainer(ThreadClock):
    """A thread that computes some share of the time; each look at the time is a second later."""

    def __init__(self, share: float) -> None:
        self.share, self.now = share, 0.0

    def seconds(self) -> float:
        return self.share * self.now

    def monotonic(self) -> float:
        self.now += 1
        return self.now

    wall_ns, sleep = SystemClock.wall_ns, SystemClock.sleep


def at_once(trainer: Trainer, threads: int) -> int:
    """How many of some threads have a turn at the same time, if each waits for the others as long as it makes sense."""
    turns, inside, most = Turns(trainer, trainer), [0], [0]
    lock, met = threading.Lock(), threading.Barrier(threads)

    def work() -> None:
        with turns.turn():
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with suppress(threading.BrokenBarrierError):
                met.wait(0.2)
            with lock:
                inside[0] -= 1

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return most[0]


@pytest.mark.parametrize(("processors", "share", "most"), [
    (None, 0.9, 1), (1, 0.9, 1), (2, 0.9, 1), (3, 0.9, 2), (64, 0.9, 3), (2, 0.3, 3), (2, 0.0, 3),
])  # fmt: skip
def test_training_that_computes_keeps_a_processor(
    monkeypatch: pytest.MonkeyPatch, processors: int | None, share: float, most: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert at_once(Trainer(share), 3) == most


def test_a_thread_tells_what_it_has_computed_and_is_not_computing_once_it_has_ended() -> None:
    made: list[ThreadClock] = []
    go_on = threading.Event()

    def compute() -> None:
        made.append(ThreadClock())
        while not go_on.is_set():
            pass

    worker = threading.Thread(target=compute)
    worker.start()
    while not made or made[0].seconds() < 0.02:
        pass
    mine = ThreadClock()
    assert mine.seconds() > 0
    go_on.set()
    worker.join()
    turns = Turns(made[0], SystemClock())
    while made[0].seconds():  # the kernel's part of a thread ends a little later
        SystemClock().sleep(0.01)
    SystemClock().sleep(0.02)
    assert not turns._training_computes()


@pytest.mark.parametrize(("url", "blocking", "waited"), [
    ("", False, True), ("", True, False), ("s3://bucket/store", False, False),
])  # fmt: skip
def test_turns_are_for_local_stores_beside_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, blocking: bool, waited: bool
) -> None:
    made: list[Turns] = []

    def turns(*args: Any) -> Turns:
        made.append(Turns(*args))
        return made[-1]

    monkeypatch.setattr(writing, "Turns", turns)
    backend: Backend = MemoryBackend(url) if url else PosixBackend(tmp_path / "store")
    with Runs(tmp_path, backend).checkpointer() as checkpointer:
        checkpointer.save(1, {"a": torch.ones(300)}, blocking=blocking).committed.result()
    assert bool(made) == waited
