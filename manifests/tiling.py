"""The canonical grid of a tensor: part of the format, rule version 1.

The grid depends on dtype and shape alone, so the same state saved from any layout yields the same tiles.
`docs/adr/0003-tiling.md` has the measurements behind the numbers; vectors stand in `tests/vectors/tiling.json`.

Rule 1, for a tensor of more than 1 MiB (smaller ones are one tile; types narrower than a byte are flat bytes):

1. If the last axis is at least as long as the one to its left, it is cut in `c` equal parts, the largest of 8, 4, 2
   that divides it, leaves rows of at least 2 KiB, and leaves tiles of at least 1 MiB after an 8-way cut of the
   rows. (Tensor parallelism splits the longer axis of a matrix, sharding by rank always the first.)
2. Going left from the last axis, whole axes join the tile while it stays within 2 MiB. The first that does not
   fit (else axis 0; the last axis itself if one row is over 2 MiB) is the *cut axis*; tiles have length 1 on
   the axes to its left.
3. The cut axis is cut in `s` equal blocks, the largest of 8, 4, 2 that divides it and leaves tiles of at least 1 MiB,
   and each block in `q` pieces, the least power of two that brings tiles to at most 2 MiB; a block's last piece
   may be shorter.

Tiles are numbered in row-major order of the grid. A *band* is a run of tiles that differ only in the last axis;
its bytes are contiguous in the row-major tensor.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import prod

import msgspec

from cairn.manifests.dtypes import BITS, nbytes

RULE = 1
TILE_BYTES_MIN = 1 << 20
TILE_BYTES_MAX = 2 << 20
ROW_BYTES_MIN = 2 << 10
_SPLITS = (8, 4, 2)


class Box(msgspec.Struct, frozen=True, gc=False):
    """An axis-aligned area of a tensor, in elements."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.lengths) or min(self.offsets + self.lengths, default=0) < 0:
            raise ValueError(f"offsets {self.offsets} and lengths {self.lengths} are no box")

    @property
    def volume(self) -> int:
        """Number of elements."""
        return prod(self.lengths)

    def intersect(self, other: "Box") -> "Box | None":
        """The common area, None if empty."""
        offsets, lengths = [], []
        for a, m, b, n in zip(self.offsets, self.lengths, other.offsets, other.lengths, strict=True):
            start = max(a, b)
            length = min(a + m, b + n) - start
            if length <= 0:
                return None
            offsets.append(start)
            lengths.append(length)
        return Box(tuple(offsets), tuple(lengths))


class Band(msgspec.Struct, frozen=True):
    """A run of tiles that covers contiguous bytes of the row-major tensor.

    Args:
        first: number of the first tile.
        offset, length: byte range in the tensor.
        rows: rows of `row_bytes` each.
        columns: tile `i` of the band holds bytes `columns[i]` (start, length) of each row.
    """

    first: int
    offset: int
    length: int
    rows: int
    columns: tuple[tuple[int, int], ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a whole row of the band."""
        return self.length // self.rows


class Grid(msgspec.Struct, frozen=True):
    """The tiles of one tensor: `edges[axis]` are the cut positions, first 0 and last the axis length."""

    shape: tuple[int, ...]
    item_bytes: int
    edges: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles along each axis."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @property
    def tile_count(self) -> int:
        """Number of tiles; 0 for a tensor without elements."""
        return prod(self.counts)

    def tile(self, number: int) -> Box:
        """Box of a tile."""
        if not 0 <= number < self.tile_count:
            raise IndexError(f"tile {number} of {self.tile_count}")
        offsets, lengths = [], []
        for edges in reversed(self.edges):
            number, at = divmod(number, len(edges) - 1)
            offsets.append(edges[at])
            lengths.append(edges[at + 1] - edges[at])
        return Box(tuple(reversed(offsets)), tuple(reversed(lengths)))

    def tile_bytes(self, number: int) -> int:
        """Bytes of a tile."""
        return self.tile(number).volume * self.item_bytes

    def lengths(self) -> list[int]:
        """Bytes of every tile, in order."""
        lengths = [self.item_bytes]
        for edges in self.edges:
            lengths = [length * (end - start) for length in lengths for start, end in pairwise(edges)]
        return lengths

    def bands(self) -> Iterator[Band]:
        """All bands in order; they cover the tensor's bytes without gap."""
        if not self.tile_count:
            return
        item, last = self.item_bytes, self.edges[-1] if self.edges else (0, 1)
        # Only the cut axis has pieces of unlike length; where that is the last axis, a band is one tile.
        per_band = len(last) - 1 if self._columns_cut() else 1
        at, lengths = 0, self.lengths()
        for first in range(0, len(lengths), per_band):
            length = sum(lengths[first : first + per_band])
            widths = [(a * item, (b - a) * item) for a, b in pairwise(last)] if per_band > 1 else None
            rows = length // (last[-1] * item) if widths else 1
            yield Band(first, at, length, rows, tuple(widths) if widths else ((0, length),))
            at += length

    def _columns_cut(self) -> bool:
        """Whether the last axis is cut for columns (step 1), not for being the cut axis itself."""
        return (
            len(self.edges) > 1
            and len(self.edges[-1]) > 2
            and not all(
                len(edges) - 1 == length for edges, length in zip(self.edges[:-1], self.shape[:-1], strict=True)
            )
        )


def grid(dtype: str, shape: tuple[int, ...]) -> Grid:
    """The canonical grid of a tensor by rule 1.

    Raises:
        BadInput: dtype or shape is impossible.
    """
    total = nbytes(dtype, shape)
    if BITS[dtype] % 8:
        shape, item = (total,), 1
    else:
        item = BITS[dtype] // 8
    if total <= TILE_BYTES_MIN:
        return Grid(shape, item, tuple((0, length) if length else (0,) for length in shape))
    columns = _columns(shape, item, total)
    cut, unit = _cut_axis(shape, item, columns)
    edges = []
    for axis, length in enumerate(shape):
        if axis < cut:
            edges.append(tuple(range(length + 1)))
        elif axis == cut:
            edges.append(_cut_edges(length, unit))
        elif axis == len(shape) - 1:
            edges.append(tuple(range(0, length + 1, length // columns)))
        else:
            edges.append((0, length))
    return Grid(shape, item, tuple(edges))


def _columns(shape: tuple[int, ...], item: int, total: int) -> int:
    last = shape[-1]
    if len(shape) < 2 or last < shape[-2]:
        return 1
    for parts in _SPLITS:
        wide_enough = last % parts == 0 and last // parts * item >= ROW_BYTES_MIN
        if wide_enough and total >= 8 * parts * TILE_BYTES_MIN:
            return parts
    return 1


def _cut_axis(shape: tuple[int, ...], item: int, columns: int) -> tuple[int, int]:
    """The cut axis and the bytes of one step along it."""
    last = len(shape) - 1
    unit = shape[-1] // columns * item
    if unit > TILE_BYTES_MAX or last == 0:
        return last, item
    for axis in range(last - 1, -1, -1):
        if unit * shape[axis] > TILE_BYTES_MAX or axis == 0:
            return axis, unit
        unit *= shape[axis]
    raise AssertionError("unreachable")


def _cut_edges(length: int, unit: int) -> tuple[int, ...]:
    """Cut positions of the cut axis."""
    blocks = next((s for s in _SPLITS if length % s == 0 and length // s * unit >= TILE_BYTES_MIN), 1)
    block = length // blocks
    pieces = 1
    while -(-block // pieces) * unit > TILE_BYTES_MAX and pieces < block:
        pieces *= 2
    step = -(-block // pieces)
    cuts = (min(start + at, start + block) for start in range(0, length, block) for at in range(0, block, step))
    return (*dict.fromkeys(cuts), length)
