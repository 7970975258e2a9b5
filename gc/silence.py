"""Which sessions and pins still live, by their heartbeats and this machine's monotonic clock.

One is given up when its newest beat has not changed for the store's silence time while somebody here watched, or at
once when it is of a process of this machine that runs no more. Giving up wrongly costs a retry, never data.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cairn.core.clock import Clock
from cairn.core.process import ProcessMark, is_known_dead, this_machine
from cairn.registry.heartbeat import BEAT
from cairn.registry.opened import OpenStore
from cairn.registry.state import State

# One that cannot be read is an upload that broke off, unless it beats: so many beats are waited for.
_BEATS_OF_UNREADABLE = 4


class Silence:
    """Watches for beats; what it has seen is kept for the next command of this user on this machine."""

    def __init__(self, path: Path, clock: Clock, seconds: float, beat_seconds: float) -> None:
        """Go on from what an earlier command saw.

        Args:
            path: of the notes; where they cannot be kept, each command watches anew.
            seconds: without a new beat, until one is given up.
            beat_seconds: from beat to beat.
        """
        self._path, self._clock, self._seconds = path, clock, seconds
        self._unreadable_seconds = min(seconds, _BEATS_OF_UNREADABLE * beat_seconds)
        # Newest beat of each, and when it was first seen.
        self._seen: dict[str, tuple[int, float]] = {}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            noted = json.loads(path.read_text())
            if this_machine() and noted["machine"] == this_machine():
                self._seen = {str(stem): (int(beat), float(at)) for stem, (beat, at) in noted["seen"].items()}
        now = clock.monotonic()
        self._seen = {stem: (beat, at) for stem, (beat, at) in self._seen.items() if at <= now}

    @classmethod
    def of(cls, opened: OpenStore, state: State) -> "Silence":
        """The watch over a store, with its times."""
        notes = opened.home.watched_file(opened.store)
        return cls(notes, opened.clock, state.silence_seconds, state.heartbeat_seconds)

    def look(self, folder: str, stems: Iterable[str], names: Iterable[str]) -> None:
        """Take in which beats there are now, and forget what is there no more.

        Args:
            folder: of the sessions or pins.
            stems: what their names begin with, the folder's name included.
            names: of all objects in the folder.
        """
        newest = dict.fromkeys(stems, 0)
        self._seen = {
            stem: seen for stem, seen in self._seen.items() if stem in newest or not stem.startswith(f"{folder}/")
        }
        for name in names:
            stem, beat, number = name.rpartition(BEAT)
            if beat and stem in newest and number.isdigit():
                newest[stem] = max(newest[stem], int(number))
        now = self._clock.monotonic()
        for stem, last in newest.items():
            if self._seen.get(stem, (-1, 0.0))[0] != last:
                self._seen[stem] = last, now

    def given_up(self, stem: str, process: ProcessMark | None) -> bool:
        """Whether one that was looked at counts as dead.

        Args:
            process: whose it is; None if it cannot be read.
        """
        return (process is not None and is_known_dead(process)) or not self.seconds_left(stem, process)

    def seconds_left(self, stem: str, process: ProcessMark | None) -> float:
        """Until it counts as dead, if no beat comes."""
        patience = self._seconds if process is not None else self._unreadable_seconds
        return max(self._seen[stem][1] + patience - self._clock.monotonic(), 0.0)

    def keep(self) -> None:
        """Note what was seen, for the next command."""
        noted = {"machine": this_machine(), "seen": self._seen}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(noted))
            temporary.replace(self._path)
