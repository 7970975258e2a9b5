"""A run that forgot to load must not hide what an earlier one has saved."""

from pathlib import Path

import pytest

import cairn
from cairn.core.errors import RefusedError
from tests.cases.training import MODEL, Net, Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "user")


def test_a_run_that_loaded_nothing_saves_no_earlier_step(runs: Runs) -> None:
    state = {"model": Net()}
    newest = runs.save(state, 40).committed.result()
    entries = len(runs.site.log())
    with pytest.raises(RefusedError, match="is at step 40, and this run, which has loaded nothing, saves step 10") as e:
        runs.save(state, 10)
    assert "load(" in e.value.hint and "start_over=True" in e.value.hint
    # The branch was not even claimed: a run that goes on is not disturbed.
    assert len(runs.site.log()) == entries
    with runs.checkpointer() as checkpointer:
        assert checkpointer.latest() == (newest, 40)
    runs.save(state, 40)
    runs.save(state, 10, branch="other")
    runs.save(state, 20, start_over=True)
    assert runs.load({"model": Net(seed=1)}).step == 20


def test_who_loaded_may_go_back_and_counters_are_the_runs_own(runs: Runs) -> None:
    state = {"model": Net()}
    runs.save(state, 10)
    runs.save(state, 40)
    with runs.checkpointer() as checkpointer:
        checkpointer.load(state, "step:10")
        checkpointer.save(11, state, blocking=True)
        for step in (1, 2, 1):
            checkpointer.save(step, state, blocking=True)
        checkpointer.save(50, state, blocking=True)
    registry = runs.site.registry()
    model, tip = cairn.resolve(registry, MODEL)
    from cairn.registry.models import history

    assert [line.meta.step for line in history(registry, model, tip)] == [50, 1, 2, 1, 11, 40, 10]
