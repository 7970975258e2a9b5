"""A device that is none: tensors in host memory, copied by a lane that does nothing until it is waited for."""

import threading
from collections import deque
from dataclasses import dataclass, field

import pytest
import torch

from cairn.training import capture, devices, windows


@dataclass(eq=False)
class LazyLane:
    """Copies wait in line until a mark behind them is waited for, or later work is held for it.

    Attributes:
        waiting: copies that were begun and not done.
        longest: most copies that waited at one time.
        followed, held: how often it was told to follow its device, and its device to hold for it.
    """

    waiting: deque[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun = done = longest = followed = held = 0

    def follow(self) -> None:
        self.followed += 1

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with self.lock:
            self.waiting.append((target, source))
            self.begun += 1
            self.longest = max(self.longest, len(self.waiting))

    def mark(self) -> "LazyMark":
        return LazyMark(self, self.begun)

    def run(self, until: int) -> None:
        """Do the first copies."""
        with self.lock:
            while self.done < until:
                target, source = self.waiting.popleft()
                target.detach().copy_(source.detach())
                self.done += 1


@dataclass(frozen=True, eq=False)
class LazyMark:
    """A place in a lazy lane."""

    lane: LazyLane
    place: int

    @property
    def reached(self) -> bool:
        return self.lane.done >= self.place

    def wait(self) -> None:
        self.lane.run(self.place)

    def hold(self) -> None:
        self.lane.held += 1
        self.lane.run(self.place)


def lazy_host(monkeypatch: pytest.MonkeyPatch) -> LazyLane:
    """Let all host memory be a device with a lazy lane."""
    lane = LazyLane()
    for module in (devices, capture, windows):
        monkeypatch.setattr(module, "lane_of", lambda device: lane)
    # Pinning needs a driver.
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory=False, **kwargs: empty(*args, **kwargs))
    return lane
