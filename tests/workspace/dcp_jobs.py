"""What the ranks of these tests do: save a sharded state with torch's own writer."""

from pathlib import Path

import torch.distributed.checkpoint as dcp

from tests.support.ranks import group
from tests.training.dcp_jobs import FSDP2, TP2_FSDP2, UNEVEN3, state_of
from tests.training.layouts import build, fill, full_values

LAYOUTS = (FSDP2, UNEVEN3, TP2_FSDP2)


def save_layouts(rank: int, ranks: int, folder: str) -> None:
    """One folder for each layout, all of the same values."""
    for phase, layout in enumerate(LAYOUTS):
        with group(phase, rank, layout.ranks) as here:
            if here:
                net, optimizer = build(layout, rank)
                fill(net, optimizer, full_values(layout.dim, 1))
                dcp.save(state_of(net, optimizer) | {"step": 40}, checkpoint_id=Path(folder) / layout.name)
