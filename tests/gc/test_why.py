"""Why something is still here, and what became of what is not."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cairn.core.errors import NotFoundError, UsageError
from cairn.core.ids import CheckpointId
from cairn.gc.collect import Collector, Options
from cairn.gc.shred import shred_due
from cairn.gc.subject import subject_of
from cairn.gc.why_gone import Gone, why_gone
from cairn.gc.why_kept import Reason, why_kept
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.fold import TAG
from cairn.registry.modeldeletion import delete_model, restore_model
from cairn.registry.models import move_ref
from cairn.registry.pins import Pin
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.backends.faults import Crash, FaultyBackend, Stopped
from tests.support.stores import Site, commit_tree, tip
from tests.support.trees import write_files


@pytest.fixture
def commit(site: Site, tmp_path: Path) -> Callable[[int], CheckpointId]:
    def make(step: int) -> CheckpointId:
        tree = write_files(tmp_path / f"t{step}", {"own": os.urandom(50_000), "shared": b"common" * 5000})
        return commit_tree(site.registry(), tree, step=step).checkpoint

    return make


def kept(registry: Registry, text: str) -> list[Reason]:
    registry.refresh()
    return why_kept(registry, subject_of(registry, text))


def gone(registry: Registry, text: str) -> Gone:
    registry.refresh()
    return why_gone(registry, subject_of(registry, text))


def kinds(reasons: list[Reason]) -> set[str]:
    return {one.kind for one in reasons}


def delete(registry: Registry, checkpoint: CheckpointId, drop: bool = True) -> None:
    model = tip(registry)[0]
    registry.append(lambda state: Tombstone(model, (checkpoint,), 0, "a test"))
    if drop:
        registry.append(lambda state: Drop(model, (checkpoint,)))


def pack_of(site: Site, before: set[str]) -> str:
    """The pack of content that was stored since."""
    return max(set(site.names(".pack")) - before, key=site.backend.size)


def test_what_a_checkpoint_needs_is_kept_by_it(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    first = commit(1)
    pack = pack_of(site, set())
    second = commit(2)
    registry = site.registry()
    move_ref(registry, tip(registry)[0], "v1", TAG, None, first)
    reasons = kept(registry, pack)
    assert kinds(reasons) == {"checkpoint"}
    assert {one.holder for one in reasons} == {first.hex(), second.hex()}, "the second needs what is shared"
    texts = {one.holder: one.text for one in reasons}
    assert "of m (tag v1)" in texts[first.hex()] and "(branch main)" in texts[second.hex()]
    assert "needs 1 of its chunks" in texts[second.hex()]


def test_a_chunk_is_kept_by_those_who_list_it(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    first, second = commit(1), commit(2)
    registry = site.registry()
    model = registry.state.models[tip(registry)[0]]
    lists = {one: set(read_reachability(registry.opened, model.checkpoints[one])) for one in (first, second)}
    (shared,) = lists[first] & lists[second]
    own = min(lists[first] - lists[second])
    assert {one.holder for one in kept(registry, shared.hex()) if one.holder} == {first.hex(), second.hex()}
    reasons = kept(registry, own.hex()[:16])
    assert {one.holder for one in reasons if one.holder} == {first.hex()}
    assert any(one.kind == "place" and ".pack, byte " in one.text for one in reasons)


def test_the_way_of_a_pack_from_its_deletion_to_its_end(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    commit(0)
    before = set(site.names(".pack"))
    first = commit(1)
    pack = pack_of(site, before)
    commit(2)
    registry = site.registry()
    delete(registry, first, drop=False)
    assert "it can be restored" in kept(registry, pack)[0].text
    hint = f"'cairn delete restore m@{first.hex()[:12]}'"
    assert gone(registry, first.hex()[:8]).text == f"it was deleted (a test) and can be restored: {hint}"
    model = tip(registry)[0]
    registry.append(lambda state: Drop(model, (first,)))
    assert kinds(kept(registry, pack)) == {"unneeded"}
    with Session(site.registry()) as session:
        session.ensure_open()
        Collector(registry, Options(condemn_only=True)).run()
        reasons = kept(registry, pack)
        assert {"condemned", "session"} <= kinds(reasons)
        assert session.id.hex() in {one.holder for one in reasons}
    Collector(registry).run()
    with pytest.raises(NotFoundError, match="was deleted"):
        kept(registry, pack)
    answer = gone(registry, pack)
    assert not answer.here and answer.text == "it was deleted by collection"
    assert [one.type for one in answer.events] == ["commit", "gc.condemn", "gc.swept"]
    assert {one.actor for one in answer.events} == {registry.opened.identity.actor}
    told = gone(registry, first.hex())
    assert told.text == "it was deleted (a test) and can no longer be restored"
    assert [one.type for one in told.events] == ["commit", "tombstone", "drop", "gc.condemn", "gc.swept"]


def test_a_pin_keeps_what_is_read(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    commit(0)
    before = set(site.names(".pack"))
    first = commit(1)
    pack = pack_of(site, before)
    commit(2)
    registry = site.registry()
    pin = Pin(site.registry(), tip(registry)[0], first)
    delete(registry, first)
    Collector(registry).run()
    reasons = kept(registry, pack)
    assert {"condemned", "pin"} <= kinds(reasons)
    pin.release()


def test_other_objects_are_kept_by_whose_they_are(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    first = commit(1)
    registry = site.registry()
    for ending in (".body", ".root", ".reach"):
        (reason,) = kept(registry, site.names(ending)[0])
        assert (reason.kind, reason.holder) == ("checkpoint", first.hex()) and reason.text.startswith("part of ")
    assert kinds(kept(registry, site.names(".index")[0])) == {"index"}
    answer = gone(registry, site.names(".body")[0])
    assert answer.here and [one.type for one in answer.events] == ["commit"]


def test_leftovers_wait_for_their_writer(site: Site, commit: Callable[[int], CheckpointId], tmp_path: Path) -> None:
    commit(1)
    before = set(site.names())
    crashing = FaultyBackend(site.backend, [Crash(op="create", name="log/*")])
    with pytest.raises(Stopped):
        commit_tree(site.registry(crashing), write_files(tmp_path / "x", {"b": os.urandom(70_000)}), step=2)
    left = next(name for name in set(site.names(".pack")) - before)
    registry = site.registry()
    (reason,) = kept(registry, left)
    assert reason.kind == "session" and "is given up after" in reason.text
    site.clock.sleep(registry.state.silence_seconds + 1)
    registry = site.registry()
    assert kept(registry, left)
    (session,) = site.names(".open")
    site.backend.delete(session)
    assert kinds(kept(registry, left)) == {"unneeded"}
    with pytest.raises(NotFoundError, match="no entry of this store's log ever named it"):
        gone(registry, f"objects/{'ab' * 16}/{'cd' * 12}.pack")


def test_what_became_of_a_model_and_what_was_committed_to_it(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    first = commit(1)
    registry = site.registry()
    model = tip(registry)[0]
    for text in ("m", "m@main", first.hex()[:8], f"m@{first.hex()[:8]}"):
        assert gone(registry, text).here and kept(registry, text)[0].holder == first.hex()
    delete_model(registry, model, "a test", 0)
    restore_model(registry, model)
    assert gone(registry, "m").here
    delete_model(registry, model, "a test", 0)
    for text in ("m", "m@main", model.hex(), model.hex()[:8]):
        told = gone(registry, text)
        assert not told.here and told.text.startswith(
            "it was deleted (a test) and can be restored: 'cairn delete restore m'"
        )
        assert [one.type for one in told.events] == ["model.create", "model.delete", "model.restore", "model.delete"]
        with pytest.raises(NotFoundError, match="was deleted"):
            kept(registry, text)
    told = gone(registry, first.hex()[:8])
    assert told.text.startswith("its model was deleted") and told.events[-1].type == "model.delete"
    shred_due(registry, lambda: None)
    for text in ("m", model.hex()):
        told = gone(registry, text)
        assert "can no longer be restored" in told.text and f"'cairn receipt create {model.hex()} -o FILE'" in told.text
        assert [one.type for one in told.events][-2:] == ["shred", "destroyed"]
    assert gone(registry, first.hex()).text.startswith("its model was deleted (a test) and can no longer be restored")


def test_a_model_of_which_something_else_is_asked_is_named(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    commit(1)
    with pytest.raises(NotFoundError, match="model 'm' has no ref or checkpoint 'nothing'"):
        gone(site.registry(), "m@nothing")


def test_what_was_lost_is_told_from_what_was_let_go(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    commit(1)
    name = site.names(".pack")[0]
    site.backend.delete(name)
    assert "it was lost" in gone(site.registry(), name).text


@pytest.mark.parametrize("text", ["xyz", "objects/x", "log/00000000/000000000000", "abc", "ab" * 40])
def test_what_names_nothing_is_refused(site: Site, text: str) -> None:
    with pytest.raises(UsageError):
        subject_of(site.registry(), text)


def test_an_unknown_id_is_not_found(site: Site, commit: Callable[[int], CheckpointId]) -> None:
    commit(1)
    with pytest.raises(NotFoundError, match="is the beginning of no id"):
        subject_of(site.registry(), "abcdef012345")
    with pytest.raises(NotFoundError):
        kept(site.registry(), "ab" * 32)
    with pytest.raises(NotFoundError):
        gone(site.registry(), "ab" * 32)
