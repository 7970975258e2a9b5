"""What a rank holds of a sharded tensor, whoever sharded it.

DTensor, torch's ShardedTensor, Megatron's (recognised by its attributes) and explicit slices become the same
`Holding`. Nothing is copied: local tensors are the caller's own memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeGuard

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from cairn.core.errors import RefusedError
from cairn.manifests.tiling import Box
from cairn.training.placements import (
    Ints,
    Part,
    Placements,
    Split,
    flat_range_parts,
    local_parts,
    local_shape,
    replica_of,
    strided_last,
)

# Distinct (shape, mesh, placements) of one model: some hundreds, times the few meshes of experts and pipelines.
LAYOUTS_MAX = 1 << 14

_ALONE = (0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """What one rank holds of one global tensor, in one local tensor.

    Args:
        shape: of the global tensor.
        local: the local tensor; has no element where `parts` is empty.
        parts: which of its boxes are which boxes of the global tensor; together they cover `local`.
        replica: (index, count) among those that hold the same inside the mesh or group; (0, 1) if alone. The count
            is 0 where the source does not tell it (Megatron): then index 0 is the main copy, any other is not.
    """

    shape: Ints
    local: torch.Tensor
    parts: tuple[Part, ...]
    replica: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ShardedSlice:
    """A tensor that is the box of a global tensor which starts at `offsets`: for layouts that no adapter knows.

    Args:
        tensor: the local elements, a plain tensor.
        global_shape, offsets: one number for each axis of `tensor`, in elements.

    Raises:
        RefusedError: the three have different numbers of axes, or the slice leaves the global tensor.
    """

    tensor: torch.Tensor
    global_shape: Ints
    offsets: Ints

    def __post_init__(self) -> None:
        _box_inside("a ShardedSlice", self.global_shape, self.offsets, self.tensor.shape)
        _require_plain("a ShardedSlice", self.tensor)


@dataclass(frozen=True, slots=True, eq=False)
class ShardedSlices:
    """Several boxes of one global tensor on one rank, such as the two halves of a fused projection.

    Raises:
        RefusedError: there are none, or they differ in the global shape or the dtype.
    """

    slices: tuple[ShardedSlice, ...]

    def __post_init__(self) -> None:
        forms = {(tuple(one.global_shape), one.tensor.dtype) for one in self.slices}
        if len(forms) != 1:
            raise RefusedError(
                f"ShardedSlices of {len(self.slices)} slices have {len(forms)} forms: {sorted(map(str, forms))}",
                hint="give slices of one global tensor: equal global shape, equal dtype",
            )


class MegatronSharded(Protocol):
    """The attributes of `megatron.core.dist_checkpointing.ShardedTensor` that say where its data lies.

    `data` has shape `local_shape`; with a `flattened_range` (older Megatron; newer refuses it) it is that range of
    the flattened local tensor. `prepend_axis_num` axes of length 1 stand before the local shape in the global one.
    """

    key: str
    data: torch.Tensor | None
    local_shape: Ints
    global_shape: Ints
    global_offset: Ints
    replica_id: int | Ints
    prepend_axis_num: int


def holdings_of(tensor: object, what: str) -> tuple[Holding, ...] | None:
    """What this rank holds of a sharded tensor; None for a plain tensor and for any other value.

    There is at least one holding, so that shape and dtype are known where a rank holds nothing: its `parts` are then
    empty. Several come from a ShardedTensor of several local shards and from a Megatron flattened range.

    Args:
        what: names the tensor in errors.

    Raises:
        RefusedError: the tensor is a partial sum, its description contradicts itself or its local data, or its layout
            is not known here.
    """
    if isinstance(tensor, DTensor):
        return (_of_dtensor(tensor, what),)
    if isinstance(tensor, ShardedTensor):
        return _of_sharded_tensor(tensor, what)
    if isinstance(tensor, ShardedSlices):
        return tuple(holding for one in tensor.slices for holding in holdings_of(one, what) or ())
    if isinstance(tensor, ShardedSlice):
        box = _box_inside(what, tensor.global_shape, tensor.offsets, tensor.tensor.shape)
        return (_one_box(tensor.global_shape, box, tensor.tensor, _ALONE),)
    if not isinstance(tensor, torch.Tensor) and _is_megatron(tensor):
        return _of_megatron(tensor, what)
    return None


def is_sharded(value: object) -> bool:
    """Whether a value that is no torch tensor is one that `holdings_of` knows, be it sound or not."""
    return isinstance(value, ShardedSlice | ShardedSlices) or _is_megatron(value)


def _of_dtensor(tensor: DTensor, what: str) -> Holding:
    # `to_local` would record a view for autograd, at 14 µs a tensor.
    local = tensor._local_tensor
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    placements = tuple(_split_of(placement, what) for placement in tensor.placements)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return Holding(shape, local, (), _ALONE)
    if hasattr(local, "__create_chunk_list__"):
        return _of_told_chunk(shape, local, replica_of(tuple(mesh.shape), tuple(coordinate), placements), what)
    readings, replica = _readings(shape, tuple(mesh.shape), tuple(coordinate), placements)
    fitting = [parts for lengths, parts in readings if _same_shape(lengths, tuple(local.shape))]
    if not fitting:
        raise RefusedError(
            f"{what}: its local tensor has shape {tuple(local.shape)}, but {tensor.placements} of shape {shape} on a "
            f"mesh of shape {tuple(mesh.shape)} leave {readings[0][0]} at {tuple(coordinate)}",
            hint="build the DTensor with the global shape and placements that its local tensors have",
        )
    if len(fitting) > 1:
        raise RefusedError(
            f"{what}: shape {shape} does not divide evenly over a mesh of shape {tuple(mesh.shape)}, and FSDP and "
            f"DTensor read {tensor.placements} differently there: the local tensor may be either of two boxes",
            hint="pad the axis to a multiple of the ranks that split it, or shard another axis",
        )
    return Holding(shape, local, fitting[0], replica)


def _of_told_chunk(shape: Ints, local: torch.Tensor, replica: tuple[int, int], what: str) -> Holding:
    """A local tensor that says itself where it lies, by the hook of torch's distributed checkpoints.

    Megatron-FSDP cuts a buffer of many parameters, so its DTensors are no chunks of `torch.chunk`; it sets this hook.
    """
    chunks = local.__create_chunk_list__()  # type: ignore[attr-defined]  # set on the instance
    if local.numel() == 0:
        return Holding(shape, local, (), replica)
    if len(chunks) != 1:
        raise RefusedError(
            f"{what}: its local tensor claims {len(chunks)} chunks, and not where each lies in it",
            hint="pass its pieces as ShardedSlice",
        )
    box = _box_inside(what, shape, chunks[0].offsets, chunks[0].sizes)
    _require_shape(what, local, box.lengths)
    return _one_box(shape, box, local, replica)


def _split_of(placement: Placement, what: str) -> Split | None:
    if isinstance(placement, Replicate):
        return None
    # Before Shard, which is its base class in older torch.
    if isinstance(placement, _StridedShard):
        return Split(placement.dim, int(placement.split_factor))
    if isinstance(placement, Shard):
        return Split(placement.dim)
    if isinstance(placement, Partial):
        raise RefusedError(
            f"{what}: its ranks hold partial values ({placement}), which are no part of the tensor yet",
            hint="redistribute it to Replicate() or Shard(dim) before saving",
        )
    raise RefusedError(
        f"{what}: placement {placement} is not known here",
        hint="redistribute it to Replicate() or Shard(dim), or pass its pieces as ShardedSlice",
    )


@lru_cache(LAYOUTS_MAX)
def _readings(
    shape: Ints, mesh: Ints, coordinate: Ints, placements: Placements
) -> tuple[tuple[tuple[Ints, tuple[Part, ...]], ...], tuple[int, int]]:
    """(local shape, parts) by each reading of the placements that differs, first the one in mesh order; the replica."""
    layouts = [(mesh, coordinate, placements)]
    if (other := strided_last(mesh, coordinate, placements)) is not None:
        layouts.append(other)
    read = ((local_shape(shape, *layout), local_parts(shape, *layout)) for layout in layouts)
    return tuple(dict.fromkeys(read)), replica_of(mesh, coordinate, placements)


def _same_shape(expected: Ints, found: Ints) -> bool:
    """Empty tensors are all alike: `torch.empty(0)` stands for an empty shard of any shape."""
    return expected == found or (0 in expected and 0 in found)


def _of_sharded_tensor(tensor: ShardedTensor, what: str) -> tuple[Holding, ...]:
    metadata = tensor.metadata()
    shape = tuple(metadata.size)
    holdings = []
    for shard in tensor.local_shards():
        box = _box_inside(what, shape, shard.metadata.shard_offsets, shard.metadata.shard_sizes)
        _require_shape(what, shard.tensor, box.lengths)
        holdings.append(_one_box(shape, box, shard.tensor, _ALONE))
    return tuple(holdings) or (Holding(shape, torch.empty(0, dtype=metadata.tensor_properties.dtype), (), _ALONE),)


def _is_megatron(value: object) -> TypeGuard[MegatronSharded]:
    # Not `runtime_checkable`: plain values come by here too, and that check costs more than failing at the first name.
    return all(hasattr(value, name) for name in MegatronSharded.__annotations__)


def _of_megatron(tensor: MegatronSharded, what: str) -> tuple[Holding, ...]:
    shape, data = tuple(tensor.global_shape), tensor.data
    if data is None:
        raise RefusedError(
            f"{what}: its ShardedTensor has no data", hint="save the state that was not stripped of data"
        )
    box = _box_inside(what, shape, tensor.global_offset, (1,) * tensor.prepend_axis_num + tuple(tensor.local_shape))
    main = tensor.replica_id == 0 if isinstance(tensor.replica_id, int) else not any(tensor.replica_id)
    replica = (0 if main else 1, 0)
    flat: slice | None = getattr(tensor, "flattened_range", None)
    if flat is None:
        _require_shape(what, data, tuple(tensor.local_shape))
        return (_one_box(shape, box, data[(None,) * tensor.prepend_axis_num], replica),)
    if flat.step not in (None, 1) or not 0 <= flat.start <= flat.stop <= box.volume:
        raise RefusedError(
            f"{what}: flattened range {flat} leaves the {box.volume} elements of its local shape",
            hint="give a range of the flattened local tensor, in elements",
        )
    _require_shape(what, data, (flat.stop - flat.start,))
    holdings = tuple(
        _one_box(shape, part.box, data[part.offset : part.offset + part.length].view(part.box.lengths), replica)
        for part in flat_range_parts(shape, box, flat.start, flat.stop)
    )
    return holdings or (Holding(shape, data, (), replica),)


def _one_box(shape: Ints, box: Box, local: torch.Tensor, replica: tuple[int, int]) -> Holding:
    """A local tensor that is one box, or nothing if the box is empty."""
    part = Part(box, Box((0,) * len(shape), box.lengths))
    return Holding(tuple(shape), local, (part,) if box.volume else (), replica)


def _box_inside(what: str, shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> Box:
    if not len(offsets) == len(lengths) == len(shape):
        raise RefusedError(
            f"{what}: offsets {tuple(offsets)} and sizes {tuple(lengths)} need one number for each of the {len(shape)} "
            f"axes of global shape {tuple(shape)}",
            hint="give offsets and sizes for every axis, also for stacked or prepended ones (size 1)",
        )
    if not all(0 <= a <= a + n <= size for a, n, size in zip(offsets, lengths, shape, strict=True)):
        raise RefusedError(
            f"{what}: offsets {tuple(offsets)} with sizes {tuple(lengths)} leave global shape {tuple(shape)}",
            hint="count offsets and sizes in elements of the global tensor, not in shards",
        )
    return Box(tuple(offsets), tuple(lengths))


def _require_shape(what: str, local: torch.Tensor, expected: Ints) -> None:
    _require_plain(what, local)
    if tuple(local.shape) != expected:
        raise RefusedError(
            f"{what}: its local tensor has shape {tuple(local.shape)}, its description says {expected}",
            hint="make the description anew from the local tensor",
        )


def _require_plain(what: str, local: torch.Tensor) -> None:
    if isinstance(local, DTensor | ShardedTensor):
        raise RefusedError(
            f"{what}: its local tensor is itself sharded ({type(local).__name__})",
            hint="describe what this rank holds in one step, by slices of plain tensors",
        )
