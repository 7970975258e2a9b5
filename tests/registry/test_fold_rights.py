"""Rights in the fold: who may write what, and every reason for which an entry about rights or keys is void."""

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cairn.registry import fold_rights
from cairn.registry.entries import (
    Abort,
    Condemn,
    Floor,
    MergeIndex,
    Payload,
    Quarantine,
    RefDelete,
    RefMove,
    RootRef,
    RunOpen,
    Supply,
    Swept,
    Uncondemn,
    Verified,
)
from cairn.registry.entries_audit import Policy, Reads
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.entries_rights import ComponentPublic, Given, GrantSet, KeyRotate, MemberSet, PersonSet, RootRotate
from cairn.registry.fold import encode_state
from cairn.registry.rights import Role
from cairn.registry.state import State
from tests.support.logs import MAIN, MODEL, OBJECT, OTHER_MODEL, RECOVERY, LogMaker, commit_entry, model_create

LOG = LogMaker()
FIRST, SECOND = b"1" * 32, b"2" * 32
WEIGHTS, OPTIMIZER = 1, 2
ACTORS = {role: bytes([65 + number]) * 32 for number, role in enumerate(Role)}
STRANGER = b"?" * 32
KEYS = tuple(ComponentPublic(component, 0, bytes([component]) * 32) for component in range(3))


def member(actor: bytes, role: str, generation: int = 1, **changes: Any) -> MemberSet:
    payload = MemberSet(actor, role, b"x" * 32, generation, b"h" * 32)
    return msgspec.structs.replace(payload, **changes)


def grant(role: Role, model: bytes = MODEL, reads: tuple[int, ...] = (WEIGHTS,), write: bool = False) -> GrantSet:
    wraps = (Given(model, f"keys/grant/{role}"),) if model and reads else ()
    return GrantSet(ACTORS[role], model, reads, write, wraps)


@pytest.fixture
def state() -> State:
    """Two models and one member of each role; the first model has a checkpoint and a writer."""
    return LOG.state(
        msgspec.structs.replace(model_create(), keys=KEYS),
        model_create(OTHER_MODEL, b"other"),
        commit_entry(FIRST),
        *(member(actor, role) for role, actor in ACTORS.items()),
        grant(Role.WRITER, write=True),
        grant(Role.READER),
    )


def void(state: State, payload: Payload, **changes: Any) -> str | None:
    """Why the payload is void, having made sure that then nothing changed."""
    before = encode_state(state)
    reason = LOG.apply(state, payload, **changes)
    state.length -= 1
    assert (encode_state(state) == before) == (reason is not None)
    return reason


# --- Who may write ------------------------------------------------------------------------------

COMMIT = commit_entry(SECOND, ref=msgspec.structs.replace(commit_entry().ref, expected=FIRST))
WRITES: list[Payload] = [
    COMMIT,
    Supply(
        model=MODEL, checkpoint=FIRST, sessions=(), epoch=0, hit_position=0, relied=(), packs=b"", pieces=(),
        reachability=OBJECT,
    ),
    RunOpen(MODEL, MAIN, 1),
    RefMove(MODEL, b"new", "tag", b"sealed", None, FIRST),
    RefDelete(MODEL, MAIN, FIRST),
]  # fmt: skip
COLLECTS: list[Payload] = [
    Condemn(
        marked=100, condemned=(), objects=b"", sessions=(), epoch=0, hit_position=0, relied=(), packs=b"", pieces=()
    ),
    Floor(0),
    Swept((), b""),
    Uncondemn((), b""),
    MergeIndex((), 0, OBJECT, 0, 1),
    Verified(MODEL, (FIRST,), "full"),
    Drop(MODEL, (FIRST,)),
    Reads((b"x",)),
]
OWNS: list[Payload] = [
    model_create(b"q" * 16, b"another"),
    Tombstone(MODEL, (FIRST,), 0, "deleted"),
    Restore(MODEL, (FIRST,)),
    Quarantine(MODEL, FIRST),
    Policy({"audit_reads": "off"}),
    member(STRANGER, "owner"),
    GrantSet(ACTORS[Role.READER], MODEL, (OPTIMIZER,), False, (Given(MODEL, "w"),)),
    KeyRotate(MODEL, (), "w"),
    RootRotate(1, ()),
]


@pytest.mark.parametrize("payload", [*WRITES, *COLLECTS, *OWNS, Abort()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("role", [*Role, None])
def test_each_role_may_write_its_own_entries_and_no_others(state: State, role: Role | None, payload: Payload) -> None:
    allowed = {
        Role.OWNER: [*WRITES, *COLLECTS, *OWNS, Abort()],
        Role.WRITER: [*WRITES, Abort()],
        Role.COLLECTOR: [*COLLECTS, Abort()],
    }
    reason = LOG.apply(state, payload, actor=ACTORS[role] if role else STRANGER)
    refused = reason is not None and reason.startswith("its actor")
    assert refused == (payload not in allowed.get(role, [])), reason  # type: ignore[call-overload]  # None is no role


@pytest.mark.parametrize("payload", WRITES, ids=lambda one: type(one).__name__)
def test_a_writer_writes_to_granted_models_only(state: State, payload: Payload) -> None:
    assert void(state, payload, actor=ACTORS[Role.WRITER]) is None
    elsewhere = msgspec.structs.replace(payload, model=OTHER_MODEL)  # type: ignore[type-var]  # all have one
    reason = void(state, elsewhere, actor=ACTORS[Role.WRITER])
    assert reason == f"its actor was not granted to write to model {OTHER_MODEL.hex()}"
    assert LOG.apply(state, GrantSet(ACTORS[Role.WRITER], b"", (), True)) is None
    assert "granted" not in (void(state, elsewhere, actor=ACTORS[Role.WRITER]) or "")


def test_what_a_role_does_not_admit_is_said(state: State) -> None:
    assert (
        void(state, COLLECTS[0], actor=ACTORS[Role.WRITER]) == "its actor is a writer, who may not write such an entry"
    )


def test_a_collector_drops_what_is_due_and_nothing_before(state: State) -> None:
    assert LOG.apply(state, RefDelete(MODEL, MAIN, FIRST)) is None
    assert LOG.apply(state, Tombstone(MODEL, (FIRST,), 1000, "deleted")) is None
    drop = Drop(MODEL, (FIRST,))
    early = void(state, drop, actor=ACTORS[Role.COLLECTOR], claimed_at=999)
    assert early == "its actor is a collector, and a checkpoint of it can still be restored"
    assert void(state, drop, actor=ACTORS[Role.COLLECTOR], claimed_at=1000) is None


def test_former_members_may_write_nothing(state: State) -> None:
    for role, actor in ACTORS.items():
        assert LOG.apply(state, member(actor, "")) is None
        assert void(state, COMMIT, actor=actor) == "its actor has no right to write", role
    assert state.owners == [LOG.owner.actor, RECOVERY]


def test_an_entry_of_a_reader_vouches_for_nothing() -> None:
    """As a stranger's, it does not count where the log is judged."""
    log = LogMaker()
    log.add(log.init())
    log.add(MemberSet(log.stranger.actor, "reader", b"x" * 32, 1, b"h" * 32))
    log.add(Abort(), by=log.stranger)
    log.add(Abort(), by=log.stranger, root=bytes(32))
    replay = log.replay()
    state = replay.current()
    assert (replay.vouched, state.damaged_from) == (1, None)
    assert [void.reason for void in state.voids] == ["its actor has no right to write"] * 2


# --- Members ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (member(STRANGER, "king"), "it names a role that does not exist"),
        (member(STRANGER, "reader", agreement=b"x"), "it lacks the member's key or the hash of its wrap"),
        (member(STRANGER, "reader", hash=b"h"), "it lacks the member's key or the hash of its wrap"),
        (member(STRANGER, "reader", 0), "its wrap is not of a new generation"),
        (member(ACTORS[Role.READER], "writer", 1), "its wrap is not of a new generation"),
        (member(STRANGER, ""), "it ends the membership of somebody who is no member"),
        (member(RECOVERY, ""), "the recovery identity is an owner for good"),
        (member(RECOVERY, "reader"), "the recovery identity is an owner for good"),
    ],
)
def test_a_membership_is_void(state: State, payload: MemberSet, reason: str) -> None:
    assert void(state, payload) == reason


def test_a_wrap_is_of_a_new_generation_after_a_membership_has_ended(state: State) -> None:
    actor = ACTORS[Role.READER]
    assert LOG.apply(state, member(actor, "", 0)) is None
    assert void(state, member(actor, "reader", 1)) == "its wrap is not of a new generation"
    assert void(state, member(actor, "reader", 2)) is None
    assert state.members[actor].grants == {}


def test_a_change_of_role_keeps_what_it_may_keep(state: State) -> None:
    actor = ACTORS[Role.WRITER]
    assert LOG.apply(state, member(actor, "reader", 2)) is None
    (kept,) = state.members[actor].grants.values()
    assert (kept.reads, kept.write) == ((WEIGHTS,), False)
    assert actor in state.models[MODEL].readers and state.models[MODEL].exposed == []
    assert LOG.apply(state, member(actor, "collector", 3)) is None
    assert actor not in state.models[MODEL].readers and state.models[MODEL].exposed == [0, WEIGHTS]


def test_who_becomes_an_owner_exposes_nothing_and_who_ceases_to_be_exposes_all(state: State) -> None:
    actor = ACTORS[Role.READER]
    assert LOG.apply(state, member(actor, "owner", 2)) is None
    assert (state.models[MODEL].exposed, state.root_exposed) == ([], False)
    assert LOG.apply(state, member(actor, "reader", 3)) is None
    assert (state.models[MODEL].exposed, state.root_exposed) == ([0, 1, 2], True)
    assert LOG.apply(state, member(LOG.owner.actor, "")) is None
    assert LOG.owner.actor not in state.owners and RECOVERY in state.owners


# --- Grants -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (grant(Role.AUDITOR), "grants are for readers and writers"),
        (msgspec.structs.replace(grant(Role.READER), member=STRANGER), "grants are for readers and writers"),
        (grant(Role.READER, b"z" * 16), "its model does not exist"),
        (grant(Role.READER, write=True), "a reader cannot be granted to write"),
        (grant(Role.READER, reads=(2, 1)), "its components are not ascending"),
        (
            GrantSet(ACTORS[Role.READER], MODEL, (WEIGHTS, OPTIMIZER), False),
            "its wraps are not those of the models that are new to the member",
        ),
        (
            GrantSet(ACTORS[Role.READER], b"", (WEIGHTS,), False, (Given(MODEL, "w"),)),
            "its wraps are not those of the models that are new to the member",
        ),
        (
            GrantSet(ACTORS[Role.READER], MODEL, (WEIGHTS,), False, (Given(OTHER_MODEL, "w"),)),
            "its wraps are not those of the models that are new to the member",
        ),
    ],
)
def test_a_grant_is_void(state: State, payload: GrantSet, reason: str) -> None:
    assert void(state, payload) == reason


def test_what_is_taken_back_is_exposed(state: State) -> None:
    actor = ACTORS[Role.READER]
    wider = GrantSet(actor, MODEL, (WEIGHTS, OPTIMIZER), False, (Given(MODEL, "wider"),))
    assert LOG.apply(state, wider) is None
    assert state.models[MODEL].readers[actor] == "wider" and state.models[MODEL].exposed == []
    assert LOG.apply(state, GrantSet(actor, MODEL, (WEIGHTS,), False)) is None
    assert state.models[MODEL].readers[actor] == "wider" and state.models[MODEL].exposed == [OPTIMIZER]
    assert LOG.apply(state, GrantSet(actor, MODEL, (), False)) is None
    assert actor not in state.models[MODEL].readers and state.models[MODEL].exposed == [0, WEIGHTS, OPTIMIZER]


def test_what_is_held_by_two_grants_is_not_exposed_by_the_loss_of_one(state: State) -> None:
    actor = ACTORS[Role.READER]
    everything = GrantSet(actor, b"", (WEIGHTS,), False, (Given(OTHER_MODEL, "w"),))
    assert LOG.apply(state, everything) is None
    assert LOG.apply(state, GrantSet(actor, MODEL, (), False)) is None
    assert actor in state.models[MODEL].readers and state.models[MODEL].exposed == []
    assert LOG.apply(state, GrantSet(actor, b"", (), False)) is None
    assert state.models[MODEL].exposed == [0, WEIGHTS] == state.models[OTHER_MODEL].exposed


def test_a_new_model_gives_its_keys_to_whoever_may_read_all(state: State) -> None:
    actor, new = ACTORS[Role.READER], model_create(b"q" * 16, b"another")
    everything = GrantSet(actor, b"", (WEIGHTS,), False, (Given(OTHER_MODEL, "w"),))
    assert LOG.apply(state, everything) is None
    assert void(state, new) == "its wraps leave out a reader"
    assert void(state, msgspec.structs.replace(new, wraps=(Given(STRANGER, "w"),))) == "its wraps leave out a reader"
    assert LOG.apply(state, msgspec.structs.replace(new, wraps=(Given(actor, "w"),))) is None
    assert state.models[b"q" * 16].readers == {actor: "w"}


# --- Keys ---------------------------------------------------------------------------------------


def rotation(*keys: tuple[int, int], **changes: Any) -> KeyRotate:
    wraps = (Given(ACTORS[Role.READER], "r"), Given(ACTORS[Role.WRITER], "w"))
    publics = tuple(ComponentPublic(component, generation, b"p" * 32) for component, generation in keys)
    return msgspec.structs.replace(KeyRotate(MODEL, publics, "wrap", wraps), **changes)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (rotation((1, 1), model=b"z" * 16), "its model does not exist"),
        (rotation((1, 0)), "its keys are not of a new generation"),
        (rotation((1, 2), (1, 1)), "its keys are not of a new generation"),
        (rotation((1, 1), wraps=()), "its wraps leave out a reader"),
        (rotation((1, 1), wraps=(Given(ACTORS[Role.READER], "r"),) * 2), "its wraps leave out a reader"),
    ],
)
def test_a_rotation_of_keys_is_void(state: State, payload: KeyRotate, reason: str) -> None:
    assert void(state, payload) == reason


def test_a_commit_to_retired_keys_is_void_unless_it_is_carried_over(state: State) -> None:
    def sealed(generation: int, component: int = WEIGHTS, **changes: Any) -> Payload:
        return msgspec.structs.replace(COMMIT, roots=(RootRef(component, generation, OBJECT),), **changes)

    assert void(state, sealed(1)) == "its component 1 is sealed to key generation 1, which is retired"
    assert LOG.apply(state, rotation((WEIGHTS, 1), (OPTIMIZER, 1))) is None
    assert void(state, sealed(0)) == "its component 1 is sealed to key generation 0, which is retired"
    unknown = void(state, sealed(2, carried=True))
    assert unknown == "its component 1 is sealed to a key that its model does not have"
    assert void(state, sealed(1)) is None


def test_an_old_checkpoint_may_be_carried_over(state: State) -> None:
    assert LOG.apply(state, rotation((WEIGHTS, 1))) is None
    old = msgspec.structs.replace(COMMIT, roots=(RootRef(WEIGHTS, 0, OBJECT),), carried=True)
    assert void(state, old) is None


def test_a_rotation_ends_what_was_exposed_and_gives_new_wraps(state: State) -> None:
    assert LOG.apply(state, GrantSet(ACTORS[Role.READER], MODEL, (), False)) is None
    wraps = (Given(ACTORS[Role.WRITER], "w"),)
    assert LOG.apply(state, rotation((0, 1), wraps=wraps)) is None
    assert state.models[MODEL].exposed == [WEIGHTS]
    assert LOG.apply(state, rotation((WEIGHTS, 1), wraps=wraps)) is None
    held = state.models[MODEL]
    assert (held.exposed, held.readers, held.wrap) == ([], dict(wraps), "wrap")
    assert {key.component: key.generation for key in held.newest_keys().values()} == {0: 1, 1: 1, 2: 0}
    assert len(held.keys) == 5


def root(**changes: Any) -> RootRotate:
    owners = (member(ACTORS[Role.OWNER], "owner", 2),)
    return msgspec.structs.replace(RootRotate(1, (Given(MODEL, "a"), Given(OTHER_MODEL, "b")), owners), **changes)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (root(generation=0), "its generation is not the next one"),
        (root(generation=2), "its generation is not the next one"),
        (root(models=(Given(b"z" * 16, "a"),)), "its wraps are of models that do not exist"),
        (root(models=(Given(MODEL, "a"), Given(MODEL, "b"))), "its wraps are of models that do not exist"),
        (root(members=()), "its wraps leave out an owner"),
        (root(members=(member(ACTORS[Role.READER], "owner", 2),)), "its wraps leave out an owner"),
        (root(members=(member(ACTORS[Role.OWNER], "owner", 1),)), "its wrap is not of a new generation"),
        (root(members=(member(ACTORS[Role.OWNER], "reader", 2),)), "it changes the role of an owner"),
    ],
)
def test_a_new_root_key_is_void(state: State, payload: RootRotate, reason: str) -> None:
    assert void(state, payload) == reason


def test_a_new_root_key_replaces_wraps_and_nothing_else(state: State) -> None:
    assert LOG.apply(state, member(LOG.owner.actor, "reader")) is None
    assert state.root_exposed
    assert LOG.apply(state, root(), actor=ACTORS[Role.OWNER]) is None
    assert (state.root_generation, state.root_exposed) == (1, False)
    assert {key: model.wrap for key, model in state.models.items()} == {MODEL: "a", OTHER_MODEL: "b"}
    assert state.members[ACTORS[Role.OWNER]].generation == 2
    assert set(state.models[MODEL].readers.values()) == {"keys/grant/writer", "keys/grant/reader"}


PEOPLE = {
    "no actor": (PersonSet(b"short", b"c" * 32, b"n" * 16), "it is of no actor"),
    "nobody": (PersonSet(STRANGER), "nothing is recorded of its actor"),
    "commitment": (PersonSet(STRANGER, b"c", b"n" * 16), "its commitment or its name is not of the right length"),
    "name": (PersonSet(STRANGER, b"c" * 32), "its commitment or its name is not of the right length"),
}


@pytest.mark.parametrize(("payload", "reason"), PEOPLE.values(), ids=PEOPLE)
def test_an_entry_about_a_person_is_void(state: State, payload: PersonSet, reason: str) -> None:
    assert void(state, payload) == reason


def test_of_a_person_the_newest_commitment_counts_until_it_is_erased(state: State) -> None:
    for name in (b"1" * 16, b"2" * 16):
        assert LOG.apply(state, PersonSet(STRANGER, b"c" * 32, name)) is None
        assert state.people[STRANGER].name == name
    assert LOG.apply(state, PersonSet(STRANGER)) is None
    assert state.people == {}


def test_every_reason_in_the_code_has_a_test() -> None:
    tree = ast.parse(Path(fold_rights.__file__).read_text())
    said = {
        node.value
        for found in ast.walk(tree)
        if isinstance(found, ast.Return)
        for node in ast.walk(found)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    told = Path(__file__).read_text() + Path(__file__).with_name("test_fold_deletion.py").read_text()
    assert len(said) > 15
    assert [reason for reason in sorted(said) if reason.strip(", ") not in told] == []
