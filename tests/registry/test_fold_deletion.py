"""The fold of deleted models, holds and approvals: what each entry does, and every reason for which one is void."""

import msgspec
import pytest

from cairn.registry.entries import Condemn, Payload, Quarantine, RefDelete
from cairn.registry.entries_audit import Policy
from cairn.registry.entries_deletion import (
    Approve,
    Confirm,
    Content,
    Destroyed,
    Drop,
    HoldLift,
    HoldSet,
    ModelDelete,
    ModelRestore,
    Restore,
    Shred,
    Tombstone,
)
from cairn.registry.entries_rights import Given, GrantSet, MemberSet, RootRotate
from cairn.registry.fold import decode_state, encode_state
from cairn.registry.fold_deletion import HELD
from cairn.registry.rights import ALL_MODELS
from cairn.registry.state import State, objects_of
from tests.support.logs import MAIN, MODEL, OTHER_MODEL, RECOVERY, LogMaker, commit_entry, model_create, packs

LOG = LogMaker()
FIRST, SECOND = b"1" * 32, b"2" * 32
HOLD, PLAN = b"h" * 16, b"p" * 32
PARTNER, READER = b"P" * 32, b"R" * 32
DUE, LATER = {"claimed_at": 100}, 100
NOTHING = Content(0, 0, bytes(32))


def member(actor: bytes, role: str, generation: int = 1) -> MemberSet:
    return MemberSet(actor, role, b"x" * 32, generation, b"h" * 32)


@pytest.fixture
def state() -> State:
    """Two models; the first has FIRST behind SECOND, the tip of main, and is read by somebody. There are two owners."""
    grant = GrantSet(READER, MODEL, (1,), False, (Given(MODEL, "keys/grant/reader"),))
    second = msgspec.structs.replace(commit_entry(SECOND).ref, expected=FIRST)
    return LOG.state(
        model_create(), model_create(OTHER_MODEL, b"other"), member(PARTNER, "owner"), member(READER, "reader"), grant,
        commit_entry(FIRST, packs(1)), commit_entry(SECOND, ref=second),
    )  # fmt: skip


def apply(state: State, *payloads: Payload, **changes: object) -> None:
    for payload in payloads:
        assert LOG.apply(state, payload, **changes) is None
    assert decode_state(encode_state(state)) == state


def void(state: State, payload: Payload, **changes: object) -> str | None:
    """Why the payload is void, having made sure that then nothing changed."""
    before = encode_state(state)
    reason = LOG.apply(state, payload, **changes)
    state.length -= 1
    assert (encode_state(state) == before) == (reason is not None)
    return reason


def shred(state: State, **changes: object) -> Shred:
    return msgspec.structs.replace(Shred(MODEL, state.length, 2, NOTHING, (), ()), **changes)


def hold(checkpoint: bytes = b"", identifier: bytes = HOLD) -> HoldSet:
    return HoldSet(identifier, MODEL, checkpoint, b"sealed")


def root_rotate(state: State, *models: bytes) -> RootRotate:
    owner = member(PARTNER, "owner", state.members[PARTNER].generation + 1)
    wraps = tuple(Given(one, f"keys/model/{state.length}") for one in models)
    return RootRotate(state.root_generation + 1, wraps, (owner,))


DELETE = ModelDelete(MODEL, LATER, "deleted")


def test_a_deleted_model_is_found_by_nothing_and_comes_back_whole(state: State) -> None:
    before = msgspec.msgpack.encode(state.models[MODEL])
    live_n = state.live_n
    apply(state, DELETE)
    assert MODEL not in state.models
    assert state.live_n == live_n
    assert void(state, commit_entry(b"3" * 32)) == "its model does not exist"
    assert void(state, RefDelete(MODEL, MAIN, SECOND)) == "its ref does not exist"
    apply(state, ModelRestore(MODEL))
    assert msgspec.msgpack.encode(state.models[MODEL]) == before
    assert state.live_n == state.length - 1
    assert not state.deleted


def test_a_deleted_model_keeps_what_it_names_until_it_is_shredded(state: State) -> None:
    own = next(iter(objects_of(state.models[MODEL].checkpoints[FIRST])))
    apply(state, DELETE)
    condemn = Condemn(
        sessions=(), epoch=0, hit_position=0, relied=(), packs=b"", pieces=(), marked=state.length, condemned=(),
        objects=own,
    )  # fmt: skip
    assert void(state, condemn) == "it condemns an object that is needed, or condemned already"
    apply(state, shred(state), **DUE)
    apply(state, msgspec.structs.replace(condemn, marked=state.length))


def test_its_name_and_its_checkpoints_are_taken_until_then_and_its_id_for_ever(state: State) -> None:
    apply(state, DELETE)
    taken = "a model with this name exists, or was deleted and can be restored"
    assert void(state, model_create(b"x" * 16, b"name")) == taken
    elsewhere = commit_entry(FIRST, model=OTHER_MODEL)
    assert void(state, elsewhere) == "its checkpoint exists already"
    apply(state, shred(state), **DUE)
    assert void(state, model_create()) == "the model with this id was deleted"
    apply(state, elsewhere, model_create(b"x" * 16, b"name"))


def test_rights_that_change_meanwhile_change_in_it_too(state: State) -> None:
    apply(state, DELETE, member(READER, "collector", 2))
    deleted = state.deleted[MODEL].model
    assert deleted is not None
    assert (deleted.readers, deleted.exposed) == ({}, [0, 1])
    grown = member(b"N" * 32, "reader")
    everything = GrantSet(b"N" * 32, ALL_MODELS, (1,), False, (Given(OTHER_MODEL, "keys/grant/o"),))
    apply(state, grown)
    assert void(state, everything) == "its wraps are not those of the models that are new to the member"
    apply(state, msgspec.structs.replace(everything, wraps=(*everything.wraps, Given(MODEL, "keys/grant/n"))))
    apply(state, root_rotate(state, MODEL, OTHER_MODEL), MemberSet(PARTNER, ""), ModelRestore(MODEL))
    model = state.models[MODEL]
    assert model.readers == {b"N" * 32: "keys/grant/n"}
    assert model.wrap.startswith("keys/model/")
    assert model.wrap == state.models[OTHER_MODEL].wrap


def test_what_is_destroyed_is_told_once_and_only_behind_a_new_root_key(state: State) -> None:
    apply(state, DELETE)
    apply(state, shred(state, packs=((0, 0),)), **DUE)
    assert state.deleted[MODEL].model is None
    assert state.deleted[MODEL].packs == ((0, 0),)
    in_force = "the root key that opened one of its models is in force"
    assert void(state, Destroyed((MODEL,))) == in_force
    apply(state, root_rotate(state, OTHER_MODEL), Destroyed((MODEL,)), Confirm(MODEL, "backups"))
    assert state.deleted[MODEL].destroyed_n == state.length - 2


DELETES = {
    "no model": (ModelDelete(b"x" * 16, 0, "x"), "its model does not exist"),
    "restore of a live one": (ModelRestore(MODEL), "its model is not deleted, or its keys are destroyed"),
    "shred of a live one": (Shred(MODEL, 0, 0, NOTHING, (), ()), "its model is not deleted, or its keys are destroyed"),
    "destroyed, empty": (Destroyed(()), "its models are not listed properly"),
    "destroyed twice": (Destroyed((MODEL, MODEL)), "its models are not listed properly"),
    "destroyed, but live": (
        Destroyed((MODEL,)), "one of its models is not shredded, or its keys are known to be destroyed",
    ),
    "confirmed, but live": (Confirm(MODEL, "x"), "its model is not shredded"),
    "hold of nothing": (HoldSet(HOLD, b"x" * 16, b"", b""), "its model does not exist"),
    "hold of no checkpoint": (hold(b"3" * 32), "its checkpoint does not exist"),
    "hold with a short id": (hold(identifier=b"h"), "its id is not a new one"),
    "no hold": (HoldLift(HOLD, MODEL), "there is no such hold"),
    "approval of nothing": (Approve(b"p"), "it names no plan"),
}  # fmt: skip


@pytest.mark.parametrize(("payload", "reason"), DELETES.values(), ids=DELETES)
def test_an_entry_is_void(state: State, payload: Payload, reason: str) -> None:
    assert void(state, payload) == reason


def test_a_shred_is_void(state: State) -> None:
    apply(state, DELETE)
    assert void(state, shred(state)) == "its model can still be restored"
    assert void(state, shred(state, packs=((0, 9),)), **DUE) == "its packs were never there"
    stale = "something was made live since its marking"
    assert void(state, shred(state, marked=state.live_n), **DUE) == stale
    assert void(state, shred(state, marked=state.length + 1), **DUE) == stale
    apply(state, shred(state), **DUE)
    assert void(state, shred(state), **DUE) == "its model is not deleted, or its keys are destroyed"


def test_a_hold_keeps_a_checkpoint_on_every_path(state: State) -> None:
    apply(state, hold(FIRST))
    assert state.live_n == state.length - 1
    assert void(state, Tombstone(MODEL, (FIRST,), 0, "retention")) == HELD
    assert void(state, Quarantine(MODEL, FIRST)) == HELD
    assert void(state, DELETE) == HELD
    assert void(state, hold(FIRST)) == "its id is not a new one"
    assert void(state, root_rotate(state, OTHER_MODEL)) == "its wraps leave out a model that is held"
    apply(state, HoldLift(HOLD, MODEL), Tombstone(MODEL, (FIRST,), 0, "x"), hold(FIRST))
    assert void(state, Drop(MODEL, (FIRST,))) == HELD
    apply(state, Restore(MODEL, (FIRST,)), HoldLift(HOLD, MODEL), Quarantine(MODEL, FIRST), DELETE)


def test_a_hold_of_a_model_keeps_what_comes_to_it_and_a_deleted_one_from_its_shred(state: State) -> None:
    apply(state, hold())
    assert void(state, Tombstone(MODEL, (FIRST,), 0, "x")) == HELD
    apply(state, HoldLift(HOLD, MODEL), DELETE, hold())
    assert void(state, shred(state), **DUE) == HELD
    assert void(state, root_rotate(state, OTHER_MODEL)) == "its wraps leave out a model that is held"
    apply(state, HoldLift(HOLD, MODEL))
    apply(state, shred(state), **DUE)


def test_what_was_dropped_cannot_be_held(state: State) -> None:
    apply(state, Tombstone(MODEL, (FIRST,), 0, "x"), Drop(MODEL, (FIRST,)))
    assert void(state, hold(FIRST)) == "its checkpoint does not exist"


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_two_people_delete_what_has_descendants(state: State, kind: str) -> None:
    def deletion(plan: bytes = PLAN, descendants: bool = True) -> Payload:
        if kind == "model":
            return ModelDelete(MODEL, 0, "x", plan, descendants)
        return Tombstone(MODEL, (FIRST,), 0, "x", plan, descendants)

    lacking = "its plan needs the approval of another owner"
    apply(state, Policy({"delete_approval": "descendants"}))
    assert void(state, deletion()) == lacking
    apply(state, Approve(PLAN))
    assert void(state, deletion()) == lacking, "the same owner"
    assert void(state, Approve(PLAN)) == "its actor has approved the plan already"
    apply(state, Approve(PLAN), actor=RECOVERY)
    assert void(state, deletion()) == lacking, "whoever holds the root key can sign as the recovery identity"
    apply(state, Approve(PLAN), actor=PARTNER)
    assert void(state, deletion(b"q" * 32)) == lacking
    assert void(state, deletion(), actor=RECOVERY) == lacking
    apply(state, deletion())
    apply(state, ModelRestore(MODEL) if kind == "model" else Restore(MODEL, (FIRST,)))
    assert void(state, deletion()) == "its plan was carried out before"
    apply(state, deletion(b"", descendants=False))


def test_an_approval_goes_with_the_ownership(state: State) -> None:
    apply(state, Policy({"delete_approval": "descendants"}))
    apply(state, Approve(PLAN), actor=PARTNER)
    apply(state, MemberSet(PARTNER, ""))
    wanted = ModelDelete(MODEL, 0, "x", PLAN, True)
    assert void(state, wanted) == "its plan needs the approval of another owner"
    apply(state, Policy({"delete_approval": "off"}), wanted)


def test_the_setting_has_its_values(state: State) -> None:
    assert void(state, Policy({"delete_approval": "two"})) == "delete_approval has no such value"
