"""Ranks of one host fetch once what several of them need, and hand it to each other."""

import time
from pathlib import Path

import pytest

import cairn
from tests.support.ranks import Job, run_ranks
from tests.support.s3 import BUCKET, Server, fresh_prefix, s3_server
from tests.training.shared_jobs import SILENCE_SECONDS

__all__ = ["s3_server"]

JOBS = "tests.training.shared_jobs"
RANKS = 3
SHARED = [("whole", ""), ("cast", ""), ("rows", ""), ("different", "")]
ALONE = [("whole", harm) for harm in ("off", "none", "elsewhere", "unreachable", "no memory", "no room")]


@pytest.fixture
def saved(store: Path, tmp_path: Path) -> Path:
    """A store with one checkpoint."""
    run_ranks(tmp_path / "save", 1, f"{JOBS}:save_alone", str(store))
    return store


def test_ranks_of_a_host_read_one_copy_together_or_each_alone(saved: Path, tmp_path: Path) -> None:
    turns = SHARED + ALONE
    by_rank = run_ranks(tmp_path / "load", RANKS, f"{JOBS}:load_in_turns", str(saved), turns, phases=len(turns))
    results = dict(zip(turns, zip(*by_rank, strict=True), strict=True))
    copy = 2 * 3000 * 1024 * 4
    for turn, found in results.items():
        assert all(one["right"] for one in found), turn
        read, shared = sum(one["bytes_read"] for one in found), sum(one["bytes_shared"] for one in found)
        if turn in SHARED:
            assert copy < read < 1.01 * copy, turn
            assert shared > 0, turn
        else:
            assert 3 * copy < read < 3.03 * copy and shared == 0, turn
    for found in (results["whole", ""], results["cast", ""]):
        assert all(one["bytes_read"] < 0.5 * copy for one in found), "one rank does it all"
        assert all(one["bytes_read"] + one["bytes_shared"] > one["bytes_wanted"] == copy for one in found)


@pytest.mark.slow
def test_a_rank_killed_while_others_wait_for_its_reads_is_named_in_time(saved: Path, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", RANKS, f"{JOBS}:load_until_killed", str(saved))
    job.wait_for("reading", 1)
    job.kill(1)
    killed_at = time.time()
    for rank, result in enumerate(job.results(lost=(1,))):
        if rank != 1:
            assert "rank 1" in result["error"] and "unusable" in result["error"]
            assert result["at"] - killed_at < SILENCE_SECONDS + 10


@pytest.mark.s3
def test_object_storage_is_read_once_a_host_without_being_asked(
    s3_server: Server, tmp_path: Path, environments_closed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    url = f"s3://{BUCKET}/{fresh_prefix()}"
    cairn.create_store(url)
    run_ranks(tmp_path / "save", 1, f"{JOBS}:save_alone", url)
    found = run_ranks(tmp_path / "load", RANKS, f"{JOBS}:load_in_turns", url, [("whole", "none")])
    assert all(one["right"] for (one,) in found)
    assert sum(one["bytes_read"] for (one,) in found) < 1.01 * found[0][0]["bytes_wanted"]
