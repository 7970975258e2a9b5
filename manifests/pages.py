"""Cutting entries into pages so that a small change rewrites few of them.

Entries are sorted by key. A page ends after an entry whose key hashes low, so that cuts depend on keys and
not on positions: adding a tensor moves few other edges, as a rule none. Sizes stay within a factor of four of the
target.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import add, sub
from typing import TypeVar

from blake3 import blake3

from cairn.core.canonical import encode
from cairn.core.errors import RefusedError
from cairn.core.limits import PAGE_BYTES_MAX, PAGE_BYTES_TARGET
from cairn.manifests.schema import Bounds, FileEntry, Region, TensorEntry, ValueEntry

Entry = TypeVar("Entry", TensorEntry, FileEntry, ValueEntry)
_MIN_BYTES = PAGE_BYTES_TARGET // 4
_MAX_BYTES = PAGE_BYTES_TARGET * 4


def entry_key(entry: TensorEntry | FileEntry | ValueEntry) -> bytes:
    """What entries are sorted and cut by; unique in a component."""
    if isinstance(entry, FileEntry):
        return entry.path + b"\0" + entry.part.to_bytes(4, "big")
    return encode([entry.key.scope, entry.key.path])


def paginate(entries: Iterable[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Sort entries and cut them into pages.

    Raises:
        ValueError: two entries have one key.
    """
    page: list[Entry] = []
    size, previous = 0, None
    for key, entry in sorted(((entry_key(entry), entry) for entry in entries), key=lambda pair: pair[0]):
        if key == previous:
            raise ValueError(f"two entries have the key {key!r}")
        length, previous = len(encode(entry)), key
        if page and size + length > _MAX_BYTES:
            yield tuple(page)
            page, size = [], 0
        page.append(entry)
        size += length
        if size >= _MIN_BYTES and _ends_page(key, length):
            yield tuple(page)
            page, size = [], 0
    if page:
        yield tuple(page)


def _ends_page(key: bytes, length: int) -> bool:
    """True with a probability that makes pages of the target size on average, whatever the entries' size."""
    draw = int.from_bytes(blake3(key).digest(length=4), "big")
    return draw * PAGE_BYTES_TARGET < length << 32


def check_page_size(encoded: bytes) -> bytes:
    """Return an encoded page if a reader will accept it.

    Raises:
        RefusedError: it is over the limit.
    """
    if len(encoded) > PAGE_BYTES_MAX:
        raise RefusedError(f"a manifest page of {len(encoded)} bytes is over the limit of {PAGE_BYTES_MAX}")
    return encoded


def bounds_of(regions: Sequence[Region]) -> Bounds:
    """The smallest box around regions, of which there is at least one."""
    starts = list(zip(*(region.offsets for region in regions), strict=True))
    lengths = zip(*(region.lengths for region in regions), strict=True)
    low = tuple(map(min, starts))
    high = (max(map(add, of_axis, along)) for of_axis, along in zip(starts, lengths, strict=True))
    return low, tuple(map(sub, high, low))
