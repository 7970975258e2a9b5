"""The fold of collection and deletion: what each entry does, and every reason for which one is void."""

from typing import Any

import msgspec
import pytest

from cairn.core.ids import SessionId
from cairn.registry.entries import (
    Condemn,
    Floor,
    MergeIndex,
    ObjectRef,
    Payload,
    Quarantine,
    RefDelete,
    RefMove,
    Swept,
    Uncondemn,
    Verified,
)
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.fold import encode_state
from cairn.registry.state import Piece, State, object_key, pack_records
from tests.support.logs import MAIN, MODEL, OBJECT, SESSION, TAG, LogMaker, commit_entry, model_create, packs

LOG = LogMaker()
FIRST, SECOND, THIRD = b"1" * 32, b"2" * 32, b"3" * 32


def stray(number: int, kind: str = "pack") -> bytes:
    """Key of an object that no entry names."""
    return object_key(ObjectRef(b"d" * 16 + number.to_bytes(12, "big"), 1, bytes(32)), kind)


def own(number: int) -> ObjectRef:
    """An object of the session that commits here."""
    return ObjectRef(SESSION + number.to_bytes(12, "big"), 1, bytes(32))


@pytest.fixture
def state() -> State:
    """FIRST with packs 0..3, SECOND with packs 4 and 5 as the tip of main; FIRST has no ref."""
    return LOG.state(
        model_create(),
        commit_entry(FIRST, packs(1, 2, 3, 4), body=own(50)),
        commit_entry(SECOND, packs(5, 6), ref=moved(FIRST), body=own(51), pieces=(own(52),)),
    )


def moved(expected: bytes | None) -> Any:
    return commit_entry().ref.__class__(MAIN, b"sealed", expected)


def condemn(state: State, *numbers: int, objects: bytes = b"", **changes: Any) -> Condemn:
    payload = Condemn(
        sessions=(), epoch=0, hit_position=0, relied=(), packs=b"", pieces=(), marked=state.length,
        condemned=tuple((number, number) for number in numbers), objects=objects,
    )  # fmt: skip
    return msgspec.structs.replace(payload, **changes)


def apply(state: State, *payloads: Payload) -> None:
    for payload in payloads:
        assert LOG.apply(state, payload) is None


def void(state: State, payload: Payload, **changes: Any) -> str | None:
    """Why the payload is void, having made sure that then nothing changed."""
    before = encode_state(state)
    reason = LOG.apply(state, payload, **changes)
    state.length -= 1
    assert (encode_state(state) == before) == (reason is not None)
    return reason


# --- condemn, floor, swept ----------------------------------------------------------------------


def test_a_collection_from_condemnation_to_deletion(state: State) -> None:
    apply(state, condemn(state, 0, 2, objects=stray(1) + stray(2)))
    assert (state.epoch, state.condemned, state.condemned_objects) == (1, {0: 1, 2: 1}, {stray(1): 1, stray(2): 1})
    assert [state.in_force(number) for number in range(4)] == [False, True, False, True]
    assert void(state, Swept(((0, 0),), b"")) == "it names what was not condemned at or below the floor"
    apply(state, Floor(1))
    assert (state.floor, state.epochs) == (1, {1: 4})
    apply(state, Swept(((0, 0),), stray(2)))
    assert (state.condemned, state.condemned_objects, state.swept) == ({2: 1}, {stray(1): 1}, [(0, 0)])
    assert not state.in_force(0)


def test_a_piece_goes_with_the_last_pack_that_it_lists(state: State) -> None:
    apply(state, condemn(state, 4, 5), Floor(1), Swept(((4, 4),), b""))
    assert len(state.pieces) == 2
    apply(state, Swept(((5, 5),), b""))
    assert (state.pieces, state.swept) == ([Piece(OBJECT, 0, 4)], [(4, 5)])


def test_repacking_numbers_the_new_packs(state: State) -> None:
    repacked = condemn(
        state, 0, sessions=(SESSION,), packs=pack_records(packs(7)), pieces=(own(9),), hit_position=state.length - 1
    )
    apply(state, repacked)
    assert (state.pack_count, state.pieces[-1], state.condemned) == (7, Piece(own(9), 6, 1), {0: 1})


CONDEMNATIONS = {
    "marked": ({"marked": 3}, "something was made live since its marking"),
    "marked later": ({"marked": 99}, "something was made live since its marking"),
    "relied": ({"relied": ((0, 0),)}, "it relies on packs of others"),
    "ranges": ({"condemned": ((1, 0),)}, "it condemns packs that are not in force"),
    "too many": ({"condemned": ((0, 6),)}, "it condemns packs that are not in force"),
    "length": ({"objects": b"x" * 28}, "its objects are not listed properly"),
    "order": ({"objects": stray(2) + stray(1)}, "its objects are not listed properly"),
    "kind": ({"objects": stray(1)[:-1] + b"\x63"}, "its objects are not listed properly"),
    "needed": ({"objects": object_key(own(51), "body")}, "it condemns an object that is needed, or condemned already"),
    "a pack's": (
        {"objects": object_key(ObjectRef(packs(1)[0].key, 1, b""), "pack")},
        "it condemns an object that is needed, or condemned already",
    ),
    "piece": ({"pieces": (own(9),)}, "it has an index piece and no pack"),
    "session": (
        {"packs": pack_records(packs(7)), "pieces": (own(9),)},
        "it lists a pack of a session that it does not name",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), CONDEMNATIONS.values(), ids=CONDEMNATIONS)
def test_a_condemnation_is_void(state: State, changes: dict[str, Any], reason: str) -> None:
    assert void(state, condemn(state, **changes)) == reason


def test_nothing_is_condemned_twice(state: State) -> None:
    apply(state, condemn(state, 0, 1, objects=stray(1)), Floor(1), Swept(((1, 1),), b""))
    for number in (0, 1):
        reason = f"it condemns pack {number}, which is condemned or deleted already"
        assert void(state, condemn(state, number)) == reason
    again = condemn(state, objects=stray(1))
    assert void(state, again) == "it condemns an object that is needed, or condemned already"


def test_the_floor_rises_only_to_epochs_that_have_begun(state: State) -> None:
    assert void(state, Floor(1)) == "its epoch has not begun"
    apply(state, condemn(state, 0))
    apply(state, condemn(state, 1), Floor(2))
    assert void(state, Floor(3)) == "its epoch has not begun"
    apply(state, Floor(1))
    assert state.floor == 2


SWEEPS: dict[str, Payload] = {
    "above the floor": Swept(((1, 1),), b""),
    "not condemned": Swept(((2, 2),), b""),
    "object": Swept((), stray(5)),
    "order": Swept(((1, 1), (0, 0)), b""),
    "no list": Swept((), b"x"),
}


@pytest.mark.parametrize("payload", SWEEPS.values(), ids=SWEEPS)
def test_a_sweep_is_void(state: State, payload: Payload) -> None:
    apply(state, condemn(state, 0), Floor(1))
    apply(state, condemn(state, 1))
    assert void(state, payload) == "it names what was not condemned at or below the floor"


def test_what_is_condemned_above_the_floor_can_be_taken_back(state: State) -> None:
    apply(state, condemn(state, 0), Floor(1))
    apply(state, condemn(state, 1, objects=stray(1)))
    assert void(state, Uncondemn(((0, 0),), b"")) == "it names what is not condemned above the floor"
    apply(state, Uncondemn(((1, 1),), stray(1)))
    assert (state.condemned, state.condemned_objects) == ({0: 1}, {})
    assert void(state, condemn(state, 1, marked=state.length - 1)) == "something was made live since its marking"


# --- writers beside it --------------------------------------------------------------------------


def test_a_commit_takes_back_its_own_objects_while_the_floor_allows(state: State) -> None:
    late = packs(9)
    payload = commit_entry(THIRD, late, ref=moved(SECOND), body=own(60), pieces=(own(61),))
    keys = sorted([object_key(ObjectRef(late[0].key, 1, b""), "pack"), stray(1)])
    apply(state, condemn(state, objects=b"".join(keys)))
    apply(state, payload)
    assert state.condemned_objects == {stray(1): 1}


@pytest.mark.parametrize("kind", ["pack", "index", "body"])
def test_a_commit_is_void_once_its_objects_may_be_deleted(state: State, kind: str) -> None:
    late = packs(9)
    key = {
        "pack": object_key(ObjectRef(late[0].key, 1, b""), "pack"),
        "index": object_key(own(61), "index"),
        "body": object_key(own(60), "body"),
    }[kind]
    apply(state, condemn(state, objects=key), Floor(1))
    payload = commit_entry(
        THIRD, late, ref=moved(SECOND), body=own(60), pieces=(own(61),), epoch=1, hit_position=state.length - 1
    )
    assert void(state, payload) == f"its {kind} {key[:28].hex()} is condemned"


def test_nobody_relies_on_a_pack_that_is_deleted(state: State) -> None:
    apply(state, condemn(state, 0), Floor(1), Swept(((0, 0),), b""))
    payload = commit_entry(THIRD, ref=moved(SECOND), relied=((0, 1),), epoch=1, hit_position=state.length - 1)
    assert void(state, payload) == "it relies on pack 0, which is deleted"


# --- index --------------------------------------------------------------------------------------


def merge(state: State, **changes: Any) -> MergeIndex:
    return msgspec.structs.replace(MergeIndex((SESSION,), state.epoch, own(70), 0, 6), **changes)


def test_one_piece_takes_the_place_of_several(state: State) -> None:
    apply(state, merge(state))
    assert state.pieces == [Piece(own(70), 0, 6)]


def test_deleted_packs_between_pieces_may_be_listed(state: State) -> None:
    apply(state, condemn(state, 0, 1, 2, 3), Floor(1), Swept(((0, 3),), b""))
    apply(state, merge(state))
    assert state.pieces == [Piece(own(70), 0, 6)] and state.swept == [(0, 3)]


MERGES = {
    "nothing": ({"first": 0, "count": 0}, "it replaces no index piece"),
    "behind": ({"first": 6, "count": 1}, "it replaces no index piece"),
    "below": ({"first": -(1 << 20), "count": (1 << 20) + 6}, "it replaces no index piece"),
    "half": ({"first": 0, "count": 5}, "its packs are not those of the index pieces that it replaces"),
    "middle": ({"first": 1, "count": 5}, "its packs are not those of the index pieces that it replaces"),
    "beyond": ({"first": 0, "count": 7}, "its packs are not those of the index pieces that it replaces"),
    "session": ({"sessions": (SessionId(b"x" * 16),)}, "its index piece is of a session that it does not name"),
    "epoch": ({"epoch": 9}, "its epoch 9 is not within floor 0 and epoch 0"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), MERGES.values(), ids=MERGES)
def test_a_merge_is_void(state: State, changes: dict[str, Any], reason: str) -> None:
    assert void(state, merge(state, **changes)) == reason


def test_a_merge_is_void_once_its_piece_may_be_deleted(state: State) -> None:
    apply(state, condemn(state, objects=object_key(own(70), "index")), Floor(1))
    assert void(state, merge(state)) == f"its index {own(70).name.hex()} is condemned"


# --- deletion -----------------------------------------------------------------------------------


def test_a_checkpoint_is_deleted_restored_deleted_and_dropped(state: State) -> None:
    model = state.models[MODEL]
    held = model.checkpoints[FIRST]
    apply(state, Tombstone(MODEL, (FIRST,), 99, "retention"))
    gone = model.gone[FIRST]
    assert (gone.n, gone.due_at, gone.cause, gone.checkpoint) == (state.length - 1, 99, "retention", held)
    body = condemn(state, objects=object_key(own(50), "body"))
    assert void(state, body) == "it condemns an object that is needed, or condemned already", "it can be restored"
    apply(state, Restore(MODEL, (FIRST,)))
    assert model.checkpoints[FIRST] == held and not model.gone
    apply(state, Tombstone(MODEL, (FIRST,), 99, "deleted"), Drop(MODEL, (FIRST,)))
    assert (model.gone[FIRST].checkpoint, model.gone[FIRST].dropped_n) == (None, state.length - 1)
    apply(state, condemn(state, objects=object_key(own(50), "body")))
    assert void(state, Restore(MODEL, (FIRST,))) == "one of its checkpoints is not tombstoned"


def test_a_restored_checkpoint_voids_a_marking_from_before(state: State) -> None:
    apply(state, Tombstone(MODEL, (FIRST,), 0, "retention"))
    marked = condemn(state, 0)
    apply(state, Restore(MODEL, (FIRST,)))
    assert void(state, marked) == "something was made live since its marking"


def test_a_deleted_checkpoint_comes_back_by_a_commit_only_when_it_is_dropped(state: State) -> None:
    again = commit_entry(FIRST, ref=moved(SECOND), relied=((0, 3),), hit_position=2)
    apply(state, Tombstone(MODEL, (FIRST,), 0, "retention"))
    assert void(state, again) == "its checkpoint was deleted, and can be restored"
    apply(state, Drop(MODEL, (FIRST,)), again)
    assert FIRST in state.models[MODEL].checkpoints and not state.models[MODEL].gone


def test_a_history_goes_on_behind_a_deleted_checkpoint(state: State) -> None:
    apply(state, Tombstone(MODEL, (FIRST,), 0, "retention"), Drop(MODEL, (FIRST,)))
    new_ref = commit_entry(THIRD, ref=moved(None).__class__(b"other", b"sealed", None), parent=FIRST)
    apply(state, new_ref)
    assert state.models[MODEL].checkpoints[THIRD].parent == FIRST


UNKNOWN = b"x" * 16
DELETIONS: dict[str, tuple[Payload, str]] = {
    "no model": (Tombstone(UNKNOWN, (FIRST,), 0, ""), "its model does not exist"),
    "none": (Tombstone(MODEL, (), 0, ""), "its checkpoints are not listed properly"),
    "twice": (Tombstone(MODEL, (FIRST, FIRST), 0, ""), "its checkpoints are not listed properly"),
    "absent": (Tombstone(MODEL, (THIRD,), 0, ""), "one of its checkpoints does not exist"),
    "tip": (Tombstone(MODEL, (FIRST, SECOND), 0, ""), "a branch or tag names one of its checkpoints"),
    "restored": (Restore(MODEL, (FIRST,)), "one of its checkpoints is not tombstoned"),
    "restored in no model": (Restore(UNKNOWN, (FIRST,)), "its model does not exist"),
    "dropped": (Drop(MODEL, (FIRST,)), "one of its checkpoints is not tombstoned"),
    "nothing dropped": (Drop(MODEL, ()), "its checkpoints are not listed properly"),
    "verified in no model": (Verified(UNKNOWN, (FIRST,), "full"), "its model does not exist"),
    "verified somehow": (Verified(MODEL, (FIRST,), "well"), "its depth is none of those known"),
    "verified what is not there": (Verified(MODEL, (THIRD,), "full"), "one of its checkpoints does not exist"),
    "quarantine": (Quarantine(MODEL, THIRD), "its checkpoint does not exist"),
}


@pytest.mark.parametrize(("payload", "reason"), DELETIONS.values(), ids=DELETIONS)
def test_a_deletion_is_void(state: State, payload: Payload, reason: str) -> None:
    assert void(state, payload) == reason


def test_a_tag_keeps_its_checkpoint(state: State) -> None:
    apply(state, RefMove(MODEL, TAG, "tag", b"sealed", None, FIRST))
    tombstone = Tombstone(MODEL, (FIRST,), 0, "retention")
    assert void(state, tombstone) == "a branch or tag names one of its checkpoints"
    apply(state, RefDelete(MODEL, TAG, FIRST), tombstone)
    assert void(state, RefMove(MODEL, TAG, "tag", b"", None, FIRST)) == "its checkpoint is not one of this model"


def test_checkpoints_are_marked_as_verified_and_quarantined(state: State) -> None:
    apply(state, Verified(MODEL, (FIRST, SECOND), "full"), Quarantine(MODEL, FIRST))
    checkpoints = state.models[MODEL].checkpoints
    assert [checkpoints[one].verified for one in (FIRST, SECOND)] == ["full", "full"]
    assert [checkpoints[one].quarantined for one in (FIRST, SECOND)] == [True, False]
