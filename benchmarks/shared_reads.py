"""Replicas on one host that load from S3, sharing what they read and each alone, on a real server.

    .venv/bin/python -m benchmarks.shared_reads [MEGABYTES] [RANKS]

All ranks load all of one state, in turns; seconds are those of the slowest rank. The server runs on the same machine.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import cairn
from tests.support.ranks import group, run_ranks
from tests.support.s3 import BUCKET, fresh_prefix, running

ROUNDS = 3
# 4 MiB each.
SHAPE = (1024, 1024)


def save(rank: int, ranks: int, url: str, count: int) -> None:
    """Save so many tensors."""
    with cairn.Checkpointer(url, "m") as checkpointer:
        checkpointer.save(1, {"m": {f"w{n}": torch.randn(SHAPE) for n in range(count)}}, blocking=True)


def load(rank: int, ranks: int, url: str, count: int) -> list[tuple[bool, float, int, int]]:
    """Load them, in turns with shared reads and without: seconds, bytes read, requests."""
    found: list[tuple[bool, float, int, int]] = []
    for number in range(2 * ROUNDS):
        with group(number, rank, ranks):
            state: dict[str, Any] = {"m": {f"w{n}": torch.ones(SHAPE) for n in range(count)}}
            with cairn.Checkpointer(url, "m") as checkpointer:
                began = time.perf_counter()
                report = checkpointer.load(state, resume=False, share_reads=number % 2 == 0)
                assert report is not None
                found.append((number % 2 == 0, time.perf_counter() - began, report.bytes_read, report.requests))
    return found


def main() -> None:
    """Measure and print."""
    megabytes, ranks = (int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((1, 256), (2, 4)))
    count = max(megabytes * 10**6 // (4 * SHAPE[0] * SHAPE[1]), 1)
    with running() as server, tempfile.TemporaryDirectory(prefix="cairn-shared-") as folder:
        place = Path(folder)
        variables = {f"XDG_{kind}_HOME": str(place / kind) for kind in ("DATA", "STATE", "CACHE")}
        os.environ.update({**server.variables, **variables})
        url = f"s3://{BUCKET}/{fresh_prefix()}"
        cairn.create_store(url)
        run_ranks(place / "save", 1, "benchmarks.shared_reads:save", url, count)
        loads = run_ranks(
            place / "load", ranks, "benchmarks.shared_reads:load", url, count, phases=2 * ROUNDS, seconds=1200
        )
    copy = 4 * count * SHAPE[0] * SHAPE[1]
    print(f"{ranks} ranks load {copy / 1e6:.0f} MB each; load {os.getloadavg()[0]:.1f}; medians of {ROUNDS} rounds")
    for shared in (False, True):
        turns = [turn for turn in zip(*loads, strict=True) if turn[0][0] is shared]
        seconds = median(max(one[1] for one in turn) for turn in turns)
        read = median(sum(one[2] for one in turn) for turn in turns)
        requests = median(sum(one[3] for one in turn) for turn in turns)
        print(f"{'shared' if shared else 'alone '}: {seconds:.2f} s, {read / copy:.2f} copies, {requests:.0f} requests")


if __name__ == "__main__":
    main()
