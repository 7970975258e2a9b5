"""Capturing a state: which bytes of which tensors go where in host memory, and copying them there.

A plan has one slot for each stretch that is copied. Where a rank stores all of its local tensor, the tensor is one
slot, copied at the speed of memory, and tiles are cut from it later; where it stores some pieces, each is a slot.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import msgspec
import numpy as np
import torch

from cairn.loader.boxes import NUMPY_OF_WIDTH
from cairn.manifests.dtypes import BITS
from cairn.manifests.pieces import Piece
from cairn.manifests.tiling import Box
from cairn.training.devices import Lane, lane_of, lanes_of
from cairn.training.hostmemory import ALIGN_BYTES, Arena
from cairn.training.leaves import TensorLeaf
from cairn.training.ownership import deal
from cairn.training.placements import Part

# What one call copies while training goes on: small enough that waiting for it is short.
COPY_BYTES = 64 << 20
# Integers of 1 to 7 bits, one a byte: torch has them and cannot copy them.
_UNCOPIED = {getattr(torch, f"{sign}int{bits}", None) for sign in ("", "u") for bits in range(1, 8)}


class Cut(msgspec.Struct, eq=False, gc=False):
    """One piece inside a slot: where it lies there, and whether it is stored or only compared."""

    piece: Piece
    at: Box
    stored: bool


@dataclass(slots=True, eq=False)
class Slot:
    """One stretch of host memory: `offset` in bytes, `shape` in elements, and the pieces to be cut from it."""

    leaf: int
    source: torch.Tensor
    offset: int
    shape: tuple[int, ...]
    cuts: list[Cut]
    width: int
    target: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the stretch."""
        return prod(self.shape) * self.width

    def array(self, memory: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Its elements in the captured memory, as integers of their width."""
        flat = memory[self.offset : self.offset + self.nbytes]
        return flat.view(NUMPY_OF_WIDTH[self.width]).reshape(self.shape)


@dataclass(slots=True)
class CapturePlan:
    """Slots in order, and the bytes that they take together."""

    slots: list[Slot] = field(default_factory=list)
    nbytes: int = 0

    def add(self, leaf: int, source: torch.Tensor, cuts: list[Cut], width: int) -> None:
        """Append a slot for `source`."""
        if source.dtype in _UNCOPIED:
            source = source.view(torch.uint8)
        slot = Slot(leaf, source, self.nbytes, tuple(source.shape), cuts, width)
        self.slots.append(slot)
        self.nbytes += -(-slot.nbytes // ALIGN_BYTES) * ALIGN_BYTES


def plan_capture(
    leaves: Sequence[TensorLeaf],
    replicas: Sequence[tuple[int, int] | None],
    check: bool,
    begun: CapturePlan | None = None,
    first: int = 0,
) -> CapturePlan:
    """Lay out the capture of this rank's tensors.

    Args:
        replicas: of each leaf: (index, count) among its holders as the ranks agreed, or None for what its own
            placements say.
        check: also capture replicas that others store, to compare them.
        begun: a plan of the leaves before number `first`, which is kept as it is.
    """
    plan = CapturePlan() if begun is None else CapturePlan(list(begun.slots), begun.nbytes)
    for number in range(first, len(leaves)):
        leaf, agreed = leaves[number], replicas[number]
        if leaf.tied_to is not None:
            continue
        width = max(BITS[leaf.dtype] // 8, 1)
        for holding in leaf.holdings:
            replica = agreed or holding.replica
            dealt = deal(leaf.key, leaf.dtype, leaf.shape, holding.parts, replica)
            wanted = [(part, piece, stored) for part, piece, stored in dealt if stored or check]
            if len(wanted) == len(dealt):
                if dealt:
                    cuts = [Cut(piece, _local(part, piece), stored) for part, piece, stored in dealt]
                    plan.add(number, holding.local.detach(), cuts, width)
                continue
            for part, piece, stored in wanted:
                at = _local(part, piece)
                slices = tuple(slice(o, o + n) for o, n in zip(at.offsets, at.lengths, strict=True))
                own = Box((0,) * len(at.lengths), at.lengths)
                plan.add(number, holding.local.detach()[slices], [Cut(piece, own, stored)], width)
    return plan


def _local(part: Part, piece: Piece) -> Box:
    """Where a piece of a part lies in the local tensor."""
    offsets = tuple(
        at - start + local
        for at, start, local in zip(piece.box.offsets, part.box.offsets, part.local.offsets, strict=True)
    )
    return Box(offsets, piece.box.lengths)


class Capture:
    """Copies a plan's slots into an arena, all at once or in batches."""

    def __init__(self, plan: CapturePlan, arena: Arena) -> None:
        self.plan, self._arena = plan, arena

    def batches(self, slots: Sequence[int]) -> Iterator[list[int]]:
        """Slots in batches of about `COPY_BYTES`."""
        batch, size = [], 0
        for number in slots:
            batch.append(number)
            size += self.plan.slots[number].nbytes
            if size >= COPY_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def copy(self, numbers: Iterable[int]) -> None:
        """Copy some slots, as they are after all that the calling thread did; returns when the bytes are there."""
        chosen = list(numbers)
        if not chosen:
            return
        self.prepare(chosen)
        self.begin(chosen)
        for lane in self.lanes(chosen):
            lane.mark().wait()

    def prepare(self, numbers: Iterable[int]) -> None:
        """Take host memory, and let devices copy what they hold after all that the calling thread did so far."""
        self._arena.reserve(self.plan.nbytes)
        for lane in self.lanes(numbers):
            lane.follow()

    def begin(self, numbers: Sequence[int]) -> None:
        """Copy slots of host memory, and begin to copy those of devices; these are there at a later mark of `lanes`."""
        targets, sources = [], []
        for number, target in zip(numbers, self._targets(numbers), strict=True):
            source = self.plan.slots[number].source
            lane = lane_of(source.device)
            if lane is not None:
                lane.copy(target, source)
            else:
                targets.append(target)
                sources.append(source)
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)

    def lanes(self, numbers: Iterable[int]) -> list[Lane]:
        """Where devices copy these slots; none for host memory."""
        return lanes_of(self.plan.slots[number].source for number in numbers)

    def same(self, number: int) -> bool:
        """Whether a slot still equals its source, bit for bit."""
        slot = self.plan.slots[number]
        source = slot.source.to("cpu", copy=True).contiguous().reshape(-1).view(torch.uint8)
        (target,) = self._targets([number])
        return torch.equal(target.reshape(-1).view(torch.uint8), source)

    def array(self) -> "np.ndarray[Any, Any]":
        """The captured bytes."""
        self._arena.reserve(self.plan.nbytes)
        return self._arena.array()

    def _targets(self, chosen: Iterable[int]) -> list[torch.Tensor]:
        """Views of the arena for some slots; a slot keeps its view while the arena's memory stays."""
        memory = self._arena.reserve(self.plan.nbytes)
        start, targets = memory.data_ptr(), []
        typed: dict[torch.dtype, torch.Tensor] = {}
        for number in chosen:
            slot = self.plan.slots[number]
            if slot.target is None or slot.target.data_ptr() != start + slot.offset:
                dtype = slot.source.dtype
                if dtype not in typed:
                    typed[dtype] = memory.view(dtype)
                # One call of torch a slot; with a hundred thousand of them this counts.
                slot.target = typed[dtype].as_strided(slot.shape, _strides(slot.shape), slot.offset // dtype.itemsize)
            targets.append(slot.target)
        return targets


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a contiguous tensor."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
