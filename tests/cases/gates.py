"""Faults that wait for the test: a call that is held, a fault at the n-th call from some moment on."""

import threading
from dataclasses import dataclass, field

from cairn.store.backends.faults import Fault, Request

PATIENCE_SECONDS = 30.0
# Entries of the log: what publishes is one of them.
ENTRIES = "log/00000000/*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Fault):
    """The call waits until it is let go; `reached` tells that it waits."""

    reached: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def apply(self, request: Request) -> object:
        self.reached.set()
        assert self.let_go.wait(PATIENCE_SECONDS)
        return request.send()

    def let_go_soon(self) -> None:
        """Let go while the caller waits for something."""
        threading.Timer(0.1, self.let_go.set).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Later(Fault):
    """Lets calls pass until it is armed, then meets the `nth` with `fault`."""

    fault: Fault
    nth: int
    seen: list[int] = field(default_factory=list)

    def arm(self) -> None:
        """Begin to count."""
        self.seen.append(0)

    @property
    def met(self) -> bool:
        """Whether there were as many calls."""
        return bool(self.seen) and self.seen[0] >= self.nth

    def apply(self, request: Request) -> object:
        if self.seen:
            self.seen[0] += 1
            if self.seen[0] == self.nth:
                return self.fault.apply(request)
        return request.send()
