"""The rule of `attest`: what is kept, what takes whose place, and every reason for which one is void."""

from typing import Any

import pytest

from cairn.core.limits import ATTESTATION_BYTES_MAX, ATTESTATIONS_PER_ACTOR_MAX
from cairn.registry.entries import RefDelete
from cairn.registry.entries_attest import Attest
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.entries_rights import GrantSet, MemberSet
from cairn.registry.fold import encode_state
from cairn.registry.state import Attestation, State
from tests.support.logs import MAIN, MODEL, LogMaker, commit_entry, model_create, packs

LOG = LogMaker()
CHECKPOINT, SIGNER = b"1" * 32, b"s" * 32
WRITERS = b"w" * 32, b"v" * 32


@pytest.fixture
def state() -> State:
    """A model with a checkpoint, and two members who may write to it."""
    made = LOG.state(model_create(), commit_entry(CHECKPOINT, packs(1)))
    for one in WRITERS:
        assert LOG.apply(made, MemberSet(one, "writer", b"a" * 32, 1, b"h" * 32)) is None
        assert LOG.apply(made, GrantSet(one, MODEL, (), True)) is None
    return made


def attest(**changes: Any) -> Attest:
    fields = {"model": MODEL, "checkpoint": CHECKPOINT, "tag": b"t" * 16, "signer": SIGNER, "signed_at": 5}
    return Attest(**{**fields, "envelope": b"e", **changes})


def kept(state: State) -> tuple[Attestation, ...]:
    return state.models[MODEL].checkpoints[CHECKPOINT].attestations


def test_what_is_kept_says_where_and_by_whom(state: State) -> None:
    assert LOG.apply(state, attest()) is None
    assert LOG.apply(state, attest(tag=b"", signed_at=6)) is None
    n = state.length - 1
    assert kept(state) == (
        Attestation(n - 1, LOG.owner.actor, SIGNER, b"t" * 16, 5),
        Attestation(n, LOG.owner.actor, SIGNER, b"", 6),
    )
    assert state.models[MODEL].refs.keys() == {MAIN}


def test_ones_own_earlier_one_goes_and_nobody_elses(state: State) -> None:
    for actor in (*WRITERS, WRITERS[0]):
        assert LOG.apply(state, attest(signed_at=state.length), actor=actor) is None
    assert [one.actor for one in kept(state)] == [WRITERS[1], WRITERS[0]]


def test_nobody_fills_up_the_room_of_others(state: State) -> None:
    for number in range(ATTESTATIONS_PER_ACTOR_MAX):
        assert LOG.apply(state, attest(signer=number.to_bytes(32)), actor=WRITERS[0]) is None
    assert "as many" in (LOG.apply(state, attest(), actor=WRITERS[0]) or "")
    assert LOG.apply(state, attest(signer=(1).to_bytes(32), signed_at=9), actor=WRITERS[0]) is None
    assert LOG.apply(state, attest(), actor=WRITERS[1]) is None
    assert len(kept(state)) == ATTESTATIONS_PER_ACTOR_MAX + 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": b"?" * 16}, "its checkpoint does not exist"), ({"checkpoint": b"?" * 32}, "its checkpoint"),
        ({"tag": b"t" * 15}, "its tag or its signer"), ({"signer": b"s" * 31}, "its tag or its signer"),
        ({"envelope": b""}, "its envelope"), ({"envelope": bytes(ATTESTATION_BYTES_MAX + 1)}, "its envelope"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_changes_nothing(state: State, changes: dict[str, Any], reason: str) -> None:
    before = encode_state(state)
    assert reason in (LOG.apply(state, attest(**changes)) or "")
    state.length -= 1
    assert encode_state(state) == before


def test_only_writers_of_the_model_and_owners_attest(state: State) -> None:
    assert LOG.apply(state, MemberSet(WRITERS[0], "reader", b"a" * 32, 2, b"h" * 32)) is None
    assert LOG.apply(state, GrantSet(WRITERS[1], MODEL, (), False)) is None
    for actor in (*WRITERS, b"x" * 32):
        assert LOG.apply(state, attest(), actor=actor) is not None
    assert kept(state) == ()


def test_they_go_and_come_back_with_the_checkpoint(state: State) -> None:
    assert LOG.apply(state, attest()) is None
    assert LOG.apply(state, RefDelete(MODEL, MAIN, CHECKPOINT)) is None
    assert LOG.apply(state, Tombstone(MODEL, (CHECKPOINT,), 0, "x")) is None
    assert "its checkpoint does not exist" in (LOG.apply(state, attest()) or "")
    assert LOG.apply(state, Restore(MODEL, (CHECKPOINT,))) is None
    assert len(kept(state)) == 1
    assert LOG.apply(state, Tombstone(MODEL, (CHECKPOINT,), 0, "x")) is None
    assert LOG.apply(state, Drop(MODEL, (CHECKPOINT,))) is None
    assert LOG.apply(state, commit_entry(CHECKPOINT, packs(2))) is None
    assert kept(state) == ()
