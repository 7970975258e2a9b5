"""The log as this client has seen it, entry by entry, and whether it still stands so.

Whoever goes on from a cache does not fold again what it has folded. To notice all the same that an entry was altered,
removed or moved since, it lists the log when it opens the store. An entry that is listed with the stamp that it had
before it was folded is the same; one without a stamp, or with another, is read again and compared.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import takewhile

import msgspec

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError, ObjectNotFound
from cairn.core.limits import ENTRY_READS_AT_ONCE, LOG_FOLDER_ENTRIES, LOG_LOOK_SECONDS
from cairn.registry.bundles import or_else
from cairn.registry.entries import open_entry
from cairn.registry.log import has_entry, read_entry
from cairn.registry.names import entry_name, entry_position
from cairn.registry.opened import OpenStore
from cairn.registry.replay import Replay
from cairn.store.backends.contract import waits
from cairn.store.cache import Cache

# Entries that are noted together: few enough that one more costs little to write, many enough that all are few reads.
_SPAN_ENTRIES = 256
_UNKNOWN = b""
# An entry and its leaf hash, as `SeenLog._read` returns them.
_Again = tuple[bytes, bytes] | None
# Folders that are listed whatever it takes: the newest, and one before it.
_FOLDERS_MIN = 2


class _Span(msgspec.Struct, array_like=True):
    """Leaf hashes and stamps of consecutive entries, as they were seen together; `_UNKNOWN` where they were not."""

    leaves: list[bytes]
    stamps: list[bytes]

    @staticmethod
    def unknown() -> "_Span":
        """A span of which nothing was seen."""
        return _Span([_UNKNOWN] * _SPAN_ENTRIES, [_UNKNOWN] * _SPAN_ENTRIES)


class SeenLog:
    """What was seen of one store's log, kept in the cache. `look` comes first, `follow` and `difference` later."""

    def __init__(self, opened: OpenStore, cache: Cache) -> None:
        self._opened = opened
        self._cache = cache
        self._known = self._followed = 0
        self._stamps: dict[int, bytes] = {}
        # End of what the listing of each folder names.
        self._ends: dict[int, int] = {}
        self._spans: dict[int, _Span] = {}
        self._changed: set[int] = set()

    def look(self, known: int) -> None:
        """List the log, before it is read: a stamp that is noted must not be younger than the bytes.

        The newest folder is listed, and others in a random order as long as that goes fast; nothing is, where this
        user may not list.

        Args:
            known: how many entries the cache has folded.
        """
        self._known = self._followed = known
        self._stamps, self._ends, self._spans, self._changed = {}, {}, {}, set()
        clock = self._opened.clock
        begun = clock.monotonic()
        nothing: list[int] = []
        for folder in or_else(nothing, self._folders):
            if len(self._ends) >= _FOLDERS_MIN and clock.monotonic() - begun > LOG_LOOK_SECONDS:
                return
            stamps = or_else(None, partial(self._listed, folder))
            if stamps is not None:
                self._stamps |= stamps
                self._ends[folder] = max(stamps, default=-1) + 1

    def follow(self, replay: Replay, until: int) -> dict[int, bytes]:
        """Take note of the entries that were fed since, up to position `until`; returns what the cache is to keep."""
        for n in range(max(self._followed, replay.begun), until):
            self._note(n, replay.leaves[n - replay.begun], self._stamps.get(n, _UNKNOWN))
        self._followed = until
        return self._news()

    def difference(self, replay: Replay) -> int | None:
        """The first entry that was found missing, or to be another than was folded."""
        doubtful: list[int] = []
        for folder, end in self._ends.items():
            first = folder * LOG_FOLDER_ENTRIES
            # What came to the newest folder while this client read is not in the listing, and cannot have been lost.
            newest = folder == max(self._ends)
            end = min(first + LOG_FOLDER_ENTRIES, max(end, self._known) if newest else replay.length)
            unlisted = (n for n in range(first, min(end, replay.length)) if n not in self._stamps)
            # A listing may leave out a name that came while it was made, and tell of the one after it.
            gone = next((n for n in unlisted if not or_else(True, partial(has_entry, self._opened, n))), None)
            if gone is not None or end > replay.length:
                return gone if gone is not None else replay.length
            doubtful += self._doubtful(first, end)
        again = list(self._read_again(doubtful))
        other = [n for n, stored, leaf in again if not self._is_same(replay, n, stored, leaf)]
        if self._changed:
            self._cache.note_seen(self._news())
        return min(other, default=None)

    def end(self, most: int | None = None) -> int:
        """Position behind the last entry that was listed, of those before `most`."""
        return max((n + 1 for n in self._stamps if most is None or n < most), default=0)

    def _news(self) -> dict[int, bytes]:
        """The spans that changed since this was asked for."""
        changed, self._changed = self._changed, set()
        return {number: encode(self._spans[number]) for number in changed}

    def _folders(self) -> list[int]:
        """The newest folder that the cache knows, or else of those there are; then all before it, from anywhere on."""
        opened = self._opened
        newest = (self._known - 1) // LOG_FOLDER_ENTRIES
        if newest < 0:
            there = set(opened.backend.folders("log"))
            # A name that is far ahead is no folder of the log's.
            newest = sum(1 for _ in takewhile(lambda folder: f"{folder:08d}" in there, range(len(there)))) - 1
        if newest < 0:
            return []
        at = self._anywhere(newest)
        return [newest, *range(at, newest), *range(at)]

    def _listed(self, folder: int) -> dict[int, bytes]:
        """Stamps of a folder's entries, by position; other names are none of the log's."""
        listed = self._opened.backend.list(os.path.dirname(entry_name(folder * LOG_FOLDER_ENTRIES)))
        return {n: one.stamp for one in listed if (n := entry_position(one.name)) is not None}

    def _doubtful(self, first: int, end: int) -> Iterator[int]:
        """Positions whose stamps are not those that were seen; of what was never seen, the stamp is noted."""
        for start in range(first, end, _SPAN_ENTRIES):
            listed = [self._stamps.get(n, _UNKNOWN) for n in range(start, min(start + _SPAN_ENTRIES, end))]
            seen = self._span(start // _SPAN_ENTRIES)
            if _UNKNOWN not in listed and seen.stamps[: len(listed)] == listed:
                continue
            for at, stamp in enumerate(listed):
                if seen.leaves[at] == seen.stamps[at] == _UNKNOWN:
                    self._note(start + at, _UNKNOWN, stamp)
                elif not stamp or stamp != seen.stamps[at]:
                    yield start + at

    def _read_again(self, positions: Sequence[int]) -> Iterator[tuple[int, bytes, bytes]]:
        """Entries, from anywhere on, as long as that goes fast."""
        clock, begun = self._opened.clock, self._opened.clock.monotonic()
        at = self._anywhere(len(positions))
        positions = [*positions[at:], *positions[:at]]
        with ExitStack() as stack:
            read_all: Callable[[Callable[[int], _Again], Sequence[int]], Iterator[_Again]] = map
            if positions and waits(self._opened.backend):
                from concurrent.futures import ThreadPoolExecutor  # 20 ms that a local store saves

                read_all = stack.enter_context(ThreadPoolExecutor(ENTRY_READS_AT_ONCE)).map
            for first in range(0, len(positions), ENTRY_READS_AT_ONCE):
                if first and clock.monotonic() - begun > LOG_LOOK_SECONDS:
                    return
                some = positions[first : first + ENTRY_READS_AT_ONCE]
                for n, read in zip(some, read_all(self._read, some), strict=True):
                    if read is not None:
                        yield n, *read

    def _read(self, n: int) -> _Again:
        """An entry and its leaf hash; no bytes if it is gone, None if storage does not give it out."""
        try:
            return or_else(None, partial(read_entry, self._opened, n))
        except ObjectNotFound:
            return b"", b""

    def _is_same(self, replay: Replay, n: int, stored: bytes, leaf: bytes) -> bool:
        seen = self._span(n // _SPAN_ENTRIES).leaves[n % _SPAN_ENTRIES]
        # Whoever started from a snapshot knows none of the entries before it by themselves.
        if leaf != seen if seen else not self._may_stand(replay, n, stored):
            return False
        self._note(n, leaf, self._stamps.get(n, _UNKNOWN))
        return True

    def _may_stand(self, replay: Replay, n: int, stored: bytes) -> bool:
        """Whether an entry opens in its place, or is one that has no effect."""
        opened = self._opened
        try:
            open_entry(stored, n, opened.tenant, opened.store, opened.secrets.k_log)
        except IntegrityError:
            return any(void.n == n for void in replay.attested().voids)
        return True

    def _note(self, n: int, leaf: bytes, stamp: bytes) -> None:
        span, at = self._span(n // _SPAN_ENTRIES), n % _SPAN_ENTRIES
        if (span.leaves[at], span.stamps[at]) != (leaf, stamp):
            span.leaves[at], span.stamps[at] = leaf, stamp
            self._changed.add(n // _SPAN_ENTRIES)

    def _span(self, number: int) -> _Span:
        span = self._spans.get(number)
        if span is None:
            span = self._spans[number] = self._cached(number)
        return span

    def _cached(self, number: int) -> _Span:
        with suppress(msgspec.MsgspecError):
            span = msgspec.msgpack.decode(self._cache.seen(number) or b"", type=_Span)
            if len(span.leaves) == len(span.stamps) == _SPAN_ENTRIES:
                return span
        return _Span.unknown()

    def _anywhere(self, end: int) -> int:
        return int.from_bytes(self._opened.entropy.token(8), "big") % end if end else 0
