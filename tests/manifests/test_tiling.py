"""The canonical grid against a brute force over every element's position."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cairn.core.errors import BadInput
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.tiling import TILE_BYTES_MAX, TILE_BYTES_MIN, Box, Grid, grid

# As many elements as a brute force can visit: 64 MiB of complex128, enough for an 8-way cut of both axes.
ELEMENTS_MAX = 4 << 20

dimensions = st.one_of(
    st.integers(0, 9),
    st.integers(1, 3000),
    st.sampled_from([64, 100, 128, 384, 1000, 1024, 4095, 4096, 50257, 1 << 20]),
)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    shape: list[int] = []
    volume = 1
    for length in draw(st.lists(dimensions, max_size=5)):
        # An empty axis counts as one: numpy refuses empty arrays whose other axes are too long.
        if volume * max(length, 1) <= ELEMENTS_MAX:
            shape.append(length)
            volume *= max(length, 1)
    return tuple(shape)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(box.offsets, box.lengths, strict=True))


def positions_of_bands(cells: Grid) -> list[np.ndarray]:
    """For each tile, in order, the positions of its elements as the bands say."""
    found = []
    for band in cells.bands():
        item = cells.item_bytes
        assert (band.offset % item, band.length % item) == (0, 0)
        rows = np.arange(band.offset // item, (band.offset + band.length) // item).reshape(band.rows, -1)
        assert rows.shape[1] * item == band.row_bytes
        assert band.first == len(found)
        for start, width in band.columns:
            found.append(rows[:, start // item : (start + width) // item].ravel())
    return found


@given(st.sampled_from(["complex128", "float32", "bfloat16", "uint8"]), shapes())
@settings(max_examples=80)
@example("complex128", (2048, 2048))  # eight columns
@example("complex128", (1, 2048, 1024))  # columns under an axis of length 1
@example("complex128", (7, 64, 4096))
@example("complex128", (4, 200_000))  # one row is over a tile
@example("complex128", (1_000_003,))
@example("float32", ())
@example("float32", (0, 5))
def test_tiles_partition_the_tensor_and_bands_are_its_bytes_in_order(dtype: str, shape: tuple[int, ...]) -> None:
    cells = grid(dtype, shape)
    positions = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    by_band = positions_of_bands(cells)
    assert len(by_band) == cells.tile_count
    seen = np.zeros(positions.size, bool)
    for number, in_band in enumerate(by_band):
        in_tile = positions[slices(cells.tile(number))].ravel()
        assert np.array_equal(in_tile, in_band)
        assert in_tile.size and not seen[in_tile].any()
        seen[in_tile] = True
        assert cells.tile_bytes(number) == in_tile.size * cells.item_bytes
    assert seen.all()
    bands = list(cells.bands())
    assert [band.offset for band in bands] == [0, *np.cumsum([band.length for band in bands])][: len(bands)]


def test_an_empty_tensor_has_no_tile_however_long_its_other_axes() -> None:
    cells = grid("complex128", (0, 1 << 20, 1 << 20, 1 << 20))
    assert (cells.tile_count, list(cells.bands()), cells.lengths()) == (0, [], [])


@given(st.sampled_from(sorted(BITS)), st.lists(st.integers(1, 1 << 40), min_size=1, max_size=4).map(tuple))
@settings(max_examples=300)
def test_no_tile_is_over_2_mib_and_few_are_small(dtype: str, shape: tuple[int, ...]) -> None:
    try:
        total = nbytes(dtype, shape)
    except BadInput:
        return
    # Grids of up to a million cells are looked at; a larger one costs memory here, not insight.
    if total > 1 << 40 or np.prod(shape[:-1], dtype=float) > 1e6:
        return
    cells = grid(dtype, shape)
    widest = Box((0,) * len(cells.edges), tuple(max(b - a for a, b in pairwise(edges)) for edges in cells.edges))
    assert widest.volume * cells.item_bytes <= TILE_BYTES_MAX
    if total > TILE_BYTES_MIN:
        assert total / cells.tile_count >= TILE_BYTES_MIN / 2
    else:
        assert cells.tile_count == 1


@pytest.mark.parametrize(
    ("dtype", "shape", "total"),
    [
        ("float4_e2m1fn", (4096, 8192), 16 << 20),
        ("float6_e2m3fn", (3, 4_000_000), 9_000_000),
        ("float4_e2m1fn", (3, 2), 3),
        ("float6_e3m2fn", (4,), 3),
    ],
)
def test_types_narrower_than_a_byte_are_flat_bytes(dtype: str, shape: tuple[int, ...], total: int) -> None:
    cells = grid(dtype, shape)
    assert (cells.shape, cells.item_bytes) == ((total,), 1)
    assert [(band.offset, band.rows) for band in cells.bands()] == [(edge, 1) for edge in cells.edges[0][:-1]]
    assert cells.edges[0][-1] == total


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float4_e2m1fn", (3,)),  # half a byte is left
        ("float32", (1 << 40, 1 << 40)),
        ("float32", (0, 1 << 63)),
        ("float32", (-1, 4)),
        ("float32", (1,) * 65),
        ("float32", (True,)),
        ("float33", (1,)),
    ],
)
def test_impossible_tensors_have_no_grid(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput):
        grid(dtype, shape)


@pytest.mark.parametrize("number", [-1, 1, 1 << 40])
def test_a_tile_that_is_not_there_is_not_invented(number: int) -> None:
    with pytest.raises(IndexError):
        grid("float32", (4, 4)).tile(number)


# --- Boxes ------------------------------------------------------------------------------------


@st.composite
def box_pairs(draw: st.DrawFn) -> tuple[Box, Box]:
    def box(rank: int) -> Box:
        side = st.lists(st.integers(0, 6), min_size=rank, max_size=rank).map(tuple)
        return Box(draw(side), draw(side))

    rank = draw(st.integers(0, 3))
    return box(rank), box(rank)


@given(box_pairs())
def test_intersection_is_what_both_boxes_hold(pair: tuple[Box, Box]) -> None:
    first, second = pair
    canvas = np.zeros((12,) * len(first.offsets), np.uint8)
    canvas[slices(first)] += 1
    canvas[slices(second)] += 1
    common = np.argwhere(canvas == 2)
    found = first.intersect(second)
    assert found == second.intersect(first)
    if not len(common):
        assert found is None
    else:
        assert found is not None
        assert found.offsets == tuple(common.min(axis=0))
        assert found.volume == len(common)


@pytest.mark.parametrize(("offsets", "lengths"), [((0,), ()), ((-1,), (2,)), ((0, 0), (1, -1))])
def test_what_is_no_box_is_refused(offsets: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no box"):
        Box(offsets, lengths)
