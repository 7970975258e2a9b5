"""What a rank of some layout would read of a checkpoint, without reading it."""

from dataclasses import dataclass

import numpy as np

from cairn.core.errors import UsageError
from cairn.loader.boxes import NUMPY_OF_WIDTH, BoxPlan, StoredTensor, Target
from cairn.loader.plan import ReadPlan, plan_reads
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.tiling import Box
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.registry import Registry
from cairn.registry.within import stored_within


@dataclass(frozen=True, slots=True)
class Share:
    """Rank `rank` of `ranks` that split every tensor along an axis, as `torch.chunk` does; others hold it whole."""

    rank: int
    ranks: int
    axis: int = 0

    @staticmethod
    def parse(text: str) -> "Share":
        """`RANK/RANKS` or `RANK/RANKS:AXIS`.

        Raises:
            UsageError: it is not of that form.
        """
        split, _, axis = text.partition(":")
        rank, _, ranks = split.partition("/")
        numbers = [rank, ranks, axis or "0"]
        if not all(n.isascii() and n.isdigit() and len(n) < 9 for n in numbers) or int(rank) >= int(ranks):
            raise UsageError(f"{text[:40]!r} is no share", hint="write RANK/RANKS or RANK/RANKS:AXIS, such as 0/8:1")
        return Share(int(rank), int(ranks), int(axis or 0))

    def box(self, shape: tuple[int, ...]) -> Box:
        """What the rank holds of a tensor; may be empty."""
        offsets, lengths = [0] * len(shape), list(shape)
        if self.axis < len(shape):
            chunk = -(-shape[self.axis] // self.ranks)
            start = min(self.rank * chunk, shape[self.axis])
            offsets[self.axis], lengths[self.axis] = start, min(chunk, shape[self.axis] - start)
        return Box(tuple(offsets), tuple(lengths))


def plan_share(registry: Registry, manifest: CheckpointManifest, share: Share) -> tuple[ReadPlan, int]:
    """The read plan of a rank, and the plaintext bytes that it wants."""
    plan = BoxPlan()
    for entry in manifest.tensors():
        # Elements narrower than a byte have no share: their bytes are tiled as they are.
        packed = BITS[entry.dtype] % 8 != 0
        box = share.box((nbytes(entry.dtype, entry.shape),) if packed else entry.shape)
        stored = StoredTensor.of(entry, *stored_within(manifest, entry, [box]))
        # One element stands for all: nothing is read into it.
        memory = np.broadcast_to(np.empty((), NUMPY_OF_WIDTH[max(BITS[entry.dtype] // 8, 1)]), box.lengths)
        plan.add(stored, [Target(box, memory)])
    return plan_reads(plan.groups(), registry.index(), registry.opened.keys.chunk), plan.bytes_wanted
