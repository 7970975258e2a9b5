"""New keys: nothing that is under way is lost, nothing stored changes its name, and old keys open nothing new."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cairn.core.errors import CairnError, ConflictError, NotAllowed, ObjectExists, RefusedError, TryAgain, WrongKey
from cairn.core.ids import ModelId
from cairn.gc.scrub import verify
from cairn.registry.members import grant, remove_member, revoke, set_role
from cairn.registry.models import ensure_model, move_ref
from cairn.registry.opened import KeySource
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.registry.rotation import export_recovery, exposed_models, rotate_exposed, rotate_model, rotate_root
from cairn.registry.sync import SendOptions, send
from cairn.store.backends.faults import Crash, Effect, FaultyBackend, LoseAnswer, Stopped
from cairn.store.crypto import keyfile
from cairn.store.crypto.components import ComponentClass
from tests.support.members import READABLE, actor_of, give, identity_of, join
from tests.support.rivals import interleaved
from tests.support.stores import Site, checkout_to, commit_tree, new_site, tip
from tests.support.trees import write_files
from tests.support.twins import twin_of

FILES, META = ComponentClass.FILES, ComponentClass.META
Change = Callable[[Registry], object]


def rotate_m(registry: Registry) -> None:
    rotate_model(registry, tip(registry)[0])


def rotate_both(registry: Registry) -> None:
    rotate_root(registry)
    rotate_m(registry)


def assert_sealed_to_newest(site: Site, step: int, folder: Path, out: Path) -> None:
    """A newcomer finds the step on main, sealed to the keys in force, and whole."""
    registry = site.registry(cold=True)
    assert registry.state.voids == []
    model, checkpoint = tip(registry, f"m@step:{step}")
    held = registry.state.models[model]
    newest = {one: key.generation for one, key in held.newest_keys().items()}
    assert all(root.generation == newest[root.component] for root in held.checkpoints[checkpoint].roots)
    assert newest[FILES] == 1
    checkout_to(registry, f"m@step:{step}", out)
    assert (out / "a").read_bytes() == (folder / "a").read_bytes()
    assert verify(registry, full=True).ok


# --- While saves run ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["*.pack", "*.index", "*.root", "*.body", "*.reach", "log/*"])
@pytest.mark.parametrize("change", [rotate_m, rotate_both])
def test_a_commit_meets_a_rotation_and_is_sealed_anew(
    committed: Site, tmp_path: Path, name: str, change: Change
) -> None:
    fresh = write_files(tmp_path / "fresh", {"a": b"second" * 3000})
    rival = committed.registry()
    saver = committed.registry(interleaved(committed.backend, lambda: change(rival), op="create", name=name))
    commit_tree(saver, fresh, step=2)
    assert_sealed_to_newest(committed, 2, fresh, tmp_path / "out")
    # The same process goes on, though it has the old root key only.
    write_files(fresh, {"a": b"third" * 3000})
    commit_tree(saver, fresh, step=3)
    assert_sealed_to_newest(committed, 3, fresh, tmp_path / "out3")


@pytest.mark.parametrize("reads", [READABLE, ()])
def test_a_member_saves_through_a_rotation(committed: Site, tmp_path: Path, reads: tuple[ComponentClass, ...]) -> None:
    writer = join(committed, "writer", Role.WRITER)
    give(committed, writer, "m", *reads, write=True)
    fresh, rival = write_files(tmp_path / "fresh", {"a": b"second" * 3000}), committed.registry()
    through = interleaved(committed.backend, lambda: rotate_both(rival), op="create", name="log/*")
    commit_tree(writer.registry(through), fresh, step=2)
    assert_sealed_to_newest(committed, 2, fresh, tmp_path / "out")
    if reads:
        checkout_to(writer.registry(), "m", tmp_path / "theirs")


def test_what_moves_refs_meets_a_rotation(committed: Site) -> None:
    rival = committed.registry()
    through = interleaved(committed.backend, lambda: rotate_m(rival), op="create", name="log/*")
    registry = committed.registry(through)
    model, checkpoint = tip(registry)
    move_ref(registry, model, "v1", "tag", None, checkpoint)
    assert tip(committed.registry(cold=True), "m@v1")[1] == checkpoint


def test_a_push_meets_a_rotation_and_keeps_its_id(committed: Site, folder: Path, tmp_path: Path) -> None:
    other = twin_of(committed)
    source = committed.registry()
    send(source, other.registry(), "m", SendOptions())
    commit_tree(source, folder, step=2)
    rival = other.registry()
    target = other.registry(interleaved(other.backend, lambda: rotate_m(rival), op="create", name="log/*"))
    sent = send(source, target, "m", SendOptions())
    assert sent.checkpoint == tip(source)[1], "what travels is untouched"
    checkout_to(other.registry(cold=True), "m", tmp_path / "out")
    assert other.registry(cold=True).state.voids == []


def test_a_push_brings_new_generations(committed: Site, folder: Path, tmp_path: Path) -> None:
    other = twin_of(committed)
    source = committed.registry()
    send(source, other.registry(), "m", SendOptions())
    rotate_m(source)
    rotate_m(source)
    commit_tree(source, folder, step=2)
    send(source, other.registry(), "m", SendOptions())
    checkout_to(other.registry(cold=True), "m", tmp_path / "out")
    rotate_m(source)
    rotate_m(other.registry())
    commit_tree(source, folder, step=3)
    with pytest.raises(ConflictError, match="in both stores apart"):
        send(source, other.registry(), "m", SendOptions())


# --- Model keys -----------------------------------------------------------------------------------


def test_old_checkpoints_stay_readable_and_keep_their_ids(committed: Site, folder: Path, tmp_path: Path) -> None:
    registry = committed.registry()
    model, first = tip(registry)
    for step in (2, 3):
        rotate_model(registry, model, [FILES])
        commit_tree(registry, folder, step=step)
    cold = committed.registry(cold=True)
    assert tip(cold, "m@step:1")[1] == first
    for step in (1, 2, 3):
        checkout_to(cold, f"m@step:{step}", tmp_path / f"out{step}")
    assert cold.model_keys(model).generations()[FILES] == 2 and cold.model_keys(model).generations()[META] == 0
    assert len([name for name in committed.names() if name.startswith("keys/model/")]) == 1


def test_a_revoked_member_cannot_read_what_is_written_afterwards(committed: Site, folder: Path, tmp_path: Path) -> None:
    """Show 5, by a client that ignores every rule and keeps every key that it ever had."""
    reader = join(committed, "reader", Role.READER)
    give(committed, reader, "m", *READABLE)
    kept = reader.registry()
    model, first = tip(kept)
    had = [pair for pair in kept.model_keys(model).all() if pair.private is not None]
    assert len(had) == len(READABLE) + 1
    owner = committed.registry()
    revoke(owner, actor_of(reader), model)
    assert rotate_exposed(owner) == [model] and exposed_models(owner.state) == []
    write_files(folder, {"a": b"written afterwards" * 1000})
    commit_tree(owner, folder, step=2, message="secret")

    def opened(checkpoint: bytes) -> list[bytes]:
        found = []
        for root in owner.state.models[model].checkpoints[checkpoint].roots:
            sealed = committed.backend.read(root.object.object_name("root"))
            for pair in had:
                for generation in range(3):
                    try:
                        found.append(replace(pair, generation=generation).open_root(sealed, "it"))
                    except CairnError:
                        continue
        return found

    assert len(opened(first)) == 1, "what was readable stays so to who kept the keys"
    assert opened(tip(owner)[1]) == []
    later = owner.state.models[model].checkpoints[tip(owner)[1]]
    for pair in had:
        for sealed in (later.meta, *(ref.sealed_name for ref in owner.state.models[model].refs.values())):
            for purpose in ("commit-meta", "name"):
                with pytest.raises(CairnError):
                    pair.open(sealed, purpose, "it")
    with pytest.raises(NotAllowed):
        checkout_to(reader.registry(), "m", tmp_path / "out")


def test_narrowing_a_grant_rotates_what_was_lost(committed: Site, tmp_path: Path) -> None:
    reader = join(committed, "reader", Role.READER)
    give(committed, reader, "m", *READABLE)
    owner = committed.registry()
    model = tip(owner)[0]
    grant(owner, actor_of(reader), model, [FILES], False)
    assert owner.state.models[model].exposed == [1, 2, 3, 5]
    rotate_exposed(owner)
    keys = reader.registry().model_keys(model)
    assert {(pair.component, pair.generation) for pair in keys.all() if pair.private} == {
        (META, 0),
        (META, 1),
        (FILES, 0),
    }
    checkout_to(reader.registry(), "m", tmp_path / "out")


# --- The root key -----------------------------------------------------------------------------------


def test_a_new_root_key_changes_no_id_and_voids_the_old_one(committed: Site, folder: Path, tmp_path: Path) -> None:
    second = join(committed, "second", Role.OWNER)
    registry = committed.registry()
    before, key_file = tip(registry), committed.home.key_file(registry.opened.store)
    old = key_file.read_bytes()
    assert rotate_root(registry) == key_file
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert key_file.with_name(key_file.name + ".0").read_bytes() == old
    commit_tree(registry, folder, step=2)
    cold = committed.registry(cold=True)
    assert tip(cold, "m@step:1") == before and verify(cold, full=True).ok
    checkout_to(second.registry(), "m", tmp_path / "second")
    (tmp_path / "old.key").write_bytes(old)
    with pytest.raises(WrongKey, match="retired"):
        replace(committed, source=KeySource(key_file=tmp_path / "old.key")).registry()
    assert rotate_root(second.registry()) is not None
    with pytest.raises(WrongKey, match="retired"):
        committed.registry(cold=True)
    with pytest.raises(NotAllowed):
        rotate_root(registry)
    checkout_to(second.registry(cold=True), "m", tmp_path / "again")


def test_who_has_the_old_root_key_wraps_nothing_under_it(committed: Site, folder: Path) -> None:
    """It could never be opened again."""
    late = committed.registry()
    reader = join(committed, "reader", Role.READER)
    rotate_root(committed.registry())
    before = committed.names()
    for attempt in (
        lambda: commit_tree(late, folder, "another"),
        lambda: rotate_m(late),
        lambda: set_role(late, identity_of(reader).public, Role.OWNER),
        lambda: rotate_root(late),
    ):
        with pytest.raises(NotAllowed, match="generation 0, and 1 is in force"):
            attempt()
    assert [name for name in committed.names() if name not in before and "keys/" in name] == []
    commit_tree(late, folder, step=2)


@pytest.mark.parametrize("what", ["model", "root", "role", "grant", "new model"])
def test_an_entry_whose_answers_are_lost_keeps_what_it_names(
    committed: Site, folder: Path, tmp_path: Path, what: str
) -> None:
    """It is there, and nobody told: then the wraps that it names must be there too."""
    reader = join(committed, "reader", Role.READER)
    give(committed, reader, "m", FILES)
    registry = committed.registry(FaultyBackend(committed.backend, [LoseAnswer(op="create", name="log/*")]))
    model = tip(registry)[0]
    acts: dict[str, Callable[[], object]] = {
        "model": lambda: rotate_model(registry, model),
        "root": lambda: rotate_root(registry),
        "role": lambda: set_role(registry, identity_of(reader).public, Role.WRITER),
        "grant": lambda: grant(registry, actor_of(reader), model, READABLE, False),
        "new model": lambda: ensure_model(registry, "new"),
    }
    length = registry.state.length
    with pytest.raises(TryAgain, match="may or may not"):
        acts[what]()
    after = committed.registry(cold=True)
    assert after.state.length == length + 1 and after.state.voids == []
    assert verify(after, full=True).ok
    checkout_to(after, "m", tmp_path / "owner")
    checkout_to(reader.registry(cold=True), "m", tmp_path / "reader")
    for identifier in after.state.models:
        assert after.model_keys(ModelId(identifier)).all()


def test_a_passphrase_is_changed(tmp_path: Path, folder: Path) -> None:
    site = new_site(tmp_path / "home", passphrase="old")
    registry = site.registry()
    commit_tree(registry, folder)
    with pytest.raises(RefusedError, match="passphrase"):
        rotate_root(registry)
    assert rotate_root(registry, "new") is None
    with pytest.raises(WrongKey):
        site.registry(cold=True)
    changed = replace(site, source=KeySource(passphrase="new"))
    checkout_to(changed.registry(cold=True), "m", tmp_path / "out")
    assert len([name for name in site.names() if name.startswith("keys/root/")]) == 1
    assert verify(changed.registry(cold=True), full=False).ok


def test_a_recovery_file_opens_everything_where_all_else_is_lost(committed: Site, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "safe" / "recovery"
    export_recovery(committed.registry(), path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ObjectExists):
        export_recovery(committed.registry(), path)
    elsewhere = join(committed, "nobody", Role.AUDITOR)
    restored = replace(elsewhere, source=KeySource(key_file=path)).registry()
    checkout_to(restored, "m", tmp_path / "out")
    set_role(restored, identity_of(elsewhere).public, Role.OWNER)
    commit_tree(restored, folder, step=2)
    remove_member(restored, actor_of(committed))
    rotate_root(restored)
    checkout_to(elsewhere.registry(cold=True), "m", tmp_path / "on")


@pytest.mark.parametrize("passphrase", [None, "old"])
@pytest.mark.parametrize("op", ["create", "delete"])
@pytest.mark.parametrize("effect", [Effect.NONE, Effect.COMPLETE])
def test_a_change_of_root_that_dies_anywhere_is_finished_by_the_next(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, op: str, effect: Effect, passphrase: str | None
) -> None:
    """Stopped at its first, second, third ... change of the store, until it is through; nobody has to look for keys."""
    monkeypatch.setattr(keyfile, "_MEMORY_KIB", 64)
    for call in range(1, 20):
        site = new_site(tmp_path / f"home-{call}", seed=call, passphrase=passphrase)
        commit_tree(site.registry(), folder)
        second = join(site, f"second-{call}", Role.OWNER)
        registry = site.registry(FaultyBackend(site.backend, [Crash(op=op, call=call, effect=effect)]))
        try:
            rotate_root(registry, passphrase)
        except Stopped:
            pass
        else:
            assert call > 3
            return
        checkout_to(second.registry(cold=True), "m", tmp_path / f"second-{call}")
        again = site.registry(cold=True)
        checkout_to(again, "m", tmp_path / f"out-{call}")
        assert verify(again, full=True).ok
        rotate_root(again, passphrase)
        last = site.registry(cold=True)
        checkout_to(last, "m", tmp_path / f"again-{call}")
        assert last.opened.root == again.opened.root
        assert len([name for name in site.names() if name.startswith("keys/store/")]) == 1
    raise AssertionError("it never went through")
