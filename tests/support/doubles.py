"""Randomness and time that a test holds in its hand."""

import random
import threading
from dataclasses import dataclass, field

# 2026-01-01, so that claims of time look like claims of time.
START_NS = 1_767_225_600_000_000_000


class SeededEntropy:
    """The same bytes on every run of one seed; safe for threads, though their order then decides who gets which."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def token(self, length: int) -> bytes:
        with self._lock:
            return self._random.randbytes(length)


@dataclass
class HeldClock:
    """A clock that moves only by `sleep`, and remembers how long it was asked to."""

    now_ns: int = START_NS
    slept: list[float] = field(default_factory=list)

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += int(seconds * 1e9)
