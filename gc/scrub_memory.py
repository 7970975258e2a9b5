"""What an interrupted scrub has read already, kept on this machine, so that the next one goes on behind it.

A file in the user's state folder: a line that says which run it is, then one for each pack that was read and found
whole. It goes when a run has come to its end. A torn line, as a killed process leaves it, is as if it did not exist.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from cairn.core.clock import Clock
from cairn.core.ids import StoreId
from cairn.gc.depth import Depth
from cairn.registry.heldfile import HeldFile

_KIND = "cairn-scrub/1"
_NS = 1_000_000_000


class _Run(msgspec.Struct, frozen=True):
    kind: str
    store: str
    part: float
    seed: str


class ScrubMemory:
    """One run's memory; held by one process at a time: another one remembers nothing, and reads all."""

    def __init__(self, path: Path, store: StoreId, clock: Clock, max_age_seconds: float) -> None:
        """Open or create; where that cannot be done, nothing is remembered.

        Args:
            max_age_seconds: a pack that was read longer ago is read again.
        """
        self._file, self._store, self._clock, self._max_age = HeldFile(path), store.hex(), clock, max_age_seconds
        # By key of the pack: chunks that could not be opened, and length of the log at the time.
        self._read: dict[str, tuple[int, int]] = {}

    def begin(self, depth: Depth, restart: bool = False) -> Depth:
        """Go on with an interrupted run of the same depth, or begin one; returns its depth, with its seed.

        Args:
            restart: forget what an earlier run has read.
        """
        self._read.clear()
        lines = [] if restart else self._file.read().splitlines()
        with suppress(msgspec.MsgspecError, IndexError):
            run = msgspec.json.decode(lines[0], type=_Run)
            same = (run.kind, run.store, run.part) == (_KIND, self._store, depth.part)
            if same and depth.seed in ("", run.seed):
                self._take(lines[1:])
                return Depth(depth.part, run.seed)
        self._file.truncate()
        self._write(_Run(_KIND, self._store, depth.part, depth.seed))
        return depth

    def _take(self, lines: list[bytes]) -> None:
        oldest = self._clock.wall_ns() // _NS - self._max_age
        for line in lines:
            with suppress(msgspec.MsgspecError):
                key, at, unopened, length = msgspec.json.decode(line, type=tuple[str, int, int, int])
                if at >= oldest:
                    self._read[key] = unopened, length

    def holds(self, key: bytes, live_n: int) -> bool:
        """Whether a pack need not be read again.

        Args:
            live_n: the newest entry that made something live: what nobody needed before may be needed since.
        """
        unopened, length = self._read.get(key.hex(), (-1, 0))
        return unopened == 0 or (unopened > 0 and live_n < length)

    def add(self, key: bytes, unopened: int, length: int) -> None:
        """Note a pack that is whole.

        Args:
            unopened: of its chunks that should be opened, how many nobody names, so that none could be.
            length: of the log.
        """
        self._write((key.hex(), self._clock.wall_ns() // _NS, unopened, length))

    def _write(self, line: _Run | tuple[str, int, int, int]) -> None:
        self._file.add(msgspec.json.encode(line) + b"\n")

    def finish(self) -> None:
        """The run has come to its end: the next one reads all anew."""
        self._read.clear()
        self._file.remove()

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()
