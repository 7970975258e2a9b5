"""The grid is part of the format: these shapes are cut for ever as `tests/vectors/tiling.json` says.

A vector's edges are runs: `[[262144, 3], [1, 1]]` means three steps of 262144 elements, then one of 1. The file was
written once, with `described` below. A new rule gets a new number and new vectors; these stay.
"""

import json
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from cairn.manifests.tiling import RULE, Grid, grid

FILE = Path(__file__).parents[1] / "vectors" / "tiling.json"
VECTORS: dict[str, Any] = json.loads(FILE.read_text())


def described(cells: Grid) -> dict[str, Any]:
    runs = [
        [[step, len(list(same))] for step, same in groupby(b - a for a, b in pairwise(edges))] for edges in cells.edges
    ]
    return {"item_bytes": cells.item_bytes, "tiles": cells.tile_count, "edges": runs, "bands": len(list(cells.bands()))}


@pytest.mark.parametrize("name", VECTORS["grids"])
def test_vector(name: str) -> None:
    vector = VECTORS["grids"][name]
    assert described(grid(vector["dtype"], tuple(vector["shape"]))) == vector["grid"]


def test_vectors_are_of_the_rule_in_force() -> None:
    assert VECTORS["rule"] == RULE
    assert len(VECTORS["grids"]) >= 30
