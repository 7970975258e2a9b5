"""The fold of the deletion of whole models, and of holds. Pure.

live -> `model.delete` -> deleted, all of it kept -> (`model.restore`) -> `shred` -> keys destroyed -> `destroyed`

A deleted model stands apart from the others, so that nothing finds it by accident. What is held is not deleted; what
was deleted and is then held is neither dropped nor shredded, and its list is not passed over.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from cairn.core.ids import HASH_BYTES, RANDOM_ID_BYTES
from cairn.registry.entries import Entry
from cairn.registry.entries_deletion import (
    Approve,
    Confirm,
    Destroyed,
    HoldLift,
    HoldSet,
    ModelDelete,
    ModelRestore,
    Shred,
    Tombstone,
)
from cairn.registry.fold_policy import DeleteApproval, delete_approval
from cairn.registry.numbers import are_ranges
from cairn.registry.state import Approval, DeletedModel, Hold, State

HELD = "a hold keeps it"
_NO_MODEL = "its model does not exist"
_NOT_DELETED = "its model is not deleted, or its keys are destroyed"
_Reason = str | None


def model_delete(state: State, entry: Entry, payload: ModelDelete) -> _Reason:
    model = state.models.get(payload.model)
    if model is None:
        return _NO_MODEL
    if model.holds:
        return HELD
    reason = approval_refused(state, entry, payload)
    if reason is not None:
        return reason
    carry_out(state, payload)
    del state.models[payload.model]
    state.deleted[payload.model] = DeletedModel(
        entry.n, entry.actor, payload.due_at, payload.cause, model.name_tag, model.created_n, model
    )
    return None


def model_restore(state: State, entry: Entry, payload: ModelRestore) -> _Reason:
    deleted = state.deleted.get(payload.model)
    if deleted is None or deleted.model is None:
        return _NOT_DELETED
    del state.deleted[payload.model]
    state.models[payload.model] = deleted.model
    state.live_n = entry.n
    return None


def shred(state: State, entry: Entry, payload: Shred) -> _Reason:
    deleted = state.deleted.get(payload.model)
    if deleted is None or deleted.model is None:
        return _NOT_DELETED
    if deleted.model.holds:
        return HELD
    if deleted.due_at > entry.claimed_at:
        return "its model can still be restored"
    if payload.marked > entry.n or state.live_n >= payload.marked:
        return "something was made live since its marking"
    if not are_ranges(payload.packs, state.pack_count):
        return "its packs were never there"
    state.deleted[payload.model] = msgspec.structs.replace(
        deleted, model=None, shredded_n=entry.n, generation=state.root_generation, packs=payload.packs
    )
    # What a collection has marked before may bring copies of what goes with it.
    state.live_n = entry.n
    return None


def destroyed(state: State, entry: Entry, payload: Destroyed) -> _Reason:
    if not payload.models or len(set(payload.models)) != len(payload.models):
        return "its models are not listed properly"
    for one in payload.models:
        deleted = state.deleted.get(one)
        if deleted is None or deleted.shredded_n is None or deleted.destroyed_n is not None:
            return "one of its models is not shredded, or its keys are known to be destroyed"
        if deleted.generation >= state.root_generation:
            return "the root key that opened one of its models is in force"
    for one in payload.models:
        state.deleted[one] = msgspec.structs.replace(state.deleted[one], destroyed_n=entry.n)
    return None


def confirm(state: State, entry: Entry, payload: Confirm) -> _Reason:
    deleted = state.deleted.get(payload.model)
    return None if deleted is not None and deleted.shredded_n is not None else "its model is not shredded"


def hold_set(state: State, entry: Entry, payload: HoldSet) -> _Reason:
    model = state.kept_model(payload.model)
    if model is None:
        return _NO_MODEL
    if len(payload.hold) != RANDOM_ID_BYTES or any(payload.hold in one.holds for one in state.kept_models().values()):
        return "its id is not a new one"
    gone = model.gone.get(payload.checkpoint)
    if payload.checkpoint and payload.checkpoint not in model.checkpoints and (gone is None or not gone.checkpoint):
        return "its checkpoint does not exist"
    model.holds[payload.hold] = Hold(entry.n, entry.actor, payload.checkpoint, payload.sealed_reason)
    # The list of what is held counts again, even if collection was allowed to go on without it.
    state.live_n = entry.n
    return None


def hold_lift(state: State, entry: Entry, payload: HoldLift) -> _Reason:
    model = state.kept_model(payload.model)
    if model is None or payload.hold not in model.holds:
        return "there is no such hold"
    del model.holds[payload.hold]
    return None


def approve(state: State, entry: Entry, payload: Approve) -> _Reason:
    if len(payload.plan) != HASH_BYTES:
        return "it names no plan"
    approval = state.approvals.setdefault(payload.plan, Approval([], []))
    if entry.actor in approval.actors:
        return "its actor has approved the plan already"
    approval.actors.append(entry.actor)
    return None


def approval_refused(state: State, entry: Entry, payload: ModelDelete | Tombstone) -> _Reason:
    """Why a deletion lacks the consent of a second owner, where that is needed.

    Whoever holds the root key can sign as the recovery identity, so that is nobody in particular.
    """
    approval = state.approvals.get(payload.plan)
    if approval is not None and payload.model in approval.done:
        return "its plan was carried out before"
    missing = approval_missing(state, entry.actor, payload.plan, payload.descendants)
    return "its plan needs the approval of another owner" if missing else None


def approval_missing(state: State, actor: bytes, plan: bytes, descendants: bool) -> bool:
    """Whether the setting in force asks for another owner's approval of a plan, and there is none."""
    if not descendants or delete_approval(state) is DeleteApproval.OFF:
        return False
    people, approval = set(state.owners) - {state.recovery}, state.approvals.get(plan)
    others = people & set(approval.actors if approval else ()) - {actor}
    return not others or actor not in people


def carry_out(state: State, payload: ModelDelete | Tombstone) -> None:
    """Note that an approved plan is done for a model: what comes back is not deleted by it once more."""
    if payload.plan in state.approvals:
        state.approvals[payload.plan].done.append(payload.model)


RULES: dict[type[Any], Callable[[State, Entry, Any], _Reason]] = {
    ModelDelete: model_delete,
    ModelRestore: model_restore,
    Shred: shred,
    Destroyed: destroyed,
    Confirm: confirm,
    HoldSet: hold_set,
    HoldLift: hold_lift,
    Approve: approve,
}
