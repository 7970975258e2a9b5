"""Group S, what a rank holds of one tensor: several slices, uneven and empty ones, gaps, overlaps, replicas."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from cairn.core.errors import RefusedError
from cairn.training.sharded import ShardedSlice
from tests.cases.slices import SHAPES, along, at, chunked, numbered, wrong
from tests.support.threads import Fleet, on_each

both_sizes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def named(name: str, tensors: list[Any]) -> list[dict[str, Any]]:
    """A state of each rank with one tensor in it."""
    return [{name: tensor} for tensor in tensors]


# --- Several slices of one tensor ------------------------------------------------------------------


def gated(full: torch.Tensor, rank: int, ranks: int, filled: bool = True) -> Any:
    """What torch's ShardedTensor says of a fused projection: of both halves the rank's share."""
    from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties
    from torch.distributed._shard.sharding_spec import ShardMetadata

    rows, columns = full.shape
    step = rows // 2 // ranks
    shards = []
    for start in (rank * step, rows // 2 + rank * step):
        part = full[start : start + step].clone()
        where = ShardMetadata([start, 0], [step, columns], f"rank:{rank}/cpu")
        shards.append(Shard(part if filled else torch.zeros_like(part), where))
    metadata = ShardedTensorMetadata(
        [
            ShardMetadata([half * rows // 2 + r * step, 0], [step, columns], f"rank:{r}/cpu")
            for r in range(ranks)
            for half in range(2)
        ],
        torch.Size(full.shape),
        TensorProperties(dtype=full.dtype),
    )
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata)


def all_gated(full: torch.Tensor, ranks: int, filled: bool = True) -> list[Any]:
    return on_each(ranks, lambda rank: gated(full, rank, ranks, filled))


@pytest.mark.filterwarnings("ignore:Please use DTensor instead")
@both_sizes
def test_S03_a_rank_holds_its_share_of_both_halves(fleet: Fleet, shape: tuple[int, int]) -> None:
    full = numbered(*shape)
    fleet.save("m", named("fc1", all_gated(full, 8)))
    assert torch.equal(fleet.whole("m", "fc1")["fc1"], full)
    for ranks in (1, 2, 4):
        targets = all_gated(full, ranks, filled=False)
        fleet.load("m", named("fc1", targets))
        for target in targets:
            for shard in target.local_shards():
                start = shard.metadata.shard_offsets[0]
                assert torch.equal(shard.tensor, full[start : start + shard.tensor.shape[0]]), (ranks, start)


def test_S03_halves_under_names_of_their_own_are_two_tensors(fleet: Fleet) -> None:
    gate, up = numbered(8, 4), -numbered(8, 4)
    split = [{"fc1": {"gate": a, "up": b}} for a, b in zip(along(gate, [1] * 8), along(up, [1] * 8), strict=True)]
    fleet.save("m", split)
    for ranks in (1, 2, 4):
        targets = [along(half, chunked(8, ranks), filled=False) for half in (gate, up)]
        fleet.load("m", [{"fc1": {"gate": a, "up": b}} for a, b in zip(*targets, strict=True)])
        assert not wrong(targets[0], gate) and not wrong(targets[1], up)


# --- Replicas, true and claimed ----------------------------------------------------------------------

CLAIMS: dict[str, Callable[[int], Any]] = {
    "a tensor": lambda rank: torch.tensor([2.0 * rank, 2.0 * rank + 1]),
    "a scalar": lambda rank: torch.tensor(rank),
    "a tensor of tiles": lambda rank: torch.full((3, 1 << 18), float(rank)),
    "its last element": lambda rank: torch.cat([torch.zeros(1 << 20), torch.tensor([float(rank)])]),
    "its shape": lambda rank: torch.zeros(2 + rank),
    "its dtype": lambda rank: torch.zeros(2, dtype=[torch.float32, torch.float64][rank]),
    "a plain value": lambda rank: {"epoch": rank},
    "the type of a value": lambda rank: [1, 1.0][rank],
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_S04_what_differs_under_one_name_is_no_replica(fleet: Fleet, claim: Callable[[int], Any]) -> None:
    cause = fleet.refused_save("m", [{"weight": claim(rank), "same": torch.ones(3)} for rank in range(2)])
    assert "weight" in cause and "same" not in cause
    assert "between ranks 0 and 1" in cause or ("on rank 0" in cause and "on rank 1" in cause)


def test_S04_all_that_differ_are_named(fleet: Fleet) -> None:
    states = [{f"w{n}": torch.tensor(float(rank == n)) for n in range(1, 4)} for rank in range(4)]
    cause = fleet.refused_save("m", states)
    assert all(f"w{n}:~ differs between ranks" in cause for n in range(1, 4)), cause


def test_S04_what_belongs_to_a_rank_has_a_place_of_its_own(fleet: Fleet) -> None:
    def states(filled: bool) -> list[dict[str, Any]]:
        return [{"weight": {f"rank {n}": torch.tensor([n, n + 0.5]) * filled}} for n in range(2)]

    fleet.save("m", states(True))
    targets = states(False)
    fleet.load("m", targets)
    assert [t["weight"][f"rank {n}"].tolist() for n, t in enumerate(targets)] == [[0.0, 0.5], [1.0, 1.5]]


NEIGHBOURS = {"none": [], "small ones": [3, 5, 7], "a large one": [1 << 20], "many": [1 << n for n in range(16)]}


def beside(value: torch.Tensor, sizes: list[int]) -> dict[str, Any]:
    return {**{f"around {n}": torch.full((size,), float(n)) for n, size in enumerate(sizes)}, "scale": value}


@pytest.mark.parametrize("sizes", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_S05_a_replica_that_differs_in_one_ulp_is_found(fleet: Fleet, sizes: list[int]) -> None:
    one = torch.tensor([1.0, 2.0, 3.0, 4.0])
    other = one.clone()
    other[2] = torch.nextafter(other[2], torch.tensor(torch.inf))
    for values in ([one, other], [other, one]):
        assert "scale:~ differs between ranks" in fleet.refused_save("m", [beside(v, sizes) for v in values])
    nans = [torch.tensor([torch.nan]), torch.tensor([torch.nan])]
    assert fleet.save("m", [beside(v, sizes) for v in nans]) == [], "compared by bytes: a NaN equals itself"


def test_S05_who_stores_a_replica_does_not_depend_on_its_neighbours(fleet: Fleet) -> None:
    """Where the user turns the comparison off, what is stored is at least always the same rank's."""
    stored = []
    for name, sizes in NEIGHBOURS.items():
        states = [beside(torch.full((4,), float(rank)), sizes) for rank in range(2)]
        fleet.save(name, states, check_replicas_every=0)
        stored.append(fleet.whole(name, "scale")["scale"].tolist())
    assert all(one == stored[0] for one in stored) and len(set(stored[0])) == 1


@dataclass
class Megatron:
    """The attributes of `megatron.core.dist_checkpointing.ShardedTensor`."""

    key: str
    data: torch.Tensor
    local_shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    replica_id: int | tuple[int, ...]
    prepend_axis_num: int = 0


def main_copy(data: torch.Tensor, replica: int | tuple[int, ...] = 0) -> Megatron:
    shape = tuple(data.shape)
    return Megatron("w", data, shape, shape, (0,) * len(shape), replica)


@both_sizes
def test_S22_two_main_copies_with_equal_bytes_are_stored_once(fleet: Fleet, shape: tuple[int, int]) -> None:
    full = numbered(*shape)
    notes = fleet.save("m", named("w", [main_copy(full), main_copy(full.clone(), (0, 0)), main_copy(full, 1)]))
    assert any("stored by more than one rank, with equal bytes" in note for note in notes)
    assert torch.equal(fleet.whole("m", "w")["w"], full)
    assert fleet.save("one", named("w", [full])) == []
    assert fleet.entries("one").keys() == fleet.entries("m").keys()
    assert repr(fleet.entries("one")) == repr(fleet.entries("m"))


@both_sizes
def test_S22_two_main_copies_that_differ_are_refused(fleet: Fleet, shape: tuple[int, int]) -> None:
    full = numbered(*shape)
    cause = fleet.refused_save("m", named("w", [main_copy(full), main_copy(full + 1)]))
    assert "w:~ differs between ranks 0 and 1" in cause


def test_S22_a_tensor_without_a_main_copy_is_refused(fleet: Fleet) -> None:
    cause = fleet.refused_save("m", named("w", [main_copy(numbered(4, 4), rank) for rank in (1, 2)]))
    assert "w:~" in cause and "held by no rank" in cause


# --- Uneven and empty ones ----------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "columns"), [(6, 1), (1, 1), (5, 4), (6, 1 << 15)])
def test_S07_any_remainder_on_any_number_of_ranks(fleet: Fleet, size: int, columns: int) -> None:
    weight, moment = numbered(size, columns), -numbered(size, columns)

    def states(ranks: int, filled: bool) -> list[dict[str, Any]]:
        cuts = [along(full, chunked(size, ranks), filled=filled) for full in (weight, moment)]
        return [{"w": w, "optim": {"w": {"exp_avg": m, "step": 3 * filled}}} for w, m in zip(*cuts, strict=True)]

    for source in (4, 7):
        fleet.save(str(source), states(source, True))
        for ranks in (4, 3, 5, 6, 7, 1):
            targets = states(ranks, False)
            reports = fleet.load(str(source), targets)
            assert not wrong([t["w"] for t in targets], weight), ranks
            assert not wrong([t["optim"]["w"]["exp_avg"] for t in targets], moment), ranks
            assert all(t["optim"]["w"]["step"] == 3 for t in targets)
            assert sum(r.bytes_wanted for r in reports) == 2 * weight.nbytes


@both_sizes
def test_S11_the_callers_own_cut_is_taken_as_it_is(fleet: Fleet, shape: tuple[int, int]) -> None:
    """A buffer padded to rows of its own: (5, 3) where the rule for eight rows on two ranks says (4, 4)."""
    full = numbered(8, shape[1])
    cuts = [[5, 3], [4, 4], [8], [0, 8], [1, 6, 1], [2, 0, 6]]
    for source in cuts:
        fleet.save(f"from {source}", named("w", along(full, source)))
        for cut in ([4, 4], [5, 3], [8]):
            targets = along(full, cut, filled=False)
            fleet.load(f"from {source}", named("w", targets))
            assert not wrong(targets, full), (source, cut)


@both_sizes
def test_S11_cover_and_overlap_are_checked_before_anything_is_published(fleet: Fleet, shape: tuple[int, int]) -> None:
    full = numbered(8, shape[1])
    whole = along(full, [8])[0]
    half = shape[1] // 2
    broken = {
        "a gap at the end": [at(full, ((0, 0), (5, shape[1]))), at(full, ((5, 0), (2, shape[1])))],
        "a gap inside": [at(full, ((0, 0), (4, shape[1]))), at(full, ((5, 0), (3, shape[1])))],
        "a gap in the other axis": [at(full, ((0, 0), (8, half))), at(full, ((0, half + 1), (8, half - 1)))],
        "an overlap": [at(full, ((0, 0), (5, shape[1]))), at(full, ((4, 0), (4, shape[1])))],
        "an overlap and a gap of one size": [
            at(full, ((0, 0), (5, shape[1]))), at(full, ((3, 0), (2, shape[1]))), at(full, ((6, 0), (2, shape[1]))),
        ],
        "an overlap with the whole": [whole, at(full, ((2, 0), (1, shape[1])))],
        "nothing": [at(full, ((0, 0), (0, shape[1]))), at(full, ((8, 0), (0, shape[1])))],
    }  # fmt: skip
    for name, slices in broken.items():
        cause = fleet.refused_save("m", [{"w": one, "fine": torch.ones(2)} for one in slices])
        assert "w:~" in cause and "fine" not in cause, name
        assert ("held by no rank" in cause) or ("overlap" in cause), (name, cause)
    fleet.save("m", named("w", [whole]))


def test_S11_ranks_must_agree_on_the_global_shape(fleet: Fleet) -> None:
    slices = [ShardedSlice(torch.zeros(5, 2), (8, 2), (0, 0)), ShardedSlice(torch.zeros(3, 2), (10, 2), (5, 0))]
    cause = fleet.refused_save("m", named("w", slices))
    assert "float32[8, 2] on rank 0" in cause and "float32[10, 2] on rank 1" in cause


def test_S13_a_size_that_was_multiplied_again_is_refused(fleet: Fleet) -> None:
    full = numbered(8, 4)
    fleet.save("m", named("embed", [full]))
    good = along(full, [4, 4], filled=False)
    twice = [ShardedSlice(torch.full((8, 4), -1.0), (16, 4), (8 * rank, 0)) for rank in range(2)]
    fewer = [ShardedSlice(torch.full((2, 4), -1.0), (4, 4), (2 * rank, 0)) for rank in range(2)]
    for targets, shape in ((twice, [16, 4]), (fewer, [4, 4])):
        cause = fleet.refused_load("m", named("embed", targets))
        assert f"embed:~ has shape {shape}, in the checkpoint [8, 4]" in cause
        assert all((one.tensor == -1).all() for one in targets), "nothing was written"
    one_rank = [{"embed": good[0]}, {"embed": twice[1]}]
    assert "embed" in fleet.refused_load("m", one_rank), "one rank suffices"
    assert not good[0].tensor.any()
    fleet.load("m", named("embed", good))
    assert not wrong(good, full)


BAD_RANKS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "offsets without the stacked axis": ((4, 3), (8, 4, 3), (0, 0)),
    "a tensor without the stacked axis": ((4, 3), (8, 4, 3), (0, 0, 0)),
    "a global shape without it": ((1, 4, 3), (4, 3), (0, 0, 0)),
    "one offset too many": ((4, 3), (4, 3), (0, 0, 0)),
    "none at all": ((), (4,), ()),
    "an offset below zero": ((4, 3), (8, 3), (-1, 0)),
    "an end beyond the shape": ((4, 3), (8, 3), (5, 0)),
    "an offset counted in shards": ((4, 3), (4, 3), (1, 0)),
}


@pytest.mark.parametrize(("sizes", "shape", "offsets"), BAD_RANKS.values(), ids=BAD_RANKS)
def test_S26_offsets_sizes_and_shape_have_one_number_an_axis(
    fleet: Fleet, sizes: tuple[int, ...], shape: tuple[int, ...], offsets: tuple[int, ...]
) -> None:
    with pytest.raises(RefusedError, match="offsets"):
        ShardedSlice(torch.zeros(sizes), shape, offsets)
    told = Megatron("experts", torch.zeros(sizes), sizes, shape, offsets, 0)
    cause = fleet.refused_save("m", named("experts", [told, torch.zeros(8, 4, 3)]))
    assert "experts" in cause and "offsets" in cause


def test_S26_a_prepended_axis_counts(fleet: Fleet) -> None:
    full = numbered(8, 4, 3)
    stacked = [Megatron("e", full[n].clone(), (4, 3), (8, 4, 3), (n, 0, 0), 0, prepend_axis_num=1) for n in range(8)]
    fleet.save("m", named("experts", stacked))
    assert torch.equal(fleet.whole("m", "experts")["experts"], full)
    assert fleet.entries("m")["experts:~"].shape == (8, 4, 3)
