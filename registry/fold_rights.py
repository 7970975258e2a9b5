"""Who may write what, and what entries about rights and keys do to the state.

1. Owners may write everything, and nobody else may write an entry about rights or keys.
2. A writer may commit, supply, open runs, move and delete refs, and attest, in models that were granted for writing.
3. A collector may condemn, raise the floor, sweep, merge indexes, note what was verified and read, drop what is due.
4. Readers, auditors and former members may write nothing.
5. A commit seals its roots to the newest keys of its model, unless it is carried over from another store.
6. Whoever loses the right to read leaves keys behind that are *exposed* until their rotation.
"""

from collections.abc import Iterable, Set
from itertools import pairwise

import msgspec

from cairn.core.ids import HASH_BYTES, RANDOM_ID_BYTES
from cairn.registry.entries import (
    Abort,
    Commit,
    Condemn,
    Entry,
    Floor,
    MergeIndex,
    ModelCreate,
    Payload,
    RefDelete,
    RefMove,
    RunOpen,
    Supply,
    Swept,
    Uncondemn,
    Verified,
)
from cairn.registry.entries_attest import Attest
from cairn.registry.entries_audit import Reads
from cairn.registry.entries_deletion import Drop
from cairn.registry.entries_rights import Given, GrantSet, KeyRotate, MemberSet, PersonSet, RootRotate
from cairn.registry.rights import ALL_MODELS, GRANTABLE, ROLES, WRITING, Grant, Member, Role, readable, writable
from cairn.registry.state import Model, Person, State
from cairn.store.crypto.provider import ROOT_KEY_ID_BYTES

NO_RIGHT = "its actor has no right to write"
_REASON = str | None
_WRITES = (Commit, Supply, RunOpen, RefMove, RefDelete, Attest)
_COLLECTS = (Condemn, Floor, Swept, Uncondemn, MergeIndex, Verified, Reads, Drop)


def may_write(state: State, actor: bytes) -> bool:
    """Whether any entry of an actor can count."""
    member = state.members.get(actor)
    return actor in state.owners or (member is not None and member.role in WRITING)


def right_refused(state: State, entry: Entry, payload: Payload) -> _REASON:
    """Why an actor may not write an entry; None if it may."""
    if entry.actor in state.owners:
        return None
    member = state.members.get(entry.actor)
    if member is None or member.role not in WRITING:
        return NO_RIGHT
    if isinstance(payload, Abort):
        return None
    if member.role == Role.WRITER and isinstance(payload, _WRITES):
        granted = writable(member, payload.model)
        return None if granted else f"its actor was not granted to write to model {payload.model.hex()}"
    if member.role == Role.COLLECTOR and isinstance(payload, _COLLECTS):
        return _not_due(state, entry, payload) if isinstance(payload, Drop) else None
    return f"its actor is a {member.role}, who may not write such an entry"


def _not_due(state: State, entry: Entry, payload: Drop) -> _REASON:
    model = state.models.get(payload.model)
    for checkpoint in payload.checkpoints if model else ():
        gone = model.gone.get(checkpoint) if model else None
        if gone is not None and gone.due_at > entry.claimed_at:
            return "its actor is a collector, and a checkpoint of it can still be restored"
    return None


def keys_refused(model: Model, payload: Commit) -> _REASON:
    """Why the keys that a commit has sealed its roots to are not those to seal to."""
    newest = model.newest_keys()
    known = {(key.component, key.generation) for key in model.keys}
    for root in payload.roots:
        key = newest.get(root.component)
        if key is None or root.generation == key.generation:
            continue
        if not payload.carried:
            return f"its component {root.component} is sealed to key generation {root.generation}, which is retired"
        if (root.component, root.generation) not in known:
            return f"its component {root.component} is sealed to a key that its model does not have"
    return None


def member_set(state: State, entry: Entry, payload: MemberSet) -> _REASON:
    """Rule of `member`."""
    if payload.member == state.recovery:
        return "the recovery identity is an owner for good"
    before = state.members.get(payload.member)
    if payload.role:
        reason = _wrap_refused(before, payload)
        if reason is not None:
            return reason
    elif before is None and payload.member not in state.owners:
        return "it ends the membership of somebody who is no member"
    after = Member(
        payload.role, payload.agreement, max(payload.generation, before.generation if before else 0), payload.hash,
        entry.n, _kept(before, payload.role),
    )  # fmt: skip
    _change(state, payload.member, after)
    if payload.role == Role.OWNER and payload.member not in state.owners:
        state.owners.append(payload.member)
    elif payload.role != Role.OWNER and payload.member in state.owners:
        state.owners.remove(payload.member)
        state.root_exposed = True
        for model in state.kept_models().values():
            model.exposed = sorted({key.component for key in model.keys})
    return None


def _kept(before: Member | None, role: str) -> dict[bytes, Grant]:
    """Grants that a change of role leaves."""
    if before is None or role not in GRANTABLE:
        return {}
    kept = {key: Grant(grant.reads, grant.write and role == Role.WRITER) for key, grant in before.grants.items()}
    return {key: grant for key, grant in kept.items() if grant.reads or grant.write}


def _wrap_refused(before: Member | None, payload: MemberSet) -> _REASON:
    if payload.role not in ROLES:
        return "it names a role that does not exist"
    if len(payload.agreement) != HASH_BYTES or len(payload.hash) != HASH_BYTES:
        return "it lacks the member's key or the hash of its wrap"
    if payload.generation <= (before.generation if before else 0):
        return "its wrap is not of a new generation"
    return None


def person_set(state: State, entry: Entry, payload: PersonSet) -> _REASON:
    """Rule of `person`."""
    if len(payload.member) != HASH_BYTES:
        return "it is of no actor"
    if not payload.commitment and not payload.name:
        return None if state.people.pop(payload.member, None) is not None else "nothing is recorded of its actor"
    if len(payload.commitment) != HASH_BYTES or len(payload.name) != RANDOM_ID_BYTES:
        return "its commitment or its name is not of the right length"
    state.people[payload.member] = Person(payload.commitment, payload.name)
    return None


def grant_set(state: State, entry: Entry, payload: GrantSet) -> _REASON:
    """Rule of `grant`."""
    member = state.members.get(payload.member)
    if member is None or member.role not in GRANTABLE:
        return "grants are for readers and writers"
    if payload.model != ALL_MODELS and payload.model not in state.models:
        return "its model does not exist"
    if payload.write and member.role != Role.WRITER:
        return "a reader cannot be granted to write"
    if any(a >= b for a, b in pairwise(payload.reads)):
        return "its components are not ascending"
    grants = {key: grant for key, grant in member.grants.items() if key != payload.model}
    if payload.reads or payload.write:
        grants[payload.model] = Grant(payload.reads, payload.write)
    after = msgspec.structs.replace(member, grants=grants)
    kept = state.kept_models()
    models = list(kept) if payload.model == ALL_MODELS else [payload.model]
    due = {model for model in models if readable(after, model) - readable(member, model)}
    named = _named(payload.wraps)
    if named is None or not due <= named.keys() <= {model for model in models if readable(after, model)}:
        return "its wraps are not those of the models that are new to the member"
    _change(state, payload.member, after)
    for model, wrap in named.items():
        kept[model].readers[payload.member] = wrap
    return None


def _change(state: State, actor: bytes, after: Member) -> None:
    """Take over what a member is from here on, and note which keys it had that it is not to have."""
    before = state.members.get(actor)
    for identifier, model in state.kept_models().items():
        had, has = readable(before, identifier), readable(after, identifier)
        if actor in model.readers and had - has and after.role != Role.OWNER:
            model.exposed = sorted({*model.exposed, *(had - has)})
        if not has:
            model.readers.pop(actor, None)
    state.members[actor] = after


def readers_of_all(state: State) -> Set[bytes]:
    """Members who may read models that do not exist yet."""
    return {actor for actor, member in state.members.items() if readable(member, ALL_MODELS)}


def model_wraps_refused(state: State, payload: ModelCreate) -> _REASON:
    """Why the wraps of a new model are not those that are due."""
    named = _named(payload.wraps)
    return None if named is not None and named.keys() == readers_of_all(state) else "its wraps leave out a reader"


def key_rotate(state: State, entry: Entry, payload: KeyRotate) -> _REASON:
    """Rule of `key.rotate`."""
    model = state.models.get(payload.model)
    if model is None:
        return "its model does not exist"
    newest = {component: key.generation for component, key in model.newest_keys().items()}
    for key in payload.keys:
        if key.generation <= newest.get(key.component, -1):
            return "its keys are not of a new generation"
        newest[key.component] = key.generation
    named = _named(payload.wraps)
    if named is None or named.keys() != model.readers.keys():
        return "its wraps leave out a reader"
    model.keys += payload.keys
    model.wrap, model.readers = payload.wrap, named
    rotated = {key.component for key in payload.keys}
    model.exposed = [component for component in model.exposed if component not in rotated]
    return None


def root_rotate(state: State, entry: Entry, payload: RootRotate) -> _REASON:
    """Rule of `root.rotate`."""
    if payload.generation != state.root_generation + 1:
        return "its generation is not the next one"
    if len(payload.key) != ROOT_KEY_ID_BYTES:
        return "it names no root key"
    named, kept = _named(payload.models), state.kept_models()
    if named is None or not named.keys() <= kept.keys():
        return "its wraps are of models that do not exist"
    if any(model.holds and identifier not in named for identifier, model in kept.items()):
        return "its wraps leave out a model that is held"
    owners = {actor for actor, member in state.members.items() if member.role == Role.OWNER}
    if {one.member for one in payload.members} != owners or len(payload.members) != len(owners):
        return "its wraps leave out an owner"
    for one in payload.members:
        reason = _wrap_refused(state.members[one.member], one)
        if reason is not None or one.role != Role.OWNER:
            return reason or "it changes the role of an owner"
    for one in payload.members:
        member = state.members[one.member]
        member.agreement, member.generation, member.hash = one.agreement, one.generation, one.hash
    for identifier, wrap in named.items():
        kept[identifier].wrap = wrap
    state.root_generation, state.root_key, state.root_exposed = payload.generation, payload.key, False
    return None


def _named(wraps: Iterable[Given]) -> dict[bytes, str] | None:
    """Wraps by whose they are; None if one stands twice."""
    found: dict[bytes, str] = {}
    for whose, wrap in wraps:
        if whose in found:
            return None
        found[whose] = wrap
    return found
