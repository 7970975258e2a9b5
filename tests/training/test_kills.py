"""kill -9 of real ranks while saves follow each other: survivors know within 30 s who it was, nothing is lost.

`tests/faults/test_rank_kills.py` tries every call of a save on every rank, with ranks that are threads.
"""

import time
from pathlib import Path

import pytest

from tests.support.ranks import Job, run_ranks

RANKS = 3
# The promise: silence of 20 s, a beat of 2 s, and time to tell.
RAISED_WITHIN_SECONDS = 30.0


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2], ids=["coordinator, which serves the job's store", "other"])
def test_survivors_raise_within_30_seconds_and_name_the_rank(store: Path, tmp_path: Path, victim: int) -> None:
    job = Job(tmp_path / "job", RANKS, "tests.training.kill_jobs:save_until_killed", str(store), "")
    job.wait_for("saved 2", victim)
    job.kill(victim)
    killed_at = time.time()
    results = job.results(lost=(victim,))
    for rank, result in enumerate(results):
        if rank != victim:
            assert result["at"] - killed_at < RAISED_WITHIN_SECONDS
            assert f"rank {victim}" in result["error"]
    steps = run_ranks(tmp_path / "again", RANKS, "tests.training.kill_jobs:load_and_save", str(store))
    interrupted = next(result["step"] for rank, result in enumerate(results) if rank != victim)
    assert len(set(steps)) == 1 and steps[0] in (interrupted, interrupted + 1)
