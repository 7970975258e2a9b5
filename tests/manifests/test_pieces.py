"""What is stored of a shard: the shard exactly. And what covers a tensor once is told from what does not."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.manifests.coverage import uncovered
from cairn.manifests.dtypes import BITS
from cairn.manifests.pieces import Piece, cut_box, split_box, tiles_in
from cairn.manifests.tiling import TILE_BYTES_MAX, Box, Grid, grid
from tests.support.boxes import TINY_TILE_BYTES_MAX, boxes_in, narrowed, partitions, shapes, slices, tiny_tiles, whole

DTYPES = ("uint8", "bfloat16", "float32", "complex128")


def count(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray:
    """How many boxes hold each element."""
    seen = np.zeros(shape, np.uint8)
    for box in boxes:
        seen[slices(box)] += 1
    return seen


def check_pieces(pieces: tuple[Piece, ...], layout: Grid, shape: tuple[int, ...], box: Box, bytes_max: int) -> None:
    """All pieces are what they say, and the box together."""
    seen = count(shape, [piece.box for piece in pieces])
    inside = np.zeros(shape, np.uint8)
    inside[slices(box)] = 1
    assert np.array_equal(seen, inside)
    for piece in pieces:
        assert 0 < piece.box.volume * layout.item_bytes <= bytes_max
        assert piece.tile == -1 or piece.box == layout.tile(piece.tile)
    within = [
        number for number in range(layout.tile_count) if layout.tile(number).intersect(box) == layout.tile(number)
    ]
    assert sorted(piece.tile for piece in pieces if piece.tile >= 0) == within


# --- Cutting ------------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(DTYPES), shapes())
def test_pieces_are_the_box_and_whole_tiles_are_the_grids(
    data: st.DataObject, dtype: str, shape: tuple[int, ...]
) -> None:
    with tiny_tiles():
        box = data.draw(boxes_in(shape))
        check_pieces(cut_box(dtype, shape, box), grid(dtype, shape), shape, box, TINY_TILE_BYTES_MAX)


@given(st.data())
@settings(max_examples=30)
def test_pieces_of_tensors_of_full_size(data: st.DataObject) -> None:
    shapes_of_size = [(3, 1000, 700), (1024, 2048), (2, 3, 1 << 19), (3_000_001,), (1500, 1), (4, 9, 64, 1024)]
    shape = data.draw(st.sampled_from(shapes_of_size))
    box = data.draw(boxes_in(shape))
    check_pieces(cut_box("float32", shape, box), grid("float32", shape), shape, box, TILE_BYTES_MAX)


@given(st.data(), st.sampled_from(DTYPES), shapes(1))
def test_shards_of_all_ranks_cover_the_tensor(data: st.DataObject, dtype: str, shape: tuple[int, ...]) -> None:
    with tiny_tiles():
        shards = data.draw(partitions(whole(shape)))
        pieces = [piece for shard in shards for piece in cut_box(dtype, shape, shard)]
        assert uncovered(shape, [piece.box for piece in pieces]) == ""
        numbers = [piece.tile for piece in pieces if piece.tile >= 0]
        assert len(set(numbers)) == len(numbers)


@given(st.sampled_from(DTYPES), shapes())
def test_a_whole_tensor_is_its_tiles(dtype: str, shape: tuple[int, ...]) -> None:
    with tiny_tiles():
        layout = grid(dtype, shape)
        assert [piece.tile for piece in cut_box(dtype, shape, whole(shape))] == list(range(layout.tile_count))


def test_the_rest_of_a_box_is_few_large_regions() -> None:
    layout = grid("float32", (2048, 1024))
    edge = layout.tile(1).offsets[0]
    pieces = cut_box("float32", (2048, 1024), Box((1, 0), (2046, 1024)))
    regions = [piece for piece in pieces if piece.tile < 0]
    assert [piece.box for piece in regions] == [
        Box((1, 0), (edge - 1, 1024)), Box((2048 - edge, 0), (edge - 1, 1024)),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [name for name, bits in BITS.items() if bits % 8])
def test_elements_narrower_than_a_byte_are_stored_whole_or_not_at_all(dtype: str) -> None:
    shape = (1000, 4096)
    layout = grid(dtype, shape)
    pieces = cut_box(dtype, shape, whole(shape))
    assert [(piece.tile, piece.box) for piece in pieces] == [(n, layout.tile(n)) for n in range(layout.tile_count)]
    assert uncovered(layout.shape, [piece.box for piece in pieces]) == ""
    with pytest.raises(ValueError, match="a part of a"):
        cut_box(dtype, shape, Box((0, 0), (500, 4096)))
    assert cut_box(dtype, shape, Box((0, 0), (0, 4096))) == ()


@given(st.data(), shapes(1), st.sampled_from([1, 2, 4, 16]))
def test_split_boxes_are_runs_of_the_box_in_order(data: st.DataObject, shape: tuple[int, ...], item: int) -> None:
    with tiny_tiles():
        box = data.draw(boxes_in(shape).filter(lambda one: one.volume))
        parts = list(split_box(box, item))
    numbers = np.arange(prod(shape)).reshape(shape)
    assert np.array_equal(
        np.concatenate([numbers[slices(part)].ravel() for part in parts]), numbers[slices(box)].ravel()
    )
    assert all(0 < part.volume * item <= TINY_TILE_BYTES_MAX for part in parts)


# --- Finding tiles ------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(DTYPES), shapes())
def test_tiles_in_a_box_are_those_that_meet_it(data: st.DataObject, dtype: str, shape: tuple[int, ...]) -> None:
    with tiny_tiles():
        layout, box = grid(dtype, shape), data.draw(boxes_in(shape))
        meeting = [n for n in range(layout.tile_count) if box.volume and layout.tile(n).intersect(box)]
        assert list(tiles_in(layout, box)) == [(number, layout.tile(number)) for number in meeting]


# --- Coverage -----------------------------------------------------------------------------------


@given(st.data(), shapes(1))
def test_what_covers_a_tensor_once_has_no_fault(data: st.DataObject, shape: tuple[int, ...]) -> None:
    parts = data.draw(st.permutations(data.draw(partitions(whole(shape)))))
    assert uncovered(shape, list(parts)) == ""


@given(st.data(), shapes(), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_a_fault_is_found_exactly_where_there_is_one(
    data: st.DataObject, shape: tuple[int, ...], beyond: list[int]
) -> None:
    """Any boxes, some of them outside, against a count of every element."""
    larger = tuple(length + more for length, more in zip(shape, beyond, strict=False))
    boxes = data.draw(st.lists(boxes_in(larger), max_size=5))
    boxes += data.draw(partitions(data.draw(boxes_in(shape)))) if data.draw(st.booleans()) else []
    seen = count(larger, boxes)
    outside = seen.sum() - seen[slices(whole(shape))].sum()
    fault = uncovered(shape, boxes)
    assert (fault == "") == (not outside and bool((seen[slices(whole(shape))] == 1).all()))
    if "held by no rank" in fault:
        missing = int((seen[slices(whole(shape))] == 0).sum())
        assert fault.startswith(f"{missing} of its {prod(shape)} ")
        assert not outside
        assert seen.max(initial=0) <= 1
    elif "overlap" in fault:
        assert seen.max() > 1
    elif fault:
        assert "outside" in fault
        assert outside


@given(st.data(), shapes(1).filter(len))
def test_a_part_that_is_lost_doubled_or_moved_is_noticed(data: st.DataObject, shape: tuple[int, ...]) -> None:
    parts = data.draw(partitions(whole(shape)))
    number = data.draw(st.integers(0, len(parts) - 1))
    part, others = parts[number], parts[:number] + parts[number + 1 :]
    assert f"{part.volume} of its" in uncovered(shape, others)
    assert "overlap" in uncovered(shape, [*parts, part])
    axis = data.draw(st.integers(0, len(shape) - 1))
    moved = narrowed(part, axis, 1, part.lengths[axis])
    assert "outside" in (fault := uncovered(shape, [*others, moved])) or "overlap" in fault


def test_a_box_that_is_empty_covers_nothing_and_harms_nothing() -> None:
    assert uncovered((2, 3), [Box((0, 0), (2, 3)), Box((1, 1), (0, 2)), Box((9, 9), (0, 0))]) == ""
    assert uncovered((0, 3), []) == ""
    assert "1 of its 1" in uncovered((), [])
    assert uncovered((), [Box((), ())]) == ""
    assert "overlap" in uncovered((), [Box((), ()), Box((), ())])
