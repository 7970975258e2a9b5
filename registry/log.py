"""The log in a backend: reading entries in order, and appending by compare-and-set."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Protocol

from cairn.core.clock import Clock
from cairn.core.errors import (
    AnswerLost,
    ConflictError,
    IntegrityError,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    TryAgain,
)
from cairn.core.limits import (
    ENTRY_READS_AT_ONCE,
    LOG_APPEND_RACES_MAX,
    LOG_APPEND_REPEATS_MAX,
    LOG_ENTRY_BYTES_MAX,
    LOG_FOLDER_ENTRIES,
)
from cairn.registry.merkle import Leaf, append_leaf, root_of
from cairn.registry.names import entry_name, entry_position
from cairn.registry.opened import OpenStore
from cairn.store.backends.contract import Backend

# Entries that are read one by one to see how fast it goes.
_FIRST_ENTRIES, _FAST_SECONDS = 4, 0.001


class LogPlace(Protocol):
    """What reading a log takes: an opened store has it, and so has whoever holds the log's key alone."""

    @property
    def backend(self) -> Backend:
        """Where it lies."""

    @property
    def clock(self) -> Clock:
        """Tells how fast reading goes."""


def read_entry(opened: LogPlace, n: int) -> tuple[bytes, bytes]:
    """Bytes and leaf hash of entry `n`; the bytes end one behind the size limit, the hash covers all.

    Raises:
        ObjectNotFound: there is no entry `n`.
    """
    name = entry_name(n)
    data = opened.backend.read(name, 0, LOG_ENTRY_BYTES_MAX + 1)
    leaf, at, piece = Leaf(), 0, data
    while piece:
        leaf.update(piece)
        at += len(piece)
        piece = opened.backend.read(name, at, LOG_ENTRY_BYTES_MAX) if len(data) > LOG_ENTRY_BYTES_MAX else b""
    return data, leaf.digest()


def listed_length(backend: Backend) -> int:
    """Entries up to the last name in the log's folders."""
    positions = (entry_position(listed.name) for listed in backend.list("log"))
    return max((n for n in positions if n is not None), default=-1) + 1


def first_entry(opened: OpenStore) -> bytes:
    """Bytes of entry 0, which every log has.

    Raises:
        IntegrityError: this one has not.
    """
    try:
        return opened.backend.read(entry_name(0), 0, LOG_ENTRY_BYTES_MAX + 1)
    except ObjectNotFound:
        raise IntegrityError(
            f"{opened.backend.url} has lost log entry 0", hint="restore it from a copy of the store"
        ) from None


def root_by_reading(opened: LogPlace, length: int) -> bytes:
    """Merkle root over the first `length` entries as they are stored, or all that there are before the first gap."""
    frontier: tuple[bytes, ...] = ()
    for n, (_, leaf) in enumerate(islice(read_from(opened, 0), length)):
        frontier = append_leaf(frontier, n, leaf)
    return root_of(frontier)


def read_from(opened: LogPlace, start: int) -> Iterator[tuple[bytes, bytes]]:
    """Entries `start`, `start + 1`, ... up to the head, as `read_entry` gives them."""
    n, begun = start, opened.clock.monotonic()
    while True:
        try:
            entry = read_entry(opened, n)
        except ObjectNotFound:
            return
        yield entry
        n += 1
        # Where each read lets one wait, those that a listing names are fetched together.
        if n == start + _FIRST_ENTRIES and opened.clock.monotonic() - begun > _FIRST_ENTRIES * _FAST_SECONDS:
            for entry in _listed_from(opened, n):
                yield entry
                n += 1


def _listed_from(opened: LogPlace, start: int) -> Iterator[tuple[bytes, bytes]]:
    """Entries from `start` on that are in the listings of their folders, without a gap."""
    from concurrent.futures import ThreadPoolExecutor  # 20 ms that a local store saves

    n = start
    with ThreadPoolExecutor(ENTRY_READS_AT_ONCE) as pool:
        while names := {listed.name for listed in opened.backend.list(os.path.dirname(entry_name(n)))}:
            count = 0
            while entry_name(n + count) in names and count < LOG_FOLDER_ENTRIES:
                count += 1
            for first in range(n, n + count, ENTRY_READS_AT_ONCE):
                some = range(first, min(first + ENTRY_READS_AT_ONCE, n + count))
                yield from pool.map(partial(read_entry, opened), some)
            n += count
            if not count or n % LOG_FOLDER_ENTRIES:
                return


def check_no_hole(opened: OpenStore, length: int) -> None:
    """Make sure that entry `length` - 1 is the last name of the log.

    Raises:
        IntegrityError: an entry lies beyond, so one between is missing; or the log ends before.
    """
    names = _last_names(opened)
    last = names[-1]
    # A listing that is short of names tells of what was removed among them, at no further cost.
    expected = range(length - 1 - (length - 1) % LOG_FOLDER_ENTRIES, length)
    if len(names) < len(expected) and last >= entry_name(length - 1):
        there = set(names)
        gone = next(n for n in expected if entry_name(n) not in there)
        raise IntegrityError(
            f"log entry {gone} is missing while {last} exists: it was removed",
            hint="nothing was written; run 'cairn audit verify' and restore the missing entry from a copy of the store",
        )
    if last < entry_name(length - 1):
        raise IntegrityError(
            f"log entry {length - 1} was there and is gone: the log was rolled back",
            hint="nothing was written; restore the missing log entries from a copy of the store",
        )
    # One right behind is a newcomer's; whoever creates an entry now loses the race to it and looks again.
    if last > entry_name(length - 1) and not has_entry(opened, length):
        raise IntegrityError(
            f"log entry {length} is missing while {last} exists: the log has a hole",
            hint="nothing was written; run 'cairn verify' and restore the missing entry from a copy of the store",
        )


def _last_names(opened: OpenStore) -> list[str]:
    """Names of the last folder that holds one; a writer that died before its entry leaves an empty folder."""
    for folder in reversed(opened.backend.folders("log")):
        names = [listed.name for listed in opened.backend.list(f"log/{folder}")]
        if names:
            return names
    raise IntegrityError(f"{opened.backend.url} has lost its log")


def has_entry(opened: OpenStore, n: int) -> bool:
    """Whether entry `n` is stored."""
    try:
        opened.backend.size(entry_name(n))
    except ObjectNotFound:
        return False
    return True


def create_entry(opened: OpenStore, n: int, stored: bytes) -> bool:
    """Create entry `n`; True if it is ours, False if another writer was first.

    A lost answer is unknown until slot `n` is occupied: the same bytes are put again until an answer comes.

    Raises:
        TryAgain: no answer came within the bound; the outcome is unknown, and the message says so.
    """
    if n % LOG_FOLDER_ENTRIES == 0 and n:
        opened.backend.settle(entry_name(n - 1))
    name = entry_name(n)
    unknown = False
    for attempt in range(LOG_APPEND_REPEATS_MAX):
        try:
            opened.backend.create(name, [stored])
            return True
        except ObjectExists:
            unknown = True
            with suppress(StorageError, TryAgain):
                return opened.backend.read(name, 0, LOG_ENTRY_BYTES_MAX + 1) == stored
        except AnswerLost:
            unknown = True
        except StorageError:
            # A refusal says nothing about an earlier try whose answer was lost.
            if not unknown:
                raise
        opened.clock.sleep(min(0.05 * 2**attempt, 5.0))
    raise TryAgain(
        f"no answer to the creation of log entry {n}: it may or may not have been written",
        hint="run 'cairn log' to see whether the change took effect before you repeat it",
    )


def append(opened: OpenStore, head: Callable[[], int], build: Callable[[int], bytes]) -> tuple[int, bytes]:
    """Append one entry: bring the fold up to date, build entry n, create it; repeat while others are first.

    Args:
        head: refreshes the fold and returns its length.
        build: validates against that fold and returns the stored bytes of entry n, or raises.

    Raises:
        ConflictError: others were first too many times.
    """
    for _ in range(LOG_APPEND_RACES_MAX):
        n = head()
        stored = build(n)
        if len(stored) > LOG_ENTRY_BYTES_MAX:
            raise ConflictError(f"log entry {n} of {len(stored)} bytes is over the limit of {LOG_ENTRY_BYTES_MAX}")
        if create_entry(opened, n, stored):
            return n, stored
    raise ConflictError(
        f"{LOG_APPEND_RACES_MAX} other writers were first, one after the other", hint="repeat the command"
    )
