"""The fold: what each entry does, and every reason for which one is void and changes nothing."""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cairn.core.canonical import decode, encode
from cairn.registry import fold, fold_collection, fold_deletion, fold_uploads
from cairn.registry.entries import Abort, ObjectRef, Payload, RefChange, RefDelete, RefMove, RootRef, RunOpen, Supply
from cairn.registry.fold import decode_state, encode_state
from cairn.registry.state import Checkpoint, Piece, Ref, State
from cairn.store.index import PackRef
from tests.support.logs import (
    MAIN,
    MODEL,
    OBJECT,
    OTHER_MODEL,
    RECOVERY,
    TAG,
    LogMaker,
    commit_entry,
    model_create,
    packs,
)

LOG = LogMaker()
FIRST, SECOND = b"1" * 32, b"2" * 32


def moved(expected: bytes | None, tag: bytes = MAIN) -> RefChange:
    return RefChange(tag, b"sealed", expected)


@pytest.fixture
def state() -> State:
    """Two models; one has a checkpoint on main with packs 0..3, and a tag."""
    return LOG.state(
        model_create(),
        model_create(OTHER_MODEL, b"other"),
        commit_entry(FIRST, packs(1, 2, 3, 4)),
        RefMove(MODEL, TAG, "tag", b"sealed", None, FIRST),
    )


def void(state: State, payload: Payload, **changes: Any) -> str | None:
    """Why the payload is void, having made sure that then nothing changed."""
    before = encode_state(state)
    reason = LOG.apply(state, payload, **changes)
    state.length -= 1
    assert (encode_state(state) == before) == (reason is not None)
    return reason


# --- What is valid ----------------------------------------------------------------------------


def test_init_names_the_owner_and_the_settings() -> None:
    state = LOG.state()
    assert state.owners == [LOG.owner.actor, RECOVERY]
    assert (state.heartbeat_seconds, state.silence_seconds) == (30.0, 900.0)


def test_a_commit_numbers_its_packs_and_moves_its_branch(state: State) -> None:
    payload = commit_entry(SECOND, packs(5, 6), relied=((0, 1), (3, 3)), ref=moved(FIRST), meta=b"meta")
    assert LOG.apply(state, payload) is None
    assert [state.pack(number) for number in range(state.pack_count)] == packs(1, 2, 3, 4, 5, 6)
    assert state.pieces == [Piece(OBJECT, 0, 4), Piece(OBJECT, 4, 2)]
    model = state.models[MODEL]
    assert model.refs[MAIN] == Ref("branch", b"sealed", SECOND)
    assert model.checkpoints[SECOND] == Checkpoint(5, 7, LOG.owner.actor, FIRST, OBJECT, (), OBJECT, b"meta")


def test_a_commit_may_need_no_pack_at_all(state: State) -> None:
    assert void(state, commit_entry(SECOND, relied=((0, 3),), ref=moved(None, b"new branch"))) is None


def test_a_commit_takes_back_what_was_condemned_above_the_floor(state: State) -> None:
    state.epoch, state.epochs, state.floor, state.condemned = 7, {5: 0, 6: 1, 7: 2}, 5, {1: 6, 2: 7}
    payload = commit_entry(SECOND, epoch=6, hit_position=2, relied=((1, 1),), ref=moved(FIRST))
    assert LOG.apply(state, payload) is None
    assert state.condemned == {2: 7}


def test_refs_are_made_moved_and_deleted(state: State) -> None:
    assert LOG.apply(state, RefMove(MODEL, b"b", "branch", b"x", None, FIRST)) is None
    assert LOG.apply(state, commit_entry(SECOND, ref=moved(FIRST, b"b"))) is None
    assert LOG.apply(state, RefMove(MODEL, b"b", "branch", b"y", SECOND, FIRST)) is None
    assert state.models[MODEL].refs[b"b"] == Ref("branch", b"y", FIRST)
    assert LOG.apply(state, RefDelete(MODEL, b"b", FIRST)) is None
    assert set(state.models[MODEL].refs) == {MAIN, TAG}
    assert set(state.models[MODEL].checkpoints) == {FIRST, SECOND}


def test_one_tag_in_two_models_is_two_refs(state: State) -> None:
    commit = commit_entry(SECOND, model=OTHER_MODEL)
    assert LOG.apply(state, commit) is None
    assert state.models[MODEL].refs[MAIN].checkpoint == FIRST


def test_abort_does_nothing(state: State) -> None:
    before = encode_state(state)
    assert LOG.apply(state, Abort()) is None
    state.length -= 1
    assert encode_state(state) == before


def test_a_state_survives_the_cache(state: State) -> None:
    assert decode_state(encode_state(state)) == state
    copy = state.copy()
    copy.models[MODEL].refs.clear()
    copy.owners.clear()
    assert state.models[MODEL].refs and state.owners


# --- What is void -----------------------------------------------------------------------------


def test_the_first_entry_is_an_init_entry_and_no_other_is(state: State) -> None:
    assert void(State(), model_create(), n=0) == "entry 0, and no other, is an init entry"
    assert void(state, LOG.init()) == "entry 0, and no other, is an init entry"


def test_the_first_owner_signs_the_init_entry() -> None:
    assert void(State(), LOG.init(owner=LOG.stranger.actor)) == "the first owner signs the init entry"


def test_a_stranger_changes_nothing(state: State) -> None:
    payloads = [
        model_create(b"x" * 16, b"x"), commit_entry(SECOND, ref=moved(FIRST)), Abort(), RefDelete(MODEL, TAG, FIRST),
        RefMove(MODEL, b"x", "tag", b"", None, FIRST),
    ]  # fmt: skip
    for payload in payloads:
        assert void(state, payload, actor=LOG.stranger.actor) == "its actor has no right to write"


def test_models_have_distinct_ids_and_names(state: State) -> None:
    assert void(state, model_create(MODEL, b"x")) == "a model with this id exists"
    assert (
        void(state, model_create(b"x" * 16, b"name"))
        == "a model with this name exists, or was deleted and can be restored"
    )


COMMITS = {
    "no model": (commit_entry(SECOND, model=b"x" * 16), "its model does not exist"),
    "known checkpoint": (commit_entry(FIRST, ref=moved(FIRST)), "its checkpoint exists already"),
    "another's checkpoint": (commit_entry(FIRST, model=OTHER_MODEL), "its checkpoint exists already"),
    "branch moved": (commit_entry(SECOND, ref=moved(None)), "its ref was moved meanwhile"),
    "branch elsewhere": (commit_entry(SECOND, ref=moved(SECOND)), "its ref was moved meanwhile"),
    "branch gone": (commit_entry(SECOND, ref=moved(FIRST, b"x")), "its ref was moved meanwhile"),
    "a tag's name": (commit_entry(SECOND, ref=moved(FIRST, TAG)), "the name is taken by a tag"),
}


@pytest.mark.parametrize(("payload", "reason"), COMMITS.values(), ids=COMMITS)
def test_a_commit_is_void(state: State, payload: Payload, reason: str) -> None:
    assert void(state, payload) == reason


@pytest.mark.parametrize(
    ("epoch", "hit_position", "reason"),
    [
        (4, 4, "its epoch 4 is not within floor 5 and epoch 7"),
        (8, 4, "its epoch 8 is not within floor 5 and epoch 7"),
        (-1, 4, "its epoch -1 is not within floor 5 and epoch 7"),
        (7, 3, "its hits are not good for its epoch"),  # before the entry that set the epoch
        (7, -1, "its hits are not good for its epoch"),
        (7, 5, "its hits are not good for its epoch"),  # the entry's own position
        (6, 99, "its hits are not good for its epoch"),
        (7, 4, None),
        (6, 0, None),
        (5, 4, None),
    ],
)
def test_epochs_and_hits(state: State, epoch: int, hit_position: int, reason: str | None) -> None:
    state.epoch, state.epochs, state.floor = 7, {5: 0, 6: 0, 7: 4}, 5
    assert void(state, commit_entry(SECOND, epoch=epoch, hit_position=hit_position, ref=moved(FIRST))) == reason


@pytest.mark.parametrize(
    "relied",
    [
        ((4, 4),),
        ((0, 4),),
        ((-1, 0),),
        ((2, 1),),
        ((2, 2), (1, 1)),
        ((0, 2), (2, 3)),
        ((1, 1), (1, 1)),
        ((0, 1 << 62),),
    ],
    ids=str,
)
def test_packs_relied_on_are_in_force_and_in_order(state: State, relied: tuple[tuple[int, int], ...]) -> None:
    payload = commit_entry(SECOND, relied=relied, ref=moved(FIRST))
    assert void(state, payload) == "it relies on packs that are not in force"


@pytest.mark.parametrize("epoch_of_condemnation", [1, 5])
def test_packs_condemned_at_or_below_the_floor_are_gone(state: State, epoch_of_condemnation: int) -> None:
    state.epoch, state.floor, state.condemned = 6, 5, {2: epoch_of_condemnation}
    payload = commit_entry(SECOND, epoch=6, relied=((0, 3),), ref=moved(FIRST))
    assert void(state, payload) == "it relies on pack 2, which is condemned"
    assert void(state, commit_entry(SECOND, epoch=6, relied=((0, 1), (3, 3)), ref=moved(FIRST))) is None


OWN = {
    "half a record": ({"packs": bytes(35), "pieces": (OBJECT,)}, "its packs are not listed properly"),
    "one twice": ({"own": [*packs(7), *packs(7)]}, "its packs are not listed properly"),
    "no piece": ({"own": packs(7), "pieces": ()}, "it has packs and no index piece, or the other way round"),
    "no pack": ({"pieces": (OBJECT,)}, "it has packs and no index piece, or the other way round"),
    "foreign session": (
        {"own": packs(7, session=b"x" * 16)}, "it lists a pack of a session that it does not name",
    ),
    "no session": ({"own": packs(7), "sessions": ()}, "it lists a pack of a session that it does not name"),
    "numbered already": ({"own": packs(7, 4)}, "it lists a pack that is numbered already"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), OWN.values(), ids=OWN)
def test_own_packs(state: State, changes: dict[str, Any], reason: str) -> None:
    assert void(state, commit_entry(SECOND, ref=moved(FIRST), **changes)) == reason


def test_the_same_random_name_in_another_session_is_another_pack(state: State) -> None:
    other = packs(1, session=b"x" * 16)
    assert void(state, commit_entry(SECOND, other, sessions=(b"x" * 16,), ref=moved(FIRST))) is None


REFS = {
    "no model": (RefMove(b"x" * 16, b"b", "tag", b"", None, FIRST), "its model does not exist"),
    "neither": (RefMove(MODEL, b"b", "bookmark", b"", None, FIRST), "it is neither a branch nor a tag"),
    "no checkpoint": (RefMove(MODEL, b"b", "tag", b"", None, SECOND), "its checkpoint is not one of this model"),
    "another's": (RefMove(OTHER_MODEL, b"b", "tag", b"", None, FIRST), "its checkpoint is not one of this model"),
    "exists": (RefMove(MODEL, TAG, "tag", b"", None, FIRST), "its ref was moved meanwhile"),
    "is absent": (RefMove(MODEL, b"b", "tag", b"", FIRST, FIRST), "its ref was moved meanwhile"),
    "is a branch": (RefMove(MODEL, MAIN, "tag", b"", FIRST, FIRST), "the name is taken by a branch"),
    "is a tag": (RefMove(MODEL, TAG, "branch", b"", FIRST, FIRST), "the name is taken by a tag"),
    "delete: no model": (RefDelete(b"x" * 16, TAG, FIRST), "its ref does not exist"),
    "delete: absent": (RefDelete(MODEL, b"b", FIRST), "its ref does not exist"),
    "delete: moved": (RefDelete(MODEL, TAG, SECOND), "its ref was moved meanwhile"),
}


@pytest.mark.parametrize(("payload", "reason"), REFS.values(), ids=REFS)
def test_a_change_of_refs_is_void(state: State, payload: Payload, reason: str) -> None:
    assert void(state, payload) == reason


def test_a_commit_may_make_a_tag_of_a_known_kind(state: State) -> None:
    change = msgspec.structs.replace(moved(None, b"v2"), kind="tag")
    assert void(state, commit_entry(SECOND, ref=msgspec.structs.replace(change, kind="bookmark"))) == REFS["neither"][1]
    assert void(state, commit_entry(SECOND, ref=msgspec.structs.replace(moved(FIRST), kind="tag"))) == (
        "the name is taken by a branch"
    )
    assert LOG.apply(state, commit_entry(SECOND, ref=change)) is None
    assert state.models[MODEL].refs[b"v2"].kind == "tag"


def test_a_new_branch_may_go_on_from_a_checkpoint(state: State) -> None:
    unknown = commit_entry(SECOND, ref=moved(None, b"new"), parent=b"9" * 32)
    assert void(state, unknown) == "its parent is not one of this model"
    assert LOG.apply(state, commit_entry(SECOND, ref=moved(None, b"new"), parent=FIRST)) is None
    assert state.models[MODEL].checkpoints[SECOND].parent == FIRST


# --- Supplies ---------------------------------------------------------------------------------


def supply(checkpoint: bytes = FIRST, own: Sequence[PackRef] = (), **changes: Any) -> Supply:
    fields = msgspec.structs.asdict(commit_entry(checkpoint, own, **changes))
    names = set(Supply.__struct_fields__) - {"body", "roots", "envelope"}
    return Supply(**{name: fields[name] for name in names})


def test_a_supply_adds_packs_and_replaces_the_list(state: State) -> None:
    other = ObjectRef(OBJECT.name, 5, b"h" * 32)
    payload = msgspec.structs.replace(supply(own=packs(8), relied=((1, 1),)), reachability=other, partial=True)
    before = state.models[MODEL].checkpoints[FIRST]
    assert LOG.apply(state, payload) is None
    assert state.pack(state.pack_count - 1) == packs(8)[0]
    after = state.models[MODEL].checkpoints[FIRST]
    assert after == msgspec.structs.replace(before, reachability=other, partial=True)
    assert state.models[MODEL].refs[MAIN].checkpoint == FIRST


def test_a_supply_replaces_what_was_lost_by_the_same_and_by_nothing_else(state: State) -> None:
    wrong = "its roots or its envelope are not the checkpoint's"
    elsewhere = ObjectRef(OBJECT.name[:16] + b"\x77" * 12, OBJECT.size, OBJECT.hash)
    changed = msgspec.structs.replace(elsewhere, hash=b"other hash".ljust(32))
    held = msgspec.structs.replace(
        state.models[MODEL].checkpoints[FIRST], roots=(RootRef(1, 0, OBJECT), RootRef(2, 0, OBJECT)), envelope=OBJECT
    )
    state.models[MODEL].checkpoints[FIRST] = held
    for bad in (
        {"roots": (RootRef(1, 0, changed),)},
        {"roots": (RootRef(1, 1, elsewhere),)},
        {"roots": (RootRef(3, 0, elsewhere),)},
        {"envelope": changed},
    ):
        assert void(state, msgspec.structs.replace(supply(), **bad)) == wrong
    payload = msgspec.structs.replace(supply(), body=changed, roots=(RootRef(2, 0, elsewhere),), envelope=elsewhere)
    assert LOG.apply(state, payload) is None
    after = state.models[MODEL].checkpoints[FIRST]
    assert after.roots == (RootRef(1, 0, OBJECT), RootRef(2, 0, elsewhere))
    assert (after.body, after.envelope, after.reachability) == (changed, elsewhere, OBJECT)
    state.models[MODEL].checkpoints[FIRST] = msgspec.structs.replace(held, envelope=None)
    assert void(state, msgspec.structs.replace(supply(), envelope=elsewhere)) == wrong


def test_a_supply_obeys_the_commit_rule(state: State) -> None:
    assert void(state, supply(SECOND)) == "its checkpoint does not exist"
    assert void(state, supply(own=packs(7, 4))) == "it lists a pack that is numbered already"
    assert void(state, supply(relied=((0, 9),))) == "it relies on packs that are not in force"
    assert void(state, supply(epoch=3)) == "its epoch 3 is not within floor 0 and epoch 0"
    state.epoch, state.epochs, state.floor, state.condemned = 7, {5: 0, 6: 1, 7: 2}, 5, {1: 6, 2: 7}
    assert LOG.apply(state, supply(epoch=6, hit_position=2, relied=((1, 1),))) is None
    assert state.condemned == {2: 7}


# --- Runs -------------------------------------------------------------------------------------


def test_a_run_takes_over_its_branch(state: State) -> None:
    assert LOG.apply(state, RunOpen(MODEL, MAIN, 1)) is None
    assert LOG.apply(state, commit_entry(SECOND, ref=moved(FIRST), run_epoch=1)) is None
    assert LOG.apply(state, RunOpen(MODEL, MAIN, 2)) is None
    zombie = commit_entry(b"3" * 32, ref=moved(SECOND), run_epoch=1)
    assert void(state, zombie) == "its run epoch 1 was superseded: another run has taken over the branch"
    elsewhere = commit_entry(b"3" * 32, ref=moved(None, b"branch"), run_epoch=2)
    assert void(state, elsewhere) == "its run epoch 2 was superseded: another run has taken over the branch"
    assert LOG.apply(state, commit_entry(b"3" * 32, ref=moved(SECOND), run_epoch=2)) is None
    assert LOG.apply(state, commit_entry(b"4" * 32, ref=moved(b"3" * 32))) is None, "a commit by hand names no run"


RUNS = {
    "model": (RunOpen(b"x" * 16, MAIN, 1), "its model does not exist"),
    "skipped": (RunOpen(MODEL, MAIN, 2), "its run epoch is not the next one"),
    "repeated": (RunOpen(MODEL, MAIN, 0), "its run epoch is not the next one"),
}


@pytest.mark.parametrize(("payload", "reason"), RUNS.values(), ids=RUNS)
def test_a_run_is_void(state: State, payload: Payload, reason: str) -> None:
    assert void(state, payload) == reason


def test_every_reason_in_the_code_has_a_test() -> None:
    sources = [Path(module.__file__ or "") for module in (fold, fold_collection, fold_deletion, fold_uploads)]
    trees = [ast.parse(source.read_text()) for source in sources]
    returned = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Return)]
    reasons = {one.value for one in returned if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert len(reasons) >= 15
    assert [reason for reason in sorted(reasons) if reason not in tests] == []


def test_unknown_fields_of_a_payload_change_nothing(state: State) -> None:
    payload = commit_entry(SECOND, ref=moved(FIRST))
    newer = {**msgspec.msgpack.decode(encode(payload)), "zz_new": [1, 2]}
    assert decode(encode(newer), type(payload), "payload") == payload
    assert void(state, payload) is None
