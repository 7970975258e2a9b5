"""The fold of collection and deletion: what their entries do to the state. Pure.

A collector cannot delete what lives, whatever it does wrong between these entries: `gc.condemn` is void if anything
was made live since its marking, an entry that makes something live is void once the floor has passed its epoch, and
`gc.swept` may name only what stands condemned at or below the floor.
"""

import msgspec

from cairn.core.ids import RANDOM_ID_BYTES
from cairn.registry.entries import Condemn, Entry, Floor, MergeIndex, Quarantine, Swept, Uncondemn, Verified
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.fold_deletion import HELD, approval_refused, carry_out
from cairn.registry.fold_uploads import epochs_refused, objects_refused, take_back, take_upload, upload_refused
from cairn.registry.numbers import Ranges, are_ranges, covers, joined, numbers_of, within
from cairn.registry.state import Gone, Model, Piece, State, named_keys, object_key, split_keys

DEPTHS = ("quick", "sampled", "full")
_NO_MODEL = "its model does not exist"
_Reason = str | None


def condemn(state: State, entry: Entry, payload: Condemn) -> _Reason:
    keys = split_keys(payload.objects)
    if payload.marked > entry.n or state.live_n >= payload.marked:
        return "something was made live since its marking"
    if payload.relied:
        return "it relies on packs of others"
    if not are_ranges(payload.condemned, state.pack_count):
        return "it condemns packs that are not in force"
    for number in numbers_of(payload.condemned):
        if number in state.condemned or within(state.swept, number):
            return f"it condemns pack {number}, which is condemned or deleted already"
    if keys is None:
        return "its objects are not listed properly"
    named = named_keys(state) if keys else set()
    if any(key in named or key in state.condemned_objects for key in keys):
        return "it condemns an object that is needed, or condemned already"
    reason = upload_refused(state, entry, payload, ()) if payload.packs or payload.sessions else None
    if reason is None and payload.pieces and not payload.packs:
        reason = "it has an index piece and no pack"
    if reason:
        return reason
    if payload.packs:
        take_upload(state, entry, payload, ())
    state.epoch += 1
    state.epochs[state.epoch] = state.live_n = entry.n
    state.condemned.update((number, state.epoch) for number in numbers_of(payload.condemned))
    state.condemned_objects.update((key, state.epoch) for key in keys)
    return None


def floor(state: State, entry: Entry, payload: Floor) -> _Reason:
    if payload.epoch > state.epoch:
        return "its epoch has not begun"
    if payload.epoch > state.floor:
        state.floor = payload.epoch
        state.epochs = {epoch: n for epoch, n in state.epochs.items() if epoch >= payload.epoch}
    return None


def swept(state: State, entry: Entry, payload: Swept) -> _Reason:
    found = _condemned(state, payload.packs, payload.objects)
    if found is None or any(epoch > state.floor for epoch in found):
        return "it names what was not condemned at or below the floor"
    _end_condemnation(state, payload.packs, payload.objects)
    state.swept = joined(state.swept, payload.packs)
    if payload.packs:
        state.pieces = [
            piece for piece in state.pieces if not covers(state.swept, piece.first, piece.first + piece.count - 1)
        ]
    return None


def uncondemn(state: State, entry: Entry, payload: Uncondemn) -> _Reason:
    found = _condemned(state, payload.packs, payload.objects)
    if found is None or any(epoch <= state.floor for epoch in found):
        return "it names what is not condemned above the floor"
    _end_condemnation(state, payload.packs, payload.objects)
    state.live_n = entry.n
    return None


def merge_index(state: State, entry: Entry, payload: MergeIndex) -> _Reason:
    key, end = object_key(payload.piece, "index"), min(payload.first + payload.count, state.pack_count + 1)
    replaced = [piece for piece in state.pieces if payload.first <= piece.first < end]
    if payload.first < 0 or payload.count <= 0 or not replaced:
        return "it replaces no index piece"
    listed = {number for piece in replaced for number in range(piece.first, piece.first + piece.count)}
    others = set(range(payload.first, end)) ^ listed
    if end > state.pack_count or any(not within(state.swept, number) for number in others):
        return "its packs are not those of the index pieces that it replaces"
    if payload.piece.name[:RANDOM_ID_BYTES] not in payload.sessions:
        return "its index piece is of a session that it does not name"
    reason = epochs_refused(state, entry, payload.epoch, entry.n - 1) or objects_refused(state, (key,))
    if reason:
        return reason
    take_back(state, (key,))
    kept = [piece for piece in state.pieces if piece not in replaced]
    state.pieces = sorted([*kept, Piece(payload.piece, payload.first, payload.count)], key=lambda piece: piece.first)
    return None


def tombstone(state: State, entry: Entry, payload: Tombstone) -> _Reason:
    model = state.models.get(payload.model)
    if model is None:
        return _NO_MODEL
    if not payload.checkpoints or len(set(payload.checkpoints)) != len(payload.checkpoints):
        return "its checkpoints are not listed properly"
    if any(one not in model.checkpoints for one in payload.checkpoints):
        return "one of its checkpoints does not exist"
    if {ref.checkpoint for ref in model.refs.values()} & set(payload.checkpoints):
        return "a branch or tag names one of its checkpoints"
    if any(model.held_by(one) for one in payload.checkpoints):
        return HELD
    reason = approval_refused(state, entry, payload)
    if reason is not None:
        return reason
    carry_out(state, payload)
    for one in payload.checkpoints:
        held = model.checkpoints.pop(one)
        model.gone[one] = Gone(entry.n, entry.actor, payload.due_at, payload.cause, held.parent, held)
    return None


def restore(state: State, entry: Entry, payload: Restore) -> _Reason:
    model, reason = _tombstoned(state, payload)
    if model is None:
        return reason
    for one in payload.checkpoints:
        held = model.gone.pop(one).checkpoint
        assert held is not None
        model.checkpoints[one] = held
    state.live_n = entry.n
    return None


def drop(state: State, entry: Entry, payload: Drop) -> _Reason:
    model, reason = _tombstoned(state, payload)
    if model is None:
        return reason
    if any(model.held_by(one) for one in payload.checkpoints):
        return HELD
    for one in payload.checkpoints:
        model.gone[one] = msgspec.structs.replace(model.gone[one], checkpoint=None, dropped_n=entry.n)
    return None


def verified(state: State, entry: Entry, payload: Verified) -> _Reason:
    model = state.models.get(payload.model)
    if model is None:
        return _NO_MODEL
    if payload.depth not in DEPTHS:
        return "its depth is none of those known"
    if any(one not in model.checkpoints for one in payload.checkpoints):
        return "one of its checkpoints does not exist"
    for one in payload.checkpoints:
        held = model.checkpoints[one]
        model.checkpoints[one] = msgspec.structs.replace(held, verified=payload.depth, verified_at=entry.claimed_at)
    return None


def quarantine(state: State, entry: Entry, payload: Quarantine) -> _Reason:
    model = state.models.get(payload.model)
    held = model.checkpoints.get(payload.checkpoint) if model else None
    if model is None or held is None:
        return "its checkpoint does not exist"
    if model.held_by(payload.checkpoint):
        return HELD
    model.checkpoints[payload.checkpoint] = msgspec.structs.replace(held, quarantined=True)
    return None


def _tombstoned(state: State, payload: Restore | Drop) -> tuple[Model | None, str]:
    model = state.models.get(payload.model)
    if model is None:
        return None, _NO_MODEL
    for one in payload.checkpoints:
        gone = model.gone.get(one)
        if gone is None or gone.checkpoint is None:
            return None, "one of its checkpoints is not tombstoned"
    if not payload.checkpoints or len(set(payload.checkpoints)) != len(payload.checkpoints):
        return None, "its checkpoints are not listed properly"
    return model, ""


def _condemned(state: State, packs: Ranges, objects: bytes) -> list[int] | None:
    """Epochs of condemned packs and objects; None if one is not condemned."""
    keys = split_keys(objects)
    if keys is None or not are_ranges(packs, state.pack_count):
        return None
    found = [state.condemned.get(number) for number in numbers_of(packs)]
    found += [state.condemned_objects.get(key) for key in keys]
    known = [epoch for epoch in found if epoch is not None]
    return known if len(known) == len(found) else None


def _end_condemnation(state: State, packs: Ranges, objects: bytes) -> None:
    for number in numbers_of(packs):
        del state.condemned[number]
    take_back(state, split_keys(objects) or ())
