"""Cutting a shard into what is stored of it: whole tiles of the canonical grid, and regions for the rest.

Tiles are what all layouts share. What remains of a box around its whole tiles is cut into few large boxes, not
along the grid: a region of a megabyte costs less than many slivers of tiles.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod

import msgspec

from cairn.manifests.dtypes import BITS
from cairn.manifests.tiling import TILE_BYTES_MAX, Box, Grid, grid

cached_grid = lru_cache(maxsize=4096)(grid)


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One box to be stored, and the number of the tile that it is, or -1."""

    box: Box
    tile: int


@lru_cache(maxsize=65536)
def cut_box(dtype: str, shape: tuple[int, ...], box: Box) -> tuple[Piece, ...]:
    """All pieces of a box of a tensor, none empty; together they are the box.

    Raises:
        ValueError: a part of a tensor whose elements are narrower than a byte.
    """
    if not box.volume:
        return ()
    layout = cached_grid(dtype, shape)
    if BITS[dtype] % 8:
        if box.lengths != shape:
            raise ValueError(f"a part of a {dtype} tensor cannot be stored for itself")
        return tuple(Piece(layout.tile(n), n) for n in range(layout.tile_count))
    inner = [
        _whole_cells(edges, at, at + n) for edges, at, n in zip(layout.edges, box.offsets, box.lengths, strict=True)
    ]
    if any(first >= last for first, last in inner):
        return tuple(Piece(part, -1) for part in split_box(box, layout.item_bytes))
    tiles = tuple(Piece(layout.tile(n), n) for n in _numbers(layout.counts, inner))
    around = _around(box, [(e[first], e[last]) for e, (first, last) in zip(layout.edges, inner, strict=True)])
    return tiles + tuple(Piece(part, -1) for slab in around for part in split_box(slab, layout.item_bytes))


def tiles_in(layout: Grid, box: Box) -> Iterator[tuple[int, Box]]:
    """Numbers and boxes of all tiles that a box touches."""
    if not box.volume:
        return
    cells = [
        [(number, edges[number], edges[number + 1] - edges[number]) for number in range(first, last)]
        for edges, (first, last) in zip(layout.edges, _cells(layout, box), strict=True)
    ]
    counts = layout.counts
    for cell in product(*cells):
        number = 0
        for count, (at, _, _) in zip(counts, cell, strict=True):
            number = number * count + at
        yield number, Box(tuple(part[1] for part in cell), tuple(part[2] for part in cell))


def tile_numbers(layout: Grid, box: Box) -> Iterator[int]:
    """Numbers of all tiles that a box touches."""
    if not box.volume:
        return
    yield from _numbers(layout.counts, _cells(layout, box))


def _cells(layout: Grid, box: Box) -> list[tuple[int, int]]:
    """Of each axis, the first cell that a box touches, and one after the last."""
    return [
        (bisect_right(edges, at) - 1, bisect_left(edges, at + length))
        for edges, at, length in zip(layout.edges, box.offsets, box.lengths, strict=True)
    ]


def split_box(box: Box, item_bytes: int) -> Iterator[Box]:
    """Cut a box into boxes of at most `TILE_BYTES_MAX` whose bytes are contiguous in it."""
    if box.volume * item_bytes <= TILE_BYTES_MAX:
        yield box
        return
    axis = next(i for i, length in enumerate(box.lengths) if length > 1)
    unit = prod(box.lengths[axis + 1 :]) * item_bytes
    step = max(TILE_BYTES_MAX // unit, 1)
    for start in range(0, box.lengths[axis], step):
        part = _narrowed(box, axis, box.offsets[axis] + start, min(step, box.lengths[axis] - start))
        yield from split_box(part, item_bytes)


def cut_at_edges(box: Box, edges: Sequence[Sequence[int]], most: int) -> Iterator[Box]:
    """Cut a box along its first axes into boxes of at most `most` elements; at tiles' edges, where one is in reach.

    A tile that two pieces share is read for both.

    Args:
        edges: of the tensor's grid, by axis.
    """
    if box.volume <= most:
        yield box
        return
    axis = next(i for i, length in enumerate(box.lengths) if length > 1)
    step = max(most // prod(box.lengths[axis + 1 :]), 1)
    at, end = box.offsets[axis], box.offsets[axis] + box.lengths[axis]
    while at < end:
        stop = min(at + step, end)
        if stop < end:
            edge = edges[axis][bisect_right(edges[axis], stop) - 1]
            stop = edge if edge > at else stop
        yield from cut_at_edges(_narrowed(box, axis, at, stop - at), edges, most)
        at = stop


def _whole_cells(edges: tuple[int, ...], start: int, end: int) -> tuple[int, int]:
    """Cells of an axis that lie within `[start, end)`: the first, and one after the last."""
    return bisect_left(edges, start), bisect_right(edges, end) - 1


def _numbers(counts: tuple[int, ...], cells: list[tuple[int, int]]) -> Iterator[int]:
    for cell in product(*(range(first, last) for first, last in cells)):
        number = 0
        for count, at in zip(counts, cell, strict=True):
            number = number * count + at
        yield number


def _around(box: Box, inner: list[tuple[int, int]]) -> Iterator[Box]:
    """What lies in a box and not in the inner one, as at most two slabs an axis."""
    for axis, (low, high) in enumerate(inner):
        start, end = box.offsets[axis], box.offsets[axis] + box.lengths[axis]
        if start < low:
            yield _narrowed(box, axis, start, low - start)
        if high < end:
            yield _narrowed(box, axis, high, end - high)
        box = _narrowed(box, axis, low, high - low)


def _narrowed(box: Box, axis: int, offset: int, length: int) -> Box:
    return Box(
        (*box.offsets[:axis], offset, *box.offsets[axis + 1 :]), (*box.lengths[:axis], length, *box.lengths[axis + 1 :])
    )
