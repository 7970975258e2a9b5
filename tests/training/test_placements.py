"""Boxes of placements against torch's own splitting, and against brute force over every element."""

from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Replicate, _StridedShard

from cairn.manifests.tiling import Box
from cairn.training.placements import (
    FlatPart,
    Part,
    Placements,
    Split,
    flat_range_parts,
    local_parts,
    local_shape,
    replica_of,
    strided_last,
)

Array = npt.NDArray[np.int64]
Case = tuple[tuple[int, ...], tuple[int, ...], Placements]


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(box.offsets, box.lengths, strict=True))


def coordinates(mesh: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(product(*map(range, mesh)))


def arange(*shape: int) -> Array:
    return np.arange(prod(shape)).reshape(shape)


def local_of(parts: tuple[Part, ...], whole: Array, shape: tuple[int, ...]) -> Array:
    """The local array that the parts describe; each of its elements must be filled once."""
    local, times = np.full(shape, -1), np.zeros(shape, int)
    for part in parts:
        assert part.box.volume > 0
        local[slices(part.local)] = whole[slices(part.box)]
        times[slices(part.local)] += 1
    assert (times == 1).all()
    return local


def in_torch(split: Split | None) -> Replicate | Shard | _StridedShard:
    if split is None:
        return Replicate()
    return Shard(split.dim) if split.factor == 1 else _StridedShard(split.dim, split_factor=split.factor)


def split_by_torch(whole: Array, mesh: tuple[int, ...], at: tuple[int, ...], placements: Placements) -> Array:
    """What `distribute_tensor` gives a coordinate: each placement splits what the ones before it left."""
    tensor = torch.from_numpy(whole)
    for size, place, split in zip(mesh, at, placements, strict=True):
        placement = in_torch(split)
        if not isinstance(placement, Replicate):
            tensor = placement._split_tensor(tensor, size, with_padding=False, contiguous=False)[0][place]
    return tensor.numpy()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Shapes with empty axes and axes smaller than the mesh; splits of one axis by several dimensions are common."""
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    shape = tuple(draw(st.lists(st.integers(0, 13), max_size=3)))
    placements = []
    for place in range(len(mesh)):
        ways = st.sampled_from([1, 2, 3, 4, prod(mesh[place + 1 :])])
        split = st.builds(Split, st.integers(0, len(shape) - 1), ways) if shape else st.nothing()
        placements.append(draw(st.none() | split | split))
    return shape, mesh, tuple(placements)


@given(cases())
@example(((16, 4), (2, 2), (Split(0, 2), Split(0))))
@example(((7, 2), (3, 2), (Split(0, 2), Split(0))))  # uneven
@example(((9,), (4,), (Split(0, 2),)))
@example(((11, 5), (2, 3, 2), (Split(0, 6), Split(0, 2), Split(0))))
@settings(deadline=None, max_examples=120)
def test_parts_are_what_torch_gives_each_rank(case: Case) -> None:
    shape, mesh, placements = case
    whole = arange(*shape)
    holders = np.zeros(shape, int)
    for at in coordinates(mesh):
        parts = local_parts(shape, mesh, at, placements)
        expected = split_by_torch(whole, mesh, at, placements)
        assert local_shape(shape, mesh, at, placements) == expected.shape
        assert np.array_equal(local_of(parts, whole, expected.shape), expected)
        assert [p.local.offsets for p in parts] == sorted(p.local.offsets for p in parts)

        says = _compute_local_shape_and_global_offset(shape, mesh, list(at), [in_torch(p) for p in placements])
        assert says[0] == expected.shape
        if parts:
            assert says[1] == parts[0].box.offsets
        for part in parts:
            holders[slices(part.box)] += 1
    assert (holders == replica_of(mesh, (0,) * len(mesh), placements)[1]).all()


@given(cases())
@settings(deadline=None)
def test_replicas_are_numbered_among_those_that_hold_the_same(case: Case) -> None:
    shape, mesh, placements = case
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    held: dict[tuple[int, ...], set[tuple[Part, ...]]] = {}
    for at in coordinates(mesh):
        group = tuple(place for place, split in zip(at, placements, strict=True) if split is not None)
        groups.setdefault(group, []).append(replica_of(mesh, at, placements))
        held.setdefault(group, set()).add(local_parts(shape, mesh, at, placements))
    for group, replicas in groups.items():
        assert replicas == [(number, len(replicas)) for number in range(len(replicas))]
        assert len(held[group]) == 1


@given(st.integers(0, 70), st.integers(1, 8), st.integers(2, 8))
@settings(deadline=None)
def test_strided_last_is_the_chunk_of_the_chunk(length: int, dp: int, tp: int) -> None:
    mesh, placements = (dp, tp), (Split(0, tp), Split(0))
    whole = np.arange(length)
    for at in coordinates(mesh):
        reading = strided_last(mesh, at, placements)
        assert reading is not None
        held = split_by_torch(split_by_torch(whole, (tp,), at[1:], (Split(0),)), (dp,), at[:1], (Split(0),))
        assert np.array_equal(local_of(local_parts((length,), *reading), whole, held.shape), held)
        if length % (dp * tp) == 0:
            assert local_parts((length,), *reading) == local_parts((length,), mesh, at, placements)


@pytest.mark.parametrize(
    "placements",
    [(Split(0), Split(0), None), (None, Split(0, 3), Split(0)), (Split(0), None, Split(0, 2))],
)
def test_there_is_no_other_reading_without_splits_to_the_right(placements: Placements) -> None:
    assert strided_last((2, 2, 2), (0, 0, 0), placements) is None


def test_two_strided_splits_are_read_from_the_right() -> None:
    reading = strided_last((2, 3, 5), (1, 2, 4), (Split(0, 15), Split(0, 5), Split(0)))
    assert reading == ((5, 3, 2), (4, 2, 1), (Split(0), Split(0), Split(0)))


def test_adjacent_runs_are_one_box() -> None:
    assert local_parts((8, 4), (1,), (0,), (Split(0, 4),)) == local_parts((8, 4), (1,), (0,), (None,))
    assert len(local_parts((8, 4), (2,), (0,), (Split(0, 4),))) == 4


def test_a_scalar_is_one_box() -> None:
    assert local_parts((), (2,), (1,), (None,)) == (Part(Box((), ()), Box((), ())),)


def test_S01_rows_of_fsdp_over_tp_have_their_real_offsets() -> None:
    """Tensor parallelism splits first: data-parallel neighbours hold neighbouring rows, though `dp` stands first."""
    rows = {
        at: [part.box for part in local_parts((16, 4), (2, 2), at, (Split(0, 2), Split(0)))]
        for at in coordinates((2, 2))
    }
    assert rows == {
        (0, 0): [Box((0, 0), (4, 4))],
        (0, 1): [Box((8, 0), (4, 4))],
        (1, 0): [Box((4, 0), (4, 4))],
        (1, 1): [Box((12, 0), (4, 4))],
    }


def resharded(whole: Array, source: tuple[int, Split], target: tuple[int, Split]) -> list[Array]:
    """Local arrays of the target's ranks, each filled from the boxes that the source's ranks hold."""
    held = [part.box for at in range(source[0]) for part in local_parts(whole.shape, source[:1], (at,), source[1:])]
    filled = []
    for to in range(target[0]):
        local = np.full(local_shape(whole.shape, target[:1], (to,), target[1:]), -1)
        for part, box in product(local_parts(whole.shape, target[:1], (to,), target[1:]), held):
            if common := part.box.intersect(box):
                within = np.subtract(common.offsets, part.box.offsets) + part.local.offsets
                local[slices(Box(tuple(within.tolist()), common.lengths))] = whole[slices(common)]
        filled.append(local)
    return filled


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_S03_a_rank_with_a_gate_and_an_up_slice(ranks: int) -> None:
    whole, halves = arange(16, 4), Split(0, 2)
    assert [part.box.offsets[0] for part in local_parts((16, 4), (8,), (3,), (halves,))] == [3, 11]
    for at, local in enumerate(resharded(whole, (8, halves), (ranks, halves))):
        gate, up = np.split(whole, 2)
        assert np.array_equal(local, np.concatenate([np.split(gate, ranks)[at], np.split(up, ranks)[at]]))


@pytest.mark.parametrize("ranks", [4, 3, 5, 6, 7])
def test_S07_size_6_on_4_ranks_leaves_one_empty(ranks: int) -> None:
    whole, rows = arange(6), Split(0)
    assert [local_shape((6,), (4,), (at,), (rows,)) for at in range(4)] == [(2,), (2,), (2,), (0,)]
    assert local_parts((6,), (4,), (3,), (rows,)) == ()
    assert np.array_equal(np.concatenate(resharded(whole, (4, rows), (ranks, rows))), whole)


@st.composite
def flat_ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, int, int]:
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    offsets = tuple(draw(st.integers(0, length)) for length in shape)
    lengths = tuple(draw(st.integers(0, length - at)) for length, at in zip(shape, offsets, strict=True))
    start = draw(st.integers(0, prod(lengths)))
    return shape, Box(offsets, lengths), start, draw(st.integers(start, prod(lengths)))


@given(flat_ranges())
@settings(deadline=None, max_examples=300)
def test_flat_range_is_cut_in_boxes_that_lie_end_to_end(case: tuple[tuple[int, ...], Box, int, int]) -> None:
    shape, box, start, stop = case
    whole = arange(*shape)
    parts = flat_range_parts(shape, box, start, stop)
    buffer = whole[slices(box)].ravel()[start:stop]
    at = 0
    for part in parts:
        assert part.offset == at and part.length > 0
        assert np.array_equal(whole[slices(part.box)].ravel(), buffer[at : at + part.length])
        at += part.length
    assert at == stop - start
    assert len(parts) <= max(2 * len(shape) - 1, 1)


def test_flat_range_has_head_middle_and_tail() -> None:
    assert flat_range_parts((4, 8), Box((0, 2), (4, 5)), 3, 17) == (
        FlatPart(Box((0, 5), (1, 2)), 0),
        FlatPart(Box((1, 2), (2, 5)), 2),
        FlatPart(Box((3, 2), (1, 2)), 12),
    )


@pytest.mark.parametrize(
    ("mesh", "at", "placements"),
    [((2,), (2,), (None,)), ((2,), (0, 0), (None,)), ((2,), (0,), ()), ((2,), (0,), (Split(1),))],
)
def test_what_does_not_fit_together_is_refused(
    mesh: tuple[int, ...], at: tuple[int, ...], placements: Placements
) -> None:
    with pytest.raises(ValueError):
        local_parts((4,), mesh, at, placements)


@pytest.mark.parametrize(
    ("shape", "box", "stop"),
    [((4,), Box((2,), (3,)), 1), ((4, 4), Box((0,), (2,)), 1), ((4,), Box((0,), (3,)), 4)],
)
def test_flat_ranges_stay_inside(shape: tuple[int, ...], box: Box, stop: int) -> None:
    with pytest.raises(ValueError):
        flat_range_parts(shape, box, 0, stop)


def test_values_check_themselves() -> None:
    for wrong in (lambda: Split(-1), lambda: Split(0, 0), lambda: Part(Box((0,), (1,)), Box((0,), (2,)))):
        with pytest.raises(ValueError):
            wrong()
