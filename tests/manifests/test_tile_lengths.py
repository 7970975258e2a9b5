"""Lengths of all tiles at once."""

import pytest

from cairn.manifests.tiling import grid


@pytest.mark.parametrize(
    "shape",
    [(), (0,), (3,), (7, 0), (1 << 21,), (4100, 4096), (4096, 14336), (8, 900, 4096), (3, 5, 1 << 20), (1000003,)],
)
def test_lengths_are_those_of_the_tiles(shape: tuple[int, ...]) -> None:
    cells = grid("bfloat16", shape)
    assert cells.lengths() == [cells.tile_bytes(number) for number in range(cells.tile_count)]
