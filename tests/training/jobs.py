"""What the ranks of test jobs do."""

import os
from pathlib import Path
from typing import Any

import torch

from cairn.training.checkpointer import Checkpointer
from cairn.training.rng import RngState
from tests.support.ranks import group
from tests.training.layouts import LAYOUTS, build, differing, fill, full_values


def matrix(rank: int, ranks: int, store: str) -> dict[str, Any]:
    """Save from each layout, load each of these into each layout; returns what went wrong."""
    wrong: dict[str, Any] = {}
    for phase, layout in enumerate(LAYOUTS):
        with group(phase, rank, layout.ranks) as here:
            if here:
                net, optimizer = build(layout, rank)
                fill(net, optimizer, full_values(1))
                torch.manual_seed(100 + rank)
                state = {"model": net, "optimizer": optimizer, "rng": RngState(), "step": 1}
                with Checkpointer(store, layout.name, check_replicas_every=1) as checkpointer:
                    checkpointer.save(1, state, blocking=True)
    for phase, layout in enumerate(LAYOUTS, start=len(LAYOUTS)):
        with group(phase, rank, layout.ranks) as here:
            if not here:
                continue
            for source in LAYOUTS:
                net, optimizer = build(layout, rank)
                state = {"model": net, "optimizer": optimizer, "rng": RngState(missing="derive"), "step": 0}
                with Checkpointer(store, source.name) as checkpointer:
                    checkpointer.load(state)
                names = differing(net, optimizer, full_values(1))
                if rank < source.ranks:
                    torch.manual_seed(torch.initial_seed())
                    torch.random.default_generator.get_state()
                if names or state["step"] != 1:
                    wrong[f"{source.name} -> {layout.name}"] = names[:5]
    return wrong


def folders(base: Path) -> None:
    """Point this process's own folders below `base`."""
    for name in ("DATA", "STATE", "CACHE"):
        os.environ[f"XDG_{name}_HOME"] = str(base / name.lower())
