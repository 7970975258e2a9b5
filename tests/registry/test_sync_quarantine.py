"""A checkpoint whose list was damaged, and whose content was given up, is whole again after a push that repairs."""

from pathlib import Path

from cairn.gc.collect import Collector
from cairn.gc.operator import quarantine
from cairn.registry.sync import SendOptions, send
from tests.support.twins import clean, commit, pair, tree

__all__ = ["tree"]


def test_a_push_repairs_what_was_quarantined(tmp_path: Path, tree: Path) -> None:
    here, there = pair(tmp_path)
    commit(here, tree)
    send(here.registry(), there.registry(), "m", SendOptions())
    target = there.registry()
    ((model, held),) = target.state.models.items()
    ((checkpoint, state),) = held.checkpoints.items()
    name = state.reachability.object_name("reach")
    there.backend.delete(name)
    there.backend.create(name, [b"damage"])
    quarantine(target, model, checkpoint)  # type: ignore[arg-type]  # ids of the state
    assert Collector(target).run().objects_deleted > 0
    send(here.registry(), there.registry(), "m", SendOptions(repair=True))
    assert not there.registry().state.models[model].checkpoints[checkpoint].quarantined
    Collector(there.registry()).run()
    assert clean(there)
