"""The commit rule, as far as it is about uploads: what every entry obeys that makes something live.

1. its epoch is not below the floor and not above the current one, and its hit position is not before the
   entry that set that epoch (so the index it used no longer offers what was condemned by then);
2. every pack that it relies on is in force, and uncondemned or condemned above the floor (then taken back);
3. its own packs have names that no pack ever had, and were opened by one of its sessions;
4. nothing that it brings is condemned at or below the floor; what is above it is taken back.
"""

from collections.abc import Iterable

from cairn.registry.entries import Entry, Upload
from cairn.registry.numbers import are_ranges, numbers_of, within
from cairn.registry.state import (
    BINARY_NAME_BYTES,
    OBJECT_KINDS,
    PACK_RECORD_BYTES,
    Piece,
    State,
    object_key,
    pack_key,
    pack_keys,
    split_packs,
)
from cairn.store.index import PackRef

# So few names are searched for in all that are known: a commit then costs no set of them.
_SEARCHED_PACKS_MAX = 64


def upload_refused(state: State, entry: Entry, payload: Upload, others: Iterable[bytes]) -> str | None:
    """Why an entry that brings content is void; None if it is not.

    Args:
        others: keys of the objects that it names beside packs and pieces.
    """
    return (
        epochs_refused(state, entry, payload.epoch, payload.hit_position)
        or _relied_refused(state, payload)
        or _packs_refused(state, payload)
        or objects_refused(state, [*_own_keys(payload), *others])
    )


def take_upload(state: State, entry: Entry, payload: Upload, others: Iterable[bytes]) -> None:
    """Number the packs of an entry that is not void, put its pieces in force, and take back what it needs."""
    for number in numbers_of(payload.relied):
        state.condemned.pop(number, None)
    add_packs(state, payload)
    take_back(state, [*_own_keys(payload), *others])
    state.live_n = entry.n


def add_packs(state: State, payload: Upload) -> None:
    """Number an entry's packs and put its pieces in force."""
    first, count = state.pack_count, len(payload.packs) // PACK_RECORD_BYTES
    state.packs += payload.packs
    state.pieces.extend(Piece(piece, first, count) for piece in payload.pieces)


def epochs_refused(state: State, entry: Entry, epoch: int, hit_position: int) -> str | None:
    """Why what sessions of an epoch did is void."""
    if not state.floor <= epoch <= state.epoch:
        return f"its epoch {epoch} is not within floor {state.floor} and epoch {state.epoch}"
    if not state.epochs.get(epoch, 0) <= hit_position < entry.n:
        return "its hits are not good for its epoch"
    return None


def objects_refused(state: State, keys: Iterable[bytes]) -> str | None:
    """Why objects cannot be made live: one is condemned, and may be deleted at any time."""
    for key in keys:
        if state.condemned_objects.get(key, state.floor + 1) <= state.floor:
            return f"its {OBJECT_KINDS[key[BINARY_NAME_BYTES]]} {key[:BINARY_NAME_BYTES].hex()} is condemned"
    return None


def take_back(state: State, keys: Iterable[bytes]) -> None:
    """End the condemnation of objects."""
    for key in keys:
        state.condemned_objects.pop(key, None)


def _own_keys(payload: Upload) -> list[bytes]:
    return [*pack_keys(payload.packs), *(object_key(piece, "index") for piece in payload.pieces)]


def _relied_refused(state: State, payload: Upload) -> str | None:
    if not are_ranges(payload.relied, state.pack_count):
        return "it relies on packs that are not in force"
    for number in numbers_of(payload.relied):
        if within(state.swept, number):
            return f"it relies on pack {number}, which is deleted"
        if state.condemned.get(number, state.floor + 1) <= state.floor:
            return f"it relies on pack {number}, which is condemned"
    return None


def _any_numbered(state: State, own: list[PackRef]) -> bool:
    if len(own) > _SEARCHED_PACKS_MAX:
        known = pack_keys(state.packs)
        return any(pack_key(pack) in known for pack in own)
    for pack in own:
        at = state.packs.find(pack.key)
        while at >= 0 and at % PACK_RECORD_BYTES:
            at = state.packs.find(pack.key, at + 1)
        if at >= 0:
            return True
    return False


def _packs_refused(state: State, payload: Upload) -> str | None:
    own = split_packs(payload.packs)
    if own is None or len({pack.key for pack in own}) != len(own):
        return "its packs are not listed properly"
    if bool(own) != bool(payload.pieces):
        return "it has packs and no index piece, or the other way round"
    sessions = set(payload.sessions)
    if any(pack.session not in sessions for pack in own):
        return "it lists a pack of a session that it does not name"
    if _any_numbered(state, own):
        return "it lists a pack that is numbered already"
    return None
