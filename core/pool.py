"""A few threads that work through jobs from a bounded queue; the first error stops all."""

import os
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from cairn.core.limits import MEMORY_BUDGET_BYTES

Job = TypeVar("Job")
_WAIT_SECONDS = 0.2


class Pool(Generic[Job]):
    """Runs jobs on `threads` threads.

    Each thread calls `work(jobs)` once with an iterator of its jobs, so it can own buffers and close them.
    """

    def __init__(self, threads: int, work: "Callable[[Iterable[Job]], None]") -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=2 * threads)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._work = work
        self._threads = [
            threading.Thread(target=self._run, name=f"cairn-worker-{i}", daemon=True) for i in range(threads)
        ]

    def run(self, jobs: Iterable[Job]) -> None:
        """Work through `jobs`, which are drawn in the calling thread; raises the first error of any thread."""
        self._start()
        try:
            for job in jobs:
                if not self._put(job):
                    break
            for _ in self._threads:
                self._put(None)
        except BaseException:
            self._stop.set()
            raise
        finally:
            self._join()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its frames hold this pool, and the buffers of all threads

    def _start(self) -> None:
        """Start all threads, or as many as the system allows.

        Raises:
            RuntimeError: it allows none.
        """
        started: list[threading.Thread] = []
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError:
                if not started:
                    raise
                break
            started.append(thread)
        self._threads = started

    def _join(self) -> None:
        try:
            for thread in self._threads:
                thread.join()
        except BaseException:  # interrupted: what is under way is finished, no more is begun
            self._stop.set()
            for thread in self._threads:
                thread.join()
            raise

    def _put(self, job: Job | None) -> bool:
        while not self._stop.is_set():
            try:
                self._jobs.put(job, timeout=_WAIT_SECONDS)
                return True
            except queue.Full:
                # One that could not even note its error, for want of memory, must not be waited for.
                if not self._stop.is_set() and not any(thread.is_alive() for thread in self._threads):
                    raise RuntimeError("all worker threads died") from None
        return False

    def _take(self) -> Iterable[Job]:
        while not self._stop.is_set():
            try:
                job = self._jobs.get(timeout=_WAIT_SECONDS)
            except queue.Empty:
                continue
            if job is None:
                return
            yield job
        raise _Stopped

    def _run(self) -> None:
        try:
            self._work(self._take())
        except _Stopped:
            pass
        except BaseException as error:
            self._error = self._error or error
            self._stop.set()


def threads_within_budget(worker_bytes: int, most: int | None = None) -> int:
    """As many threads as the memory budget feeds, at most `most`: one more than processors, as some wait for a disk."""
    return max(1, min(MEMORY_BUDGET_BYTES // worker_bytes, most or (os.cpu_count() or 1) + 1))


class _Stopped(Exception):
    """Another thread failed."""
