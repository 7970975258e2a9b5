"""Clocks and randomness, passed in so that tests can hold them still."""

import os
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


class SystemEntropy:
    """The kernel's generator; asked anew on each call, hence safe across fork."""

    def token(self, length: int) -> bytes:
        return os.urandom(length)
