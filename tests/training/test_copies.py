"""Each commit goes to other stores too, in the background, and its handle tells when it is there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cairn
from cairn.core.errors import NotFoundError, SaveFailed, StorageError, Superseded, UsageError
from cairn.registry import stores
from cairn.registry.models import history
from cairn.registry.remotes import Remote, Remotes
from cairn.registry.selectors import resolve
from cairn.registry.stores import create_twin
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Fail, FaultyBackend
from cairn.training.handle import Copy, SaveHandle
from tests.cases.gates import ENTRIES, PATIENCE_SECONDS, Hold
from tests.support.threads import ThreadRendezvous, run_threads


@pytest.fixture
def far(store: Path, tmp_path: Path) -> str:
    """Another store of the tenant, which is the remote `far`."""
    url = str(tmp_path / "far")
    registry = cairn.open_store(store)
    create_twin(url, registry.opened)
    Remotes(registry.opened).add("far", Remote(f"{url}/.cairn"))
    registry.close()
    return url


@pytest.fixture
def gate() -> Iterator[Hold]:
    """Holds the next entry that is written through it."""
    made = Hold(op="create", name=ENTRIES)
    yield made
    made.let_go.set()


def through(monkeypatch: pytest.MonkeyPatch, *faults: Any) -> None:
    """Open the other store with faults."""
    plain = stores.backend_at

    def backend_at(location: str) -> Backend:
        return FaultyBackend(plain(location), faults) if "/far/" in location else plain(location)

    monkeypatch.setattr(stores, "backend_at", backend_at)


def state(step: int) -> dict[str, Any]:
    """What is trained."""
    return {"w": {"w": torch.full((300, 300), float(step))}, "step": step}


def steps_in(place: str | Path) -> list[int | None]:
    """Steps of all checkpoints of a store's branch, oldest first."""
    registry = cairn.open_store(place)
    try:
        model, tip = resolve(registry, "m")
        return [line.meta.step for line in history(registry, model, tip)][::-1]
    finally:
        registry.close()


def test_a_commit_is_told_tier_by_tier_and_loads_from_its_copy(store: Path, far: str) -> None:
    with cairn.Checkpointer(store, "m", copies=["far"]) as checkpointer:
        for step in (1, 2):
            handle = checkpointer.save(step, state(step))
            assert handle.durable("far").result(PATIENCE_SECONDS) == handle.durable("local").result()
            assert handle.durable("memory").done()
    assert steps_in(far) == [1, 2]
    found = state(0)
    with cairn.Checkpointer(far, "m") as checkpointer:
        report = checkpointer.load(found)
    assert report is not None and report.step == 2 and bool((found["w"]["w"] == 2).all())


def test_a_tier_is_the_store_itself_or_its_first_copy_of_that_kind() -> None:
    handle = SaveHandle(1, local_store=True, copies={"a": Copy("object"), "b": Copy("object"), "c": Copy("local")})
    assert handle.durable("local") is handle.committed
    assert handle.durable("object") is handle.copies["a"].done
    assert handle.durable("c") is handle.copies["c"].done
    with pytest.raises(UsageError, match="no tier 'peer'") as error:
        handle.durable("peer")
    assert "'memory', 'local', 'object', 'a', 'b', 'c'" in error.value.hint
    handle.fail(OSError("no"))
    assert isinstance(handle.durable("b").exception(), OSError)


def test_a_name_of_no_remote_is_refused_at_once(store: Path) -> None:
    with pytest.raises(NotFoundError, match="no remote 'fra'"):
        cairn.Checkpointer(store, "m", copies=["fra"])


def test_a_copy_that_fails_fails_no_save_and_the_next_makes_up_for_it(
    store: Path, far: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch, cairn.Checkpointer(store, "m", copies=["far"]) as checkpointer:
        through(patch, Fail(op="create", name=ENTRIES))
        handle = checkpointer.save(1, state(1), blocking=True)
        assert isinstance(handle.durable("far").exception(PATIENCE_SECONDS), StorageError)
        patch.undo()
        handle = checkpointer.save(2, state(2), blocking=True)
        assert any("copy of m@main to far: " in note for note in handle.notes)
        assert handle.durable("far").result(PATIENCE_SECONDS)
    assert "copy of m@main to far" in caplog.text
    assert steps_in(far)[-1] == 2


def test_of_commits_that_come_faster_than_copies_the_newest_is_copied(
    store: Path, far: str, gate: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(monkeypatch, gate)
    with cairn.Checkpointer(store, "m", copies=["far"]) as checkpointer:
        first = checkpointer.save(1, state(1), blocking=True)
        assert gate.reached.wait(PATIENCE_SECONDS)
        second = checkpointer.save(2, state(2), blocking=True)
        third = checkpointer.save(3, state(3), blocking=True)
        assert isinstance(second.durable("far").exception(PATIENCE_SECONDS), Superseded)
        assert not first.durable("far").done() and not third.durable("far").done()
        gate.let_go.set()
        assert first.durable("far").result(PATIENCE_SECONDS) and third.durable("far").result(PATIENCE_SECONDS)
    assert steps_in(far) == [1, 3]


def test_closing_waits_for_a_copy_within_its_bound(
    store: Path, far: str, gate: Hold, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    through(monkeypatch, gate)
    with cairn.Checkpointer(store, "m", copies=["far"], close_seconds=0.2) as checkpointer:
        handle = checkpointer.save(1, state(1), blocking=True)
        assert gate.reached.wait(PATIENCE_SECONDS)
    assert "copy of m@main to far: not done after 0 s" in caplog.text
    with pytest.raises(SaveFailed, match="not copied to far before the checkpointer was closed"):
        handle.durable("far").result(0)
    gate.let_go.set()
    checkpointer._followers.finish(PATIENCE_SECONDS)


def test_one_rank_copies_and_the_others_say_who(store: Path, far: str) -> None:
    def rank(rendezvous: ThreadRendezvous) -> str:
        with cairn.Checkpointer(store, "m", rendezvous=rendezvous, copies="far") as checkpointer:
            handle = checkpointer.save(1, state(1), blocking=True)
            try:
                handle.durable("far").result(PATIENCE_SECONDS)
            except UsageError as error:
                return error.hint
            return "copied"

    told = "its tiers are 'memory', 'local'; copies are told of on rank 0, which makes them"
    assert run_threads(2, rank) == ["copied", told]
