"""What `--require-signed` refuses: everything but a trusted word that this very name means this very checkpoint."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from cairn.core.errors import ConflictError, NotAllowed, RefusedError
from cairn.core.ids import CheckpointId, short
from cairn.registry.attestations import sign
from cairn.registry.delivery import Selection
from cairn.registry.fold import BRANCH, TAG
from cairn.registry.models import delete_ref, find_model, move_ref
from cairn.registry.requirement import check_signed
from cairn.registry.rights import Role
from cairn.registry.sync import SendOptions, send
from cairn.store.crypto.dsse import Envelope, sign_envelope
from tests.support.members import READABLE, give, join
from tests.support.requiring import TRUST, commit_step, here, pull, refused, there
from tests.support.signing import ALICE, BOB, MALLORY, VERSION, forged, put, seen, signed, subject_of, trusting
from tests.support.stores import Site, commit_tree, new_site, tip
from tests.support.trees import write_files
from tests.support.twins import sites, twin_of

__all__ = ["here", "sites", "there"]


# --- What is taken --------------------------------------------------------------------------------


def test_what_a_trusted_signer_signed_is_taken_and_the_signature_with_it(there: Site, here: Site) -> None:
    made = signed(there)
    sent = pull(there, here)
    assert sent.vouched is not None and sent.vouched.signers == (ALICE.actor,)
    assert (sent.vouched.signed_at, sent.signatures) == (made.subject.signed_at, 1)
    # The copy vouches for itself: it can be passed on.
    third = twin_of(here, seed=300)
    assert pull(here, third).vouched == sent.vouched


def test_one_of_several_signers_is_enough_and_all_are_told(there: Site, here: Site) -> None:
    signed(there, by=MALLORY)
    signed(there, by=BOB)
    signed(there)
    sent = pull(there, here)
    assert sent.vouched is not None and set(sent.vouched.signers) == {ALICE.actor, BOB.actor}


def test_by_another_name_here_it_is_the_name_there_that_counts(there: Site, here: Site) -> None:
    signed(there)
    assert pull(there, here, to="mine").ref == "mine"


def test_by_its_id_a_signature_under_any_name_counts(there: Site, here: Site) -> None:
    made = signed(there)
    selector = f"m@{made.subject.checkpoint.hex()[:12]}"
    assert pull(there, here, selector, to="mine").vouched is not None


def test_a_nameless_signature_counts_by_id_alone(there: Site, here: Site) -> None:
    _, checkpoint = tip(there.registry())
    signed(there, f"m@{checkpoint.hex()}")
    refused(there, here, "not signed as 'm@main'.*signed it as 'm'")
    assert pull(there, here, f"m@{checkpoint.hex()}", to="mine").vouched is not None


def test_latest_is_main(there: Site, here: Site) -> None:
    signed(there)
    assert pull(there, here, "m@latest").vouched is not None


def test_a_part_and_the_rest_of_it(there: Site, here: Site) -> None:
    signed(there)
    assert pull(there, here, selection=Selection(tensors=("none",))).vouched is not None
    assert pull(there, here).vouched is not None


def test_a_checkpoint_of_another_tenant_is_checked_before_it_is_resealed(there: Site, tmp_path: Path) -> None:
    foreign = new_site(tmp_path / "foreign", seed=77)
    refused(there, foreign, "bears no signature", reseal=True)
    signed(there)
    sent = pull(there, foreign, reseal=True)
    assert sent.created and sent.vouched is not None


# --- Unsigned, by nobody who counts, or stripped ------------------------------------------------------


def test_what_nobody_signed_is_refused(there: Site, here: Site) -> None:
    _, checkpoint = tip(there.registry())
    refused(there, here, rf"{short(checkpoint)}.*'m'.*is not signed as 'm@main' by anybody who counts: it bears no sig")


def test_what_a_stranger_signed_is_refused_and_the_stranger_named(there: Site, here: Site) -> None:
    signed(there, by=MALLORY)
    refused(there, here, rf"{short(MALLORY.actor)} \(not trusted\) signed it as 'm@main'")


def test_where_nobody_is_trusted_nothing_is_taken(there: Site, here: Site) -> None:
    signed(there)
    refused(there, here, "nobody's signature counts", trust=trusting())


def test_trust_for_another_model_is_none_for_this(there: Site, here: Site) -> None:
    signed(there)
    refused(there, here, "nobody's signature counts for model 'm'", trust=trusting(ALICE, models=("other",)))
    assert pull(there, here, trust=trusting(ALICE, models=("m", "other"))).vouched is not None


def test_a_signer_who_is_no_longer_trusted_counts_no_more(there: Site, here: Site) -> None:
    signed(there)
    assert pull(there, here).vouched is not None
    refused(there, here, "not trusted", trust=trusting(BOB))


def test_what_was_stripped_of_its_signature_is_refused(there: Site, here: Site, tmp_path: Path) -> None:
    """A copy that somebody made by hand, and left the statements out."""
    signed(there)
    stripped = twin_of(there, seed=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cairn.registry.sync.carry", lambda *_: 0)
        send(there.registry(), stripped.registry(), "m", SendOptions())
    refused(stripped, here, "bears no signature")
    # Whoever has the signature already need not be shown it again.
    pull(there, here)
    assert pull(stripped, here).vouched is not None


# --- Forged and swapped -------------------------------------------------------------------------------


def test_a_signature_by_another_under_a_trusted_name_is_refused(there: Site, here: Site) -> None:
    registry = there.registry()
    subject = subject_of(registry)
    put(registry, subject, forged(subject, by=MALLORY), ALICE)
    refused(there, here, f"bears no signature of {short(ALICE.actor)}")


def test_a_key_id_that_lies_is_not_believed(there: Site, here: Site) -> None:
    registry = there.registry()
    subject = subject_of(registry)
    lying = forged(subject, by=MALLORY).encode().replace(MALLORY.actor.hex().encode(), ALICE.actor.hex().encode())
    for signer in (ALICE, MALLORY):
        put(registry, subject, lying, signer)
    refused(there, here, "is not signed")


def test_a_changed_statement_is_refused(there: Site, here: Site, tmp_path: Path) -> None:
    """The signature of one statement under the payload of another."""
    registry = there.registry()
    subject = subject_of(registry)
    other = forged(replace(subject, checkpoint=CheckpointId(b"x" * 32)))
    mixed = forged(subject, by=MALLORY)
    swapped = Envelope(mixed.payload_type, mixed.payload, other.signatures)
    put(registry, subject, swapped)
    refused(there, here, "bears no signature")


@pytest.mark.parametrize(
    "changes",
    [{"checkpoint": b"x" * 32}, {"model": b"x" * 16}, {"tenant": b"x" * 16}, {"ref": "other"}, {"model_name": "other"}],
)
def test_a_true_signature_about_something_else_is_refused(there: Site, here: Site, changes: dict[str, object]) -> None:
    registry = there.registry()
    subject = subject_of(registry)
    put(registry, subject, forged(subject, **changes))
    refused(there, here, "is not signed")


def test_a_statement_of_another_type_is_refused(there: Site, here: Site) -> None:
    registry = there.registry()
    subject = subject_of(registry)
    put(registry, subject, sign_envelope("application/json", forged(subject).payload, ALICE))
    refused(there, here, "no statement of in-toto")


def test_a_signed_checkpoint_under_another_name_is_refused(there: Site, here: Site, tmp_path: Path) -> None:
    """The experiment that was signed as such is put where the release should be."""
    commit_step(there, tmp_path, 2, branch="experiment")
    made = signed(there, "m@experiment")
    registry = there.registry()
    model, main = tip(registry)
    move_ref(registry, model, "main", BRANCH, main, made.subject.checkpoint)
    refused(there, here, "signed it as 'm@experiment'")
    assert pull(there, here, "m@experiment").vouched is not None


def test_a_tag_that_was_moved_is_refused(there: Site, here: Site, tmp_path: Path) -> None:
    registry = there.registry()
    model, first = tip(registry)
    move_ref(registry, model, "v1", TAG, None, first)
    signed(there, "m@v1")
    second = commit_step(there, tmp_path, 2)
    signed(there)
    registry = there.registry()
    move_ref(registry, model, "v1", TAG, first, second)
    refused(there, here, "is not signed as 'm@v1'", "m@v1")


def test_a_renamed_branch_has_to_be_signed_by_its_new_name(there: Site, here: Site) -> None:
    made = signed(there)
    registry = there.registry()
    move_ref(registry, made.subject.model, "renamed", BRANCH, None, made.subject.checkpoint)
    delete_ref(registry, made.subject.model, "main", BRANCH)
    refused(there, here, "signed it as 'm@main'", "m@renamed")
    signed(there, "m@renamed")
    assert pull(there, here, "m@renamed").vouched is not None


def test_a_checkpoint_of_another_model_of_the_same_name_is_refused(here: Site, there: Site, tmp_path: Path) -> None:
    """Another store of the tenant with a model `m` of its own, and the statement about the true one."""
    made = signed(there)
    rogue = twin_of(there, seed=400)
    commit_step(rogue, tmp_path, 1)
    registry = rogue.registry()
    put(registry, replace(subject_of(registry), signed_at=made.subject.signed_at), made.envelope)
    refused(rogue, here, "another checkpoint, model or tenant")


def test_names_that_look_alike_are_different_names(there: Site, here: Site, tmp_path: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    first = commit_step(there, tmp_path, 2, branch=composed)
    signed(there, f"m@{composed}")
    registry = there.registry()
    move_ref(registry, find_model(registry, "m"), decomposed, BRANCH, None, first)
    assert pull(there, here, f"m@{composed}").vouched is not None
    refused(there, here, "is not signed", f"m@{decomposed}")


def test_a_name_with_at_signs_cannot_be_read_another_way(there: Site, here: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "at", {"a": b"at"})
    commit_tree(there.registry(), tree, "a@b", branch="c")
    made = signed(there, "a@b@c")
    assert made.subject.name == "a@b@c"
    assert pull(there, here, "a@b@c", trusting(ALICE, models=("a@b",))).vouched is not None
    refused(there, here, "nobody's signature", "a@b@c", trusting(ALICE, models=("a",)))


# --- Members ----------------------------------------------------------------------------------------------


def test_who_cannot_open_the_statements_takes_nothing_on_trust(there: Site) -> None:
    writer = join(there, "writer", Role.WRITER)
    give(there, writer, "m", write=True)
    sign(there.registry(), "m", VERSION, ALICE)
    registry = writer.registry()
    with pytest.raises(RefusedError, match="holds none"):
        check_signed(registry, *tip(registry), "m", TRUST)


def test_an_entry_of_somebody_without_rights_is_void(there: Site, here: Site) -> None:
    reader = join(there, "reader", Role.READER)
    give(there, reader, "m", *READABLE)
    registry = reader.registry()
    subject = subject_of(registry)
    with pytest.raises(NotAllowed):
        put(registry, subject, forged(subject))
    refused(there, here, "bears no signature")


def test_the_target_has_another_model_of_the_name(there: Site, here: Site, tmp_path: Path) -> None:
    signed(there)
    commit_step(here, tmp_path, 9)
    before = seen(here)
    with pytest.raises(ConflictError, match="another model"):
        pull(there, here)
    assert seen(here) == before
