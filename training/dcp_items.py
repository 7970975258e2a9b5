"""What a save plan gives this rank to store: pieces of tensors where they lie, and plain values."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from cairn.core.errors import RefusedError
from cairn.loader.placement import as_array
from cairn.manifests.dtypes import BITS
from cairn.manifests.pieces import cut_box
from cairn.manifests.schema import Key
from cairn.manifests.tiling import Box
from cairn.manifests.values import encode_value
from cairn.store.crypto.components import ComponentClass
from cairn.training.capture import CapturePlan, Cut, Slot
from cairn.training.dcp_names import component_by_name, key_of
from cairn.training.fragment import ContributedValue
from cairn.training.leaves import TensorLeaf, tensor_leaf
from cairn.training.plaindata import plain
from cairn.training.sharded import ShardedSlice
from cairn.training.subclasses import class_of, is_wrapper


@dataclass(slots=True)
class RankItems:
    """One leaf for each tensor item, a plan of what of them is read where it lies, and the encoded values."""

    leaves: list[TensorLeaf] = field(default_factory=list)
    plan: CapturePlan = field(default_factory=CapturePlan)
    values: list[ContributedValue] = field(default_factory=list)


def items_of(plan: SavePlan, planner: SavePlanner, replicas: Iterable[WriteItem]) -> RankItems:
    """Look up what a plan names.

    Args:
        replicas: what this rank holds and others store: to be compared.

    Raises:
        RefusedError: a tensor has no plain bytes, or a value is not plain data; names it and its type.
    """
    found = RankItems()
    for items, stored in ((plan.items, True), (replicas, False)):
        for item in items:
            key = key_of(item.index.fqn, plan.planner_data)
            if item.type is WriteItemType.BYTE_IO:
                found.values.append(_value(key, item, planner))
            else:
                leaf = _leaf(key, item, planner.resolve_data(item))
                found.plan.slots.extend(_slots(len(found.leaves), leaf, stored))
                found.leaves.append(leaf)
    return found


# --- tensors ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _LiveSlot(Slot):
    """A stretch that is no copy: it is read while the planner holds it still."""

    def array(self, memory: Any) -> Any:
        """Its elements."""
        return as_array(self.source.cpu())


def _leaf(key: Key, item: WriteItem, local: object) -> TensorLeaf:
    what, described = f"tensor {item.index.fqn!r}", item.tensor_data
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    if described is None or not isinstance(local, torch.Tensor) or is_wrapper(local):
        kind = class_of(local).partition(":")[2] if isinstance(local, torch.Tensor) else type(local).__qualname__
        raise RefusedError(
            f"{what} comes as a {kind}, which has no bytes of its own",
            hint="put the plain tensors that it is made of into the state dict",
        )
    sizes = tuple(described.chunk.sizes)
    if tuple(local.shape) != sizes:
        if local.numel() or 0 not in sizes:
            raise RefusedError(
                f"{what} has shape {list(local.shape)} here, the plan says {list(sizes)}",
                hint="let the planner give shards as they lie; a transformation must keep their shape",
            )
        local = local.new_empty(sizes)  # torch has `empty(0)` for an empty shard of any shape
    local = local.detach().resolve_conj().resolve_neg()
    shard = ShardedSlice(local, tuple(described.size), tuple(described.chunk.offsets))
    return tensor_leaf(key, component_by_name(key, ComponentClass.WEIGHTS), shard)


def _slots(number: int, leaf: TensorLeaf, stored: bool) -> Iterator[Slot]:
    """One for what lies in host memory, to be cut there; elsewhere one for each piece, to be copied for itself."""
    (holding,) = leaf.holdings
    local, width = holding.local, max(BITS[leaf.dtype] // 8, 1)
    for part in holding.parts:
        pieces = cut_box(leaf.dtype, leaf.shape, part.box)
        cuts = [Cut(piece, _within(piece.box, part.box), stored) for piece in pieces]
        if local.is_cpu:
            yield _LiveSlot(number, local, 0, tuple(local.shape), cuts, width)
            continue
        for cut in cuts:
            slices = tuple(slice(o, o + n) for o, n in zip(cut.at.offsets, cut.at.lengths, strict=True))
            whole = Box((0,) * len(slices), cut.at.lengths)
            yield _LiveSlot(number, local[slices], 0, whole.lengths, [Cut(cut.piece, whole, stored)], width)


def _within(box: Box, outer: Box) -> Box:
    return Box(tuple(a - b for a, b in zip(box.offsets, outer.offsets, strict=True)), box.lengths)


# --- values -----------------------------------------------------------------------------------------


def _value(key: Key, item: WriteItem, planner: SavePlanner) -> ContributedValue:
    """The object itself, since what `resolve_data` gives has been pickled."""
    what = f"value {item.index.fqn!r}"
    lookup = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise RefusedError(
            f"{what} comes pickled from a {type(planner).__qualname__}, and no pickle goes into a store",
            hint="let the planner inherit from DefaultSavePlanner",
        )
    component = component_by_name(key, ComponentClass.TRAINING)
    return ContributedValue(key, int(component), encode_value(plain(lookup(item.index)), what))
