"""Numbered heartbeat objects beside an object: as long as new ones appear, whoever made it lives."""

import contextlib
import threading
from collections.abc import Callable

from cairn.core.errors import CairnError
from cairn.registry.opened import OpenStore

BEAT = ".beat-"


class Heartbeat:
    """Beats in the background from `start` to `stop`; one beat object at a time."""

    def __init__(self, opened: OpenStore, stem: str, seconds: float, each: Callable[[], None] | None = None) -> None:
        """Nothing happens before `start`.

        Args:
            stem: what the beats' names begin with; its folder is the part before the last `/`.
            seconds: from beat to beat.
            each: called before each beat; what it raises is made up for by the next one.
        """
        self._opened, self._stem, self._seconds, self._each = opened, stem, seconds, each
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._beats = 0

    def start(self, *, resumed: bool = False) -> None:
        """Begin; the numbers of a resumed object go on from its newest beat."""
        if resumed:
            self._beats = self._last()
        self._thread = threading.Thread(target=self._run, name="cairn-heartbeat", daemon=True)
        self._thread.start()

    def cease(self) -> None:
        """Stop beating, and leave the last beat."""
        self._ended.set()

    def stop(self) -> None:
        """Stop beating, and remove the last beat."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._beats:
            with contextlib.suppress(CairnError):
                self._opened.backend.delete(f"{self._stem}{BEAT}{self._beats}")

    def _last(self) -> int:
        names = [one.name for one in self._opened.backend.list(self._stem.rpartition("/")[0])]
        numbers = [name.removeprefix(f"{self._stem}{BEAT}") for name in names if name.startswith(f"{self._stem}{BEAT}")]
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            # A beat that fails is made up for by the next one; silence is what counts.
            with contextlib.suppress(CairnError):
                if self._each is not None:
                    self._each()
            with contextlib.suppress(CairnError):
                self._opened.backend.create(f"{self._stem}{BEAT}{self._beats + 1}", [b""])
                self._beats += 1
                if self._beats > 1:
                    self._opened.backend.delete(f"{self._stem}{BEAT}{self._beats - 1}")
