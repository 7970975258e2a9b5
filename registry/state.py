"""The state that the log says, as one value."""

import struct
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

import msgspec

from cairn.core.errors import GoneError, NotFoundError
from cairn.core.ids import OBJECT_RANDOM_BYTES, RANDOM_ID_BYTES, SessionId, object_name
from cairn.registry.entries import ObjectRef, RootRef
from cairn.registry.entries_rights import ComponentPublic
from cairn.registry.numbers import Ranges, within
from cairn.registry.rights import Member
from cairn.store.index import PackRef

_PACK = struct.Struct("<16s12sQ")
PACK_RECORD_BYTES = _PACK.size
# Kinds of collectable objects; their order is the code in an object key. What is of another kind is left alone.
OBJECT_KINDS = ("pack", "index", "body", "root", "reach", "envelope", "fragment")
BINARY_NAME_BYTES = RANDOM_ID_BYTES + OBJECT_RANDOM_BYTES
OBJECT_KEY_BYTES = BINARY_NAME_BYTES + 1


class Ref(msgspec.Struct, frozen=True):
    """A branch or tag: kind, sealed name, checkpoint."""

    kind: str
    sealed_name: bytes
    checkpoint: bytes


class Attestation(NamedTuple):
    """Where a signed statement about a checkpoint stands.

    Args:
        n, actor: the `attest` entry and who wrote it.
        signer: who is said to have signed it, `tag` of the ref that it names, or empty, and `signed_at`, when (µs).
    """

    n: int
    actor: bytes
    signer: bytes
    tag: bytes
    signed_at: int

    @property
    def place(self) -> tuple[bytes, bytes, bytes]:
        """What two of which one takes the other's place have in common."""
        return self.actor, self.signer, self.tag


class Checkpoint(msgspec.Struct, frozen=True):
    """A committed checkpoint.

    Args:
        parent: what its ref pointed to before.
        quarantined: collection goes on without its reachability list, which is damaged.
        verified: how thoroughly it was found whole, if it was; `verified_at`, when, by that machine's clock (ns).
        attestations: signed statements about it.
    """

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
    quarantined: bool = False
    verified: str = ""
    verified_at: int = 0
    attestations: tuple[Attestation, ...] = ()


class Gone(msgspec.Struct, frozen=True):
    """A deleted checkpoint.

    Args:
        n, actor: of the `tombstone`.
        due_at: when it may be dropped, by the clock of whoever deleted it (ns).
        cause: why it was deleted.
        parent: as the checkpoint's, so that a history goes on behind it.
        checkpoint: what `restore` brings back; None once it is dropped.
        dropped_n: the `drop`.
    """

    n: int
    actor: bytes
    due_at: int
    cause: str
    parent: bytes | None
    checkpoint: Checkpoint | None
    dropped_n: int | None = None


class Hold(msgspec.Struct, frozen=True):
    """Keeps a checkpoint (empty: all of the model) from deletion; as `HoldSet` says, by the entry's actor."""

    n: int
    actor: bytes
    checkpoint: bytes
    sealed_reason: bytes


class Model(msgspec.Struct):
    """A logical model.

    Args:
        keys: of all generations, in the order in which they came.
        runs: the newest run epoch of each branch, by its tag.
        gone: checkpoints that were deleted.
        readers: the wrap of each member who may read something of it.
        exposed: component classes whose newest key somebody has who may read them no longer: rotation is due.
        holds: what keeps it, or a checkpoint of it, from deletion, by id.
    """

    name_tag: bytes
    sealed_name: bytes
    keys: tuple[ComponentPublic, ...]
    wrap: str
    created_n: int
    refs: dict[bytes, Ref] = {}
    checkpoints: dict[bytes, Checkpoint] = {}
    runs: dict[bytes, int] = {}
    gone: dict[bytes, Gone] = {}
    readers: dict[bytes, str] = {}
    exposed: list[int] = []
    holds: dict[bytes, Hold] = {}

    def newest_keys(self) -> dict[int, ComponentPublic]:
        """The key in force of each component class."""
        return {key.component: key for key in sorted(self.keys, key=lambda key: key.generation)}

    def held_by(self, checkpoint: bytes) -> list[bytes]:
        """Ids of the holds that keep a checkpoint, those of the whole model included."""
        return [one for one, hold in self.holds.items() if hold.checkpoint in (b"", checkpoint)]

    def parent_of(self, checkpoint: bytes) -> bytes | None:
        """What a history goes on with behind a checkpoint, deleted ones included."""
        held = self.checkpoints.get(checkpoint) or self.gone.get(checkpoint)
        return held.parent if held is not None else None


class DeletedModel(msgspec.Struct, frozen=True):
    """A deleted model.

    Args:
        n, actor, due_at, cause: of the `model.delete`; `due_at` is when it may be shredded.
        name_tag, created_n: as the model's.
        model: what a restore brings back; None once it is shredded.
        shredded_n: the `shred`.
        generation: of the root key that opened its keys then.
        packs: that held what it alone needed: they go, however little that was.
        destroyed_n: the entry that says that its keys are destroyed.
    """

    n: int
    actor: bytes
    due_at: int
    cause: str
    name_tag: bytes
    created_n: int
    model: Model | None
    shredded_n: int | None = None
    generation: int = 0
    packs: Ranges = ()
    destroyed_n: int | None = None


class Approval(msgspec.Struct, frozen=True):
    """Who has approved a plan of deletion, and for which models it was carried out."""

    actors: list[bytes]
    done: list[bytes]


class Piece(msgspec.Struct, frozen=True):
    """An index piece in force and the numbers of the packs that it lists (`first` up to `first + count`)."""

    object: ObjectRef
    first: int
    count: int


class Person(msgspec.Struct, frozen=True):
    """What the log says of who an actor is, as a `PersonSet`."""

    commitment: bytes
    name: bytes


class Void(msgspec.Struct, frozen=True):
    """An entry that has no effect, and why."""

    n: int
    reason: str


class State(msgspec.Struct):
    """Fold of entries 0 .. `length` - 1.

    Args:
        frontier: Merkle frontier over all of them.
        last_leaf: leaf hash of the last of them; tells a log that was rolled back or replaced.
        recovery: the owner whose private half lies beside the store's keys.
        epoch: of collection.
        epochs: the entry that set each epoch from the floor on; epoch 0 began with the log.
        floor: commits of sessions below this epoch are void.
        packs: 36 bytes a pack, in numbering order.
        condemned: pack number -> epoch of its condemnation.
        condemned_objects: the same of other objects, by their keys.
        swept: numbers of packs that are deleted, as closed ranges, ascending.
        live_n: the newest entry that made something live, changed where it lies, or ended what a shred ends.
        members: all to whom an owner ever gave a right; former ones too.
        root_generation, root_key: generation and id of the root key in force; the first one's id is not told.
        root_exposed: somebody has it who is an owner no longer: its rotation is due.
        policy: settings, value by name.
        deleted: models that were deleted; none of them is in `models`.
        approvals: of plans of deletion, by their hashes.
        people: of which actors it is recorded who they are.
        newer_from: first entry of a type that this version does not know.
        damaged_from: where the log is damaged: the entry that does not open, if one stands out, else the first
            whose signed root contradicts the bytes before it.
    """

    length: int = 0
    frontier: tuple[bytes, ...] = ()
    last_leaf: bytes = b""
    owners: list[bytes] = []
    recovery: bytes = b""
    heartbeat_seconds: float = 0.0
    silence_seconds: float = 0.0
    epoch: int = 0
    epochs: dict[int, int] = {}
    floor: int = 0
    models: dict[bytes, Model] = {}
    packs: bytes = b""
    condemned: dict[int, int] = {}
    condemned_objects: dict[bytes, int] = {}
    swept: list[tuple[int, int]] = []
    live_n: int = 0
    pieces: list[Piece] = []
    voids: list[Void] = []
    members: dict[bytes, Member] = {}
    root_generation: int = 0
    root_key: bytes = b""
    root_exposed: bool = False
    policy: dict[str, str] = {}
    deleted: dict[bytes, DeletedModel] = {}
    approvals: dict[bytes, Approval] = {}
    people: dict[bytes, Person] = {}
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

    def in_force(self, number: int) -> bool:
        """Whether the index offers a pack: it is numbered, not condemned and not swept."""
        return 0 <= number < self.pack_count and number not in self.condemned and not within(self.swept, number)

    def live_model(self, identifier: bytes) -> Model:
        """A model that people can read.

        Raises:
            GoneError, NotFoundError: it was deleted, or never there.
        """
        model = self.models.get(identifier)
        if model is not None:
            return model
        deleted = self.deleted.get(identifier)
        if deleted is None:
            raise NotFoundError(f"the store has no model {identifier.hex()}", hint="'cairn ls' lists the models")
        raise GoneError(
            f"model {identifier.hex()} was deleted by log entry {deleted.n} ({deleted.cause})",
            hint="'cairn delete status' tells more",
        )

    def kept_model(self, identifier: bytes) -> Model | None:
        """A model whose keys exist, deleted or not."""
        deleted = self.deleted.get(identifier)
        return deleted.model if deleted is not None else self.models.get(identifier)

    def kept_models(self) -> dict[bytes, Model]:
        """Models whose keys exist: the live ones, and deleted ones that can be restored."""
        deleted = {one: gone.model for one, gone in self.deleted.items() if gone.model is not None}
        return {**self.models, **deleted} if deleted else self.models

    def model_by_tag(self, name_tag: bytes) -> tuple[bytes, Model] | None:
        """The model of a name tag."""
        return next(((i, model) for i, model in self.models.items() if model.name_tag == name_tag), None)

    def deleted_by_tag(self, name_tag: bytes) -> tuple[bytes, DeletedModel] | None:
        """The model of a name tag that was deleted last."""
        found = [(i, gone) for i, gone in self.deleted.items() if gone.name_tag == name_tag]
        return max(found, key=lambda one: one[1].n, default=None)

    def copy(self) -> "State":
        """An independent copy."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self), type=State)


def object_key(ref: ObjectRef, kind: str) -> bytes:
    """Binary name and kind of an object that an entry names, 29 bytes."""
    return ref.name + bytes((OBJECT_KINDS.index(kind),))


def pack_key(pack: PackRef) -> bytes:
    """Key of a pack, numbered or not."""
    return pack.key + bytes((0,))


def name_of_key(key: bytes) -> str:
    """Name in the backend of the object that a key stands for.

    Raises:
        IndexError: no such kind.
    """
    session, random = key[:RANDOM_ID_BYTES], key[RANDOM_ID_BYTES:BINARY_NAME_BYTES]
    return object_name(SessionId(session), random, OBJECT_KINDS[key[BINARY_NAME_BYTES]])


def split_keys(joined: bytes) -> list[bytes] | None:
    """Keys that stand one after the other; None if they are not ascending and distinct, or of no known kind."""
    keys = [joined[at : at + OBJECT_KEY_BYTES] for at in range(0, len(joined), OBJECT_KEY_BYTES)]
    if len(joined) % OBJECT_KEY_BYTES or any(a >= b for a, b in pairwise(keys)):
        return None
    return keys if all(key[BINARY_NAME_BYTES] < len(OBJECT_KINDS) for key in keys) else None


def pack_keys(records: bytes) -> set[bytes]:
    """Keys of the packs of an entry, or of a state."""
    kind = bytes((0,))
    return {records[at : at + BINARY_NAME_BYTES] + kind for at in range(0, len(records), PACK_RECORD_BYTES)}


def objects_of(checkpoint: Checkpoint) -> list[bytes]:
    """Keys of a checkpoint's own objects."""
    keys = [object_key(checkpoint.body, "body"), object_key(checkpoint.reachability, "reach")]
    keys += [object_key(root.object, "root") for root in checkpoint.roots]
    return keys + ([object_key(checkpoint.envelope, "envelope")] if checkpoint.envelope is not None else [])


def named_keys(state: State, dropped: Collection[tuple[bytes, bytes]] = ()) -> set[bytes]:
    """Keys of all collectable objects that a state needs or still counts: any other is a leftover.

    Packs are all that were ever numbered: a number is what condemns those.

    Args:
        dropped: model and checkpoint of deleted ones that count as dropped.
    """
    keys = pack_keys(state.packs)
    keys.update(object_key(piece.object, "index") for piece in state.pieces)
    for identifier, model in state.kept_models().items():
        for checkpoint in model.checkpoints.values():
            keys.update(objects_of(checkpoint))
        for deleted, gone in model.gone.items():
            if gone.checkpoint is not None and (identifier, deleted) not in dropped:
                keys.update(objects_of(gone.checkpoint))
    return keys


def pack_records(packs: list[PackRef]) -> bytes:
    """Records of packs for a commit entry."""
    return b"".join(_PACK.pack(pack.session, pack.random, pack.size) for pack in packs)


def split_packs(records: bytes) -> list[PackRef] | None:
    """Inverse of `pack_records`; None if the length is off."""
    if len(records) % PACK_RECORD_BYTES:
        return None
    return [PackRef(SessionId(s), r, size) for s, r, size in _PACK.iter_unpack(records)]


assert BINARY_NAME_BYTES + 8 == PACK_RECORD_BYTES
