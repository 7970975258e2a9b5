"""Push and pull between two stores of a tenant."""

from pathlib import Path

import pytest

from cairn.core.errors import (
    ConflictError,
    IntegrityError,
    MissingData,
    NotAllowed,
    NotFoundError,
    RefMoved,
    RefusedError,
    UsageError,
)
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.delivery import Selection
from cairn.registry.fold import TAG
from cairn.registry.models import find_model, history, list_refs, move_ref, ref_value
from cairn.registry.sync import SendOptions, Sent, send
from cairn.store.crypto.components import ComponentClass
from tests.support.stores import Site, checkout_to, new_site, tip
from tests.support.trees import snapshot
from tests.support.twins import PACK_BYTES, clean, commit, packs, short_packs, sites, tree, twin_of

__all__ = ["short_packs", "sites", "tree"]


def change(tree: Path, text: str) -> Path:
    (tree / "notes").write_bytes(text.encode() * 4000)
    return tree


def push(here: Site, there: Site, selector: str = "m", **options: object) -> Sent:
    return send(here.registry(), there.registry(), selector, SendOptions(**options))  # type: ignore[arg-type]  # checked by the struct


def rival(here: Site, there: Site, tree: Path) -> tuple[Site, bytes]:
    """Another store that pulled what this one pushed, and has a commit on top."""
    commit(here, tree)
    push(here, there)
    other = twin_of(there, seed=200)
    push(there, other)
    return other, commit(other, change(tree, "theirs"))


def test_what_was_pushed_is_the_same_there(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, there = sites
    checkpoint = commit(here, tree, step=7, message="seven")
    sent = push(here, there)
    assert (sent.checkpoint, sent.ref, sent.created, sent.partial) == (checkpoint, "main", True, False)
    remote = there.registry(cold=True)
    model, newest = tip(remote)
    (line,) = history(remote, model, newest)
    assert (line.id, line.meta.step, line.meta.message) == (checkpoint, 7, "seven")
    checkout_to(remote, "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)
    assert clean(there)


def test_only_what_is_missing_travels(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    commit(here, tree)
    first = push(here, there)
    commit(here, change(tree, "other"))
    second = push(here, there)
    assert first.counts.bytes_stored > 8 * 80_000
    assert second.counts.bytes_stored < 40_000
    assert push(here, there).counts.chunks_new == 0
    assert clean(there)


def test_chunks_travel_sealed_as_they_are(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    commit(here, tree)
    push(here, there)

    def sealed(site: Site) -> set[bytes]:
        registry = site.registry()
        state, index = registry.state, registry.index()
        (model,) = state.models.values()
        (committed,) = model.checkpoints.values()
        from cairn.registry.reachability import read_reachability

        found = set()
        for identifier in read_reachability(registry.opened, committed):
            at = index.locations(identifier)[0]
            found.add(site.backend.read(index.pack(at.pack).name, at.offset, at.length))
        return found

    assert sealed(here) == sealed(there)


def test_a_second_machine_pulls_what_the_first_pushed(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, there = sites
    checkpoint = commit(here, tree)
    push(here, there)
    other = twin_of(there, seed=200)
    pulled = send(there.registry(), other.registry(), "m", SendOptions())
    assert pulled.checkpoint == checkpoint
    checkout_to(other.registry(), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)
    # And back, with something new on top.
    newer = commit(other, change(tree, "newer"))
    push(other, there)
    assert send(there.registry(), here.registry(), "m", SendOptions()).checkpoint == newer
    assert [line.id for line in history(here.registry(), *tip(here.registry()))] == [newer, checkpoint]
    assert clean(here) and clean(there) and clean(other)


# --- Refs -----------------------------------------------------------------------------------------


def test_a_branch_only_moves_forward(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    other, theirs = rival(here, there, tree)
    push(other, there)
    # This store knows nothing new: it is behind.
    with pytest.raises(RefMoved, match="ahead"):
        push(here, there)
    ours = commit(here, change(tree, "ours"))
    before = there.log()
    with pytest.raises(RefMoved) as error:
        push(here, there)
    assert theirs.hex()[:12] in str(error.value) and ours.hex()[:12] in str(error.value)
    assert there.log() == before
    assert push(here, there, rebase=True).before == theirs
    registry = there.registry()
    assert [line.id for line in history(registry, *tip(registry))][:2] == [ours, theirs]
    assert clean(there)


def test_H12_a_branch_that_moves_meanwhile_is_appended_to(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    other, theirs = rival(here, there, tree)
    ours = commit(here, change(tree, "ours"))
    target = there.registry()
    appended: list[bytes] = []

    def append_theirs() -> None:
        if not appended:
            appended.append(push(other, there).checkpoint)

    append = target.append

    def late(build: object) -> int:
        append_theirs()
        return append(build)  # type: ignore[arg-type]  # what it was given

    target.append = late  # type: ignore[method-assign]  # to be late
    sent = send(here.registry(), target, "m", SendOptions())
    assert sent.appended_to == theirs
    registry = there.registry()
    assert [line.id for line in history(registry, *tip(registry))][:2] == [ours, theirs]
    assert clean(there)


def test_tags_travel_and_do_not_move(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    first = commit(here, tree)
    registry = here.registry()
    model = find_model(registry, "m")
    move_ref(registry, model, "v1", TAG, None, tip(registry)[1])
    sent = push(here, there, "m@v1")
    assert (sent.kind, sent.ref, sent.created) == (TAG, "v1", True)
    remote = there.registry()
    assert [(ref.name, ref.kind, ref.checkpoint) for ref in list_refs(remote, model)] == [("v1", TAG, first)]
    second = commit(here, change(tree, "second"))
    registry = here.registry()
    move_ref(registry, model, "v1", TAG, tip(registry, "m@v1")[1], tip(registry)[1])
    assert ref_value(registry, model, "v1") == second
    with pytest.raises(RefMoved):
        push(here, there, "m@v1")
    assert clean(there)


def test_a_checkpoint_without_a_name_needs_one(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    first = commit(here, tree, step=1)
    commit(here, change(tree, "second"), step=2)
    with pytest.raises(UsageError, match="no branch or tag"):
        push(here, there, "m@step:1")
    assert push(here, there, "m@step:1", to="early").checkpoint == first
    with pytest.raises(ConflictError, match="is a branch"):
        registry = here.registry()
        move_ref(registry, find_model(registry, "m"), "early", TAG, None, tip(registry)[1])
        push(here, there, "m@early")


def test_another_model_of_the_same_name_is_not_mixed_up(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    commit(here, tree)
    commit(there, tree)
    with pytest.raises(ConflictError, match="another model"):
        push(here, there)


def test_nothing_goes_to_another_tenant_or_to_itself(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, _ = sites
    commit(here, tree)
    stranger = new_site(tmp_path / "stranger", seed=9)
    with pytest.raises(NotAllowed, match="another tenant"):
        push(here, stranger)
    with pytest.raises(UsageError, match="same store"):
        push(here, here)
    assert stranger.registry().state.models == {}


def test_between_tenants_a_checkpoint_is_written_anew(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, _ = sites
    first = commit(here, tree, step=3, message="three")
    stranger = new_site(tmp_path / "stranger", seed=9)
    sent = push(here, stranger, reseal=True)
    assert sent.checkpoint != first
    registry = stranger.registry()
    model, newest = tip(registry)
    (line,) = history(registry, model, newest)
    assert (line.meta.step, line.meta.message) == (3, "three")
    parents = CheckpointManifest(registry, model, newest).body.parents
    assert [(parent.relation, parent.checkpoint) for parent in parents] == [("reseal", first)]
    checkout_to(registry, "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)
    assert not {*here.names(".pack")} & {*stranger.names(".pack")}
    assert clean(stranger)
    commit(here, change(tree, "second"))
    again = push(here, stranger, reseal=True)
    assert again.before == newest and again.counts.bytes_stored < 2 * PACK_BYTES
    with pytest.raises(UsageError):
        push(here, stranger, reseal=True, repair=True)


# --- Parts ----------------------------------------------------------------------------------------


def test_a_part_is_pulled_and_completed_later(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, there = sites
    commit(here, tree)
    part = push(here, there, selection=Selection(tensors=("*layer.3*",)))
    assert part.partial and part.counts.bytes_stored < 2 * 80_000 + 60_000
    remote = there.registry()
    with pytest.raises(NotFoundError, match="in part") as error:
        checkout_to(remote, "m", tmp_path / "out")
    assert "pull" in error.value.hint
    assert not (tmp_path / "out").exists()
    manifest = CheckpointManifest(remote, *tip(remote))
    (wanted,) = [entry for entry in manifest.tensors() if "layer.3" in str(entry.key)]
    assert all(remote.chunks().content(digest, 0) for digest in manifest.chunk_digests(wanted))
    assert clean(there)
    with pytest.raises(RefusedError, match="in part"):
        push(there, twin_of(there, seed=300))
    more = push(here, there, selection=Selection(tensors=("*layer.4*",)))
    assert more.partial and not more.created
    whole = push(here, there)
    assert not whole.partial and whole.counts.bytes_stored < 6 * 80_000 + 60_000
    checkout_to(there.registry(), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)
    assert push(here, there).counts.chunks_new == 0
    assert clean(there)


def test_files_come_along_whatever_is_selected(sites: tuple[Site, Site], tree: Path, tmp_path: Path) -> None:
    here, there = sites
    commit(here, tree)
    sent = push(here, there, selection=Selection(frozenset([ComponentClass.WEIGHTS])))
    assert not sent.partial  # it has nothing else
    checkout_to(there.registry(), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)


# --- Damage ---------------------------------------------------------------------------------------


def damage(site: Site, name: str) -> None:
    data = bytearray(site.backend.read(name))
    data[len(data) // 3] ^= 1
    site.backend.delete(name)
    site.backend.create(name, [bytes(data)])


def test_H19_what_the_source_lacks_is_not_pushed_as_if_it_were_there(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    commit(here, tree)
    here.backend.delete(packs(here)[1])
    before = there.log()
    with pytest.raises((MissingData, IntegrityError)):
        push(here, there)
    registry = there.registry()
    assert all(not model.checkpoints for model in registry.state.models.values())
    assert len(there.log()) <= len(before) + 1  # the model at most


def test_H01_damage_does_not_travel(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    commit(here, tree)
    damage(here, packs(here)[1])
    with pytest.raises(IntegrityError):
        push(here, there)
    assert all(not model.checkpoints for model in there.registry().state.models.values())


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "damaged"])
def test_H20_repair_replaces_what_the_remote_has_lost(
    sites: tuple[Site, Site], tree: Path, tmp_path: Path, lost: bool
) -> None:
    here, there = sites
    commit(here, tree)
    push(here, there)
    victim = packs(there)[2]
    if lost:
        there.backend.delete(victim)
    else:
        damage(there, victim)
    assert push(here, there).counts.chunks_new == 0  # the checkpoint is there, says the log
    repaired = push(here, there, repair=True)
    assert 0 < repaired.counts.bytes_stored < 4 * PACK_BYTES and not repaired.created
    checkout_to(there.registry(cold=True), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)


def test_H05_a_new_push_sends_again_what_an_old_pack_has_lost(
    sites: tuple[Site, Site], tree: Path, tmp_path: Path
) -> None:
    here, there = sites
    commit(here, tree)
    push(here, there)
    there.backend.delete(packs(there)[2])
    commit(here, change(tree, "second"))
    push(here, there)
    checkout_to(there.registry(cold=True), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)


# --- What was pushed under another name first -----------------------------------------------------


def test_a_tag_or_another_branch_first_keeps_the_history(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    first = commit(here, tree)
    push(here, there)
    other = twin_of(there, seed=200)
    push(there, other)
    second = commit(here, change(tree, "second"))
    registry = here.registry()
    move_ref(registry, find_model(registry, "m"), "v1", TAG, None, tip(registry)[1])
    push(here, there, "m@v1")
    push(here, there)
    remote = there.registry()
    assert [line.id for line in history(remote, *tip(remote))] == [second, first]
    assert push(there, other).before == first
    third = commit(here, change(tree, "third"))
    push(here, there, to="next")
    push(here, there)
    assert [line.id for line in history(there.registry(), *tip(there.registry()))] == [third, second, first]
    assert clean(there)


def test_nobody_is_cut_off_by_what_is_there_on_another_line(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    other, theirs = rival(here, there, tree)
    push(other, there)
    commit(here, change(tree, "ours"))
    push(here, there, to="ours")
    with pytest.raises(RefMoved, match="another line"):
        push(here, there, rebase=True)
    remote = there.registry()
    assert tip(remote)[1] == theirs
