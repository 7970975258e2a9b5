"""Bundles: 256 consecutive log entries in one object, verbatim, so that a long log is read with few requests.

    0    4     magic "CRNB"
    4    1     version (1)
    5    3     zero
    8    8     position of the first entry
    16   16    store id
    32   1024  stored length of each entry (u32)
    1056 n     the entries, one after the other
    .    32    BLAKE3 of all bytes before

Anybody may write one, and nobody trusts one. What it holds is replayed as the entries would be, and counts only if an
entry that was read by itself, and stands behind, signs the root over all of it.
"""

import re
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from blake3 import blake3

from cairn.core.errors import CairnError, IntegrityError, ObjectExists
from cairn.core.ids import StoreId
from cairn.core.limits import BUNDLE_BYTES_MAX, BUNDLE_ENTRIES, BUNDLE_READS_AT_ONCE, LOG_ENTRY_BYTES_MAX
from cairn.registry.log import read_from
from cairn.registry.names import entry_name
from cairn.registry.opened import OpenStore
from cairn.registry.replay import Replay

T = TypeVar("T")

FOLDER = "bundles"
_MAGIC, _VERSION = b"CRNB", 1
_HEADER = struct.Struct("<4sB3xQ16s")
_LENGTHS = struct.Struct(f"<{BUNDLE_ENTRIES}I")
_HASH_BYTES = 32
_OVERHEAD_BYTES = _HEADER.size + _LENGTHS.size + _HASH_BYTES
_NAME = re.compile(rf"{FOLDER}/(\d{{12}})", re.ASCII)
# Entries that are read one by one before bundles are looked for: whoever was here lately meets no more.
_ENTRIES_BEFORE = 4


class Fed(NamedTuple):
    """What came of replaying bundles.

    Args:
        trusted: an entry that was read by itself speaks for all that was replayed; else it has to be thrown away.
        bad: numbers of bundles that are damaged, or may hold other entries than the log.
    """

    trusted: bool
    bad: frozenset[int] = frozenset()


def bundle_name(number: int) -> str:
    """Name of the bundle of entries from `number` * 256 on."""
    return f"{FOLDER}/{number:012d}"


def encode_bundle(store: StoreId, number: int, entries: Sequence[bytes]) -> bytes:
    """The bundle of 256 stored entries."""
    header = _HEADER.pack(_MAGIC, _VERSION, number * BUNDLE_ENTRIES, store)
    plain = b"".join((header, _LENGTHS.pack(*(len(entry) for entry in entries)), *entries))
    return plain + blake3(plain).digest()


def decode_bundle(data: bytes, store: StoreId, number: int) -> list[bytes]:
    """Inverse of `encode_bundle`; the entries themselves are unchecked.

    Raises:
        IntegrityError: it is damaged, or belongs elsewhere.
    """
    what, start = bundle_name(number), _HEADER.size + _LENGTHS.size
    view = memoryview(data)
    if len(view) < _OVERHEAD_BYTES or blake3(view[:-_HASH_BYTES]).digest() != view[-_HASH_BYTES:]:
        raise IntegrityError(f"{what} is damaged")
    if view[: _HEADER.size] != _HEADER.pack(_MAGIC, _VERSION, number * BUNDLE_ENTRIES, store):
        raise IntegrityError(f"{what} is no bundle of these entries")
    lengths = _LENGTHS.unpack_from(view, _HEADER.size)
    if max(lengths) > LOG_ENTRY_BYTES_MAX or start + sum(lengths) + _HASH_BYTES != len(view):
        raise IntegrityError(f"{what} holds entries of impossible lengths")
    entries = []
    for length in lengths:
        entries.append(bytes(view[start : start + length]))
        start += length
    return entries


def read_bundle(opened: OpenStore, number: int) -> list[bytes]:
    """The entries that a stored bundle holds, unchecked.

    Raises:
        ObjectNotFound: there is no such bundle.
        IntegrityError: see `decode_bundle`.
    """
    return decode_bundle(opened.backend.read(bundle_name(number), 0, BUNDLE_BYTES_MAX + 1), opened.store, number)


def listed_bundles(opened: OpenStore) -> list[int]:
    """Numbers of the bundles that there are, ascending."""
    names = (_NAME.fullmatch(listed.name) for listed in opened.backend.list(FOLDER))
    return [int(name[1]) for name in names if name]


def feed_bundled(opened: OpenStore, replay: Replay) -> Fed:
    """Bring a replay up to the head of the log, from bundles as far as there are any."""
    begun, used, bad = replay.length, set[int](), set[int]()
    _feed(opened, replay, begun + _ENTRIES_BEFORE)
    if replay.length < begun + _ENTRIES_BEFORE:
        return Fed(trusted=True)
    bundled = 0
    for number, entries in _bundles_from(opened, replay.length // BUNDLE_ENTRIES, bad):
        if entries is None:
            continue
        first = number * BUNDLE_ENTRIES
        _feed(opened, replay, first)
        if replay.length < first:
            break
        for stored in entries[replay.length - first :]:
            replay.feed(stored)
        used.add(number)
        bundled = replay.length
    _feed(opened, replay)
    trusted = replay.vouched >= bundled
    return Fed(trusted, frozenset(bad if trusted else bad | used))


def write_bundles(opened: OpenStore, vouched: int, bad: Collection[int]) -> int:
    """Write the bundles that are missing; returns how many.

    Args:
        vouched: how many entries an entry behind them speaks for: readers want one.
        bad: numbers of bundles to write anew.
    """
    present, written = set(listed_bundles(opened)), 0
    sizes: dict[str, int] = {}
    for number in range(vouched // BUNDLE_ENTRIES):
        if number in present and number not in bad:
            continue
        names = [entry_name(number * BUNDLE_ENTRIES + at) for at in range(BUNDLE_ENTRIES)]
        if names[0] not in sizes:
            sizes = {listed.name: listed.size for listed in opened.backend.list(names[0].rpartition("/")[0])}
        # Without an entry there is no bundle, as if it were too long.
        lengths = [sizes.get(name, LOG_ENTRY_BYTES_MAX + 1) for name in names]
        if max(lengths) > LOG_ENTRY_BYTES_MAX or sum(lengths) + _OVERHEAD_BYTES > BUNDLE_BYTES_MAX:
            continue
        stored = _bundled(opened, number)
        if number in present:
            opened.backend.delete(bundle_name(number))
        with suppress(ObjectExists):  # another writer's, of the same entries
            opened.backend.create(bundle_name(number), [stored])
            written += 1
    return written


def _bundled(opened: OpenStore, number: int) -> bytes:
    entries = [stored for stored, _ in islice(read_from(opened, number * BUNDLE_ENTRIES), BUNDLE_ENTRIES)]
    return encode_bundle(opened.store, number, entries)


def _feed(opened: OpenStore, replay: Replay, end: int | None = None) -> None:
    """Feed entries that are read by themselves, up to position `end` or the head."""
    count = None if end is None else max(0, end - replay.length)
    for stored, leaf in islice(read_from(opened, replay.length), count):
        replay.feed(stored, leaf)


def _bundles_from(opened: OpenStore, first: int, bad: set[int]) -> Iterator[tuple[int, list[bytes] | None]]:
    """Bundles from number `first` on, ascending; None for one that cannot be read, or is damaged and then noted."""
    nothing: list[int] = []
    numbers = [number for number in or_else(nothing, partial(listed_bundles, opened)) if number >= first]
    if not numbers:
        return

    def read(number: int) -> tuple[int, list[bytes] | None]:
        try:
            return number, or_else(None, partial(read_bundle, opened, number))
        except IntegrityError:
            bad.add(number)
            return number, None

    from concurrent.futures import ThreadPoolExecutor  # 20 ms that a store without bundles saves

    with ThreadPoolExecutor(BUNDLE_READS_AT_ONCE) as pool:
        for at in range(0, len(numbers), BUNDLE_READS_AT_ONCE):
            yield from pool.map(read, numbers[at : at + BUNDLE_READS_AT_ONCE])


def or_else(otherwise: T, work: Callable[[], T]) -> T:
    """What `work` returns, or something else where storage fails for good: nobody depends on a shortcut.

    Raises:
        IntegrityError: what was read is damaged.
        TryAgain: a passing condition of the storage.
    """
    try:
        return work()
    except CairnError as error:
        if error.retryable or isinstance(error, IntegrityError):
            raise
        return otherwise
