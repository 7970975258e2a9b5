"""Push and pull with the checkpoints that lie behind one."""

from pathlib import Path

import pytest

from cairn.core.errors import RefMoved, RefusedError, UsageError
from cairn.registry import models
from cairn.registry.delivery import Selection
from cairn.registry.entries_deletion import Tombstone
from cairn.registry.fold import TAG
from cairn.registry.models import find_model, history, list_refs, move_ref, open_meta
from cairn.registry.registry import Registry
from cairn.registry.sync import SendOptions, Sent, send
from cairn.store.backends.faults import Crash, FaultyBackend, Stopped
from cairn.store.crypto.components import ComponentClass
from tests.support.stores import Site, checkout_to, tip
from tests.support.trees import snapshot
from tests.support.twins import clean, commit, short_packs, sites, tree, twin_of

__all__ = ["short_packs", "sites", "tree"]


def push(here: Site, there: Site, selector: str = "m", **options: object) -> Sent:
    return send(here.registry(), there.registry(), selector, SendOptions(**options))  # type: ignore[arg-type]  # checked by the struct


def save(site: Site, tree: Path, text: str) -> bytes:
    (tree / "notes").write_bytes(text.encode() * 4000)
    return commit(site, tree, message=text)


def three(site: Site, tree: Path) -> list[bytes]:
    """Three commits, newest first."""
    return [save(site, tree, text) for text in ("one", "two", "three")][::-1]


def log(site: Site, selector: str = "m") -> list[bytes]:
    registry = site.registry()
    return [line.id for line in history(registry, *tip(registry, selector))]


def refs(site: Site) -> list[tuple[str, bytes]]:
    registry = site.registry()
    return [(ref.name, ref.checkpoint) for ref in list_refs(registry, find_model(registry, "m"))]


def test_a_push_with_history_makes_the_same_log_there(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, there = sites
    ids = three(here, tree)
    registry = here.registry()
    move_ref(registry, find_model(registry, "m"), "v1", TAG, None, tip(registry)[1])
    alone = push(here, twin_of(here, seed=300))
    sent = push(here, there, history=True)
    assert (alone.older_brought, alone.older_left) == (0, 2)
    assert (sent.older_brought, sent.older_left, sent.before) == (2, 0, None)
    assert log(there) == log(here) == ids
    assert [line.state.parent for line in history(there.registry(), *tip(there.registry()))] == [*ids[1:], None]
    assert refs(there) == [("main", ids[0])]
    # What they share travels once: two more versions of the notes, and the manifests.
    assert sent.counts.bytes_stored < alone.counts.bytes_stored + 2 * 60_000
    again = push(here, there, history=True)
    assert (again.counts.chunks_new, again.older_brought, again.older_left) == (0, 0, 0)
    for number, text in enumerate(("three", "two", "one")):
        checkout_to(there.registry(), f"m@{ids[number].hex()}", tmp_path / text)
        assert (tmp_path / text / "notes").read_bytes() == text.encode() * 4000
    assert clean(there)


def test_history_that_was_left_out_is_made_up_for(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    ids = three(here, tree)
    assert push(here, there).older_left == 2
    assert log(there) == ids[:1]
    sent = push(here, there, history=True)
    assert (sent.older_brought, sent.older_left, sent.created) == (2, 0, False)
    assert log(there) == ids
    assert refs(there) == [("main", ids[0])]
    # And it goes on from there, whoever asks.
    other = twin_of(there, seed=200)
    assert push(there, other, history=True).older_brought == 2
    assert log(other) == ids
    assert clean(there) and clean(other)


def test_a_gap_in_the_history_is_filled(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    first = save(here, tree, "one")
    push(here, there)
    rest = [save(here, tree, text) for text in ("two", "three", "four")]
    assert push(here, there).older_left == 2
    assert log(there) == [rest[2], first]
    assert push(here, there, history=True).older_brought == 2
    assert log(there) == [*rest[::-1], first]
    assert refs(there) == [("main", rest[2])]
    fifth = save(here, tree, "five")
    assert push(here, there).older_left == 0
    assert log(there) == [fifth, *rest[::-1], first]
    assert clean(there)


def test_a_tag_brings_its_history_and_no_branch(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    ids = three(here, tree)
    registry = here.registry()
    move_ref(registry, find_model(registry, "m"), "v1", TAG, None, tip(registry)[1])
    assert push(here, there, "m@v1", history=True).older_brought == 2
    assert log(there, "m@v1") == ids
    assert refs(there) == [("v1", ids[0])]
    assert clean(there)


def test_who_is_ahead_gets_what_is_behind(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    ids = three(here, tree)
    push(here, there)
    fourth = save(there, tree, "four")
    with pytest.raises(RefMoved, match="ahead"):
        push(here, there)
    sent = push(here, there, history=True)
    assert (sent.ahead, sent.before, sent.older_brought) == (True, fourth, 2)
    assert log(there) == [fourth, *ids]
    assert refs(there) == [("main", fourth)]


def test_an_appended_history_cuts_nobody_off(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    first = save(here, tree, "one")
    push(here, there)
    theirs = save(there, tree, "theirs")
    ours = [save(here, tree, text) for text in ("two", "three")]
    before = there.log()
    with pytest.raises(RefMoved, match="does not know"):
        push(here, there, history=True)
    assert there.log() == before
    sent = push(here, there, history=True, rebase=True)
    assert (sent.appended_to, sent.before) == (theirs, theirs)
    assert log(there) == [ours[1], ours[0], theirs, first]
    # A later one on the other line does not hide it.
    assert log(here) == [ours[1], ours[0], first]
    assert push(there, here, f"m@{theirs.hex()}", to="theirs").created
    assert log(here) == [ours[1], ours[0], first]
    assert clean(there)


def test_an_interrupted_history_goes_on_where_it_was(sites: tuple[Site, Site], tree: Path) -> None:
    here, _ = sites
    ids = three(here, tree)

    def attempt(there: Site, *script: object) -> FaultyBackend:
        backend = FaultyBackend(there.backend, script)  # type: ignore[arg-type]  # faults
        send(here.registry(), Registry(there.open(backend)), "m", SendOptions(history=True))
        return backend

    def uploads(backend: FaultyBackend) -> int:
        return sum(call.op == "create" and call.name.endswith(".pack") for call in backend.calls)

    for shallow in (False, True):
        whole = twin_of(here, seed=900 + shallow)
        if shallow:
            push(here, whole)
        done = attempt(whole)
        for number in range(1, len(done.calls) + 1, 3):
            there = twin_of(here, seed=1000 + number + 5000 * shallow)
            if shallow:
                push(here, there)
            backend = FaultyBackend(there.backend, [Crash(call=number)])
            with pytest.raises(Stopped):
                send(here.registry(), Registry(there.open(backend)), "m", SendOptions(history=True))
            again = attempt(there)
            assert uploads(backend) + uploads(again) <= uploads(done) + 2, number
            assert log(there) == ids, number
            assert refs(there) == [("main", ids[0])], number
            assert not list((there.home.state / "transfers").iterdir())
            assert clean(there)
        print(f"shallow {shallow}: {len(done.calls)} points")


def test_history_in_part_stays_in_part(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, there = sites
    three(here, tree)
    layer = Selection(tensors=("*layer.3*",))
    assert push(here, there, history=True, selection=layer).partial
    before = there.log()
    with pytest.raises(RefusedError, match="in part"):
        push(there, twin_of(there, seed=300), history=True)
    assert there.log() == before
    weights = Selection(frozenset([ComponentClass.WEIGHTS]))
    assert not push(here, there, history=True, selection=weights).partial
    checkout_to(there.registry(), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)
    assert not any(line.state.partial for line in history(there.registry(), *tip(there.registry())))
    with pytest.raises(UsageError):
        push(here, there, history=True, reseal=True)


def test_a_copy_tells_when_it_was_saved(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    ids = three(here, tree)
    (saved,) = {line.saved_at for line in history(here.registry(), *tip(here.registry()))}
    here.clock.sleep(3600)
    push(here, there, history=True)
    lines = history(there.registry(), *tip(there.registry()))
    assert [line.id for line in lines] == ids
    assert {line.saved_at for line in lines} == {saved}
    assert all(line.state.claimed_at >= saved + 3600 * 10**9 for line in lines)


def test_what_was_deleted_there_does_not_come_back(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    ids = three(here, tree)
    push(here, there, history=True)
    remote = there.registry()
    remote.append(lambda state: Tombstone(tip(remote)[0], (ids[1],), 0, "deleted"))
    assert log(there) == [ids[0], ids[2]]
    sent = push(here, there, history=True)
    assert (sent.older_brought, sent.older_left) == (0, 0)
    fourth = save(here, tree, "four")
    assert push(here, there, history=True).older_left == 0
    assert log(there) == [fourth, ids[0], ids[2]]
    assert refs(there) == [("main", fourth)]


def test_a_history_that_claims_to_be_a_circle_ends(
    sites: tuple[Site, Site], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = sites
    ids = three(here, tree)
    lies = {ids[0]: ids[2], ids[1]: ids[0], ids[2]: ids[1]}
    committed = here.registry().state.models

    def lying(registry: Registry, model: bytes, checkpoint: models.Checkpoint) -> models.CommitMeta:
        (own,) = (key for key, one in committed[model].checkpoints.items() if one.n == checkpoint.n)
        return models.CommitMeta("", None, 0, lies[own])

    monkeypatch.setattr(models, "open_meta", lying)
    assert set(log(here)) == set(ids) and len(log(here)) == 3
    monkeypatch.undo()
    registry = here.registry()
    model, newest = tip(registry)
    assert open_meta(registry, model, registry.state.models[model].checkpoints[newest]).parent == ids[1]
