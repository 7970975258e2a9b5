"""Ranks that save until one of them is killed."""

import time
from typing import Any

import torch

from cairn.core.errors import CairnError
from cairn.training.checkpointer import Checkpointer
from cairn.training.sharded import ShardedSlice
from tests.support.ranks import group

ROWS, COLUMNS = 64, 4096


def save_until_killed(rank: int, ranks: int, store: str, folder: str) -> dict[str, Any]:
    """Save step after step; a survivor returns the error that ended it and when."""
    with group(0, rank, ranks, barrier=False):
        step = 0
        with Checkpointer(store, "m") as checkpointer:
            try:
                while True:
                    step += 1
                    tensor = torch.full((ROWS, COLUMNS), float(step))
                    state = {"w": ShardedSlice(tensor, (ranks * ROWS, COLUMNS), (rank * ROWS, 0)), "step": step}
                    checkpointer.save(step, state, blocking=True)
                    print(f"saved {step}", flush=True)
            except CairnError as error:
                return {"error": str(error), "at": time.time(), "step": step}


def load_and_save(rank: int, ranks: int, store: str) -> int:
    """What a restarted job does: load, check, save the next step."""
    with group(0, rank, ranks), Checkpointer(store, "m") as checkpointer:
        tensor = torch.zeros(ROWS, COLUMNS)
        state = {"w": ShardedSlice(tensor, (ranks * ROWS, COLUMNS), (rank * ROWS, 0)), "step": 0}
        report = checkpointer.load(state)
        assert report is not None and report.step == state["step"] and bool((tensor == state["step"]).all())
        state["step"] += 1
        checkpointer.save(state["step"], state, blocking=True)
        return int(state["step"])
