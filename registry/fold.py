"""The fold: what an entry does to the state. Pure; validity depends on log bytes only.

Commit rule, checked against the state that the entry extends:

1. its actor is an owner, its model exists, its checkpoint id is new;
2. its epoch is not below the floor and not above the current one, and its hit position is not before the
   entry that set that epoch (so the index it used no longer offers what was condemned by then);
3. every pack that it relies on is in force, and uncondemned or condemned above the floor (then taken back);
4. its own packs have names that no pack ever had, opened by one of its sessions;
5. the branch that it moves has the expected value;
6. if it names a run epoch, that is the branch's newest, so that a job which was replaced overwrites nothing.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from cairn.registry.entries import (
    Abort,
    Commit,
    Entry,
    Init,
    ModelCreate,
    Payload,
    RefDelete,
    RefMove,
    RunOpen,
    Supply,
)
from cairn.registry.state import PACK_RECORD_BYTES, Checkpoint, Model, Piece, Ref, State, split_packs

# Changes with the rules and with `State`: a state that others folded is folded anew.
STATE_VERSION = 3
BRANCH, TAG = "branch", "tag"
_REASON = str | None
_NO_KIND = "it is neither a branch nor a tag"


def apply_intact(state: State, entry: Entry, payload: Payload) -> None:
    """Apply an entry that stands after damaged ones, for reading only: what it adds counts, whatever it expected."""
    if isinstance(payload, Commit) and payload.model in state.models:
        _add_commit(state, entry, payload)
    elif isinstance(payload, RefMove) and payload.model in state.models:
        state.models[payload.model].refs[payload.tag] = Ref(payload.kind, payload.sealed_name, payload.target)
    else:
        apply_payload(state, entry, payload)


def apply_payload(state: State, entry: Entry, payload: Payload) -> str | None:
    """Apply one entry; returns None, or the reason why it is void (the state is then unchanged)."""
    if entry.n == 0 or isinstance(payload, Init):
        return _init(state, entry, payload)
    if entry.actor not in state.owners:
        return "its actor has no right to write"
    return _RULES[type(payload)](state, entry, payload)


def _init(state: State, entry: Entry, payload: Payload) -> _REASON:
    if entry.n != 0 or not isinstance(payload, Init):
        return "entry 0, and no other, is an init entry"
    if payload.owner != entry.actor:
        return "the first owner signs the init entry"
    state.owners = [payload.owner, payload.recovery]
    state.heartbeat_seconds, state.silence_seconds = payload.heartbeat_seconds, payload.silence_seconds
    return None


def _model_create(state: State, entry: Entry, payload: ModelCreate) -> _REASON:
    if payload.model in state.models:
        return "a model with this id exists"
    if state.model_by_tag(payload.name_tag):
        return "a model with this name exists"
    state.models[payload.model] = Model(
        payload.name_tag, payload.sealed_name, payload.keys, payload.wrap, entry.n, {}, {}
    )
    return None


def _commit(state: State, entry: Entry, payload: Commit) -> _REASON:
    model = state.models.get(payload.model)
    if model is None:
        return "its model does not exist"
    if any(payload.checkpoint in other.checkpoints for other in state.models.values()):
        return "its checkpoint exists already"
    reason = _commit_epochs(state, entry, payload) or _relied_packs(state, payload) or _own_packs(state, payload)
    if payload.ref.kind not in (BRANCH, TAG):
        reason = reason or _NO_KIND
    reason = reason or _ref_expected(model, payload.ref.tag, payload.ref.kind, payload.ref.expected)
    if not reason and payload.parent is not None and payload.parent not in model.checkpoints:
        reason = "its parent is not one of this model"
    if not reason and payload.run_epoch is not None and payload.run_epoch != model.runs.get(payload.ref.tag):
        reason = f"its run epoch {payload.run_epoch} was superseded: another run has taken over the branch"
    if reason:
        return reason
    _take_back(state, payload)
    _add_commit(state, entry, payload)
    return None


def _supply(state: State, entry: Entry, payload: Supply) -> _REASON:
    model = state.models.get(payload.model)
    checkpoint = model.checkpoints.get(payload.checkpoint) if model else None
    if model is None or checkpoint is None:
        return "its checkpoint does not exist"
    reason = _commit_epochs(state, entry, payload) or _relied_packs(state, payload) or _own_packs(state, payload)
    if reason is None:
        _take_back(state, payload)
        _add_packs(state, payload)
        model.checkpoints[payload.checkpoint] = msgspec.structs.replace(
            checkpoint, reachability=payload.reachability, partial=payload.partial
        )
    return reason


def _take_back(state: State, payload: Commit | Supply) -> None:
    for low, high in payload.relied:
        for number in range(low, high + 1):
            state.condemned.pop(number, None)


def _add_packs(state: State, payload: Commit | Supply) -> None:
    first, count = state.pack_count, len(payload.packs) // PACK_RECORD_BYTES
    state.packs += payload.packs
    state.pieces.extend(Piece(piece, first, count) for piece in payload.pieces)


def _add_commit(state: State, entry: Entry, payload: Commit) -> None:
    model = state.models[payload.model]
    _add_packs(state, payload)
    model.checkpoints[payload.checkpoint] = Checkpoint(
        entry.n, entry.claimed_at, entry.actor, payload.ref.expected or payload.parent,
        payload.body, payload.roots, payload.reachability, payload.meta, payload.run_epoch, payload.envelope,
        payload.partial,
    )  # fmt: skip
    model.refs[payload.ref.tag] = Ref(payload.ref.kind, payload.ref.sealed_name, payload.checkpoint)


def _commit_epochs(state: State, entry: Entry, payload: Commit | Supply) -> _REASON:
    if not state.floor <= payload.epoch <= state.epoch:
        return f"its epoch {payload.epoch} is not within floor {state.floor} and epoch {state.epoch}"
    # With epochs set by collection entries only, every epoch up to the current one began at or before `epoch_n`.
    if payload.hit_position >= entry.n or (payload.epoch == state.epoch and payload.hit_position < state.epoch_n):
        return "its hits are not good for its epoch"
    return None


def _relied_packs(state: State, payload: Commit | Supply) -> _REASON:
    previous = -1
    for low, high in payload.relied:
        if not previous < low <= high < state.pack_count:
            return "it relies on packs that are not in force"
        previous = high
        for number in range(low, high + 1):
            if state.condemned.get(number, state.floor + 1) <= state.floor:
                return f"it relies on pack {number}, which is condemned"
    return None


def _own_packs(state: State, payload: Commit | Supply) -> _REASON:
    own = split_packs(payload.packs)
    if own is None or len({pack.key for pack in own}) != len(own):
        return "its packs are not listed properly"
    if bool(own) != bool(payload.pieces):
        return "it has packs and no index piece, or the other way round"
    sessions = set(payload.sessions)
    if any(pack.session not in sessions for pack in own):
        return "it lists a pack of a session that it does not name"
    key_bytes = PACK_RECORD_BYTES - 8
    known = {state.packs[at : at + key_bytes] for at in range(0, len(state.packs), PACK_RECORD_BYTES)} if own else ()
    if any(pack.key in known for pack in own):
        return "it lists a pack that is numbered already"
    return None


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
    Abort: _abort,
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
