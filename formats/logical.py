"""Logical tensors that lie in pieces in several files, as distributed checkpoints keep them.

* **run** - consecutive elements of a tensor, in row-major order, at one place of a file.
* **block** - a box of a tensor at one place of a file, row-major or with strides of its own.
* **joined state** - tensors by path with their pieces, plain values by path, and the files that they come from.

Pure: says where bytes lie, reads none.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import msgspec

from cairn.formats.refusal import malformed
from cairn.formats.views import is_contiguous, row_major
from cairn.manifests.dtypes import nbytes
from cairn.manifests.tiling import Box

Path = tuple[str | int, ...]


class Run(msgspec.Struct, frozen=True, gc=False):
    """Elements `[start, start + count)` at byte `offset` of `file`."""

    file: str
    offset: int
    start: int
    count: int


class Block(msgspec.Struct, frozen=True, gc=False):
    """A box at byte `offset` of `file`, with strides in elements."""

    file: str
    offset: int
    box: Box
    strides: tuple[int, ...]


class JoinedTensor(msgspec.Struct, frozen=True):
    """One tensor: runs, sorted by start, or blocks; either cover it exactly."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    runs: tuple[Run, ...] = ()
    blocks: tuple[Block, ...] = ()
    tied_to: Path | None = None


class JoinedValue(msgspec.Struct, frozen=True):
    """One plain value, as Python has it."""

    path: Path
    value: Any


class JoinedState(msgspec.Struct, frozen=True):
    """What a folder of a distributed checkpoint holds.

    Args:
        kind: what it is, for people.
        files: names of the folder's files that are taken up here, relative to it.
        warnings: what a person should know.
    """

    kind: str
    tensors: tuple[JoinedTensor, ...]
    values: tuple[JoinedValue, ...]
    files: frozenset[str]
    warnings: tuple[str, ...] = ()


def tensor_of_blocks(
    path: Path, dtype: str, shape: tuple[int, ...], blocks: Sequence[Block], what: str
) -> JoinedTensor:
    """A tensor from blocks; where all are runs, it becomes one of runs.

    Raises:
        BadInput: they leave a part of it out, overlap, or lie outside.
    """
    from cairn.manifests.coverage import uncovered

    nbytes(dtype, shape)
    try:
        fault = uncovered(shape, [block.box for block in blocks])
    except ValueError as error:
        fault = str(error)
    if fault:
        raise malformed(f"{what}: its parts are not its shape: {fault}", hint="get the missing files, or save it again")
    held = [block for block in blocks if block.box.volume]
    runs = [_as_run(shape, block) for block in held]
    if all(runs):
        ordered = sorted((run for run in runs if run is not None), key=lambda run: run.start)
        return JoinedTensor(path, dtype, shape, runs=tuple(ordered))
    return JoinedTensor(path, dtype, shape, blocks=tuple(held))


def tensor_of_runs(path: Path, dtype: str, shape: tuple[int, ...], runs: Sequence[Run], what: str) -> JoinedTensor:
    """A tensor from runs.

    Raises:
        BadInput: they leave a part of it out, or overlap.
    """
    nbytes(dtype, shape)
    ordered, at = sorted((run for run in runs if run.count), key=lambda run: run.start), 0
    for run in ordered:
        if run.start != at:
            raise malformed(f"{what}: element {min(at, run.start)} is held {'twice' if run.start < at else 'nowhere'}")
        at += run.count
    if at != prod(shape):
        raise malformed(f"{what}: {at} elements are there, and its shape {list(shape)} wants {prod(shape)}")
    return JoinedTensor(path, dtype, shape, runs=tuple(ordered))


def _as_run(shape: tuple[int, ...], block: Block) -> Run | None:
    """A block whose elements follow each other in the tensor and in the file."""
    if not is_contiguous(block.box.lengths, block.strides):
        return None
    partial = next((axis for axis, (n, size) in enumerate(zip(block.box.lengths, shape, strict=True)) if n != 1), 0)
    if any(n != size for n, size in zip(block.box.lengths[partial + 1 :], shape[partial + 1 :], strict=True)):
        return None
    steps = row_major(shape)
    start = sum(offset * step for offset, step in zip(block.box.offsets, steps, strict=True))
    return Run(block.file, block.offset, start, block.box.volume)


def runs_within(runs: Sequence[Run], start: int, stop: int) -> Iterator[tuple[Run, int, int]]:
    """Runs that meet elements `[start, stop)`: each with the first and the last but one that it gives."""
    for number in range(bisect_right(runs, start, key=lambda run: run.start) - 1, len(runs)):
        run = runs[number]
        if run.start >= stop:
            return
        yield run, max(run.start, start), min(run.start + run.count, stop)


def boxes_of_range(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Boxes that cover elements `[start, stop)` of a tensor in row-major order, one after the other."""
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    inner = prod(shape[1:])
    first, head = divmod(start, inner)
    last, tail = divmod(stop, inner)
    if first == last or (head and first + 1 == last and not tail):
        yield from _in_row(first, shape, head, head + stop - start)
        return
    if head:
        yield from _in_row(first, shape, head, inner)
        first += 1
    if last > first:
        yield Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    if tail:
        yield from _in_row(last, shape, 0, tail)


def _in_row(row: int, shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    for box in boxes_of_range(shape[1:], start, stop):
        yield Box((row, *box.offsets), (1, *box.lengths))
