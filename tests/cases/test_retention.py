"""Faults of clean-up beside training: what is only scheduled does not count, and nothing waits for a deletion."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from cairn.core.errors import GoneError
from cairn.core.ids import ContentId
from cairn.gc.collect import Collector
from cairn.gc.shred import shred_due
from cairn.registry.deletion import restore
from cairn.registry.gone import deleted_of
from cairn.registry.modeldeletion import delete_model
from cairn.registry.models import history
from cairn.registry.reachability import read_reachability
from cairn.registry.receipts import make_receipt
from cairn.registry.retaining import retain
from cairn.registry.retention import Retention
from cairn.registry.selectors import resolve
from cairn.registry.state import Checkpoint, name_of_key, objects_of
from cairn.store.backends.faults import Crash, Fail, Fault, FaultyBackend, Stopped
from cairn.training.behind import Behind
from cairn.training.checkpointer import Checkpointer
from tests.cases.gates import ENTRIES, PATIENCE_SECONDS, Hold
from tests.cases.training import Net, Runs, cairn_threads, check_is
from tests.support.histories import History, drop_due
from tests.support.stores import checkout_to, commit_tree
from tests.support.threads import ThreadRendezvous, run_threads
from tests.support.trees import snapshot
from tests.support.twins import clean

NEWEST = Retention(last=1)


def steps(runs: Runs) -> list[int | None]:
    """Steps of the branch, newest first."""
    registry = runs.site.registry(cold=True)
    model, tip = resolve(registry, "m")
    return [line.meta.step for line in history(registry, model, tip)]


def behind(checkpointer: Checkpointer) -> Behind[None]:
    """What applies the rules."""
    assert checkpointer._followers.retention is not None
    return checkpointer._followers.retention


def train(runs: Runs, some: Iterable[int], *script: Fault) -> None:
    """A run that saves some steps, keeping the newest, and waits for all of it."""
    with runs.checkpointer(FaultyBackend(runs.site.backend, script), retention=NEWEST) as checkpointer:
        for step in some:
            checkpointer.save(step, {"model": Net(seed=step)}, blocking=True)
            behind(checkpointer).finish(PATIENCE_SECONDS)


def test_the_newest_stay_while_training_goes_on(runs: Runs) -> None:
    train(runs, range(1, 6))
    assert steps(runs) == [5, 4], "two, whatever the rules"
    registry = runs.site.registry()
    assert [one.gone.cause for one in deleted_of(registry, resolve(registry, "m")[0])] == ["retention"] * 3
    for step in (4, 5):
        assert runs.load({"model": Net()}, f"step:{step}").step == step
    with runs.checkpointer() as checkpointer, pytest.raises(GoneError, match="retention"):
        checkpointer.load({"model": Net()}, "step:3", missing_ok=True)
    assert clean(runs.site)


def test_the_best_by_a_metric_stays(runs: Runs) -> None:
    with runs.checkpointer(retention=Retention(last=1, best=("loss:min:1",))) as checkpointer:
        for step, loss in enumerate([3.0, 1.0, float("nan"), 2.0, 5.0, 4.0]):
            checkpointer.save(step, {"model": Net(seed=step)}, metrics={"loss": loss}, blocking=True)
    assert steps(runs) == [5, 4, 1]


@pytest.mark.parametrize("stopped_at", ["sessions/*", "*.pack", "*.body", ENTRIES])
def test_A20_A03_a_save_that_is_only_scheduled_removes_nothing(runs: Runs, stopped_at: str) -> None:
    train(runs, range(1, 3))
    call = 2 if stopped_at == ENTRIES else 1  # the first entry is the run's claim of its branch
    with pytest.raises(Stopped):
        train(runs, [3], Crash(op="create", name=stopped_at, call=call))
    assert steps(runs) == [2, 1]
    check_is(runs, 2)
    assert runs.load({"model": Net()}, "step:1").step == 1


def test_A03_D03_what_never_committed_is_not_counted(runs: Runs, hold: Callable[..., Hold]) -> None:
    """Two saves were killed and one is under way: the two that stay are the newest that are complete."""
    train(runs, range(1, 4))
    for step in (10, 11):
        with pytest.raises(Stopped):
            train(runs, [step], Crash(op="create", name=ENTRIES, call=2))
    gate = hold(op="create", name="*.body")
    with runs.checkpointer(FaultyBackend(runs.site.backend, [gate])) as checkpointer:
        checkpointer.save(12, {"model": Net(seed=12)})
        assert gate.reached.wait(PATIENCE_SECONDS)
        other = runs.site.registry()
        plan = retain(other, resolve(other, "m")[0], "main", NEWEST)
        assert [one.step for one in plan.verdicts] == [3, 2] and not plan.removed
        assert checkpointer.latest()[1] == 3
        gate.let_go.set()
        checkpointer.wait()
    assert steps(runs) == [12, 3, 2]
    check_is(runs, 12)


def test_A21_the_next_save_starts_and_ends_while_a_deletion_hangs(runs: Runs, hold: Callable[..., Hold]) -> None:
    train(runs, range(1, 3))
    # Entries of this run: its claim of the branch, the commit of step 3, the deletion of step 1.
    gate = hold(op="create", name=ENTRIES, call=3)
    with runs.checkpointer(FaultyBackend(runs.site.backend, [gate]), retention=NEWEST) as checkpointer:
        checkpointer.save(3, {"model": Net(seed=3)}, blocking=True)
        assert gate.reached.wait(PATIENCE_SECONDS)
        for step in (4, 5):
            checkpointer.save(step, {"model": Net(seed=step)}).wait(PATIENCE_SECONDS)
        assert steps(runs) == [5, 4, 3, 2, 1] and checkpointer.latest()[1] == 5
        gate.let_go.set()
    assert steps(runs) == [5, 4], "it was late, so it looked again"
    assert cairn_threads() == []


def test_A21_no_rank_waits_for_a_deletion(runs: Runs, hold: Callable[..., Hold]) -> None:
    train(runs, range(1, 3))
    gate = hold(op="create", name=ENTRIES, call=3)

    def rank(rendezvous: ThreadRendezvous) -> list[int]:
        backend = FaultyBackend(runs.site.backend, [gate] if rendezvous.rank == 0 else [])
        saved = []
        with runs.checkpointer(backend, rendezvous=rendezvous, attempt_seconds=20.0, retention=NEWEST) as checkpointer:
            for step in (3, 4, 5):
                checkpointer.save(step, {"model": Net(seed=step)}, blocking=True)
                assert gate.reached.wait(PATIENCE_SECONDS), "from the first save on, the deletion hangs"
                saved.append(step)
            if rendezvous.rank == 0:
                assert steps(runs) == [5, 4, 3, 2, 1]
                gate.let_go.set()
        return saved

    assert run_threads(2, rank) == [[3, 4, 5]] * 2
    assert steps(runs) == [5, 4]


def test_a_deletion_that_fails_is_told_and_fails_no_save(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    train(runs, range(1, 3))
    caplog.set_level(logging.WARNING, "cairn.training")
    backend = FaultyBackend(runs.site.backend, [Fail(op="create", name=ENTRIES, call=3)])
    with runs.checkpointer(backend, retention=NEWEST) as checkpointer:
        checkpointer.save(3, {"model": Net(seed=3)}, blocking=True)
        behind(checkpointer).finish(PATIENCE_SECONDS)
        assert steps(runs) == [3, 2, 1]
        handle = checkpointer.save(4, {"model": Net(seed=4)}, blocking=True)
        assert any("retention on m@main: " in note and "a fault was injected" in note for note in handle.notes)
    assert caplog.text.count("retention on m@main") >= 1
    assert steps(runs) == [4, 3], "the next one makes up for it"


def test_closing_waits_for_a_deletion_within_its_bound(
    runs: Runs, hold: Callable[..., Hold], caplog: pytest.LogCaptureFixture
) -> None:
    train(runs, range(1, 3))
    gate = hold(op="create", name=ENTRIES, call=3)
    with runs.checkpointer(
        FaultyBackend(runs.site.backend, [gate]), retention=NEWEST, close_seconds=0.2
    ) as checkpointer:
        checkpointer.save(3, {"model": Net(seed=3)}, blocking=True)
        assert gate.reached.wait(PATIENCE_SECONDS)
    assert "retention on m@main: not done after 0 s" in caplog.text
    retainer = behind(checkpointer)
    gate.let_go.set()
    retainer.finish(PATIENCE_SECONDS)
    check_is(runs, 3)


# --- what is freed ------------------------------------------------------------------------------


def shared_store(folder: Path) -> History:
    """Three checkpoints of `m`, and one of `n` that has the content of the first one, all with `b` in common."""
    line = History(folder, 3)
    commit_tree(line.registry, line.tree(1), model="n")
    return line


def free(line: History) -> int:
    """Drop what is due and collect, as `cairn gc apply` does; returns the bytes that were freed."""
    before = sum(listed.size for listed in line.site.backend.list("objects"))
    drop_due(line.registry)
    Collector(line.site.registry()).run()
    return before - sum(listed.size for listed in line.site.backend.list("objects"))


def test_H09_H29_what_a_deleted_checkpoint_alone_needs_goes_and_what_is_shared_stays(tmp_path: Path) -> None:
    line = shared_store(tmp_path / "site")
    state = line.registry.state.models[line.model].checkpoints
    own = {step: {name_of_key(key) for key in objects_of(state[line.ids[step]])} for step in (1, 2, 3)}
    reachable = {step: set(read_reachability(line.registry.opened, state[line.ids[step]])) for step in (1, 2, 3)}
    alone = reachable[2] - reachable[1] - reachable[3]
    assert alone and reachable[2] - alone, "it has chunks of its own, and shared ones"
    retain(line.registry, line.model, "main", NEWEST)
    assert line.steps() == [3, 2]
    line.delete(2)
    assert free(line) > 0
    after = line.site.registry(cold=True)
    assert not (own[1] | own[2]) & set(line.site.names()), "no manifest of theirs is left"
    assert own[3] <= set(line.site.names())
    located = after.index().locations_of(sorted(alone))
    assert not any(located), "nor any chunk that they alone needed"
    for selector, step in (("m", 3), ("n", 1)):
        out = tmp_path / selector
        checkout_to(after, selector, out)
        assert snapshot(out) == snapshot(line.tree(step)), "what others share is whole"
    gone = {one.id: one for one in deleted_of(after, line.model)}
    assert gone.keys() == {line.ids[1], line.ids[2]}
    assert all(one.deleted_at and one.gone.actor and one.gone.cause and one.gone.dropped_n for one in gone.values())
    assert clean(line.site)


def test_what_can_be_restored_is_collected_by_nobody(tmp_path: Path) -> None:
    line = shared_store(tmp_path / "site")
    line.delete(1, 2, grace=3600)
    free(line)
    restore(line.registry, line.model, [line.ids[1], line.ids[2]])
    for step in (1, 2, 3):
        out = tmp_path / str(step)
        checkout_to(line.site.registry(cold=True), f"m@step:{step}", out)
        assert snapshot(out) == snapshot(line.tree(step))
    assert clean(line.site)


def test_H09_H29_with_a_model_goes_all_that_it_alone_needs_and_a_receipt_tells_what_stays(tmp_path: Path) -> None:
    """Three versions, two names more, and chunks that another model shares."""
    line = shared_store(tmp_path / "site")
    line.tag(2, "good")
    line.branch(1, "old")
    state = line.registry.state
    own = {name_of_key(key) for one in state.models[line.model].checkpoints.values() for key in objects_of(one)}
    (other,) = (model for model in state.models if model != line.model)
    reachable = {
        model: {one for held in state.models[model].checkpoints.values() for one in ids_of(line, held)}
        for model in (line.model, other)
    }
    alone = reachable[line.model] - reachable[other]
    delete_model(line.registry, line.model, "deleted", 0.0)
    shred_due(line.registry, lambda: None)
    assert free(line) > 0
    after = line.site.registry(cold=True)
    assert not own & set(line.site.names()) and not any(after.index().locations_of(sorted(alone)))
    assert line.model not in after.state.models
    checkout_to(after, "n", tmp_path / "n")
    assert snapshot(tmp_path / "n") == snapshot(line.tree(1)), "what others share is whole"
    told = make_receipt(after, line.model).statement
    assert (told.checkpoints, told.packs_left, told.objects_left) == (3, (), ())
    assert told.alone.chunks == len(alone) and told.alone.stored_bytes > 0
    shared = len(reachable[line.model] & reachable[other])
    assert [(one.model, one.chunks) for one in told.shared] == [(other.hex(), shared)]
    assert clean(line.site)


def ids_of(line: History, held: Checkpoint) -> list[ContentId]:
    return read_reachability(line.registry.opened, held)
