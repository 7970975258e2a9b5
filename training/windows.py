"""Filling tensors that content cannot be decrypted into: those of an accelerator, and those of another dtype.

* **piece** - a box of a stored tensor, small enough for a slab, and the memory that wants it.
* **window** - pieces that are read together into one slab.
* **slab** - host memory of fixed size; pinned where an accelerator is to copy from it.

Windows take the slabs in turn. While one is read into its slab, the others are copied on to where they belong, so the
host memory that a load takes does not grow with the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
import torch

from cairn.core.limits import MEMORY_BUDGET_BYTES
from cairn.loader.boxes import NUMPY_OF_WIDTH, BoxPlan, StoredTensor, Target
from cairn.loader.execute import execute
from cairn.loader.plan import ReadPlan, plan_reads
from cairn.loader.ring import SharedReads
from cairn.manifests.pieces import cached_grid, cut_at_edges
from cairn.manifests.tiling import Box
from cairn.store.chunkstore import ChunkStore, Index
from cairn.store.crypto.tenant import ContentKeys
from cairn.training.devices import Mark, lane_of, lanes_of
from cairn.training.hostmemory import ALIGN_BYTES

SLABS = 4
SLAB_BYTES = MEMORY_BUDGET_BYTES // SLABS


@dataclass(slots=True, eq=False)
class _Piece:
    """A box of a stored tensor, the memory that wants it, and where it lies in the slab, in bytes."""

    stored: StoredTensor
    box: Box
    dtype: torch.dtype
    target: torch.Tensor
    at: int

    @property
    def nbytes(self) -> int:
        return self.box.volume * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class _Slab:
    """Host memory, and marks of the copies that still read it."""

    memory: torch.Tensor
    marks: list[Mark] = field(default_factory=list)

    def wait(self) -> None:
        """Return when nobody reads it any more."""
        while self.marks:
            self.marks.pop().wait()

    def array(self, piece: _Piece) -> "np.ndarray[Any, Any]":
        """A piece's place, as integers of its width."""
        flat = self.memory.numpy()[piece.at : piece.at + piece.nbytes]
        return flat.view(NUMPY_OF_WIDTH[piece.dtype.itemsize]).reshape(piece.box.lengths)

    def tensor(self, piece: _Piece) -> torch.Tensor:
        """A piece's place, in the dtype that is stored."""
        return self.memory[piece.at : piece.at + piece.nbytes].view(piece.dtype).view(piece.box.lengths)


@dataclass(slots=True, eq=False)
class _Window:
    """Pieces, the bytes that they take in a slab, and how they are read into it."""

    pieces: list[_Piece] = field(default_factory=list)
    nbytes: int = 0
    slab: _Slab | None = None
    boxes: BoxPlan = field(default_factory=BoxPlan)
    reads: ReadPlan = field(default_factory=lambda: ReadPlan(()))


class Windows:
    """What one load fills by way of slabs: `add` all, `plan`, `fill`.

    Args:
        slab_bytes: size of a slab, at least one element of any dtype.
        slabs: how many there are, at most.
    """

    def __init__(self, slab_bytes: int = SLAB_BYTES, slabs: int = SLABS) -> None:
        self._slab_bytes, self._slabs_max = slab_bytes, slabs
        self._windows: list[_Window] = []
        self._slabs: list[_Slab] = []

    def add(self, stored: StoredTensor, dtype: torch.dtype, box: Box, target: torch.Tensor) -> None:
        """Want a box of a stored tensor of some dtype; the target has its shape, on any device, in any dtype."""
        if target.dtype is dtype and dtype.itemsize == 1:
            # Torch cannot copy some of these, integers of 1 to 7 bits.
            target, dtype = target.view(torch.uint8), torch.uint8
        edges = cached_grid(stored.dtype, stored.shape).edges
        for part in cut_at_edges(box, edges, self._slab_bytes // dtype.itemsize):
            piece = _Piece(stored, part, dtype, target[_within(part, box)], 0)
            if not self._windows or self._windows[-1].nbytes + piece.nbytes > self._slab_bytes:
                self._windows.append(_Window())
            window = self._windows[-1]
            piece.at = window.nbytes
            window.pieces.append(piece)
            window.nbytes += -(-piece.nbytes // ALIGN_BYTES) * ALIGN_BYTES

    def plan(self, index: Index, keys: ContentKeys) -> None:
        """Take the slabs and plan all reads; nothing is written yet.

        Raises:
            MissingData: see `plan_reads`.
        """
        size = max((window.nbytes for window in self._windows), default=0)
        pinned = bool(lanes_of(piece.target for window in self._windows for piece in window.pieces))
        self._slabs = [
            _Slab(torch.empty(size, dtype=torch.uint8, pin_memory=pinned))
            for _ in range(min(self._slabs_max, len(self._windows)))
        ]
        for window, slab in zip(self._windows, cycle(self._slabs), strict=False):
            window.slab = slab
            for piece in window.pieces:
                window.boxes.add(piece.stored, [Target(piece.box, slab.array(piece))])
            window.reads = plan_reads(window.boxes.groups(), index, keys)

    def read_by(self, reads: Sequence[ReadPlan]) -> None:
        """Read other plans of the same deliveries, window by window."""
        for window, plan in zip(self._windows, reads, strict=True):
            window.reads = plan

    def fill(self, chunks: ChunkStore, threads: int, recompute: bool, shared: SharedReads | None = None) -> None:
        """Read all windows and copy them on; returns when every target holds its content.

        Raises:
            IntegrityError: see `execute`; targets are then filled in part.
        """
        for lane in lanes_of(piece.target for window in self._windows for piece in window.pieces):
            lane.follow()
        try:
            for window in self._windows:
                assert window.slab is not None
                window.slab.wait()
                window.boxes.copy_inline()
                execute(window.reads, chunks, window.boxes.deliver, threads, window.boxes.place, recompute, shared)
                _copy_on(window, window.slab)
        finally:
            for slab in self._slabs:
                slab.wait()

    @property
    def bytes_wanted(self) -> int:
        """Bytes of all pieces."""
        return sum(window.boxes.bytes_wanted for window in self._windows)

    @property
    def reads(self) -> Sequence[ReadPlan]:
        """What is read, window by window."""
        return [window.reads for window in self._windows]

    @property
    def bytes_held(self) -> int:
        """Host memory of all slabs."""
        return sum(slab.memory.numel() for slab in self._slabs)


def _copy_on(window: _Window, slab: _Slab) -> None:
    """Begin to copy what was read to where it belongs."""
    with torch.no_grad():
        for piece in window.pieces:
            lane = lane_of(piece.target.device)
            if lane is None:
                piece.target.copy_(slab.tensor(piece))
            else:
                lane.copy(piece.target, slab.tensor(piece))
    slab.marks += [lane.mark() for lane in lanes_of(piece.target for piece in window.pieces)]


def _within(part: Box, box: Box) -> tuple[Any, ...]:
    """The index of a part in an array of a box."""
    starts = [a - b for a, b in zip(part.offsets, box.offsets, strict=True)]
    return (*(slice(start, start + n) for start, n in zip(starts, part.lengths, strict=True)), ...)
