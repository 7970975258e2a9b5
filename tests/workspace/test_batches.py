"""Jobs of a commit, dealt out in rows."""

import resource
from pathlib import Path

import pytest

from cairn.workspace import ingest
from cairn.workspace.ingest import BlockJob, batched
from tests.support.stores import Site, checkout_to, commit_tree
from tests.support.trees import snapshot, write_files


def job(length: int) -> BlockJob:
    return BlockJob(None, None, 0, length, 0)  # type: ignore[arg-type]  # only its length counts


def test_rows_are_long_enough_and_keep_the_order() -> None:
    jobs = [job(length) for length in (5, 5, 20, 1, 2, 3)]
    rows = list(batched(iter(jobs), 10))
    assert [[one.length for one in row] for row in rows] == [[5, 5], [20], [1, 2, 3]]
    assert list(batched(iter([]), 10)) == []
    assert max(map(len, batched((job(1) for _ in range(1000)), 1 << 30))) == ingest._BATCH_JOBS_MAX


def test_many_files_do_not_use_up_descriptors(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_files(tmp_path / "tree", {f"{n}": n.to_bytes(2, "big") * 3000 for n in range(1500)})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(600, soft), hard))
    try:
        commit_tree(site.registry(), tree)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    checkout_to(site.registry(), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)
