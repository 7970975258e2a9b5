"""Another writer who comes exactly when he hurts: between a call's being made and its taking effect."""

from collections.abc import Callable
from dataclasses import dataclass

from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Delay, Fault, FaultyBackend
from tests.support.doubles import HeldClock


@dataclass
class Rival(HeldClock):
    """A clock whose `sleep` lets somebody else act; each time it is asked, at most `times` times."""

    act: Callable[[], object] = lambda: None
    times: int = 1
    acted: int = 0

    def sleep(self, seconds: float) -> None:
        if self.acted < self.times:
            self.acted += 1
            self.act()


def interleaved(
    backend: Backend, act: Callable[[], object], *, op: str, name: str, times: int = 1, script: tuple[Fault, ...] = ()
) -> FaultyBackend:
    """A backend through which `act` happens just before matching calls take effect, the first `times` of them."""
    rival = Rival(act=act, times=times)
    return FaultyBackend(backend, [Delay(op=op, name=name, seconds=0, clock=rival), *script])
