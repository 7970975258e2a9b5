"""Group S, where torch lays out the model: FSDP, tensor parallelism and both, on four real ranks in one job.

`tests/training` holds the same for a whole training state and for pipelines; `test_sharding_pieces.py` goes through
what a layout can do to a single tensor.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cairn.registry.stores import create_store
from tests.cases.sharding_jobs import GROUPS, PAIRS
from tests.support.ranks import run_ranks
from tests.support.stores import close_environments

Findings = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Findings]:
    """What each rank of the job found."""
    in_memory = Path("/dev/shm")
    base = in_memory if in_memory.is_dir() else tmp_path_factory.mktemp("sharding")
    place = Path(tempfile.mkdtemp(prefix="cairn-case-", dir=base))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATA", "STATE", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(place / name.lower()))
        create_store(place / "store")
        close_environments()
        yield run_ranks(place / "job", 4, "tests.cases.sharding_jobs:sharding", str(place / "store"))
    shutil.rmtree(place)


def differing(found: Findings, case: str) -> dict[str, list[str]]:
    """Names of a case's tensors that are not as torch cuts them, by layouts and rank."""
    return {
        f"{layouts} on rank {rank}": names
        for rank, findings in enumerate(found)
        for layouts, all_names in findings["reshard"].items()
        if (names := [name for name in all_names if name.startswith(case)])
    }


def test_S01_rows_keep_their_order_when_two_dimensions_cut_one_axis(found: Findings) -> None:
    assert found[0]["reshard"].keys() == {f"{source} -> {target}" for source in PAIRS for target in PAIRS[source]}
    assert differing(found, "S01") == {}


def test_S09_any_remainder_on_two_dimensions(found: Findings) -> None:
    assert differing(found, "S09") == {}


def test_T26_a_single_element_lies_on_one_of_four_ranks(found: Findings) -> None:
    assert differing(found, "T26") == {}


def test_S13_the_global_size_is_compared_before_anything_is_scattered(found: Findings) -> None:
    for findings in found:
        sizes = findings["sizes"]
        assert sizes.pop("8") == "loaded"
        for rows, message in sizes.items():
            assert f"embed:~ has shape [{rows}, 4], in the checkpoint [8, 4]" in message


def test_S23_each_group_of_ranks_has_a_coordinator_of_its_own(found: Findings) -> None:
    assert [findings["groups"] for findings in found] == [{}] * 4
    members = {rank for split in GROUPS for group in split for rank in group[:1]}
    assert members == {0, 1, 2, 3}, "each rank coordinates once"
