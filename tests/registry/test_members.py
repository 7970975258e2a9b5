"""Members at work: what each role can do with what it was given, and what it is told where it cannot."""

from pathlib import Path

import pytest

from cairn.core.errors import NotAllowed, NotFoundError, RefusedError, UsageError
from cairn.gc.collect import Collector, Options
from cairn.gc.scrub import verify
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.members import find_member, grant, remove_member, revoke, set_role
from cairn.registry.memberwraps import wrap_name
from cairn.registry.models import history, list_refs, model_name, move_ref
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_exposed
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.signing import PublicIdentity
from tests.support.members import READABLE, actor_of, give, identity_of, join, newcomer
from tests.support.stores import Site, checkout_to, commit_tree, tip
from tests.support.trees import write_files

FILES, WEIGHTS = ComponentClass.FILES, ComponentClass.WEIGHTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", {"a": b"first" * 1000, "sub/b": b"second" * 1000})


# --- Identity ---------------------------------------------------------------------------------


def test_an_identity_travels_as_one_line(site: Site) -> None:
    identity = identity_of(newcomer(site, "x"))
    line = identity.line()
    assert "\n" not in line and PublicIdentity.parse(f" {line}\n") == identity.public
    for wrong in ("", "x", line[:-1], line.replace(":", "-"), line[:30] + "0" + line[31:], line + "0", line + ":00"):
        with pytest.raises(UsageError, match="cairn identity"):
            PublicIdentity.parse(wrong)


def test_nobody_becomes_a_member_in_the_name_of_another(site: Site) -> None:
    """The log would call somebody a reader who has no key, and whoever has the key would stay unnamed."""
    alice, mallory = (identity_of(newcomer(site, name)) for name in ("alice", "mallory"))
    mixed = alice.line().replace(alice.public.agreement.hex(), mallory.public.agreement.hex())
    signed = mallory.line().replace(mallory.actor.hex(), alice.actor.hex())
    for line in (mixed, signed):
        with pytest.raises(UsageError, match="not the line of an identity"):
            PublicIdentity.parse(line)


def test_the_file_of_an_older_identity_serves_still(site: Site) -> None:
    """The file holds the seed alone; both keys follow from it."""
    text = (site.home.state / "identity.key").read_text()
    assert len(bytes.fromhex(text)) == 32
    again = identity_of(site)
    assert again.public == site.open().identity.public
    assert again.open(again.public.seal(b"secret", b"context"), b"context", "it") == b"secret"


# --- Roles --------------------------------------------------------------------------------------


def test_a_stranger_is_told_how_to_become_a_member(committed: Site) -> None:
    with pytest.raises(NotAllowed, match="cairn identity"):
        newcomer(committed, "stranger").registry()


def test_a_reader_reads_what_was_granted_and_writes_nothing(committed: Site, folder: Path, tmp_path: Path) -> None:
    reader = join(committed, "reader", Role.READER)
    registry = reader.registry()
    with pytest.raises(NotAllowed, match="cairn grant MODEL IDENTITY --read files"):
        checkout_to(registry, "m", tmp_path / "early")
    give(committed, reader, "m", FILES)
    registry.refresh()
    checkout_to(registry, "m", tmp_path / "out")
    assert (tmp_path / "out/a").read_bytes() == (folder / "a").read_bytes()
    model, checkpoint = tip(registry)
    assert model_name(registry, model) == "m"
    assert [line.meta.step for line in history(registry, model, checkpoint)] == [1]
    before = committed.names("")
    for attempt in (
        lambda: commit_tree(registry, folder, step=2),
        lambda: move_ref(registry, model, "v1", "tag", None, checkpoint),
        lambda: set_role(registry, identity_of(reader).public, Role.OWNER),
        lambda: grant(registry, actor_of(reader), model, READABLE, False),
    ):
        with pytest.raises(NotAllowed):
            attempt()
    assert committed.names("") == before


def test_a_writer_commits_to_granted_models_and_makes_none(committed: Site, folder: Path, tmp_path: Path) -> None:
    writer = join(committed, "writer", Role.WRITER)
    commit_tree(committed.registry(), folder, "other")
    registry = writer.registry()
    before = committed.names("")
    with pytest.raises(NotAllowed, match=r"cairn grant MODEL \w+ --write"):
        commit_tree(registry, folder, step=2)
    assert committed.names("") == before, "it is told before anything is uploaded"
    give(committed, writer, "m", *READABLE, write=True)
    assert commit_tree(registry, folder, step=2).created
    assert not commit_tree(registry, folder, step=2).created
    for model, hint in (("other", "--write"), ("new", "--create")):
        with pytest.raises(NotAllowed, match=hint):
            commit_tree(registry, folder, model)
    mine = committed.registry(cold=True)
    model, checkpoint = tip(mine)
    assert mine.state.models[model].checkpoints[checkpoint].actor == actor_of(writer)
    checkout_to(mine, "m@step:2", tmp_path / "out")
    assert verify(mine, full=True).ok and verify(registry, full=True).ok


def test_who_may_write_only_reads_nothing_back(committed: Site, folder: Path, tmp_path: Path) -> None:
    trainer = join(committed, "trainer", Role.WRITER)
    give(committed, trainer, "m", write=True)
    registry = trainer.registry()
    write_files(folder, {"secret": b"of the trainer" * 100})
    assert commit_tree(registry, folder, step=2).created
    for attempt in (
        lambda: checkout_to(registry, "m", tmp_path / "out"),
        lambda: model_name(registry, tip(registry)[0]),
        lambda: list_refs(registry, tip(registry)[0]),
    ):
        with pytest.raises(NotAllowed, match="cairn grant"):
            attempt()
    checkout_to(committed.registry(), "m@step:2", tmp_path / "owner")
    assert (tmp_path / "owner/secret").exists()


def test_a_collector_collects_without_a_content_key(committed: Site, folder: Path, tmp_path: Path) -> None:
    owner = committed.registry()
    model, first = tip(owner)
    kept = write_files(tmp_path / "kept", {"other": b"third" * 1000})
    commit_tree(owner, kept, step=2)
    owner.append(lambda state: Tombstone(model, (first,), 0, "deleted"))
    owner.append(lambda state: Drop(model, (first,)))
    collector = join(committed, "collector", Role.COLLECTOR)
    registry = collector.registry()
    assert Collector(registry, Options()).run().objects_deleted > 0
    for attempt in (
        lambda: checkout_to(registry, "m", tmp_path / "out"),
        lambda: CheckpointManifest(registry, *tip(registry)),
        lambda: registry.opened.keys,
        lambda: model_name(registry, model),
        lambda: commit_tree(registry, folder, step=3),
    ):
        with pytest.raises(NotAllowed):
            attempt()
    assert registry.opened.content is None
    mine = committed.registry(cold=True)
    assert verify(mine, full=True).ok and mine.state.voids == []
    checkout_to(mine, "m", tmp_path / "mine")


def test_an_auditor_sees_the_log_and_neither_names_nor_content(committed: Site, folder: Path, tmp_path: Path) -> None:
    auditor = join(committed, "auditor", Role.AUDITOR)
    registry = auditor.registry()
    assert registry.state.models.keys() == committed.registry().state.models.keys()
    model, checkpoint = tip(registry)
    for attempt in (
        lambda: checkout_to(registry, "m", tmp_path / "out"),
        lambda: CheckpointManifest(registry, model, checkpoint),
        lambda: registry.opened.secrets.k_index,
        lambda: model_name(registry, model),
        lambda: commit_tree(registry, folder, step=2),
        lambda: Collector(registry, Options()).run(),
    ):
        with pytest.raises(NotAllowed):
            attempt()
    # Whoever becomes a reader later has an index of his own, and not the empty one of before.
    set_role(committed.registry(), identity_of(auditor).public, Role.READER)
    give(committed, auditor, "m", FILES)
    checkout_to(auditor.registry(), "m", tmp_path / "later")


def test_a_second_owner_can_do_everything(committed: Site, folder: Path, tmp_path: Path) -> None:
    second = join(committed, "second", Role.OWNER)
    registry = second.registry()
    commit_tree(registry, folder, "made-by-the-second")
    third = join(second, "third", Role.READER)
    give(second, third, "m", FILES)
    checkout_to(third.registry(), "m", tmp_path / "third")
    remove_member(registry, committed.open().identity.actor)
    assert rotate_exposed(registry) != []
    checkout_to(second.registry(cold=True), "m", tmp_path / "second")
    assert registry.state.root_exposed


# --- Grants -------------------------------------------------------------------------------------


def test_who_may_read_all_models_reads_those_to_come(committed: Site, folder: Path, tmp_path: Path) -> None:
    reader = join(committed, "reader", Role.READER)
    give(committed, reader, "", *READABLE)
    commit_tree(committed.registry(), folder, "later")
    registry = reader.registry()
    for model in ("m", "later"):
        checkout_to(registry, model, tmp_path / model)
    with pytest.raises(RefusedError, match="--all"):
        revoke(committed.registry(), actor_of(reader), tip(registry)[0])
    owner = committed.registry()
    revoke(owner, actor_of(reader), None)
    assert len(rotate_exposed(owner)) == 2
    commit_tree(owner, folder, "m", step=9)
    with pytest.raises(NotAllowed):
        checkout_to(reader.registry(), "m", tmp_path / "gone")
    assert not [name for name in committed.names() if name.startswith("keys/grant/")]


def test_members_are_found_by_line_or_digits(committed: Site) -> None:
    reader = join(committed, "reader", Role.READER)
    registry, actor = committed.registry(), actor_of(reader)
    assert find_member(registry, actor.hex()[:8]) == actor == find_member(registry, identity_of(reader).line())
    with pytest.raises(NotFoundError):
        find_member(registry, "00112233")
    with pytest.raises(UsageError):
        find_member(registry, actor.hex()[:2])
    with pytest.raises(NotFoundError):
        revoke(registry, actor, tip(registry)[0])


def test_a_former_member_is_told_so_and_may_come_back(committed: Site, tmp_path: Path) -> None:
    reader = join(committed, "reader", Role.READER)
    give(committed, reader, "m", FILES)
    still_open = reader.registry()
    copy = {name: committed.backend.read(name) for name in committed.names() if name.startswith("keys/member/")}
    remove_member(committed.registry(), actor_of(reader))
    with pytest.raises(NotAllowed):
        reader.registry()
    for name, data in copy.items():  # with a copy of its wrap an honest client learns it from the log
        committed.backend.create(name, [data])
    with pytest.raises(NotAllowed, match="no member"):
        reader.registry()
    still_open.refresh()
    set_role(committed.registry(), identity_of(reader).public, Role.READER)
    assert reader.registry().state.members[actor_of(reader)].generation == 2
    with pytest.raises(NotAllowed, match="grant"):
        checkout_to(reader.registry(), "m", tmp_path / "out")


def test_a_wrap_that_the_log_does_not_name_opens_nothing(committed: Site) -> None:
    reader, other = join(committed, "reader", Role.READER), join(committed, "other", Role.COLLECTOR)
    name, foreign = (wrap_name(identity_of(one).public, 1) for one in (reader, other))
    right, wrong = committed.backend.read(name), committed.backend.read(foreign)
    for data in (wrong, right[:-1] + bytes([right[-1] ^ 1]), right[:50]):
        committed.backend.delete(name)
        committed.backend.create(name, [data])
        report = verify(committed.registry(), full=False)
        assert [problem.object for problem in report.errors] == [name]
        with pytest.raises(Exception, match="wrap"):
            reader.registry()
    committed.backend.delete(name)
    report = verify(committed.registry(), full=False)
    assert [problem.object for problem in report.errors] == [name]
