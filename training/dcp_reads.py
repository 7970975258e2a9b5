"""Carrying out a load plan: straight into the planner's tensors where their memory takes the bytes as they are."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from cairn.core.errors import StateMismatch
from cairn.core.limits import LISTED_NAMES_MAX
from cairn.loader.boxes import BoxPlan, Target
from cairn.loader.placement import as_array
from cairn.loader.plan import plan_reads
from cairn.manifests.tiling import Box
from cairn.registry.registry import Registry
from cairn.training.dcp_contents import DTYPES, Contents
from cairn.training.filling import Filling, stored_tensor
from cairn.training.windows import Windows

log = logging.getLogger("cairn.training")


class Reads:
    """What one rank is to read.

    Raises:
        StateMismatch: a target does not fit what is stored; nothing was changed.
    """

    def __init__(self, contents: Contents, plan: LoadPlan, planner: LoadPlanner) -> None:
        self._contents, self._planner = contents, planner
        self._boxes = BoxPlan()
        self._targets: list[tuple[ReadItem, torch.Tensor, torch.Tensor | None]] = []
        self._values = [item for item in plan.items if item.type is LoadItemType.BYTE_IO]
        casts: dict[str, None] = {}
        for item in plan.items:
            if item.type is not LoadItemType.BYTE_IO:
                casts.update(dict.fromkeys(self._add(item)))
        if casts:
            shown = "; ".join(list(casts)[:LISTED_NAMES_MAX])
            log.warning("%d tensors are converted, as DCP does: %s", len(casts), shown)

    def _add(self, item: ReadItem) -> list[str]:
        """Plan one item; returns how it is converted, if it is."""
        name = item.storage_index.fqn
        entry = self._contents.tensors.get(name)
        box = Box(tuple(item.storage_offsets), tuple(item.lengths))
        if (
            entry is None
            or len(entry.shape) != len(box.lengths)
            or any(at + n > size for at, n, size in zip(box.offsets, box.lengths, entry.shape, strict=True))
        ):
            raise StateMismatch(
                f"tensor {name!r} of {self._contents.manifest.what} is not what the plan was made for",
                hint="the branch moved to another kind of checkpoint while ranks looked: load again",
            )
        target = self._planner.resolve_tensor(item).detach()
        if tuple(target.shape) != box.lengths:
            raise StateMismatch(
                f"the planner gives a target of shape {list(target.shape)} for {list(box.lengths)} of tensor {name!r}",
                hint="let resolve_tensor narrow the target to the item's lengths",
            )
        dtype = DTYPES[entry.dtype]
        direct = target.is_cpu and target.dtype is dtype and not target.is_conj() and not target.is_neg()
        staged = None if direct else torch.empty(target.shape, dtype=dtype)
        self._targets.append((item, target, staged))
        filled = target if staged is None else staged
        self._boxes.add(stored_tensor(self._contents.manifest, entry, [box]), [Target(box, as_array(filled))])
        return [] if target.dtype is dtype else [f"{name} from {entry.dtype} to {target.dtype}"]

    def fill(self, registry: Registry, *, recompute: bool) -> None:
        """Read all tensors, and commit each to the planner.

        Raises:
            IntegrityError: a chunk is damaged; what was filled before stays so.
        """
        chunks, boxes = self._contents.manifest.chunks, self._boxes
        with self._contents.manifest.explained():
            reads = plan_reads(boxes.groups(), chunks.index, registry.opened.keys.chunk)
        Filling(Windows(), boxes, reads).fill(chunks, recompute)
        for item, target, staged in self._targets:
            if staged is not None:
                target.copy_(staged)
            self._planner.commit_tensor(item, target)

    def values(self) -> Iterator[tuple[ReadItem, Any]]:
        """Plain values, each read when its turn comes."""
        for item in self._values:
            read = self._contents.values.get(item.storage_index.fqn)
            if read is None:
                raise StateMismatch(
                    f"{item.storage_index.fqn!r} is no plain value in {self._contents.manifest.what}",
                    hint="the branch moved to another kind of checkpoint while ranks looked: load again",
                )
            yield item, read()
