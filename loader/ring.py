"""Memory through which the readers of one host hand each other what they fetch.

    0              8 n  progress of reader n: number of the first extent that it still needs (u64); all done: the count
    .              8    not zero: a reader gave up, and nobody waits for another any more (u64)
    .              8    number of an extent that has had no room for long while nobody got on, or 0 (u64)
    .              m    state of extent n (u8): 0 open, 1 here, 2 cannot be fetched
    next page      w    the ring

Extents have places on an endless line, which the ring holds a window of. The window begins with the first extent
that some reader still needs, so nothing is overwritten that anybody wants; its owner needs an extent until it has
fetched it. Nobody depends on another: who waits too long fetches for itself, and who holds the window up, for itself
or for long, lets go of what does, to fetch that for itself when its turn comes.
"""

import logging
import mmap
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from cairn.core.clock import Clock
from cairn.core.errors import CairnError
from cairn.core.limits import REMOTE_READS_AT_ONCE, SHARED_READ_PATIENCE_SECONDS
from cairn.loader.plan import ReadPlan
from cairn.loader.sharing import Extent
from cairn.store.chunkstore import ChunkStore

log = logging.getLogger("cairn.loader")
_OPEN, _HERE, _LOST = 0, 1, 2
_ALIGN_BYTES = 64
_CHECK_SECONDS = 1.0
_STANDSTILL_SECONDS = 5.0
_POLL_SECONDS_MIN, _POLL_SECONDS_MAX = 0.001, 0.02


class Layout:
    """Where everything lies; the same for all readers."""

    def __init__(self, extents: Sequence[Extent], readers: int, ring_bytes: int) -> None:
        longest = max((extent.length for extent in extents), default=0)
        whole = sum(_up(extent.length, _ALIGN_BYTES) for extent in extents)
        self.ring_bytes = max(min(ring_bytes, _up(whole, mmap.PAGESIZE)), _up(2 * longest, mmap.PAGESIZE))
        self.readers = readers
        self.states_at = 8 * (readers + 2)
        self.ring_at = _up(self.states_at + len(extents), mmap.PAGESIZE)
        self.nbytes = self.ring_at + self.ring_bytes
        self.starts: list[int] = []
        at = 0
        for extent in extents:
            if at % self.ring_bytes + extent.length > self.ring_bytes:
                at = _up(at, self.ring_bytes)  # none is cut by the ring's end
            self.starts.append(at)
            at = _up(at + extent.length, _ALIGN_BYTES)
        self.starts.append(at)


class Ring(NamedTuple):
    """What the readers of a host share.

    Args:
        memory: `layout.nbytes` of zeros at first, mapped by all.
        me: number of this reader.
    """

    extents: Sequence[Extent]
    layout: Layout
    memory: mmap.mmap
    me: int


class SharedReads:
    """One reader's side.

    Args:
        check: called now and then by who waits; what it raises ends the sharing, and is raised by `take`.
    """

    def __init__(self, ring: Ring, chunks: ChunkStore, clock: Clock, check: Callable[[], None]) -> None:
        self._extents, self._layout, memory, self._me = ring
        self._chunks, self.clock, self.check = chunks, clock, check
        self._memory = memoryview(memory)
        self._progress = np.frombuffer(memory, np.uint64, self._layout.readers)
        self._ended = np.frombuffer(memory, np.uint64, 1, 8 * self._layout.readers)
        self._asked = np.frombuffer(memory, np.uint64, 1, 8 * (self._layout.readers + 1))
        self._states = np.frombuffer(memory, np.uint8, len(self._extents), self._layout.states_at)
        self._lock = threading.Lock()
        self._mine = [n for n, extent in enumerate(self._extents) if extent.owner == self._me]
        # Of each extent, what there is to do with it, reading and fetching, and what of that is being done.
        self._uses, self._busy = Counter(self._mine), Counter(self._mine)
        self._needed = iter([n for n, extent in enumerate(self._extents) if extent.readers >> self._me & 1])
        self._first = next(self._needed, len(self._extents))
        self._progress[self._me] = self._first
        self._checked = clock.monotonic()
        self._failed = False
        self.bytes_fetched = self.bytes_taken = self.requests = 0

    @contextmanager
    def serving(self, plans: Iterable[ReadPlan]) -> Iterator[None]:
        """Fetch this reader's extents, beside whatever it reads within; leaving waits until the others have them.

        Args:
            plans: with extents; each of their batches is taken once and then done with.
        """
        with self._lock:
            self._uses.update(b.extent for plan in plans for b in plan.batches if b.extent is not None)
            self._advance()
        threads: list[threading.Thread] = []
        try:
            self._start(threads)
            yield
            _join(threads)
        except BaseException:
            self.end()
            raise
        finally:
            _join(threads)

    def _start(self, threads: list[threading.Thread]) -> None:
        """Start threads that fetch."""
        numbers = iter(self._mine)
        for count in range(min(REMOTE_READS_AT_ONCE, len(self._mine))):
            name = f"cairn-shared-{count}"
            thread = threading.Thread(target=self._fetch_all, args=(numbers,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more: they are left to who reads
                self.end()
                _join(threads)
                break
            threads.append(thread)

    def end(self) -> None:
        """Let nobody wait any more; what is there may still be taken."""
        self._ended[0] = 1

    def give_up(self) -> None:
        """End the sharing since nobody gets on."""
        if not self._ended[0]:
            log.warning("no reader of this host got on for %.0f s: each reads alone", SHARED_READ_PATIENCE_SECONDS)
        self.end()

    # --- fetching for all ----------------------------------------------------------------------------

    def _fetch_all(self, numbers: Iterator[int]) -> None:
        try:
            while True:
                with self._lock:
                    number = next(numbers, None)
                if number is None or not self._wait_for_room(number):
                    return
                self._states[number] = _HERE if self._fetch(number) else _LOST
                self.done(number)
        except Exception as error:  # what `check` raises, the reader itself comes upon as well
            log.debug("nothing more is fetched for the others: %s", error)
            self.end()

    def _wait_for_room(self, number: int) -> bool:
        """Wait until an extent's place is free; False if the sharing ended."""
        waiting = _Waiting(self)
        while not self._ended[0]:
            if self._fits(number):
                return True
            self._asked[0] = number if waiting.go_on() > _STANDSTILL_SECONDS else 0
        return False

    def _fetch(self, number: int) -> bool:
        extent = self._extents[number]
        try:
            name = self._chunks.index.pack(extent.pack).name
            count = self._chunks.access.backend.read_into(name, extent.offset, self._place(number))
        except Exception as error:  # every reader tries for itself, and raises what it finds
            log.debug("shared bytes %d of pack %d cannot be fetched: %s", extent.offset, extent.pack, error)
            return False
        with self._lock:
            self.bytes_fetched += count
            self.requests += 1
        return count == extent.length

    # --- taking --------------------------------------------------------------------------------------

    def take(self, number: int) -> memoryview | None:
        """An extent's bytes, which stay until `done`; None if this reader is to fetch them for itself.

        Raises:
            CairnError: what `check` raises.
        """
        waiting = _Waiting(self)
        with self._lock:
            self._busy[number] += 1
            if number < self._first:  # let go of
                return None
        while True:
            state = self._states[number]
            if state == _HERE:
                extent = self._extents[number]
                if extent.owner != self._me:
                    with self._lock:
                        self.bytes_taken += extent.length
                return self._place(number)
            if self._failed:
                self.check()
            if state == _LOST or self._ended[0]:
                return None
            waiting.go_on()
            with self._lock:
                self._make_room(number)

    def done(self, number: int | None) -> None:
        """Say that a batch of this reader is done and needs no extent any more, or that an extent is fetched."""
        with self._lock:
            if number is None:
                self._make_room(int(self._asked[0]))
            else:
                self._uses[number] -= 1
                self._busy[number] -= 1
                self._advance()

    def fetched_alone(self, count: int) -> None:
        """Count a request for so many bytes that were to be shared."""
        with self._lock:
            self.bytes_fetched += count
            self.requests += 1

    def _advance(self) -> None:
        while self._first < len(self._extents) and self._uses[self._first] <= 0:
            self._first = next(self._needed, len(self._extents))
        self._progress[self._me] = self._first

    # --- the window ----------------------------------------------------------------------------------

    def _fits(self, number: int) -> bool:
        starts = self._layout.starts
        end = starts[number] + self._extents[number].length
        return end <= starts[int(self._progress.min())] + self._layout.ring_bytes

    def _make_room(self, number: int) -> None:
        """Let go of what keeps an extent from having room and is for this reader to take later."""
        while not self._fits(number) and int(self._progress.min()) == self._first and not self._busy[self._first]:
            self._uses[self._first] = 0
            self._advance()

    def _place(self, number: int) -> memoryview:
        at = self._layout.ring_at + self._layout.starts[number] % self._layout.ring_bytes
        return self._memory[at : at + self._extents[number].length]

    # --- patience ------------------------------------------------------------------------------------

    def movement(self) -> tuple[int, int]:
        """Changes whenever any reader has got on."""
        return int(self._progress.sum()), int(self._states.sum(dtype=np.int64))

    def look(self, now: float) -> None:
        """Call `check` if no thread has for a second: a job's store serves thousands of ranks.

        Raises:
            CairnError: what it raises; whoever else waits asks at once, too.
        """
        with self._lock:
            if now - self._checked < _CHECK_SECONDS:
                return
            self._checked = now
        try:
            self.check()
        except CairnError:
            self._failed = True
            self.end()
            raise


class _Waiting:
    """Patience that lasts as long as any reader gets on."""

    def __init__(self, reads: SharedReads) -> None:
        self._reads = reads
        self._pause = _POLL_SECONDS_MIN
        self._seen = reads.movement()
        self._since = reads.clock.monotonic()

    def go_on(self) -> float:
        """Wait a little; returns for how long nobody has got on. Once that is too long, all waiting ends."""
        reads = self._reads
        reads.clock.sleep(self._pause)
        self._pause = min(1.5 * self._pause, _POLL_SECONDS_MAX)
        now, seen = reads.clock.monotonic(), reads.movement()
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > SHARED_READ_PATIENCE_SECONDS:
            reads.give_up()
        reads.look(now)
        return now - self._since


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
