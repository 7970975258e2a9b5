"""What one rank reads of a checkpoint, and where to: into tensors as they are, or by way of slabs of host memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from cairn.core.clock import Clock
from cairn.core.errors import IntegrityError
from cairn.core.ids import Digest
from cairn.core.limits import READ_BYTES_TARGET
from cairn.loader.boxes import BoxPlan, StoredTensor, Target
from cairn.loader.execute import execute, reading_threads
from cairn.loader.placement import as_array
from cairn.loader.plan import ReadPlan, plan_reads
from cairn.loader.ring import Ring, SharedReads
from cairn.loader.sharing import with_extents
from cairn.manifests.schema import TensorEntry
from cairn.manifests.tiling import Box
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.within import Pages, pages_within, stored_within
from cairn.store.chunkstore import ChunkStore
from cairn.training.leaves import Read
from cairn.training.placements import Part
from cairn.training.plaindata import torch_dtype
from cairn.training.windows import Windows

# A worker holds the ranges of one batch and the plaintext of one chunk.
_WORKER_BYTES = 2 * READ_BYTES_TARGET
# Of 64 regions each, and so of some 20 kB of objects: 5 MB.
_PAGES_AT_ONCE = 256


@dataclass(slots=True)
class Filling:
    """A plan for this rank: what is read in place, and what goes through slabs of host memory."""

    windows: Windows
    plan: BoxPlan = field(default_factory=BoxPlan)
    reads: ReadPlan = field(default_factory=lambda: ReadPlan(()))
    casts: list[str] = field(default_factory=list)
    shared: SharedReads | None = None

    @staticmethod
    def planned(manifest: CheckpointManifest, reads: Sequence[Read]) -> "Filling":
        """Plan to read what a checkpoint has for some leaves; nothing is written yet.

        Raises:
            MissingData: see `plan_reads`.
        """
        filling = Filling(Windows())
        for read, boxes, pages in _with_pages(manifest, reads):
            leaf, dtype = read.leaf, torch_dtype(read.entry.dtype, f"tensor {read.entry.key}")
            if leaf.dtype != read.entry.dtype:
                filling.casts.append(f"{leaf.key}: {read.entry.dtype} to {leaf.dtype}")
            if not boxes:
                continue
            stored = stored_tensor(manifest, read.entry, boxes, pages)
            for holding in leaf.holdings:
                local = holding.local.detach()
                if _takes_bytes(local, dtype):
                    array = as_array(local)
                    filling.plan.add(stored, [Target(part.box, array[_within(part)]) for part in holding.parts])
                else:
                    for part in holding.parts:
                        filling.windows.add(stored, dtype, part.box, local[_within(part)])
        index, keys = manifest.chunks.index, manifest.chunks.access.keys.chunk
        filling.reads = plan_reads(filling.plan.groups(), index, keys)
        filling.windows.plan(index, keys)
        return filling

    @property
    def all_reads(self) -> list[ReadPlan]:
        """What is read, in order."""
        return [self.reads, *self.windows.reads]

    def share(self, ring: Ring, chunks: ChunkStore, clock: Clock, check: Callable[[], None]) -> None:
        """Take from other ranks of the host what they read as well."""
        self.reads, *reads = with_extents(self.all_reads, ring.extents, ring.me)
        self.windows.read_by(reads)
        self.shared = SharedReads(ring, chunks, clock, check)

    def fill(self, chunks: ChunkStore, recompute: bool) -> None:
        """Read everything to where it belongs.

        Raises:
            IntegrityError: see `execute`; targets are then filled in part.
        """
        threads, shared = reading_threads(chunks, _WORKER_BYTES), self.shared
        try:
            self.plan.copy_inline()
            with shared.serving(self.all_reads) if shared is not None else nullcontext():
                execute(self.reads, chunks, self.plan.deliver, threads, self.plan.place, recompute, shared)
                self.windows.fill(chunks, threads, recompute, shared)
        except IntegrityError as error:
            raise IntegrityError(
                f"the state is now unusable, since its tensors are filled in part: {error.message}", hint=error.hint
            ) from error

    def counts(self) -> dict[str, int]:
        """How much is wanted and read, once it has been."""
        shared = self.shared
        return {
            "bytes_wanted": self.plan.bytes_wanted + self.windows.bytes_wanted,
            "bytes_read": sum(one.bytes_fetched for one in self.all_reads) + (shared.bytes_fetched if shared else 0),
            "requests": sum(one.requests for one in self.all_reads) + (shared.requests if shared else 0),
            "bytes_shared": shared.bytes_taken if shared else 0,
        }


def stored_tensor(
    manifest: CheckpointManifest, entry: TensorEntry, boxes: Sequence[Box], pages: Pages | None = None
) -> StoredTensor:
    """Where an entry's bytes within some boxes are; `pages` are those of `pages_within`, if they have been read."""
    return StoredTensor.of(entry, *stored_within(manifest, entry, boxes, pages))


def _with_pages(manifest: CheckpointManifest, reads: Sequence[Read]) -> Iterator[tuple[Read, Sequence[Box], Pages]]:
    """Each read with the boxes that it wants and the pages that tell where they are, some hundred pages at a time."""
    waiting: list[tuple[Read, Sequence[Box]]] = []
    needed: list[Digest] = []
    for number, read in enumerate(reads, 1):
        boxes = _boxes(read)
        waiting.append((read, boxes))
        needed += pages_within(manifest, read.entry, boxes) if boxes else ()
        if len(needed) >= _PAGES_AT_ONCE or number == len(reads):
            pages = manifest.fetch(needed)
            yield from ((*one, pages) for one in waiting)
            waiting, needed = [], []


def _boxes(read: Read) -> list[Box]:
    return [part.box for holding in read.leaf.holdings for part in holding.parts]


def _takes_bytes(local: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether content can be put into a tensor's memory as it is."""
    return local.is_cpu and local.dtype is dtype and not local.is_conj() and not local.is_neg()


def _within(part: Part) -> tuple[Any, ...]:
    """The index of a part in its local tensor."""
    return (*(slice(o, o + n) for o, n in zip(part.local.offsets, part.local.lengths, strict=True)), ...)
