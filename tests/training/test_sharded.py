"""Holdings of every kind of sharded tensor, on ranks of torch's fake process group, which sends nothing."""

import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard as TorchShard
from torch.distributed._shard.sharded_tensor import ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from cairn.core.errors import RefusedError
from cairn.manifests.tiling import Box
from cairn.training.sharded import Holding, ShardedSlice, holdings_of


@contextmanager
def rank_of(rank: int, ranks: int) -> Iterator[None]:
    """This process as one rank of many."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    # It keeps the meshes of results, with the coordinate of the rank that this process was before.
    _clear_sharding_prop_cache()
    try:
        yield
    finally:
        dist.destroy_process_group()


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(box.offsets, box.lengths, strict=True))


def arange(*shape: int) -> torch.Tensor:
    return torch.arange(prod(shape)).reshape(shape)


def held(holdings: tuple[Holding, ...] | None, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """The global tensor as far as the holdings fill it, -1 elsewhere; every local element is used once."""
    assert holdings
    whole = torch.full(holdings[0].shape, -1, dtype=dtype)
    for holding in holdings:
        assert holding.shape == holdings[0].shape
        assert sum(part.box.volume for part in holding.parts) == holding.local.numel()
        for part in holding.parts:
            assert (whole[slices(part.box)] == -1).all()
            whole[slices(part.box)] = holding.local[slices(part.local)].detach()
    return whole


def only(holdings: tuple[Holding, ...] | None) -> Holding:
    assert holdings is not None and len(holdings) == 1
    return holdings[0]


def check_everywhere(whole: torch.Tensor, mesh: tuple[int, ...], make: Callable[[], object]) -> list[torch.Tensor]:
    """Every rank's holdings have the right elements at their places, and together each element as often as they say."""
    times = torch.zeros(whole.shape, dtype=torch.int64)
    seen, by_rank = set(), []
    for rank in range(prod(mesh)):
        with rank_of(rank, prod(mesh)):
            holdings = holdings_of(make(), "w")
        filled = held(holdings, whole.dtype)
        assert torch.equal(filled[filled >= 0], whole[filled >= 0])
        assert holdings is not None
        times += filled >= 0
        seen.add(holdings[0].replica)
        by_rank.append(filled)
    (count,) = {count for _, count in seen}
    assert seen == {(index, count) for index in range(count)}
    assert (times == count).all()
    return by_rank


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Placement, ...]]:
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    shape = tuple(draw(st.lists(st.integers(0, 8), min_size=1, max_size=3)))
    placements = []
    for place in range(len(mesh)):
        axis = draw(st.integers(0, len(shape) - 1))
        strided = _StridedShard(axis, split_factor=draw(st.sampled_from([2, 3, max(2, prod(mesh[place + 1 :]))])))
        placements.append(draw(st.sampled_from([Replicate(), Shard(axis), strided])))
    return shape, mesh, tuple(placements)


@given(layouts())
@example(((6, 2), (2, 2), (_StridedShard(0, split_factor=2), Shard(0))))
@example(((7, 2), (3, 2), (_StridedShard(0, split_factor=2), Shard(0))))
@settings(deadline=None, max_examples=60)
def test_dtensors_put_every_element_at_its_place(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[Placement, ...]],
) -> None:
    shape, mesh, placements = layout

    def make() -> DTensor:
        devices = init_device_mesh("cpu", mesh)
        return distribute_tensor(arange(*shape), devices, placements, src_data_rank=None)

    check_everywhere(arange(*shape), mesh, make)


def fsdp_over_tp(rows: int, dp: int, tp: int) -> nn.Parameter:
    """A weight [rows, 2] as `fully_shard` leaves it after tensor parallelism split its rows."""
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    linear = nn.Linear(2, rows, bias=False)
    weight = distribute_tensor(arange(rows, 2).float(), mesh["tp"], [Shard(0)], src_data_rank=None)
    linear.weight = nn.Parameter(weight)
    fully_shard(linear, mesh=mesh["dp"])
    return linear.weight


# (7, 3, 2) and (11, 5, 2) are uneven so that FSDP does not cut as its placements say.
@pytest.mark.parametrize(("rows", "dp", "tp"), [(16, 2, 2), (6, 2, 4), (7, 3, 2), (11, 5, 2), (3, 2, 2)])
def test_fsdp_over_tensor_parallelism_puts_every_row_at_its_place(rows: int, dp: int, tp: int) -> None:
    check_everywhere(arange(rows, 2).float(), (dp, tp), lambda: fsdp_over_tp(rows, dp, tp))


def test_optimizer_state_lies_as_its_parameter() -> None:
    with rank_of(5, 6):
        weight = fsdp_over_tp(7, 3, 2)
        assert only(holdings_of(torch.zeros_like(weight), "m")).parts == only(holdings_of(weight, "w")).parts


def test_a_strided_tensor_that_may_be_two_boxes_is_refused() -> None:
    """At (2, 2) of a mesh (dp=3, tp=4), FSDP holds row 20 of 27 and `distribute_tensor` gives row 26."""
    with rank_of(2 * 4 + 2, 12):
        with pytest.raises(RefusedError, match=r"layer\.w: .*FSDP and DTensor read"):
            holdings_of(fsdp_over_tp(27, 3, 4), "layer.w")
        assert holdings_of(fsdp_over_tp(32, 3, 4), "layer.w")


def test_S01_fsdp_over_tp_shards_of_one_axis() -> None:
    rows = check_everywhere(arange(16, 2).float(), (2, 2), lambda: fsdp_over_tp(16, 2, 2))
    assert [(filled[:, 0] >= 0).nonzero()[0].item() for filled in rows] == [0, 8, 4, 12]


def test_S07_an_empty_shard_has_shape_and_no_parts() -> None:
    for rank, length in enumerate([2, 2, 2, 0]):
        with rank_of(rank, 4):
            shards = distribute_tensor(arange(6), init_device_mesh("cpu", (4,)), [Shard(0)], src_data_rank=None)
            holding = only(holdings_of(shards, "w"))
        assert (holding.shape, holding.local.numel(), len(holding.parts)) == ((6,), length, min(length, 1))


def test_S03_gate_and_up_slices_of_one_rank() -> None:
    whole = arange(16, 4)
    shares = []
    for rank in range(8):
        with rank_of(rank, 8):
            mesh = init_device_mesh("cpu", (8,))
            fused = distribute_tensor(whole, mesh, [_StridedShard(0, split_factor=2)], src_data_rank=None)
            parts = only(holdings_of(fused, "fc1")).parts
        assert [part.box for part in parts] == [Box((rank, 0), (1, 4)), Box((rank + 8, 0), (1, 4))]
        slice_each = [
            ShardedSlice(whole[[rank]], (16, 4), (rank, 0)),
            ShardedSlice(whole[[rank + 8]], (16, 4), (rank + 8, 0)),
        ]
        shares += [only(holdings_of(one, "fc1")) for one in slice_each]
    assert torch.equal(held(tuple(shares)), whole)


@pytest.mark.parametrize("placement", [Partial(), Partial("avg")])
def test_partial_values_are_refused(placement: Partial) -> None:
    with rank_of(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        partial = DTensor.from_local(arange(4), mesh, [placement], run_check=False)
        with pytest.raises(RefusedError, match=r"grad of head: .*partial") as refused:
            holdings_of(partial, "grad of head")
    assert "redistribute" in refused.value.hint


def test_a_rank_outside_the_mesh_holds_nothing() -> None:
    with rank_of(3, 4):
        tensor = distribute_tensor(arange(4, 2), DeviceMesh("cpu", [0, 1]), [Shard(0)], src_data_rank=None)
        holding = only(holdings_of(tensor, "w"))
    assert (holding.shape, holding.parts, holding.local.dtype) == ((4, 2), (), torch.int64)


def test_a_local_tensor_of_another_shape_is_refused() -> None:
    with rank_of(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        wrong = DTensor.from_local(arange(3, 2), mesh, [Shard(0)], run_check=False, shape=(4, 2), stride=(2, 1))
        with pytest.raises(RefusedError, match=r"w: its local tensor has shape \(3, 2\).*leave \(2, 2\)"):
            holdings_of(wrong, "w")


def test_a_local_tensor_may_say_itself_where_it_lies() -> None:
    """As Megatron-FSDP's, which are no chunks of `torch.chunk`: here rows 0 and 1 of 4 on rank 1 of 3."""

    def dtensor(*chunks: ChunkStorageMetadata) -> DTensor:
        mesh = init_device_mesh("cpu", (3,))
        tensor = DTensor.from_local(arange(2, 2), mesh, [Shard(0)], run_check=False, shape=(4, 2), stride=(2, 1))
        tensor._local_tensor.__create_chunk_list__ = lambda: list(chunks)
        return tensor

    first = ChunkStorageMetadata(torch.Size((0, 0)), torch.Size((2, 2)))
    with rank_of(1, 3):
        assert only(holdings_of(dtensor(first), "w")).parts[0].box == Box((0, 0), (2, 2))
        with pytest.raises(RefusedError, match="2 chunks"):
            holdings_of(dtensor(first, first), "w")


def test_holdings_are_the_tensors_own_memory() -> None:
    with rank_of(0, 2):
        weight = nn.Parameter(distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)]))
        local = only(holdings_of(weight, "w")).local
        assert local.data_ptr() == weight.to_local().data_ptr()
        assert not local.requires_grad


def test_asking_is_cheap() -> None:
    """100,000 tensors in seconds; measured 8 µs each, and the bound leaves room for a busy machine."""
    with rank_of(0, 4):
        mesh = init_device_mesh("cpu", (2, 2))
        tensor = distribute_tensor(
            arange(16, 4), mesh, [_StridedShard(0, split_factor=2), Shard(0)], src_data_rank=None
        )
        assert min(timeit.repeat(lambda: holdings_of(tensor, "w"), number=1000, repeat=5)) < 0.1


# --- torch's ShardedTensor ------------------------------------------------------------------------


def sharded_tensor(rank: int) -> ShardedTensor:
    """[6, 2] in three shards of rows: ranks 0 and 1 hold one and two, rank 2 none."""
    shards = [ShardMetadata([at, 0], [2, 2], f"rank:{min(at // 2, 1)}/cpu") for at in (0, 2, 4)]
    metadata = ShardedTensorMetadata(shards, torch.Size((6, 2)), TensorProperties(torch.int64))
    mine = [one for one in shards if one.placement is not None and one.placement.rank() == rank]
    locals_ = [TorchShard(arange(6, 2)[one.shard_offsets[0] :][:2].clone(), one) for one in mine]
    return ShardedTensor._init_from_local_shards_and_global_metadata(locals_, metadata)


def test_sharded_tensors_may_have_several_local_shards_or_none() -> None:
    counts, everything = [], []
    for rank in range(3):
        with rank_of(rank, 3):
            holdings = holdings_of(sharded_tensor(rank), "table")
        assert holdings
        counts.append(sum(len(holding.parts) for holding in holdings))
        everything += holdings
    assert counts == [1, 2, 0]
    assert everything[-1].shape == (6, 2) and everything[-1].local.dtype == torch.int64
    assert torch.equal(held(tuple(everything)), arange(6, 2))


# --- Megatron's ShardedTensor ---------------------------------------------------------------------


@dataclass
class FakeMegatron:
    """Written from the docstring of `ShardedTensor` in NVIDIA Megatron-LM, megatron/core/dist_checkpointing/mapping.py.

    Without its checks, so that tests can contradict them. `flattened_range` is as older releases define it: the slice
    of the flattened tensor of `local_shape` that is `data`; newer ones keep the attribute and refuse any but None.
    """

    key: str
    data: torch.Tensor | None = field(repr=False)
    dtype: torch.dtype
    local_shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    axis_fragmentations: tuple[int, ...] | None = None
    replica_id: int | tuple[int, ...] = 0
    prepend_axis_num: int = 0
    allow_shape_mismatch: bool = False
    flattened_range: slice | None = None


def megatron(
    data: torch.Tensor | None,
    local: tuple[int, ...],
    shape: tuple[int, ...],
    offset: tuple[int, ...],
    *,
    replica: int | tuple[int, ...] = 0,
    prepended: int = 0,
    flat: slice | None = None,
) -> FakeMegatron:
    return FakeMegatron("k", data, torch.int64, local, shape, offset, None, replica, prepended, flattened_range=flat)


def test_megatron_blocks_and_stacked_layers() -> None:
    whole = arange(3, 4, 6)
    blocks = [
        megatron(whole[layer, row : row + 2, column : column + 3], (2, 3), (3, 4, 6), (layer, row, column), prepended=1)
        for layer, row, column in product(range(3), (0, 2), (0, 3))
    ]
    assert torch.equal(held(tuple(only(holdings_of(block, "layers")) for block in blocks)), whole)


@pytest.mark.parametrize("prepended", [0, 1])
def test_megatron_flattened_ranges(prepended: int) -> None:
    """A distributed optimizer cuts the flattened block of a tensor-parallel rank wherever its share ends."""
    whole = arange(6, 4)
    shape, lead = (2,) * prepended + (6, 4), (1,) * prepended
    everything: list[Holding] = []
    for column in (0, 2):
        flat = whole[:, column : column + 2].reshape(-1)
        for start, stop in ((0, 5), (5, 5), (5, 12)):
            cut = slice(start, stop)
            share = megatron(flat[cut], (6, 2), shape, (*lead, 0, column), prepended=prepended, flat=cut)
            holdings = holdings_of(share, "exp_avg")
            assert holdings
            everything += holdings
    filled = held(tuple(everything))
    assert torch.equal(filled[-1] if prepended else filled, whole)


@pytest.mark.parametrize(("replica", "expected"), [(0, 0), (2, 1), ((0, 0, 0), 0), ((0, 1, 0), 1)])
def test_megatron_says_which_copy_is_the_main_one(replica: int | tuple[int, ...], expected: int) -> None:
    tensor = megatron(arange(4), (4,), (4,), (0,), replica=replica)
    assert only(holdings_of(tensor, "w")).replica == (expected, 0)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (megatron(None, (4,), (4,), (0,)), "has no data"),
        (megatron(arange(3), (4,), (4,), (0,)), r"shape \(3,\), its description says \(4,\)"),
        (megatron(arange(4), (4,), (6,), (3,)), "leave global shape"),
        (megatron(arange(4), (4,), (4,), (0,), flat=slice(2, 5)), "flattened range"),
        (megatron(arange(4), (4,), (4,), (0,), flat=slice(0, 3)), r"description says \(3,\)"),
    ],
)
def test_megatron_contradictions_are_refused(wrong: FakeMegatron, match: str) -> None:
    with pytest.raises(RefusedError, match=f"^decoder.w: .*{match}"):
        holdings_of(wrong, "decoder.w")


# --- Slices, and what is not sharded --------------------------------------------------------------


def test_S26_offsets_and_sizes_of_different_rank_are_refused() -> None:
    """Stacked experts [E, out, in]: the offsets have the prepended axis, the sizes lack it."""
    with pytest.raises(RefusedError, match=r"experts: offsets \(1, 0, 0\) and sizes \(4, 2\)") as refused:
        holdings_of(megatron(arange(4, 2), (4, 2), (8, 4, 2), (1, 0, 0)), "experts")
    assert "every axis" in refused.value.hint
    with pytest.raises(RefusedError, match=r"offsets \(1, 0, 0\) and sizes \(4, 2\)"):
        ShardedSlice(arange(4, 2), (8, 4, 2), (1, 0, 0))
    with pytest.raises(RefusedError, match=r"offsets \(1, 0\) and sizes \(1, 4, 2\)"):
        ShardedSlice(arange(1, 4, 2), (8, 4, 2), (1, 0))


@pytest.mark.parametrize(("shape", "offsets"), [((4, 2), (2, 0)), ((4, 2), (-1, 0)), ((2, 2), (0, 0))])
def test_slices_stay_inside(shape: tuple[int, ...], offsets: tuple[int, ...]) -> None:
    with pytest.raises(RefusedError, match="leave global shape"):
        ShardedSlice(arange(3, 2), shape, offsets)


def test_a_slice_may_be_empty() -> None:
    holding = only(holdings_of(ShardedSlice(torch.empty(0, 2), (4, 2), (4, 0)), "w"))
    assert (holding.shape, holding.parts, holding.replica) == ((4, 2), (), (0, 1))


def test_a_slice_is_of_a_plain_tensor() -> None:
    with rank_of(0, 2):
        tensor = distribute_tensor(arange(4), init_device_mesh("cpu", (2,)), [Replicate()], src_data_rank=None)
        with pytest.raises(RefusedError, match="itself sharded"):
            ShardedSlice(tensor, (8,), (0,))


@pytest.mark.parametrize("value", [torch.ones(3), nn.Parameter(torch.ones(2)), 7, "key", {"key": 1}, None])
def test_what_is_not_sharded_is_left_to_the_caller(value: object) -> None:
    assert holdings_of(value, "w") is None
