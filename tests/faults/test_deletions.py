"""A deletion, a retention, a restoring stops at call 1, 2, 3 ..., or is not answered there: it has happened or not."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cairn.core.errors import CairnError, GoneError, PlanVoid
from cairn.registry.deleting import apply_deletion, plan_deletion
from cairn.registry.deletion import restore, tombstone
from cairn.registry.registry import Registry
from cairn.registry.retaining import retain
from cairn.registry.retention import Retention
from cairn.store.backends.faults import Crash, Effect, Fail, FaultyBackend, LoseAnswer, Stopped
from tests.support.histories import History, drop_due
from tests.support.stores import Site, checkout_to, copied
from tests.support.trees import snapshot

Steps = list[int | None]
OPERATIONS: dict[str, tuple[Callable[[History, Registry], object], Steps, Steps]] = {
    "tombstone": (
        lambda line, registry: tombstone(registry, line.model, [line.ids[2]], "deleted", 0),
        [6, 5, 4, 3, 2, 1],
        [6, 5, 4, 3, 1],
    ),
    "retain": (
        lambda line, registry: retain(registry, line.model, "main", Retention(last=1)),
        [6, 5, 4, 3, 2, 1],
        [6, 5],
    ),
    "restore": (
        lambda line, registry: restore(registry, line.model, [line.ids[1]]),
        [6, 5, 4, 3, 2],
        [6, 5, 4, 3, 2, 1],
    ),
    "drop": (lambda line, registry: drop_due(registry), [6, 5, 4, 3, 2], [6, 5, 4, 3, 2]),
}
FAULTS = [Crash(effect=Effect.NONE), Crash(effect=Effect.COMPLETE), LoseAnswer(), Fail()]


@pytest.fixture
def line(tmp_path: Path) -> History:
    return History(tmp_path, 6)


def copy_of(site: Site, state: Path) -> Site:
    """The store as it is, and a user who remembers as much of it."""
    shutil.copytree(site.home.state, state)
    return replace(site, backend=copied(site.backend), home=replace(site.home, state=state))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS, ids=["crash before", "crash after", "answer lost", "refused"])
def test_stopped_at_any_call_it_has_happened_or_not_and_the_rerun_completes(
    line: History, tmp_path: Path, name: str, fault: Any
) -> None:
    operate, before, after = OPERATIONS[name]
    if name in ("restore", "drop"):
        tombstone(line.registry, line.model, [line.ids[1]], "deleted", 0)
    number, lost = 0, False
    while True:
        number += 1
        site = copy_of(line.site, tmp_path / f"state-{number}")
        backend = FaultyBackend(site.backend, [replace(fault, call=number)])
        ended: BaseException | None = None
        try:
            operate(line, site.registry(backend, cold=True))
        except BaseException as error:
            ended = error
        met = len(backend.calls) >= number
        reader = site.registry(cold=True)
        assert line.steps(reader) in (before, after)
        lost = lost or ended is not None
        if ended is not None:
            try:
                operate(line, site.registry(cold=True))
            except GoneError:
                assert name == "tombstone", "it says that it has happened"
            reader = site.registry(cold=True)
        assert line.steps(reader) == after
        gone = reader.state.models[line.model].gone
        assert all((one.checkpoint is None) == (name == "drop") for one in gone.values())
        for step in (1, 6) if 1 in after else (6,):
            out = tmp_path / f"{number}-{step}"
            checkout_to(reader, f"m@step:{step}", out)
            assert snapshot(out) == snapshot(line.tree(step))
        if not met:
            break
    print(f"{name}: {number - 1} calls")
    assert number > 4 and lost


@pytest.mark.parametrize("fault", FAULTS, ids=["crash before", "crash after", "answer lost", "refused"])
def test_a_branch_is_deleted_in_two_entries_and_its_plan_goes_on_from_wherever_it_was_stopped(
    line: History, tmp_path: Path, fault: Any
) -> None:
    line.branch(5, "side")
    line.commit(7, branch="side")
    plan = plan_deletion(line.registry, "m@side")
    assert plan.removed == [line.ids[7]]
    number, begun = 0, set[tuple[bool, bool]]()
    while True:
        number += 1
        site = copy_of(line.site, tmp_path / f"state-{number}")
        backend = FaultyBackend(site.backend, [replace(fault, call=number)])
        with suppress(Stopped, CairnError):
            apply_deletion(site.registry(backend, cold=True), plan)
        reader = site.registry(cold=True)
        named, there = state_of(line, reader)
        begun.add((named, there))
        assert there or not named, "the name goes first"
        if there:
            assert apply_deletion(reader, plan) == plan.removed
        else:
            with pytest.raises(PlanVoid):
                apply_deletion(reader, plan)
        reader = site.registry(cold=True)
        assert state_of(line, reader) == (False, False)
        assert line.steps(reader) == [6, 5, 4, 3, 2, 1]
        assert restore(reader, line.model, plan.removed) == plan.removed
        if len(backend.calls) < number:
            break
    assert number > 4 and {(True, True), (False, False)} <= begun
    assert isinstance(fault, LoseAnswer) or (False, True) in begun, "it was stopped between the two as well"


def state_of(line: History, registry: Registry) -> tuple[bool, bool]:
    """Whether `side` is there, and its own checkpoint."""
    held = registry.state.models[line.model]
    return len(held.refs) == 2, line.ids[7] in held.checkpoints
