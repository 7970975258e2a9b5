"""Reading boxes of tensors into memory, many together, of one checkpoint or of several of one store.

A tensor of elements narrower than a byte counts as a flat one of its bytes, as it does in its grid.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from cairn.core.ids import Digest
from cairn.core.limits import READ_BYTES_TARGET
from cairn.loader.boxes import NUMPY_OF_WIDTH, BoxPlan, StoredTensor, Target
from cairn.loader.execute import execute, reading_threads
from cairn.loader.plan import ReadPlan, plan_reads
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.pieces import cached_grid, cut_at_edges
from cairn.manifests.schema import Page, TensorEntry
from cairn.manifests.tiling import Box
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.within import pages_within, stored_within

Array = np.ndarray[Any, Any]
Item = TypeVar("Item")
# A worker holds the ranges of one batch and the plaintext of one chunk.
_WORKER_BYTES = 2 * READ_BYTES_TARGET


@dataclass(frozen=True, slots=True)
class BoxRead:
    """Box `box` of a tensor of a checkpoint."""

    manifest: CheckpointManifest
    entry: TensorEntry
    box: Box


def width_of(entry: TensorEntry) -> int:
    """Bytes of an element, of which several may share one."""
    return max(BITS[entry.dtype] // 8, 1)


def slabs_of(entry: TensorEntry, bytes_max: int, box: Box | None = None) -> Iterator[Box]:
    """Boxes of at most so many bytes that make up a box of a tensor, or all of it; cut where its grid is cut.

    They go row by row along the first axis; a row that is itself too large is cut along the next. None is empty.
    """
    shape = (nbytes(entry.dtype, entry.shape),) if BITS[entry.dtype] % 8 else entry.shape
    whole = box or Box((0,) * len(shape), shape)
    edges = cached_grid(entry.dtype, entry.shape).edges
    return (one for one in cut_at_edges(whole, edges, bytes_max // width_of(entry)) if one.volume)


def in_windows(items: Iterable[Item], size_of: Callable[[Item], int], bytes_max: int) -> Iterator[list[Item]]:
    """Items that are read together, in their order: of at most so many bytes, unless one alone has more."""
    window: list[Item] = []
    size = 0
    for item in items:
        if window and size + size_of(item) > bytes_max:
            yield window
            window, size = [], 0
        window.append(item)
        size += size_of(item)
    if window:
        yield window


def read_boxes(wanted: Sequence[BoxRead]) -> tuple[list[Array], ReadPlan]:
    """Read boxes, at least one; a chunk that several have in common is read once.

    Returns:
        The boxes in the order asked for, as integers of the elements' width; and what was read.

    Raises:
        IntegrityError: a checkpoint is damaged.
        MissingData: content is not here.
    """
    plan, arrays = BoxPlan(), []
    pages = _pages(wanted)
    for one in wanted:
        stored = StoredTensor.of(one.entry, *stored_within(one.manifest, one.entry, [one.box], pages))
        array: Array = np.empty(one.box.lengths, NUMPY_OF_WIDTH[width_of(one.entry)])
        plan.add(stored, [Target(one.box, array)])
        arrays.append(array)
    plan.copy_inline()
    chunks = wanted[0].manifest.chunks
    reads = plan_reads(plan.groups(), chunks.index, chunks.access.keys.chunk)
    execute(reads, chunks, plan.deliver, reading_threads(chunks, _WORKER_BYTES), plan.place)
    return arrays, reads


def _pages(wanted: Sequence[BoxRead]) -> dict[Digest, Page]:
    by_manifest: dict[int, list[BoxRead]] = {}
    for one in wanted:
        by_manifest.setdefault(id(one.manifest), []).append(one)
    pages: dict[Digest, Page] = {}
    for some in by_manifest.values():
        manifest = some[0].manifest
        needed = [page for one in some for page in pages_within(manifest, one.entry, [one.box])]
        pages |= manifest.fetch(needed)
    return pages
