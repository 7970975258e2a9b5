"""The pool: every job once, the first error stops all, nobody waits for the dead."""

import threading
from collections.abc import Iterable, Iterator

import pytest

from cairn.core.pool import Pool


def test_every_job_is_done_once() -> None:
    done: list[int] = []
    Pool[int](3, lambda jobs: done.extend(jobs)).run(range(100))
    assert sorted(done) == list(range(100))


def test_the_first_error_of_a_worker_stops_the_source_too() -> None:
    drawn: list[int] = []

    def source() -> Iterator[int]:
        for number in range(10_000):
            drawn.append(number)
            yield number

    def work(jobs: Iterable[int]) -> None:
        for job in jobs:
            if job == 5:
                raise ValueError("five")

    with pytest.raises(ValueError, match="five"):
        Pool[int](2, work).run(source())
    assert len(drawn) < 10_000


def test_an_error_of_the_source_ends_the_workers() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("source")

    with pytest.raises(KeyError, match="source"):
        Pool[int](2, lambda jobs: [None for _ in jobs] and None).run(source())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cairn-worker")]


def test_fewer_threads_than_asked_for_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    done: list[int] = []
    Pool[int](3, lambda jobs: done.extend(jobs)).run(range(20))
    assert sorted(done) == list(range(20))


def test_workers_that_died_without_a_word_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "_run", lambda self: None)
    with pytest.raises(RuntimeError, match="all worker threads died"):
        Pool[int](2, lambda jobs: None).run(range(100))
