"""Signing what a name means: what stands in the log then, who may do it, and how it travels."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from cairn.core.errors import NotAllowed, NotFoundError, RefusedError
from cairn.core.limits import ATTESTATIONS_PER_ACTOR_MAX
from cairn.registry.attestations import Attested, Unfit, attestations, carry, sign
from cairn.registry.deletion import tombstone
from cairn.registry.entries import open_entry
from cairn.registry.fold import BRANCH, TAG
from cairn.registry.models import delete_ref, move_ref
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_model
from cairn.registry.statement import decode_statement
from cairn.registry.sync import SendOptions, send
from cairn.store.crypto.components import ComponentClass
from tests.support.doubles import START_NS, HeldClock
from tests.support.members import give, identity_of, join
from tests.support.signing import ALICE, BOB, VERSION, forged, put, signed, subject_of
from tests.support.stores import Site, commit_tree, new_site, tip
from tests.support.trees import write_files
from tests.support.twins import sites

__all__ = ["sites"]


@pytest.fixture
def here(sites: tuple[Site, Site], tmp_path: Path) -> Site:
    """A store with a checkpoint on main."""
    commit_tree(sites[0].registry(), write_files(tmp_path / "tree", {"a": b"one"}), step=7)
    return sites[0]


def found(site: Site, selector: str = "m") -> list[Attested | Unfit]:
    registry = site.registry(cold=True)
    return attestations(registry, *tip(registry, selector))


def test_what_is_signed_says_what_the_name_means(here: Site) -> None:
    made = signed(here)
    registry = here.registry(cold=True)
    model, checkpoint = tip(registry)
    assert found(here) == [made]
    assert made.envelope.signers([ALICE.actor, BOB.actor]) == {ALICE.actor}
    subject = decode_statement(made.envelope.payload, "it").subject
    told = subject.tenant, subject.model, subject.model_name, subject.checkpoint, subject.ref, subject.kind
    assert told == (registry.opened.tenant, model, "m", checkpoint, "main", "branch")
    assert subject.signed_at == START_NS // 1000
    assert (made.place.signer, made.place.actor) == (ALICE.actor, here.open().identity.actor)


def test_the_user_signs_with_the_own_identity_if_no_other_is_named(here: Site) -> None:
    made = sign(here.registry(), "m", VERSION)
    assert made.place.signer == made.place.actor == identity_of(here).actor


def test_a_tag_an_id_a_step_and_latest(here: Site) -> None:
    registry = here.registry()
    model, checkpoint = tip(registry)
    move_ref(registry, model, "v1", TAG, None, checkpoint)
    names = [signed(here, one).subject.name for one in ("m@v1", f"m@{checkpoint.hex()}", "m@step:7", "m@latest")]
    assert names == ["m@v1", "m", "m", "m@main"]
    with pytest.raises(NotFoundError):
        signed(here, "m@nothing")


@pytest.mark.parametrize(("model", "ref"), [("ünï 模型", "släsh/ü"), ("a@b", "x y"), ('"\\', "\u202e\n"), ("{}", "'")])
def test_odd_names_are_signed_as_they_are(here: Site, tmp_path: Path, model: str, ref: str) -> None:
    commit_tree(here.registry(), tmp_path / "tree", model, branch=ref)
    made = signed(here, f"{model}@{ref}")
    assert (made.subject.model_name, made.subject.ref) == (model, ref)
    assert found(here, f"{model}@{ref}") == [made]


def test_names_that_are_too_long_are_refused(here: Site, tmp_path: Path) -> None:
    name = "n" * (16 << 10)
    commit_tree(here.registry(), tmp_path / "tree", name, branch=name)
    before = here.log()
    with pytest.raises(RefusedError, match="over the limit"):
        signed(here, f"{name}@{name}")
    assert here.log() == before


def test_signing_again_takes_the_place_of_ones_own(here: Site) -> None:
    first, second, other = signed(here), signed(here), signed(here, by=BOB)
    assert found(here) == [second, other] and first.subject.signed_at < second.subject.signed_at


def test_no_statement_is_older_than_one_before_it_whatever_the_clock_says(here: Site) -> None:
    assert isinstance(here.clock, HeldClock)
    here.clock.now_ns += 3600 * 10**9
    late = signed(here)
    here.clock.now_ns = START_NS
    assert signed(here, by=BOB).subject.signed_at == late.subject.signed_at + 1
    here.clock.now_ns = START_NS + 7200 * 10**9
    assert signed(here).subject.signed_at == here.clock.now_ns // 1000


def test_a_time_in_the_far_future_leads_nobody_astray(here: Site) -> None:
    registry = here.registry()
    subject = subject_of(registry)
    far = replace(subject, signed_at=subject.signed_at + 2 * 86_400 * 10**6)
    put(registry, far, forged(far))
    assert signed(here, by=BOB).subject.signed_at == START_NS // 1000


@pytest.mark.parametrize("moved", [True, False])
def test_a_name_that_moves_or_goes_meanwhile_is_not_signed(
    here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    other = commit_tree(here.registry(), write_files(tmp_path / "t2", {"a": b"2"}), branch="b").checkpoint
    registry = here.registry()
    model, checkpoint = tip(registry)
    append = Registry.append

    def raced(self: Registry, build: object) -> int:
        monkeypatch.setattr(Registry, "append", append)
        if moved:
            move_ref(here.registry(), model, "main", BRANCH, checkpoint, other)
        else:
            delete_ref(here.registry(), model, "main", BRANCH)
        return append(self, build)  # type: ignore[arg-type]  # whatever was given

    monkeypatch.setattr(Registry, "append", raced)
    with pytest.raises(RefusedError, match="moved or removed meanwhile"):
        sign(registry, "m", VERSION, ALICE)
    assert found(here, f"m@{checkpoint.hex()}") == []


# --- Rights ---------------------------------------------------------------------------------------


def test_a_writer_of_the_model_signs_and_nobody_else_does(here: Site) -> None:
    writer, reader = join(here, "writer", Role.WRITER), join(here, "reader", Role.READER)
    give(here, reader, "m", ComponentClass.FILES)
    for member in (writer, reader):
        before = here.log()
        with pytest.raises(NotAllowed):
            sign(member.registry(), "m", VERSION)
        assert here.log() == before
    give(here, writer, "m", write=True)
    made = sign(writer.registry(), "m", VERSION)
    assert made.place.actor == identity_of(writer).actor and found(here) == [made]


def test_who_writes_without_reading_can_sign_and_tells_what_it_may_see(here: Site) -> None:
    writer = join(here, "writer", Role.WRITER)
    give(here, writer, "m", write=True)
    made = sign(writer.registry(), "m", VERSION)
    assert "finishedOn" not in made.statement.predicate["runDetails"]["metadata"]
    registry = writer.registry()
    (closed,) = attestations(registry, *tip(registry))
    assert isinstance(closed, Unfit)


# --- What is read back ----------------------------------------------------------------------------


def test_what_does_not_hold_is_told_apart(here: Site) -> None:
    registry = here.registry()
    subject = subject_of(registry)
    stale = replace(subject, signed_at=subject.signed_at - 1)
    for number, (envelope, signer) in enumerate(
        [
            (forged(subject, by=BOB), ALICE), (forged(stale), ALICE), (b"{}", ALICE),
            (forged(subject, tenant=b"x" * 16), ALICE), (forged(subject, model=b"x" * 16), ALICE),
            (forged(subject, checkpoint=b"x" * 32), ALICE), (forged(subject, ref="other"), ALICE),
            (forged(subject, ref="", kind=""), ALICE),
        ]
    ):  # fmt: skip
        put(registry, subject, envelope, signer)
        (one,) = found(here)
        assert isinstance(one, Unfit), number
    put(registry, subject, forged(subject))
    assert [type(one) for one in found(here)] == [Attested]


def test_an_entry_that_was_put_in_its_place_is_not_believed(here: Site) -> None:
    """Storage that lies: behind the fold's back, entry n is another one."""
    signed(here)
    registry = here.registry()
    name = here.log()[-1]
    model, checkpoint = tip(registry)
    other = here.registry()
    data = here.backend.read(here.log()[-2])
    here.backend.delete(name)
    here.backend.create(name, [data])
    (one,) = attestations(other, model, checkpoint)
    assert isinstance(one, Unfit)


def test_the_log_and_the_storage_show_no_name_and_nothing_of_the_statement(here: Site, tmp_path: Path) -> None:
    commit_tree(here.registry(), tmp_path / "tree", "secretive", branch="unnameable")
    made = signed(here, "secretive@unnameable")
    opened, stored = here.open(), here.backend.read(here.log()[-1])
    entry = open_entry(stored, made.place.n, opened.tenant, opened.store, opened.secrets.k_log)
    for data in (entry.payload, *(here.backend.read(name) for name in here.names())):
        assert not any(word in data for word in (b"secretive", b"unnameable", b"Statement", b"payloadType"))


def test_it_stays_readable_when_keys_rotate(here: Site) -> None:
    made = signed(here)
    registry = here.registry()
    rotate_model(registry, tip(registry)[0])
    assert found(here) == [made]


# --- Travel ---------------------------------------------------------------------------------------


def test_statements_travel_with_their_checkpoint_as_they_are(here: Site, sites: tuple[Site, Site]) -> None:
    mine, theirs = signed(here), signed(here, by=BOB)
    sent = send(here.registry(), sites[1].registry(), "m", SendOptions())
    assert sent.signatures == 2
    there = found(sites[1])
    assert [one.sealed for one in there if isinstance(one, Attested)] == [mine.sealed, theirs.sealed]
    assert [one.place.signer for one in there] == [ALICE.actor, BOB.actor]
    log = sites[1].log()
    assert send(here.registry(), sites[1].registry(), "m", SendOptions()).signatures == 0 and sites[1].log() == log


def test_what_is_signed_later_follows_and_a_newer_one_takes_the_place(here: Site, sites: tuple[Site, Site]) -> None:
    send(here.registry(), sites[1].registry(), "m", SendOptions())
    signed(here)
    assert send(here.registry(), sites[1].registry(), "m", SendOptions()).signatures == 1
    newer = signed(here)
    assert send(here.registry(), sites[1].registry(), "m", SendOptions()).signatures == 1
    assert [one.sealed for one in found(sites[1]) if isinstance(one, Attested)] == [newer.sealed]
    # An older copy does not come back over the newer one.
    assert send(sites[1].registry(), here.registry(), "m", SendOptions()).signatures == 0


def test_history_brings_the_statements_of_each(here: Site, sites: tuple[Site, Site], tmp_path: Path) -> None:
    signed(here)
    commit_tree(here.registry(), write_files(tmp_path / "tree", {"a": b"two"}), step=8)
    signed(here)
    sent = send(here.registry(), sites[1].registry(), "m", SendOptions(history=True))
    assert sent.signatures == 2 and len(found(sites[1], "m@step:7")) == len(found(sites[1])) == 1


def test_what_was_deleted_there_since_it_was_brought_gets_none(
    here: Site, sites: tuple[Site, Site], tmp_path: Path
) -> None:
    model, older = tip(here.registry())
    commit_tree(here.registry(), write_files(tmp_path / "tree", {"a": b"two"}), step=8)
    source, target = here.registry(), sites[1].registry()
    send(source, target, "m", SendOptions(history=True))
    signed(here, f"m@{older.hex()}")
    source.refresh()
    tombstone(target, model, [older], "deleted", 0.0)
    log = sites[1].log()
    assert carry(source, target, model, older) == 0 and sites[1].log() == log


def test_what_is_unfit_stays_behind(here: Site, sites: tuple[Site, Site]) -> None:
    registry = here.registry()
    subject = subject_of(registry)
    put(registry, subject, forged(subject, by=BOB), ALICE)
    assert send(here.registry(), sites[1].registry(), "m", SendOptions()).signatures == 0
    assert found(sites[1]) == []


def test_what_there_is_no_room_for_stays_behind(
    here: Site, sites: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    signed(here)
    signed(here, by=BOB)
    monkeypatch.setattr("cairn.registry.attestations.ATTESTATIONS_PER_ACTOR_MAX", 1)
    assert send(here.registry(), sites[1].registry(), "m", SendOptions()).signatures == 1 < ATTESTATIONS_PER_ACTOR_MAX


def test_a_resealed_checkpoint_is_another_and_bears_none(here: Site, tmp_path: Path) -> None:
    signed(here)
    foreign = new_site(tmp_path / "foreign", seed=77)
    send(here.registry(), foreign.registry(), "m", SendOptions(reseal=True))
    assert found(foreign) == []
