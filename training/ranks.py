"""The ranks of one job at one task: told messages, awaited messages, signs of life, failures.

Every wait ends: with the messages, with the failure that some rank told, with the loss of a rank that gives no sign of
life, or at the deadline. Whoever notices a loss tells all others.
"""

import contextlib
import threading
from collections.abc import Iterable

import msgspec

from cairn.core.clock import Clock
from cairn.core.errors import CairnError, RankLost, SaveFailed
from cairn.core.limits import LISTED_NAMES_MAX, RANK_BEAT_SECONDS, RANK_SILENCE_SECONDS
from cairn.training.rendezvous import Rendezvous

# Waits begin short, since a local save takes milliseconds, and grow to what a large job's store can bear.
_POLL_SECONDS_MIN, _POLL_SECONDS_MAX = 0.002, 0.25
COORDINATOR = 0


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt ended, as a rank tells it. `lost` names ranks that gave no sign of life."""

    rank: int
    code: str
    message: str
    hint: str = ""
    lost: tuple[int, ...] = ()


class Ranks:
    """This rank among the others. Safe for threads."""

    def __init__(self, rendezvous: Rendezvous, clock: Clock, silence_seconds: float = RANK_SILENCE_SECONDS) -> None:
        self._rendezvous, self._clock = rendezvous, clock
        self._silence_seconds = silence_seconds
        self._beat_seconds = min(RANK_BEAT_SECONDS, silence_seconds / 10)
        self.rank, self.count = rendezvous.rank, rendezvous.ranks
        self._stop = threading.Event()
        self._beater: threading.Thread | None = None
        self._seen: dict[int, tuple[bytes | None, float]] = {}

    @property
    def coordinates(self) -> bool:
        """Whether this rank merges and commits."""
        return self.rank == COORDINATOR

    def start(self) -> None:
        """Begin to give signs of life."""
        if self.count > 1 and self._beater is None:
            self._beater = threading.Thread(target=self._beat, name="cairn-rank-beat", daemon=True)
            self._beater.start()

    def leave(self, seconds: float) -> None:
        """Say goodbye; the coordinator, which may serve the rendezvous, waits until all have, or are lost."""
        with contextlib.suppress(CairnError):
            self.tell("close", "left", b"")
            if self.coordinates:
                self.wait("close", "left", range(self.count), seconds)

    def stop(self) -> None:
        """End them."""
        self._stop.set()
        if self._beater is not None:
            self._beater.join()
            self._beater = None

    def _beat(self) -> None:
        beats = 0
        while True:
            with contextlib.suppress(CairnError):
                beats += 1
                self._rendezvous.put(f"beat/{self.rank}", str(beats).encode())
            if self._stop.wait(self._beat_seconds):
                return

    def tell(self, task: str, what: str, value: bytes) -> None:
        """Leave a message of this rank."""
        self._rendezvous.put(f"{task}/{what}/{self.rank}", value)

    def forget(self, task: str, what: str) -> None:
        """Take back a message of this rank, once nobody needs it."""
        with contextlib.suppress(CairnError):
            self._rendezvous.drop(f"{task}/{what}/{self.rank}")

    def share(self, task: str, name: bytes, value: bytes) -> None:
        """Leave what any rank may have left alike, under a name that follows from its content."""
        self._rendezvous.put(f"{task}/shared/{name.hex()}", value)

    def shared(self, task: str, name: bytes) -> bytes:
        """What was shared under a name that some rank has told since."""
        value = self._rendezvous.peek(f"{task}/shared/{name.hex()}")
        if value is None:
            raise SaveFailed(f"a list that a rank announced for {task} is not there")
        return value

    def fail(self, task: str, error: BaseException, lost: tuple[int, ...] = ()) -> None:
        """Tell all ranks that the task has failed; the first to tell is heard."""
        if self.count == 1:
            return
        failure = Failure(
            self.rank,
            getattr(error, "code", type(error).__qualname__),
            getattr(error, "message", None) or f"{type(error).__qualname__}: {error}",
            getattr(error, "hint", ""),
            lost,
        )
        with contextlib.suppress(CairnError):
            if self._rendezvous.peek(f"{task}/failed") is None:
                self._rendezvous.put(f"{task}/failed", msgspec.msgpack.encode(failure))

    def wait(self, task: str, what: str, ranks: Iterable[int], seconds: float) -> dict[int, bytes]:
        """Messages of some ranks.

        Raises:
            SaveFailed: a rank told a failure, or the time is over; names it and its cause.
            RankLost: a rank gives no sign of life.
        """
        missing, found = set(ranks), dict[int, bytes]()
        start = self._clock.monotonic()
        pause, next_look = _POLL_SECONDS_MIN, start
        while True:
            now = self._clock.monotonic()
            late = now - start > seconds
            look = late or now >= next_look
            for rank in sorted(missing):
                value = self._rendezvous.peek(f"{task}/{what}/{rank}")
                if value is not None:
                    found[rank] = value
                    missing.discard(rank)
                elif not look:
                    break  # the others can wait until it has told; what they left stays
            if not missing:
                return found
            if look:
                self.check(task)
                self._look_for_loss(task, missing, now, start)
                # Looking at thousands of ranks takes a second, which the job's store needs for others too.
                next_look = now + max(_POLL_SECONDS_MAX, 4 * (self._clock.monotonic() - now))
            if late:
                raise self._late(task, what, missing, seconds)
            self._clock.sleep(pause)
            pause = min(pause * 1.5, _POLL_SECONDS_MAX)

    def check(self, task: str) -> None:
        """Raise if some rank has told that the task failed.

        Raises:
            SaveFailed, RankLost: names the rank and its cause.
        """
        told = self._rendezvous.peek(f"{task}/failed")
        if told is None:
            return
        failure = msgspec.msgpack.decode(told, type=Failure)
        if failure.lost:
            raise RankLost(failure.message, hint=failure.hint)
        raise SaveFailed(f"rank {failure.rank} failed: {failure.message}", hint=failure.hint)

    def look(self, task: str, ranks: Iterable[int], since: float) -> None:
        """Raise if the task has failed, or some of these ranks is lost; for who waits for them in another way.

        Args:
            since: when the waiting began, on the clock's monotonic time.

        Raises:
            SaveFailed, RankLost: names the rank and its cause.
        """
        self.check(task)
        self._look_for_loss(task, set(ranks), self._clock.monotonic(), since)

    def _look_for_loss(self, task: str, missing: set[int], now: float, start: float) -> None:
        silent = []
        for rank in missing - {self.rank}:
            beat = self._rendezvous.peek(f"beat/{rank}")
            known, since = self._seen.get(rank, (None, start))
            if beat != known or rank not in self._seen:
                self._seen[rank] = beat, now
            elif now - max(since, start) > self._silence_seconds:
                silent.append(rank)
        if silent:
            error = RankLost(
                f"{_ranks(silent)} gave no sign of life for {self._silence_seconds:.0f} s",
                hint="restart the job from the last committed checkpoint; 'cairn log' shows it",
            )
            self.fail(task, error, tuple(silent))
            raise error

    def _late(self, task: str, what: str, missing: set[int], seconds: float) -> SaveFailed:
        error = SaveFailed(
            f"{_ranks(sorted(missing))} did not come to {what!r} within {seconds:.0f} s, though alive",
            hint="look at the storage of those ranks: a hung file system or network shows like this",
        )
        self.fail(task, error)
        return error


def _ranks(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:LISTED_NAMES_MAX]))
    more = f" and {len(numbers) - LISTED_NAMES_MAX} more" if len(numbers) > LISTED_NAMES_MAX else ""
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}{more}"
