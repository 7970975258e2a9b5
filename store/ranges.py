"""Joining places of a pack into ranges that are fetched at once."""

from collections.abc import Sequence

import msgspec

from cairn.core.limits import READ_AMPLIFICATION_MAX, READ_GAP_BYTES


class Range(msgspec.Struct, frozen=True, gc=False):
    """Bytes of one pack to fetch."""

    pack: int
    offset: int
    length: int


def join_ranges(places: Sequence[tuple[int, int, int]], most: int | None = None) -> list[Range]:
    """Join sorted places (pack, offset, length) that lie close together.

    Args:
        most: bytes that no joined range exceeds.
    """
    ranges: list[Range] = []
    needed = 0  # bytes of the last range that were asked for
    for pack, offset, length in places:
        if ranges and ranges[-1].pack == pack:
            last = ranges[-1]
            joined = offset + length - last.offset
            near = offset - (last.offset + last.length) <= READ_GAP_BYTES
            if near and joined <= READ_AMPLIFICATION_MAX * (needed + length) and (most is None or joined <= most):
                ranges[-1] = Range(pack, last.offset, joined)
                needed += length
                continue
        ranges.append(Range(pack, offset, length))
        needed = length
    return ranges
