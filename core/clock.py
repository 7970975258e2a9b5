"""Clocks and randomness, passed in so that tests can hold them still."""

import os
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970; a claim, never part of any decision about safety."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Entropy(Protocol):
    """Where random bytes come from."""

    def token(self, length: int) -> bytes:
        """`length` unpredictable bytes."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ThreadClock:
    """Processor time of the thread that makes it, for any other to read."""

    def __init__(self) -> None:
        # By the kernel's number of the thread, so that it may be asked when the thread has ended.
        self._clock = time.pthread_getcpuclockid(threading.get_ident())

    def seconds(self) -> float:
        """Seconds that it has computed; none once it has ended."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return 0.0


class SystemEntropy:
    """The kernel's generator; asked anew on each call, hence safe across fork."""

    def token(self, length: int) -> bytes:
        return os.urandom(length)
