"""Which boxes of a global tensor a rank holds: arithmetic on runs of indices, without torch.

A *run* is (start, length) on one axis of the global tensor. Each axis begins as one run; every placement, taken in
mesh order, picks positions out of the axis' runs, as torch 2.13 defines for DTensor's `Shard` and `_StridedShard`.
The boxes are the products of the runs that remain.
"""

from collections.abc import Iterator
from itertools import product
from math import prod

import msgspec

from cairn.manifests.tiling import Box

Run = tuple[int, int]


class Part(msgspec.Struct, frozen=True, gc=False):
    """One box of a global tensor that this rank holds.

    Args:
        box: in elements of the global tensor.
        local: the same elements in the local tensor; its lengths are those of `box`.
    """

    box: Box
    local: Box

    def __post_init__(self) -> None:
        if self.box.lengths != self.local.lengths:
            raise ValueError(f"{self.box} and {self.local} differ in lengths")


class FlatPart(msgspec.Struct, frozen=True, gc=False):
    """One box of a global tensor whose elements lie, in row-major order, in a flat local buffer.

    Args:
        box: in elements of the global tensor.
        offset: element of the buffer that holds the box's first one.
    """

    box: Box
    offset: int

    @property
    def length(self) -> int:
        """Number of elements, in the box and in the buffer."""
        return self.box.volume


class Split(msgspec.Struct, frozen=True):
    """What one mesh dimension does to a tensor: split axis `dim` among its coordinates.

    Args:
        dim: axis of the tensor, at least 0.
        factor: 1 is `Shard`: chunks as `torch.chunk` makes them (ceiling division; the last ones short or empty).
            More is `_StridedShard` with this `split_factor`: the axis is chunked in `factor` blocks, each block
            among the coordinates, and a coordinate gets its chunk of every block.
    """

    dim: int
    factor: int = 1

    def __post_init__(self) -> None:
        if self.dim < 0 or self.factor < 1:
            raise ValueError(f"axis {self.dim} in {self.factor} blocks is no split")


# One for each dimension of the mesh, the first applied first; `None` replicates.
Placements = tuple[Split | None, ...]
Ints = tuple[int, ...]


def local_parts(shape: Ints, mesh: Ints, coordinate: Ints, placements: Placements) -> tuple[Part, ...]:
    """The boxes that the rank at `coordinate` of a mesh of shape `mesh` holds of a tensor of shape `shape`.

    They are disjoint, none is empty, and they stand in row-major order of the local tensor; () for an empty shard.

    Raises:
        ValueError: mesh, coordinate and placements differ in length, or name a place or an axis that is not there.
    """
    parts = []
    for runs in product(*map(_with_positions, _axis_runs(shape, mesh, coordinate, placements))):
        lengths = tuple(length for _, length, _ in runs)
        box = Box(tuple(start for start, _, _ in runs), lengths)
        parts.append(Part(box, Box(tuple(at for _, _, at in runs), lengths)))
    return tuple(parts)


def local_shape(shape: Ints, mesh: Ints, coordinate: Ints, placements: Placements) -> Ints:
    """Shape of the local tensor that `local_parts` describes; raises as it does."""
    axes = _axis_runs(shape, mesh, coordinate, placements)
    return tuple(sum(length for _, length in runs) for runs in axes)


def replica_of(mesh: Ints, coordinate: Ints, placements: Placements) -> tuple[int, int]:
    """(index, count) of a coordinate among those that hold the same parts: those along the replicated dimensions."""
    index, count = 0, 1
    for size, at, split in zip(mesh, coordinate, placements, strict=True):
        if split is None:
            index, count = index * size + at, count * size
    return index, count


def strided_last(mesh: Ints, coordinate: Ints, placements: Placements) -> tuple[Ints, Ints, Placements] | None:
    """The other reading of strided splits: as plain splits after all others, the rightmost first.

    `_StridedShard` stands for this in FSDP over tensor parallelism, and `fully_shard` cuts in this order. The two
    readings agree unless an axis divides unevenly: 7 rows on a mesh (dp=3, tp=2) leave FSDP's rank (2, 1) with row 6,
    while the placements taken in mesh order give that row to (2, 0). None without strided splits, and
    where a factor is not the number of ways that the dimensions to its right split its axis.
    """
    first: list[tuple[int, int, Split | None]] = []
    last: list[tuple[int, int, Split | None]] = []
    dims = list(zip(mesh, coordinate, placements, strict=True))
    for place, (size, at, split) in enumerate(dims):
        if split is None or split.factor == 1:
            first.append((size, at, split))
            continue
        if split.factor != prod(n for n, _, right in dims[place + 1 :] if right and right.dim == split.dim):
            return None
        last.insert(0, (size, at, Split(split.dim)))
    if not last:
        return None
    both = first + last
    return tuple(d[0] for d in both), tuple(d[1] for d in both), tuple(d[2] for d in both)


def flat_range_parts(shape: Ints, box: Box, start: int, stop: int) -> tuple[FlatPart, ...]:
    """Elements [start, stop) of the row-major flattening of `box`, an area of a tensor of shape `shape`.

    As few boxes as can be, in order; `offset` counts from `start`. This is Megatron's flattened range.

    Raises:
        ValueError: the box leaves the tensor or the range leaves the box.
    """
    ends = [offset + length for offset, length in zip(box.offsets, box.lengths, strict=True)]
    if len(shape) != len(ends) or any(end > size for end, size in zip(ends, shape, strict=True)):
        raise ValueError(f"{box} leaves a tensor of shape {shape}")
    if not 0 <= start <= stop <= box.volume:
        raise ValueError(f"range {start}:{stop} leaves {box} of {box.volume} elements")
    parts: list[FlatPart] = []
    offset = 0
    for within in _flat_boxes(box.lengths, start, stop):
        offsets = tuple(a + b for a, b in zip(box.offsets, within.offsets, strict=True))
        parts.append(FlatPart(Box(offsets, within.lengths), offset))
        offset += within.volume
    return tuple(parts)


def _flat_boxes(lengths: Ints, start: int, stop: int) -> Iterator[Box]:
    """The rest of the first row, the whole rows, the beginning of the last; a row is an area of one axis less."""
    if start == stop:
        return
    if not lengths:
        yield Box((), ())
        return
    row = prod(lengths[1:])
    (first, head), (last, tail) = divmod(start, row), divmod(stop, row)
    if first == last:
        yield from _in_row(first, _flat_boxes(lengths[1:], head, tail))
        return
    if head:
        yield from _in_row(first, _flat_boxes(lengths[1:], head, row))
        first += 1
    if first < last:
        yield Box((first, *[0] * (len(lengths) - 1)), (last - first, *lengths[1:]))
    yield from _in_row(last, _flat_boxes(lengths[1:], 0, tail))


def _in_row(row: int, boxes: Iterator[Box]) -> Iterator[Box]:
    return (Box((row, *box.offsets), (1, *box.lengths)) for box in boxes)


def _axis_runs(shape: Ints, mesh: Ints, coordinate: Ints, placements: Placements) -> list[list[Run]]:
    """For each axis the runs that the coordinate holds, in the order of the local tensor, none empty."""
    axes = [[(0, length)] if length else [] for length in shape]
    for size, at, split in zip(mesh, coordinate, placements, strict=True):
        if not 0 <= at < size:
            raise ValueError(f"coordinate {coordinate} lies outside mesh {mesh}")
        if split is None:
            continue
        if split.dim >= len(shape):
            raise ValueError(f"axis {split.dim} is split, shape {shape} has {len(shape)}")
        axes[split.dim] = _split(axes[split.dim], split.factor, size, at)
    return axes


def _split(runs: list[Run], factor: int, size: int, at: int) -> list[Run]:
    """The chunk number `at` of `size` of each of `factor` blocks."""
    picked: list[Run] = []
    total = sum(length for _, length in runs)
    for block in range(factor):
        start, stop = _chunk(total, factor, block)
        first, end = _chunk(stop - start, size, at)
        for run_start, length in _pick(runs, start + first, start + end):
            if picked and sum(picked[-1]) == run_start:
                picked[-1] = (picked[-1][0], picked[-1][1] + length)
            else:
                picked.append((run_start, length))
    return picked


def _chunk(length: int, count: int, number: int) -> tuple[int, int]:
    """(start, stop) of a chunk as `torch.chunk` cuts, with empty ones where that returns fewer than `count`."""
    step = -(-length // count)
    return min(number * step, length), min((number + 1) * step, length)


def _pick(runs: list[Run], start: int, stop: int) -> Iterator[Run]:
    """The positions [start, stop) out of the runs laid end to end."""
    for run_start, length, at in _with_positions(runs):
        first, end = max(start, at), min(stop, at + length)
        if first < end:
            yield run_start + first - at, end - first


def _with_positions(runs: list[Run]) -> Iterator[tuple[int, int, int]]:
    """(start, length, position in the local tensor) of each run."""
    at = 0
    for start, length in runs:
        yield start, length, at
        at += length
