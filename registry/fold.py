"""The fold: what an entry does to the state. Pure; validity depends on log bytes only.

Commit rule, checked against the state that the entry extends:

1. its actor may write to its model (`fold_rights.py`), which exists; its checkpoint id is new (or of one that was
   dropped), and its roots are sealed to the keys in force;
2. what it uploaded and relies on is good (`fold_uploads.py`);
3. the branch that it moves has the expected value;
4. if it names a run epoch, that is the branch's newest, so that a job which was replaced overwrites nothing.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from cairn.registry import fold_attest, fold_policy
from cairn.registry import fold_collection as collection
from cairn.registry import fold_deletion as deletion
from cairn.registry import fold_rights as rights
from cairn.registry.entries import (
    Abort,
    Commit,
    Condemn,
    Entry,
    Floor,
    Init,
    MergeIndex,
    ModelCreate,
    Payload,
    Quarantine,
    RefDelete,
    RefMove,
    RunOpen,
    Supply,
    Swept,
    Uncondemn,
    Verified,
)
from cairn.registry.entries_attest import Attest
from cairn.registry.entries_audit import Policy, Reads
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.entries_rights import GrantSet, KeyRotate, MemberSet, PersonSet, RootRotate
from cairn.registry.fold_uploads import add_packs, take_upload, upload_refused
from cairn.registry.state import Checkpoint, Model, Ref, State, objects_of

# Changes with the rules and with `State`: a state that others folded is folded anew.
STATE_VERSION = 9
BRANCH, TAG = "branch", "tag"
_REASON = str | None
_NO_KIND = "it is neither a branch nor a tag"


def apply_intact(state: State, entry: Entry, payload: Payload) -> None:
    """Apply an entry that stands after damaged ones, for reading only: what it adds counts, whatever it expected."""
    if isinstance(payload, Commit) and payload.model in state.models:
        add_packs(state, payload)
        _make_live(state.models[payload.model], payload, _checkpoint_of(entry, payload))
    elif isinstance(payload, RefMove) and payload.model in state.models:
        state.models[payload.model].refs[payload.tag] = Ref(payload.kind, payload.sealed_name, payload.target)
    else:
        apply_payload(state, entry, payload)


def apply_payload(state: State, entry: Entry, payload: Payload) -> str | None:
    """Apply one entry; returns None, or the reason why it is void (the state is then unchanged)."""
    if entry.n == 0 or isinstance(payload, Init):
        return _init(state, entry, payload)
    return rights.right_refused(state, entry, payload) or _RULES[type(payload)](state, entry, payload)


def _init(state: State, entry: Entry, payload: Payload) -> _REASON:
    if entry.n != 0 or not isinstance(payload, Init):
        return "entry 0, and no other, is an init entry"
    if payload.owner != entry.actor:
        return "the first owner signs the init entry"
    state.owners, state.recovery = [payload.owner, payload.recovery], payload.recovery
    state.heartbeat_seconds, state.silence_seconds = payload.heartbeat_seconds, payload.silence_seconds
    return None


def _model_create(state: State, entry: Entry, payload: ModelCreate) -> _REASON:
    if payload.model in state.models:
        return "a model with this id exists"
    if payload.model in state.deleted:
        return "the model with this id was deleted"
    if any(model.name_tag == payload.name_tag for model in state.kept_models().values()):
        return "a model with this name exists, or was deleted and can be restored"
    reason = rights.model_wraps_refused(state, payload)
    if reason is not None:
        return reason
    state.models[payload.model] = Model(
        payload.name_tag, payload.sealed_name, payload.keys, payload.wrap, entry.n, readers=dict(payload.wraps)
    )
    return None


def _commit(state: State, entry: Entry, payload: Commit) -> _REASON:
    model = state.models.get(payload.model)
    if model is None:
        return "its model does not exist"
    for other in state.kept_models().values():
        if payload.checkpoint in other.checkpoints:
            return "its checkpoint exists already"
        gone = other.gone.get(payload.checkpoint)
        if gone is not None and gone.checkpoint is not None:
            return "its checkpoint was deleted, and can be restored"
    held = _checkpoint_of(entry, payload)
    reason = rights.keys_refused(model, payload) or upload_refused(state, entry, payload, objects_of(held))
    if payload.ref.kind not in (BRANCH, TAG):
        reason = reason or _NO_KIND
    reason = reason or _ref_expected(model, payload.ref.tag, payload.ref.kind, payload.ref.expected)
    if (
        not reason
        and payload.parent is not None
        and not (payload.parent in model.checkpoints or payload.parent in model.gone)
    ):
        reason = "its parent is not one of this model"
    if not reason and payload.run_epoch is not None and payload.run_epoch != model.runs.get(payload.ref.tag):
        reason = f"its run epoch {payload.run_epoch} was superseded: another run has taken over the branch"
    if reason:
        return reason
    take_upload(state, entry, payload, objects_of(held))
    _make_live(model, payload, held)
    return None


def _supply(state: State, entry: Entry, payload: Supply) -> _REASON:
    model = state.models.get(payload.model)
    checkpoint = model.checkpoints.get(payload.checkpoint) if model else None
    if model is None or checkpoint is None:
        return "its checkpoint does not exist"
    if entry.actor not in state.owners and model.held_by(payload.checkpoint):
        # What brings a list brings what collection spares.
        return f"{deletion.HELD}, and only owners supply what is held"
    supplied = _supplied(checkpoint, payload)
    if supplied is None:
        return "its roots or its envelope are not the checkpoint's"
    others = objects_of(supplied)
    reason = upload_refused(state, entry, payload, others)
    if reason is None:
        take_upload(state, entry, payload, others)
        model.checkpoints[payload.checkpoint] = supplied
    return reason


def _supplied(checkpoint: Checkpoint, payload: Supply) -> Checkpoint | None:
    """A checkpoint with what is brought in the place of what was lost; None if that is something else."""
    brought = {root.component: root for root in payload.roots}
    for root in payload.roots:
        lost = next((one for one in checkpoint.roots if one.component == root.component), None)
        if lost is None or (lost.generation, lost.object.hash) != (root.generation, root.object.hash):
            return None
    if payload.envelope is not None and (
        checkpoint.envelope is None or checkpoint.envelope.hash != payload.envelope.hash
    ):
        return None
    return msgspec.structs.replace(
        checkpoint,
        body=payload.body or checkpoint.body,
        roots=tuple(brought.get(root.component, root) for root in checkpoint.roots),
        envelope=payload.envelope or checkpoint.envelope,
        reachability=payload.reachability,
        partial=payload.partial,
        quarantined=False,
    )


def _checkpoint_of(entry: Entry, payload: Commit) -> Checkpoint:
    return Checkpoint(
        entry.n, entry.claimed_at, entry.actor, payload.ref.expected or payload.parent,
        payload.body, payload.roots, payload.reachability, payload.meta, payload.run_epoch, payload.envelope,
        payload.partial,
    )  # fmt: skip


def _make_live(model: Model, payload: Commit, checkpoint: Checkpoint) -> None:
    model.gone.pop(payload.checkpoint, None)
    model.checkpoints[payload.checkpoint] = checkpoint
    model.refs[payload.ref.tag] = Ref(payload.ref.kind, payload.ref.sealed_name, payload.checkpoint)


def _ref_expected(model: Model, tag: bytes, kind: str, expected: bytes | None) -> _REASON:
    ref = model.refs.get(tag)
    if ref is not None and ref.kind != kind:
        return f"the name is taken by a {ref.kind}"
    if (ref.checkpoint if ref else None) != expected:
        return "its ref was moved meanwhile"
    return None


def _run_open(state: State, entry: Entry, payload: RunOpen) -> _REASON:
    model = state.models.get(payload.model)
    if model is None:
        return "its model does not exist"
    if payload.epoch != model.runs.get(payload.tag, 0) + 1:
        return "its run epoch is not the next one"
    model.runs[payload.tag] = payload.epoch
    return None


def _ref_move(state: State, entry: Entry, payload: RefMove) -> _REASON:
    model = state.models.get(payload.model)
    if model is None:
        return "its model does not exist"
    if payload.kind not in (BRANCH, TAG):
        return _NO_KIND
    if payload.target not in model.checkpoints:
        return "its checkpoint is not one of this model"
    reason = _ref_expected(model, payload.tag, payload.kind, payload.expected)
    if reason is None:
        model.refs[payload.tag] = Ref(payload.kind, payload.sealed_name, payload.target)
    return reason


def _ref_delete(state: State, entry: Entry, payload: RefDelete) -> _REASON:
    model = state.models.get(payload.model)
    ref = model.refs.get(payload.tag) if model else None
    if model is None or ref is None:
        return "its ref does not exist"
    if ref.checkpoint != payload.expected:
        return "its ref was moved meanwhile"
    del model.refs[payload.tag]
    return None


def _abort(state: State, entry: Entry, payload: Abort) -> _REASON:
    return None


_RULES: dict[type[Payload], Callable[[State, Entry, Any], _REASON]] = {
    ModelCreate: _model_create,
    RunOpen: _run_open,
    Commit: _commit,
    Supply: _supply,
    RefMove: _ref_move,
    RefDelete: _ref_delete,
    Condemn: collection.condemn,
    Floor: collection.floor,
    Swept: collection.swept,
    Uncondemn: collection.uncondemn,
    MergeIndex: collection.merge_index,
    Tombstone: collection.tombstone,
    Restore: collection.restore,
    Drop: collection.drop,
    Verified: collection.verified,
    Quarantine: collection.quarantine,
    Policy: fold_policy.policy,
    Reads: fold_policy.reads,
    Abort: _abort,
    MemberSet: rights.member_set,
    GrantSet: rights.grant_set,
    KeyRotate: rights.key_rotate,
    RootRotate: rights.root_rotate,
    **deletion.RULES,
    PersonSet: rights.person_set,
    Attest: fold_attest.attest,
}


class _CachedState(msgspec.Struct, array_like=True):
    version: int
    state: State


def encode_state(state: State) -> bytes:
    """For the cache."""
    return msgspec.msgpack.encode(_CachedState(STATE_VERSION, state))


def decode_state(data: bytes) -> State:
    """Inverse of `encode_state`; the caller has authenticated the bytes.

    Raises:
        ValueError: another version of Cairn folded it, by other rules.
    """
    cached = msgspec.msgpack.decode(data, type=_CachedState)
    if cached.version != STATE_VERSION:
        raise ValueError(f"a state of version {cached.version}")
    return cached.state
