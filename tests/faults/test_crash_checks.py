"""The checks behind the crash points can fail: what breaks an order, or leaves garbage, is caught."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cairn.core.buffers import Buffer
from cairn.core.errors import CairnError
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.backends.faults import Crash
from cairn.store.backends.memory import MemoryBackend
from tests.faults import operations
from tests.faults.operations import OPERATIONS
from tests.faults.test_crash_points import Trial
from tests.faults.worlds import same_calls_each_time

__all__ = ["same_calls_each_time"]

OPERATION = {operation.name: operation for operation in OPERATIONS}
COMMIT = OPERATION["second commit"]


def crashes(trial: Trial) -> None:
    """A crash at each call, with the checks behind it."""
    for number, world, _ in trial.points(lambda number: Crash(call=number)):
        trial.check_twice(world, number)


def test_what_is_published_before_it_is_stored_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[tuple[MemoryBackend, str, Sequence[Buffer]]] = []
    create = MemoryBackend.create

    def create_packs_last(self: MemoryBackend, name: str, parts: Sequence[Buffer]) -> None:
        if name.endswith(".pack"):
            late.append((self, name, [bytes(part) for part in parts]))
        else:
            create(self, name, parts)

    end = Session.end

    def store_then_end(self: Session) -> None:
        while late:
            create(*late.pop())
        end(self)

    trial = Trial.of(COMMIT, tmp_path)
    monkeypatch.setattr(MemoryBackend, "create", create_packs_last)
    monkeypatch.setattr(Session, "end", store_then_end)
    with pytest.raises(AssertionError):
        crashes(trial)


def test_a_lost_object_is_caught(tmp_path: Path) -> None:
    trial = Trial.of(COMMIT, tmp_path)
    for ending in (".pack", ".body", ".root", ".reach", ".index"):
        world = trial.image.fresh()
        site = world.sites["here"]
        site.backend.delete(site.names(ending)[0])
        with pytest.raises((AssertionError, CairnError)):
            trial.check(world)


def test_work_that_is_done_twice_is_caught(tmp_path: Path) -> None:
    trial = Trial.of(COMMIT, tmp_path)
    world = trial.image.fresh()
    operations.commit_step(world, 2)
    trial.check_done(world)
    operations.commit_step(world, 1)
    with pytest.raises(AssertionError):
        trial.check_done(world)


@pytest.mark.parametrize("name", ["second commit", "second push"])
def test_a_collector_that_leaves_garbage_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    trial = Trial.of(OPERATION[name], tmp_path)
    monkeypatch.setattr(operations, "collect", lambda registry: None)
    with pytest.raises(AssertionError, match="nothing needs"):
        crashes(trial)


def test_a_collector_that_takes_too_much_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete_a_pack(registry: Registry) -> None:
        registry.opened.backend.delete(registry.state.pack(0).name)

    trial = Trial.of(COMMIT, tmp_path)
    monkeypatch.setattr(operations, "collect", delete_a_pack)
    with pytest.raises(AssertionError):
        crashes(trial)
