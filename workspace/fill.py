"""Tensors of a checkpoint into files that have room for them, a window of bounded size at a time.

* **fill** - a box of a tensor, and where its row-major bytes belong in a file.
* **slab** - a run of rows of a fill, cut where the tensor's grid is cut, so that few tiles are read twice.
* **window** - slabs that are read together.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np

from cairn.core.limits import MEMORY_BUDGET_BYTES
from cairn.core.progress import Progress
from cairn.loader.plan import ReadPlan
from cairn.manifests.schema import TensorEntry
from cairn.manifests.tiling import Box
from cairn.registry.checkpoint import CheckpointManifest
from cairn.workspace.boxreads import BoxRead, in_windows, read_boxes, slabs_of, width_of

# A quarter of the budget: what is read; workers have the rest.
WINDOW_BYTES = MEMORY_BUDGET_BYTES // 4


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
    slabs = (slab for fill in fills for slab in _slabs(fill))
    for window in in_windows(slabs, attrgetter("nbytes"), WINDOW_BYTES):
        reads = _fill_window(manifest, window, progress)
        fetched, requests = fetched + reads.bytes_fetched, requests + reads.requests
    return fetched, requests


def _fill_window(manifest: CheckpointManifest, window: Sequence[_Slab], progress: Progress) -> ReadPlan:
    """What is read is let go before the next window is."""
    arrays, reads = read_boxes([BoxRead(manifest, slab.fill.entry, slab.box) for slab in window])
    for slab, array in zip(window, arrays, strict=True):
        _write(slab, array.reshape(-1).view(np.uint8).data)
        progress.advance(slab.nbytes)
    return reads


def _slabs(fill: Fill) -> Iterator[_Slab]:
    at = fill.offset
    for box in slabs_of(fill.entry, WINDOW_BYTES, fill.box):
        length = box.volume * width_of(fill.entry)
        yield _Slab(fill, box, at, length)
        at += length


def _write(slab: _Slab, data: memoryview) -> None:
    descriptor = os.open(slab.fill.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        offset = slab.offset
        while data:
            count = os.pwrite(descriptor, data, offset)
            offset, data = offset + count, data[count:]
    finally:
        os.close(descriptor)
