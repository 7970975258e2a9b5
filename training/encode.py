"""From captured memory to stored chunks: hash, compare with what the store knows, seal, pack."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cairn.core.canonical import encode
from cairn.core.errors import Superseded
from cairn.core.limits import FRAGMENT_INLINE_BYTES_MAX, FRAGMENT_SHARD_BYTES_MAX, INLINE_BYTES_MAX, PACK_BYTES_TARGET
from cairn.core.pool import Pool
from cairn.store.chunkstore import ChunkSave, ChunkWriter
from cairn.store.crypto.tenant import ContentType
from cairn.training.capture import CapturePlan, Cut, Slot
from cairn.training.fragment import Column, Contribution, Declared, Piece
from cairn.training.leaves import TensorLeaf
from cairn.training.turns import Turns

# Bytes that one job hashes and seals: several tiles, so that handing out jobs costs nothing.
_JOB_BYTES = 8 << 20
# What one thread holds at most: an open pack, and a job's copy of what is not contiguous.
WORKER_BYTES = PACK_BYTES_TARGET + _JOB_BYTES
# The least there is. At 10 a save of 1 GB added 0.6-0.9 s to ten steps that compute on the host, at 19 0.2 s.
_NICENESS = 19
# Columns of a contribution.
_KINDS = ("tiles", "regions", "shards", "seen_tiles", "seen_regions")


@dataclass(slots=True)
class Found:
    """What became of one leaf's pieces; as columns of a contribution."""

    tiles: list[Piece] = field(default_factory=list)
    regions: list[Piece] = field(default_factory=list)
    shards: list[Piece] = field(default_factory=list)
    seen_tiles: list[Piece] = field(default_factory=list)
    seen_regions: list[Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Job:
    slot: Slot
    cuts: Sequence[Cut]

    @property
    def nbytes(self) -> int:
        """Bytes to be stored or compared."""
        return sum(cut.piece.box.volume for cut in self.cuts) * self.slot.width


class Encoder:
    """Stores one save's captured pieces."""

    def __init__(
        self,
        save: ChunkSave,
        plan: CapturePlan,
        leaves: Sequence[TensorLeaf],
        memory: Any,
        cancelled: Callable[[], bool] = bool,
        turns: Turns | None = None,
    ) -> None:
        """Nothing happens yet.

        Args:
            turns: that each chunk waits for; None where nobody trains meanwhile.
        """
        self._save, self._plan, self._leaves, self._memory = save, plan, leaves, memory
        self._cancelled, self._turn = cancelled, nullcontext if turns is None else turns.turn
        self._found = [Found() for _ in leaves]
        self._inline = inline_slots(plan, leaves)
        self._lock = threading.Lock()

    def run(self, threads: int) -> Contribution:
        """Store everything; all packs are durable when this returns."""
        Pool[list[_Job]](threads, self._work).run(self._batches())
        return contribution_of(self._leaves, self._found)

    def _jobs(self) -> Iterator[_Job]:
        for slot in self._plan.slots:
            whole = slot.leaf in self._inline
            if whole or len(slot.cuts) == 1:
                yield _Job(slot, slot.cuts)
                continue
            step = max(_JOB_BYTES // (slot.nbytes // len(slot.cuts) or 1), 1)
            for at in range(0, len(slot.cuts), step):
                yield _Job(slot, slot.cuts[at : at + step])

    def _batches(self) -> Iterator[list[_Job]]:
        """Jobs together, where they are small: handing each over costs as much as doing it."""
        batch, size = list[_Job](), 0
        for job in self._jobs():
            batch.append(job)
            size += job.nbytes
            if size >= _JOB_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _work(self, batches: Iterable[list[_Job]]) -> None:
        yield_to_training()
        with self._save.writer() as writer:
            for batch in batches:
                if self._cancelled():
                    raise Superseded("a newer save took the place of this one")
                for job in batch:
                    self._run(writer, job)

    def _run(self, writer: ChunkWriter, job: _Job) -> None:
        array, found = job.slot.array(self._memory), self._found[job.slot.leaf]
        leaf, small = self._leaves[job.slot.leaf], job.slot.leaf in self._inline
        for cut in job.cuts:
            with self._turn():
                self._store(writer, leaf, found, cut, _bytes_of(array, cut), small, job.slot.width)

    def _store(
        self, writer: ChunkWriter, leaf: TensorLeaf, found: Found, cut: Cut, data: memoryview, small: bool, width: int
    ) -> None:
        piece = cut.piece
        box = (*piece.box.offsets, *piece.box.lengths)
        if not cut.stored:
            digest = bytes(writer.digest(ContentType.CHUNK, data))
            with self._lock:
                if piece.tile >= 0:
                    found.seen_tiles.append(((piece.tile,), digest))
                else:
                    found.seen_regions.append((box, digest))
            return
        if small:
            with self._lock:
                found.shards.append((box, bytes(data)))
            return
        digest = bytes(writer.put(ContentType.CHUNK, data, width))
        with self._lock:
            if piece.tile >= 0:
                found.tiles.append(((piece.tile,), digest))
            else:
                found.regions.append((box, digest))


def yield_to_training() -> None:
    """Let the calling thread give way to those that train."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _bytes_of(array: "np.ndarray[Any, Any]", cut: Cut) -> memoryview:
    """Row-major bytes of a piece; a copy only if it is not contiguous in its slot."""
    slices = tuple(slice(o, o + n) for o, n in zip(cut.at.offsets, cut.at.lengths, strict=True))
    return np.ascontiguousarray(array[slices]).reshape(-1).view(np.uint8).data


def inline_slots(plan: CapturePlan, leaves: Sequence[TensorLeaf]) -> set[int]:
    """Leaves whose bytes ride in the fragment: tiny tensors, and small shards of tensors that others complete."""
    sizes: dict[int, int] = {}
    cut: set[int] = set()
    for slot in plan.slots:
        sizes[slot.leaf] = sizes.get(slot.leaf, 0) + slot.nbytes
        if any(one.piece.tile < 0 for one in slot.cuts):
            cut.add(slot.leaf)
    chosen, budget = set(), FRAGMENT_INLINE_BYTES_MAX
    for leaf, size in sorted(sizes.items(), key=lambda pair: (pair[1], pair[0])):
        total = prod(leaves[leaf].shape) * plan_width(leaves[leaf])
        if total <= INLINE_BYTES_MAX:
            chosen.add(leaf)
        elif leaf in cut and size < FRAGMENT_SHARD_BYTES_MAX and size <= budget:
            chosen.add(leaf)
            budget -= size
    return chosen


def plan_width(leaf: TensorLeaf) -> int:
    """Bytes of an element."""
    return leaf.holdings[0].local.element_size()


def contribution_of(leaves: Sequence[TensorLeaf], found: Sequence[Found]) -> Contribution:
    """What a fragment says of all leaves and of what became of their pieces."""
    declared = [
        Declared(leaf.key, int(leaf.component), leaf.dtype, leaf.shape, leaf.trainable, leaf.tied_to) for leaf in leaves
    ]
    columns = (Column.of([sorted(getattr(one, name)) for one in found]) for name in _KINDS)
    return Contribution(encode(declared), *columns)
