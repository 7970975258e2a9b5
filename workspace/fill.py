"""Tensors of a checkpoint into files that have room for them, a window of bounded size at a time.

* **fill** - a box of a tensor, and where its row-major bytes belong in a file.
* **slab** - a run of rows of a fill, cut where the tensor's grid is cut, so that few tiles are read twice.
* **window** - slabs that are read together.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from cairn.core.limits import MEMORY_BUDGET_BYTES, READ_BYTES_TARGET
from cairn.core.progress import Progress
from cairn.loader.boxes import NUMPY_OF_WIDTH, BoxPlan, StoredTensor, Target
from cairn.loader.execute import execute, reading_threads
from cairn.loader.plan import plan_reads
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.pieces import cached_grid
from cairn.manifests.schema import TensorEntry
from cairn.manifests.tiling import Box
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.within import pages_within, stored_within

# A quarter of the budget: what is read; workers have the rest.
WINDOW_BYTES = MEMORY_BUDGET_BYTES // 4
# A worker holds the ranges of one batch and the plaintext of one chunk.
_WORKER_BYTES = 2 * READ_BYTES_TARGET


@dataclass(frozen=True, slots=True)
class Fill:
    """Box `box` of a tensor belongs at `offset` of the file at `path`; None for all of it."""

    path: Path
    offset: int
    entry: TensorEntry
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class _Slab:
    fill: Fill
    box: Box
    offset: int
    nbytes: int


def fill_files(manifest: CheckpointManifest, fills: Iterable[Fill], progress: Progress) -> tuple[int, int]:
    """Read and write everything; returns the stored bytes fetched and the number of reads.

    Raises:
        IntegrityError: the checkpoint is damaged.
        OSError: a file cannot be written.
    """
    fetched = requests = 0
    for window in _windows(fills):
        plan, arrays = BoxPlan(), []
        needed = [page for slab in window for page in pages_within(manifest, slab.fill.entry, [slab.box])]
        pages = manifest.fetch(needed)
        for slab in window:
            entry = slab.fill.entry
            stored = StoredTensor.of(entry, *stored_within(manifest, entry, [slab.box], pages))
            array = np.empty(slab.box.lengths, NUMPY_OF_WIDTH[max(BITS[entry.dtype] // 8, 1)])
            plan.add(stored, [Target(slab.box, array)])
            arrays.append(array)
        plan.copy_inline()
        chunks = manifest.chunks
        reads = plan_reads(plan.groups(), chunks.index, chunks.access.keys.chunk)
        execute(reads, chunks, plan.deliver, reading_threads(chunks, _WORKER_BYTES), plan.place)
        for slab, array in zip(window, arrays, strict=True):
            _write(slab, array.reshape(-1).view(np.uint8).data)
            progress.advance(slab.nbytes)
        fetched, requests = fetched + reads.bytes_fetched, requests + reads.requests
    return fetched, requests


def _windows(fills: Iterable[Fill]) -> Iterator[list[_Slab]]:
    window: list[_Slab] = []
    size = 0
    for slab in (slab for fill in fills for slab in _slabs(fill)):
        if window and size + slab.nbytes > WINDOW_BYTES:
            yield window
            window, size = [], 0
        window.append(slab)
        size += slab.nbytes
    if window:
        yield window


def _slabs(fill: Fill) -> Iterator[_Slab]:
    """Row by row along the first axis; a row that is itself too large is cut along the next."""
    entry = fill.entry
    shape, width = entry.shape, BITS[entry.dtype] // 8
    if BITS[entry.dtype] % 8:  # tiled as flat bytes
        shape, width = (nbytes(entry.dtype, shape),), 1
    whole = fill.box or Box((0,) * len(shape), shape)
    edges = cached_grid(entry.dtype, entry.shape).edges
    at = fill.offset
    for box in _cut(whole, edges, width):
        length = box.volume * width
        if length:
            yield _Slab(fill, box, at, length)
        at += length


def _cut(box: Box, edges: Sequence[Sequence[int]], width: int) -> Iterator[Box]:
    if box.volume * width <= WINDOW_BYTES:
        yield box
        return
    axis = next(axis for axis, length in enumerate(box.lengths) if length > 1)
    start, end = box.offsets[axis], box.offsets[axis] + box.lengths[axis]
    rows = max(WINDOW_BYTES // (prod(box.lengths[axis + 1 :]) * width), 1)
    while start < end:
        stop = min(start + rows, end)
        edge = edges[axis][bisect_right(edges[axis], stop) - 1]
        if stop < end and edge > start:
            stop = edge
        offsets, lengths = list(box.offsets), list(box.lengths)
        offsets[axis], lengths[axis] = start, stop - start
        yield from _cut(Box(tuple(offsets), tuple(lengths)), edges, width)
        start = stop


def _write(slab: _Slab, data: memoryview) -> None:
    descriptor = os.open(slab.fill.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        offset = slab.offset
        while data:
            count = os.pwrite(descriptor, data, offset)
            offset, data = offset + count, data[count:]
    finally:
        os.close(descriptor)
