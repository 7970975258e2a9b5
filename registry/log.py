"""The log in a backend: reading entries in order, and appending by compare-and-set."""

from collections.abc import Callable, Iterator

from cairn.core.errors import (
    AnswerLost,
    ConflictError,
    IntegrityError,
    ObjectExists,
    ObjectNotFound,
    TryAgain,
)
from cairn.core.limits import (
    LOG_APPEND_RACES_MAX,
    LOG_APPEND_REPEATS_MAX,
    LOG_ENTRY_BYTES_MAX,
    LOG_FOLDER_ENTRIES,
)
from cairn.registry.names import entry_name
from cairn.registry.opened import OpenStore


def read_from(opened: OpenStore, start: int) -> Iterator[bytes]:
    """Stored bytes of entries `start`, `start + 1`, ... up to the head."""
    n = start
    while True:
        try:
            data = opened.backend.read(entry_name(n), 0, LOG_ENTRY_BYTES_MAX + 1)
        except ObjectNotFound:
            return
        yield data
        n += 1


def check_no_hole(opened: OpenStore, length: int) -> None:
    """Make sure that entry `length` - 1 is the last name of the log.

    Raises:
        IntegrityError: an entry lies beyond, so one between is missing.
    """
    folders = opened.backend.folders("log")
    if not folders:
        raise IntegrityError(f"{opened.backend.url} has lost its log")
    last = ""
    for listed in opened.backend.list(f"log/{folders[-1]}"):
        last = listed.name
    # An empty last folder is what a writer leaves that died before its entry.
    if last and last > entry_name(length - 1):
        raise IntegrityError(
            f"log entry {length} is missing while {last} exists: the log has a hole",
            hint="nothing was written; run 'cairn verify' and restore the missing entry from a copy of the store",
        )


def create_entry(opened: OpenStore, n: int, stored: bytes) -> bool:
    """Create entry `n`; True if it is ours, False if another writer was first.

    A lost answer is unknown until slot `n` is occupied: the same bytes are put again until an answer comes.

    Raises:
        TryAgain: no answer came within the bound; the outcome is unknown, and the message says so.
    """
    if n % LOG_FOLDER_ENTRIES == 0 and n:
        opened.backend.settle(entry_name(n - 1))
    name = entry_name(n)
    for attempt in range(LOG_APPEND_REPEATS_MAX):
        try:
            opened.backend.create(name, [stored])
            return True
        except ObjectExists:
            return opened.backend.read(name, 0, LOG_ENTRY_BYTES_MAX + 1) == stored
        except AnswerLost:
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
