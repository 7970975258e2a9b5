"""Turns at the processors for threads that store behind training."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cairn.core.clock import Clock, ThreadClock

# How often it is looked whether training computes, and from what share of that time on it does.
_LOOK_SECONDS = 0.01
_COMPUTES = 0.5


class Turns:
    """While the training thread computes, it is left a processor; while it waits, for a device or data, all work.

    Finishing while training waits anyway costs it least; beside a thread that computes, each more takes processor
    time, memory bandwidth and turns at the interpreter from it.

    Args:
        trainer: the thread that trains.
    """

    def __init__(self, trainer: ThreadClock, clock: Clock) -> None:
        self._trainer, self._clock = trainer, clock
        self._places = threading.Semaphore(max((os.cpu_count() or 1) - 1, 1))
        self._looked, self._used, self._busy = clock.monotonic(), trainer.seconds(), False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and have it."""
        if self._training_computes():
            with self._places:
                yield
        else:
            yield

    def _training_computes(self) -> bool:
        now = self._clock.monotonic()
        since = now - self._looked
        if since >= _LOOK_SECONDS:  # two threads that look at once do no harm
            used = self._trainer.seconds()
            self._busy = used - self._used > _COMPUTES * since
            self._looked, self._used = now, used
        return self._busy
