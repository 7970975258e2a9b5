"""The state that the log says, as one value."""

import struct

import msgspec

from cairn.core.ids import RANDOM_ID_BYTES, SessionId
from cairn.registry.entries import ComponentPublic, ObjectRef, RootRef
from cairn.store.index import PackRef

_PACK = struct.Struct("<16s12sQ")
PACK_RECORD_BYTES = _PACK.size


class Ref(msgspec.Struct, frozen=True):
    """A branch or tag: kind, sealed name, checkpoint."""

    kind: str
    sealed_name: bytes
    checkpoint: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    """A committed checkpoint. `parent` is what its ref pointed to before."""

    n: int
    claimed_at: int
    actor: bytes
    parent: bytes | None
    body: ObjectRef
    roots: tuple[RootRef, ...]
    reachability: ObjectRef
    meta: bytes
    run_epoch: int | None = None
    envelope: ObjectRef | None = None
    partial: bool = False


class Model(msgspec.Struct):
    """A logical model. `runs` has the newest run epoch of each branch, by its tag."""

    name_tag: bytes
    sealed_name: bytes
    keys: tuple[ComponentPublic, ...]
    wrap: str
    created_n: int
    refs: dict[bytes, Ref] = {}
    checkpoints: dict[bytes, Checkpoint] = {}
    runs: dict[bytes, int] = {}


class Piece(msgspec.Struct, frozen=True):
    """An index piece in force and the numbers of the packs that it lists (`first` up to `first + count`)."""

    object: ObjectRef
    first: int
    count: int


class Void(msgspec.Struct, frozen=True):
    """An entry that has no effect, and why."""

    n: int
    reason: str


class State(msgspec.Struct):
    """Fold of entries 0 .. `length` - 1.

    Args:
        frontier: Merkle frontier over all of them.
        last_leaf: leaf hash of the last of them; tells a log that was rolled back or replaced.
        epoch, epoch_n: collection epoch and the entry that set it.
        floor: commits of sessions below this epoch are void.
        packs: 36 bytes a pack, in numbering order.
        condemned: pack number -> epoch of its condemnation.
        newer_from: first entry of a type that this version does not know.
        damaged_from: where the log is damaged: the entry that does not open, if one stands out, else the first
            whose signed root contradicts the bytes before it.
    """

    length: int = 0
    frontier: tuple[bytes, ...] = ()
    last_leaf: bytes = b""
    owners: list[bytes] = []
    heartbeat_seconds: float = 0.0
    silence_seconds: float = 0.0
    epoch: int = 0
    epoch_n: int = 0
    floor: int = 0
    models: dict[bytes, Model] = {}
    packs: bytes = b""
    condemned: dict[int, int] = {}
    pieces: list[Piece] = []
    voids: list[Void] = []
    newer_from: int | None = None
    damaged_from: int | None = None

    @property
    def pack_count(self) -> int:
        """Packs numbered so far."""
        return len(self.packs) // PACK_RECORD_BYTES

    def pack(self, number: int) -> PackRef:
        """Name and size of a pack."""
        session, random, size = _PACK.unpack_from(self.packs, number * PACK_RECORD_BYTES)
        return PackRef(SessionId(session), random, size)

    def model_by_tag(self, name_tag: bytes) -> tuple[bytes, Model] | None:
        """The model of a name tag."""
        return next(((i, model) for i, model in self.models.items() if model.name_tag == name_tag), None)

    def copy(self) -> "State":
        """An independent copy."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self), type=State)


def pack_records(packs: list[PackRef]) -> bytes:
    """Records of packs for a commit entry."""
    return b"".join(_PACK.pack(pack.session, pack.random, pack.size) for pack in packs)


def split_packs(records: bytes) -> list[PackRef] | None:
    """Inverse of `pack_records`; None if the length is off."""
    if len(records) % PACK_RECORD_BYTES:
        return None
    return [PackRef(SessionId(s), r, size) for s, r, size in _PACK.iter_unpack(records)]


assert RANDOM_ID_BYTES + 12 + 8 == PACK_RECORD_BYTES
