"""What a signature of the past is worth: names that were put back, statements that are repeated, older checkpoints."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from cairn.core.errors import RefMoved, UsageError
from cairn.core.ids import short
from cairn.registry.attestations import Attested
from cairn.registry.deletion import tombstone
from cairn.registry.fold import BRANCH, TAG
from cairn.registry.models import move_ref
from cairn.registry.sync import SendOptions, send
from tests.support.requiring import commit_step, here, pull, refused, there
from tests.support.signing import ALICE, BOB, MALLORY, forged, put, seen, signed
from tests.support.stores import Site, tip
from tests.support.twins import sites, twin_of

__all__ = ["here", "sites", "there"]


def two_releases(there: Site, folder: Path) -> tuple[Attested, Attested]:
    """Both signed, one after the other, as main."""
    first = signed(there)
    commit_step(there, folder, 2)
    return first, signed(there)


def put_back(there: Site, first: Attested, second: Attested) -> None:
    """Whoever may write to the model moves main back to what was signed before."""
    registry = there.registry()
    move_ref(registry, first.subject.model, "main", BRANCH, second.subject.checkpoint, first.subject.checkpoint)


def test_a_branch_that_was_put_back_is_refused(there: Site, here: Site, tmp_path: Path) -> None:
    first, second = two_releases(there, tmp_path)
    put_back(there, first, second)
    refused(there, here, rf"{short(ALICE.actor)} has said.*{short(second.subject.checkpoint)}: the ref was put back")


def test_repeating_an_old_statement_does_not_make_it_new(there: Site, here: Site, tmp_path: Path) -> None:
    first, second = two_releases(there, tmp_path)
    put_back(there, first, second)
    registry = there.registry()
    put(registry, first.subject, first.envelope)
    refused(there, here, "the ref was put back")
    put(registry, replace(first.subject, signed_at=second.subject.signed_at + 10), first.envelope)
    refused(there, here, "another ref or time than the log says")


def test_a_branch_that_was_put_back_on_purpose_is_signed_again(there: Site, here: Site, tmp_path: Path) -> None:
    put_back(there, *two_releases(there, tmp_path))
    signed(there, by=BOB)
    assert pull(there, here).vouched is not None


def test_a_later_word_of_somebody_who_does_not_count_is_none(there: Site, here: Site, tmp_path: Path) -> None:
    first, second = two_releases(there, tmp_path)
    registry = there.registry()
    later = replace(first.subject, signed_at=second.subject.signed_at + 10)
    put(registry, later, forged(later, by=MALLORY), MALLORY)
    put(registry, later, forged(later, by=MALLORY), ALICE)
    assert pull(there, here).vouched is not None


def test_an_old_copy_of_the_store_is_noticed_where_the_new_one_was_seen(
    there: Site, here: Site, tmp_path: Path
) -> None:
    old = twin_of(there, seed=300)
    signed(there)
    pull(there, old)
    commit_step(there, tmp_path, 2)
    signed(there)
    pull(there, here)
    refused(old, here, "the ref was put back")
    # To somebody who has seen neither, the old copy is as good as new: docs/signing.md says so.
    newcomer = twin_of(there, seed=500)
    assert pull(old, newcomer).vouched is not None


def test_history_that_is_ahead_here_stays_even_unsigned(there: Site, here: Site, tmp_path: Path) -> None:
    signed(there)
    pull(there, here)
    commit_step(here, tmp_path, 3)
    before = seen(here)
    with pytest.raises(RefMoved):
        pull(there, here)
    assert seen(here) == before


def test_a_deleted_checkpoint_speaks_no_longer(there: Site, here: Site, tmp_path: Path) -> None:
    first, second = two_releases(there, tmp_path)
    put_back(there, first, second)
    registry = there.registry()
    tombstone(registry, second.subject.model, [second.subject.checkpoint], "deleted", 0)
    assert pull(there, here).vouched is not None


# --- Steps, histories -----------------------------------------------------------------------------------


def test_a_step_is_no_name(there: Site, here: Site) -> None:
    signed(there)
    before = seen(here)
    with pytest.raises(UsageError, match="a step is no name"):
        pull(there, here, "m@step:1", to="x")
    assert seen(here) == before


def test_what_is_behind_a_signed_tip_comes_along_if_the_tip_names_it(there: Site, here: Site, tmp_path: Path) -> None:
    for step in (2, 3):
        commit_step(there, tmp_path, step)
    signed(there)
    assert pull(there, here, history=True).older_brought == 2


def test_a_history_that_was_slipped_in_is_refused(there: Site, here: Site, tmp_path: Path) -> None:
    """The log says that the signed one came after another one; its own body does not."""
    registry = there.registry()
    model, _ = tip(registry)
    move_ref(registry, model, "v1", TAG, None, commit_step(there, tmp_path, 2, branch="side"))
    signed(there, "m@v1")
    rogue = twin_of(there, seed=600)
    send(there.registry(), rogue.registry(), "m@main", SendOptions())
    send(there.registry(), rogue.registry(), "m@v1", SendOptions(to="main", rebase=True))
    registry = rogue.registry()
    model, checkpoint = tip(registry)
    move_ref(registry, model, "v1", TAG, None, checkpoint)
    refused(rogue, here, "no signature speaks for it", "m@v1", history=True)
    assert pull(rogue, here, "m@v1").vouched is not None
