"""The layout matrix: what its ranks do."""

import random
from typing import Any

import numpy as np
import torch

from cairn.training.checkpointer import Checkpointer
from cairn.training.dataloader import DistributedCursorSampler
from cairn.training.rng import RngState
from tests.support.ranks import group
from tests.training.layouts import LAYOUTS, Layout, build, differing, fill, full_values

SAMPLES, BATCH = 240, 12


def state_of(layout: Layout, rank: int, net: Any, optimizer: Any) -> dict[str, Any]:
    """Everything that a run saves; data ranks are those that hold different rows of the batch."""
    share = layout.ranks // layout.tp // layout.stages
    sampler = DistributedCursorSampler(
        SAMPLES, global_batch=BATCH, rank=rank // layout.tp % share, world_size=share, seed=7
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    rng = RngState(missing="derive")
    return {"model": net, "optimizer": optimizer, "scheduler": scheduler, "data": sampler, "rng": rng, "step": 0}


def draws() -> list[float]:
    """The next random numbers of every generator."""
    return [torch.rand(()).item(), float(np.random.random()), random.random()]


def save_all(rank: int, first: int, store: str) -> dict[str, list[float]]:
    """Save from each layout; returns what this rank draws next after each save."""
    drawn: dict[str, list[float]] = {}
    for phase, layout in enumerate(LAYOUTS, start=first):
        with group(phase, rank, layout.ranks) as here:
            if not here:
                continue
            net, optimizer = build(layout, rank)
            fill(net, optimizer, full_values(layout.dim, 1))
            state = state_of(layout, rank, net, optimizer)
            optimizer.param_groups[0]["lr"] = 0.125
            state["data"].skip(5)
            state["step"] = 5
            torch.manual_seed(100 + rank)
            np.random.seed(200 + rank)
            random.seed(300 + rank)
            draws()
            with Checkpointer(store, layout.name, check_replicas_every=1) as checkpointer:
                checkpointer.save(5, state, blocking=True)
            drawn[layout.name] = draws()
    return drawn


def load_all(rank: int, first: int, store: str, drawn: dict[str, list[float]]) -> dict[str, list[str]]:
    """Load each layout's checkpoint into each layout; returns what was wrong, by pair."""
    wrong: dict[str, list[str]] = {}
    for phase, layout in enumerate(LAYOUTS, start=first):
        with group(phase, rank, layout.ranks) as here:
            if not here:
                continue
            for source in LAYOUTS:
                net, optimizer = build(layout, rank)
                state = state_of(layout, rank, net, optimizer)
                groups = optimizer.param_groups[0]
                with Checkpointer(store, source.name) as checkpointer:
                    report = checkpointer.load(state)
                now = draws()
                faults = differing(net, optimizer, full_values(layout.dim, 1))
                faults += [] if rank >= source.ranks or now == drawn[source.name] else ["rng"]
                faults += [] if groups is optimizer.param_groups[0] and groups["lr"] == 0.125 else ["lr"]
                faults += [] if state["step"] == 5 and state["data"].consumed == 5 * BATCH else ["data"]
                assert report is not None
                if faults:
                    wrong[f"{source.name} -> {layout.name}"] = faults[:5]
    return wrong


def matrix(rank: int, ranks: int, store: str) -> dict[str, list[str]]:
    """Save from each layout, load all of these into each layout; returns what went wrong on this rank."""
    drawn = save_all(rank, 0, store)
    return load_all(rank, len(LAYOUTS), store, drawn)
