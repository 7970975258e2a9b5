"""Work that follows commits: on a thread of its own, on the coordinator alone, so that no save ever waits for it."""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cairn.training.encode import yield_to_training

log = logging.getLogger("cairn.training")
Job = TypeVar("Job")


class Behind(Generic[Job]):
    """One kind of such work, one job at a time. What fails is told, and made up for after the next commit.

    Args:
        what: names it in messages.
        work: does a job.
        drop: told of a job that a newer one replaces before it was begun.
    """

    def __init__(self, what: str, work: Callable[[Job], None], drop: Callable[[Job], None] = lambda job: None) -> None:
        self._what, self._work, self._drop = what, work, drop
        self._lock = threading.Lock()
        self._waiting: list[Job] = []
        self._running = False
        self._thread: threading.Thread | None = None
        self._failures: list[str] = []

    def begin(self, job: Job) -> None:
        """Do a job soon; returns at once."""
        with self._lock:
            replaced, self._waiting = self._waiting, [job]
            if not self._running:
                self._running = True
                self._thread = threading.Thread(target=self._run, name="cairn-behind", daemon=True)
                self._thread.start()
        for one in replaced:
            self._drop(one)

    def told(self) -> list[str]:
        """What went wrong since the last call; each is logged as a warning."""
        with self._lock:
            failures, self._failures = self._failures, []
        for text in failures:
            log.warning("%s", text)
        return failures

    def finish(self, seconds: float) -> None:
        """Wait for the work under way."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._fail(f"not done after {seconds:.0f} s; what follows the next commit makes up for it")

    def _run(self) -> None:
        yield_to_training()
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                job = self._waiting.pop()
            try:
                self._work(job)
            except BaseException as error:
                self._fail(getattr(error, "message", None) or f"{type(error).__qualname__}: {error}")

    def _fail(self, text: str) -> None:
        with self._lock:
            self._failures.append(f"{self._what}: {text}")
