"""Saves of a training loop, as operations: a job that loads what there is and saves the next step if it is missing."""

from contextlib import suppress
from pathlib import Path

import torch

from cairn.core.errors import CairnError
from cairn.registry.opened import create_store
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Stopped
from cairn.training.checkpointer import Checkpointer
from tests.faults.worlds import Holds, World

_STEPS = (1, 2)


def state_of(step: int) -> dict[str, object]:
    """Tensors and a number that tell the step."""
    return {"w": torch.full((60, 20), float(step)), "b": torch.arange(5.0) + step, "step": step}


def saved(world: World) -> None:
    """A store with step 1."""
    site = world.sites["here"]
    create_store(site.backend, site.home, site.source, site.clock, site.entropy)
    for step in _STEPS:
        world.holds[step] = _holds(step)
    _save(world.registry(), 1)


def load_and_save(world: World) -> None:
    """Go on after step 1."""
    _save(world.registry(), 2)


def _save(registry: Registry, step: int) -> None:
    checkpointer = Checkpointer(registry, "m", attempt_seconds=20.0, close_seconds=1.0)
    try:
        state = state_of(0)
        report = checkpointer.load(state, missing_ok=True)
        if report is None or report.step < step:
            checkpointer.save(step, state_of(step)).wait()
    except BaseException:
        checkpointer._pending = None
        with suppress(CairnError, Stopped):
            checkpointer.close(0.1)
        raise
    checkpointer.close()


def _holds(step: int) -> Holds:
    def holds(registry: Registry, selector: str, place: Path) -> bool:
        found, wanted = state_of(0), state_of(step)
        with Checkpointer(registry, "m") as checkpointer:
            checkpointer.load(found, selector.rpartition("@")[2], resume=False)
        return all(torch.equal(torch.as_tensor(found[name]), torch.as_tensor(wanted[name])) for name in wanted)

    return holds
