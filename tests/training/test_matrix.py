"""Every layout's checkpoint in every layout, on real gloo ranks: equal by exact position, and equal tiles.

`test_resharding.py` does the same for random tensors and layouts, without process groups.
"""

from pathlib import Path

import pytest

from cairn.manifests.schema import TensorEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.compare import compare
from cairn.registry.selectors import resolve
from cairn.registry.stores import open_store
from tests.support.ranks import run_ranks
from tests.training.layouts import LAYOUTS

# What each layout cuts across tiles, by the end of the name: rows in thirds; columns of a matrix whose columns are
# not cut in tiles, being smaller than 16 MiB. Small shards are joined into tiles, whoever holds them.
_ALL = ("weight", "bias", "exp_avg", "exp_avg_sq")
_DOWN = ("down.weight", "down.weight/exp_avg", "down.weight/exp_avg_sq")
CUT_BY = {"single": (), "fsdp4": (), "pp2": (), "tp2_fsdp2": _DOWN, "tp4": _DOWN, "uneven3": _ALL}


@pytest.mark.slow
def test_the_matrix_and_its_digests(store: Path, tmp_path: Path) -> None:
    results = run_ranks(
        tmp_path / "job", 4, "tests.training.jobs:matrix", str(store), phases=2 * len(LAYOUTS), seconds=300
    )
    assert results == [{}] * 4
    registry = open_store(store)
    try:
        single = resolve(registry, "single")
        for layout in LAYOUTS:
            other = resolve(registry, layout.name)
            found = compare(registry, single, other)
            cut = {str(change.key) for change in found.tensors if change.kind == "recut"}
            assert {change.kind for change in found.tensors} <= {"recut"}, layout.name
            assert {str(change.key).split(":")[0] for change in found.values} <= {"rng"}
            assert all(name.endswith(CUT_BY[layout.name]) and "layers.1." in name for name in cut), layout.name
            assert bool(cut) == bool(CUT_BY[layout.name])
            entries = {str(e.key): e for e in CheckpointManifest(registry, *other).tensors()}
            assert all(_covers(entries[name]) for name in cut)
    finally:
        registry.close()


def _covers(entry: TensorEntry) -> bool:
    return bool(entry.regions) and entry.tiles is None
