"""Deleting checkpoints, what asks for them then, and bringing them back."""

from collections.abc import Callable
from pathlib import Path

import pytest

import cairn
from cairn.core.errors import GoneError, NotFoundError, RefMoved, RefusedError, UsageError
from cairn.core.ids import CheckpointId, short
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.deletion import restore, tombstone
from cairn.registry.fold import BRANCH
from cairn.registry.gone import deleted_of
from cairn.registry.models import history, move_ref, ref_value
from cairn.registry.outcomes import commit_of_session
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve, resolve_deleted
from cairn.registry.sync import SendOptions, send
from tests.support.doubles import HeldClock
from tests.support.histories import History, drop_due
from tests.support.stores import Site, checkout_to, commit_tree, tip
from tests.support.trees import snapshot
from tests.support.twins import clean, short_packs, sites, tree, twin_of

__all__ = ["short_packs", "sites", "tree"]


@pytest.fixture
def line(tmp_path: Path) -> History:
    return History(tmp_path, 4, seconds_apart=0)


# --- gone ---------------------------------------------------------------------------------------


WAYS: dict[str, Callable[[History, Registry, Path], object]] = {
    "id": lambda line, registry, out: resolve(registry, f"m@{line.ids[2].hex()}"),
    "id prefix": lambda line, registry, out: resolve(registry, f"m@{short(line.ids[2])}"),
    "step": lambda line, registry, out: resolve(registry, "m@step:2"),
    "manifest": lambda line, registry, out: CheckpointManifest(registry, line.model, line.ids[2]),
    "open": lambda line, registry, out: cairn.open(f"m@{short(line.ids[2])}", registry),
    "checkout": lambda line, registry, out: checkout_to(registry, "m@step:2", out),
    "push": lambda line, registry, out: send(
        registry, twin_of(line.site).registry(), f"m@{short(line.ids[2])}", SendOptions(to="other")
    ),
}  # fmt: skip


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_whoever_asks_for_a_deleted_checkpoint_is_told_who_when_why_and_what_to_do(
    line: History, tmp_path: Path, ask: Callable[[History, Registry, Path], object]
) -> None:
    line.delete(2, cause="too old")
    with pytest.raises(GoneError) as caught:
        ask(line, line.site.registry(cold=True), tmp_path / "out")
    message = caught.value.message
    for part in (short(line.ids[2]), "'m'", "2026-01-01 00:00:00 UTC", short(line.registry.signer().actor), "too old"):
        assert part in message
    assert caught.value.hint == f"'cairn delete restore m@{short(line.ids[2])}' brings it back"
    assert not (tmp_path / "out").exists()


def test_one_that_was_dropped_says_that_it_cannot_be_restored(line: History) -> None:
    line.delete(2)
    assert drop_due(line.registry) == [(line.model, line.ids[2])]
    for ask in (lambda: resolve(line.registry, f"m@{short(line.ids[2])}"), lambda: restore_one(line, 2)):
        with pytest.raises(GoneError, match="cannot be restored") as caught:
            ask()
        assert "restore m@" not in caught.value.hint


def restore_one(line: History, step: int) -> list[CheckpointId]:
    return restore(line.registry, line.model, [line.ids[step]])


def test_history_goes_on_behind_what_is_gone_and_counts_it(line: History) -> None:
    line.delete(2, 3)
    lines = history(line.registry, line.model, line.ids[4])
    assert [(one.meta.step, one.deleted_behind) for one in lines] == [(4, 2), (1, 0)]
    drop_due(line.registry)
    assert line.steps(line.registry) == [4, 1]
    (newest,) = history(line.registry, line.model, line.ids[4], 1)
    assert newest.deleted_behind == 2
    assert resolve(line.registry, "m@step:1") == (line.model, line.ids[1])
    with pytest.raises(NotFoundError):
        resolve(line.registry, "m@step:2")  # what it was is known no more


def test_a_step_that_was_saved_again_is_there(line: History) -> None:
    again = commit_tree(line.registry, line.tree(9), step=2).checkpoint
    line.commit(10)
    line.delete(2)
    assert resolve(line.registry, "m@step:2") == (line.model, again)


def test_an_outcome_is_found_although_its_checkpoint_is_gone_by_now(line: History) -> None:
    # Its session's folder is that of its objects.
    session = line.registry.state.models[line.model].checkpoints[line.ids[2]].body.name[:16]
    assert commit_of_session(line.registry, session, 0) == line.ids[2]
    line.delete(2)
    assert commit_of_session(line.registry, session, 0) == line.ids[2]


# --- deleting -----------------------------------------------------------------------------------


def test_what_has_a_name_stays(line: History) -> None:
    line.tag(1, "good")
    before = line.registry.refresh().length
    for step, named in ((1, "tag 'good'"), (4, "branch 'main'")):
        with pytest.raises(RefusedError, match=f"{named} of 'm' names checkpoint {short(line.ids[step])}") as caught:
            line.delete(2, step)
        assert "--delete" in caught.value.hint
    assert line.registry.refresh().length == before and line.steps(line.registry) == [4, 3, 2, 1]


def test_what_is_no_checkpoint_or_gone_already_is_named(line: History) -> None:
    with pytest.raises(NotFoundError, match="no checkpoint 787878787878"):
        tombstone(line.registry, line.model, [CheckpointId(b"x" * 32)], "deleted", 0)
    with pytest.raises(NotFoundError, match="no checkpoint 787878787878"):
        restore(line.registry, line.model, [CheckpointId(b"x" * 32)])
    line.delete(2)
    with pytest.raises(GoneError):
        line.delete(1, 2)
    assert line.steps(line.registry) == [4, 3, 1]


@pytest.mark.parametrize("grace", [-1.0, float("nan"), float("inf"), 1e12])
def test_a_grace_that_is_no_time_is_refused(line: History, grace: float) -> None:
    with pytest.raises(UsageError, match="grace"):
        line.delete(2, grace=grace)


def test_two_who_delete_the_same_one_delete_it_once(line: History) -> None:
    other = line.site.registry()
    line.delete(2)
    with pytest.raises(GoneError):
        tombstone(other, line.model, [line.ids[2]], "deleted", 0)
    assert len(other.refresh().models[line.model].gone) == 1


# --- bringing back ------------------------------------------------------------------------------


def test_what_was_deleted_comes_back_whole(line: History, tmp_path: Path) -> None:
    line.delete(1, 2)
    assert [one.id for one in deleted_of(line.registry, line.model)] == sorted((line.ids[1], line.ids[2]))
    assert resolve_deleted(line.registry, f"m@{short(line.ids[2])}") == (line.model, line.ids[2])
    some = [line.ids[step] for step in (1, 2, 3)]
    assert restore(line.registry, line.model, some) == some[:2], "one of them was there"
    assert restore(line.registry, line.model, some) == []
    assert line.steps(line.registry) == [4, 3, 2, 1] and not deleted_of(line.registry, line.model)
    reader = line.site.registry(cold=True)
    checkout_to(reader, "m@step:2", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(line.tree(2))
    assert clean(line.site)


@pytest.mark.parametrize(
    ("selector", "error"), [("m@main", UsageError), ("m@step:2", UsageError), ("m@abcdef", NotFoundError)]
)
def test_only_an_id_names_what_is_to_come_back(line: History, selector: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        resolve_deleted(line.registry, selector)


def test_the_grace_keeps_it_from_being_dropped(line: History) -> None:
    clock = line.site.clock
    assert isinstance(clock, HeldClock)
    line.delete(1, grace=3600)
    line.delete(2)
    assert drop_due(line.registry) == [(line.model, line.ids[2])]
    clock.sleep(3599)
    assert drop_due(line.registry) == []
    before = line.registry.state.length
    clock.sleep(2)
    assert drop_due(line.site.registry()) == [(line.model, line.ids[1])]
    assert drop_due(line.registry) == [] and line.registry.state.length == before + 1
    assert all(not one.restorable for one in deleted_of(line.registry, line.model))


def test_one_that_comes_back_meanwhile_is_not_dropped(line: History) -> None:
    line.delete(1, 2)
    other = line.site.registry()
    restore_one(line, 1)
    assert drop_due(other) == [(line.model, line.ids[2])]
    assert line.ids[1] in other.state.models[line.model].checkpoints


# --- other stores -------------------------------------------------------------------------------


def pushed(line: History) -> Site:
    there = twin_of(line.site)
    for step in (1, 2, 3, 4):
        model, checkpoint = resolve(line.registry, f"m@step:{step}")
        if step == 1:
            move_ref(line.registry, model, "away", BRANCH, None, checkpoint)
        else:
            move_ref(line.registry, model, "away", BRANCH, ref_value(line.registry, model, "away"), checkpoint)
        send(line.registry, there.registry(), "m@away", SendOptions(to="main"))
    return there


def test_a_push_of_what_was_deleted_there_waits_until_it_is_dropped(line: History) -> None:
    there = pushed(line)
    remote = there.registry()
    tombstone(remote, line.model, [line.ids[2]], "retention", 0)
    line.branch(2, "old")
    calls = len(there.names())
    with pytest.raises(GoneError, match="in memory") as caught:
        send(line.registry, there.registry(), "m@old", SendOptions())
    assert "restore m@" in caught.value.hint and "dropped" in caught.value.hint
    assert len(there.names()) == calls, "nothing was sent"
    drop_due(remote)
    sent = send(line.registry, there.registry(), "m@old", SendOptions())
    assert sent.created
    after = there.registry(cold=True)
    assert resolve(after, f"m@{short(line.ids[2])}") == (line.model, line.ids[2])
    assert clean(there)


def test_a_pull_goes_on_over_what_the_remote_has_lost_by_retention(line: History, tmp_path: Path) -> None:
    there = pushed(line)
    remote = there.registry()
    for step in (5, 6):
        commit_tree(remote, line.tree(step), step=step)
    # All that both have, and one that only the remote had.
    gone = [one.id for one in history(remote, line.model, tip(remote)[1])[1:]]
    tombstone(remote, line.model, gone, "retention", 0)
    drop_due(remote)
    sent = send(there.registry(), line.site.registry(), "m", SendOptions())
    assert sent.before == line.ids[4]
    assert line.steps() == [6, 4, 3, 2, 1]


def test_a_new_branch_goes_on_from_the_nearest_that_the_other_side_has_or_had(line: History) -> None:
    there = pushed(line)
    remote = there.registry()
    commit_tree(remote, line.tree(5), step=5)
    tombstone(remote, line.model, [line.ids[4]], "retention", 0)
    newest = line.commit(6)
    send(line.registry, remote, "m", SendOptions(to="fork"))
    assert remote.state.models[line.model].checkpoints[newest].parent == line.ids[4]
    steps = [one.meta.step for one in history(remote, line.model, newest)]
    assert steps == [6, 3, 2, 1]
    with pytest.raises(RefMoved):
        send(line.registry, remote, "m", SendOptions())
