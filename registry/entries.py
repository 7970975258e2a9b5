"""Log entries: what they say, how they are signed and sealed.

Stored bytes = sealed object (kind LOG_ENTRY, class key K_log) of canonical [entry bytes, signature]. The
signature (Ed25519) covers a label and the entry bytes. A type that is not in `PAYLOADS` makes the store read-only.
"""

import msgspec

from cairn.core.canonical import decode
from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError
from cairn.core.ids import OBJECT_RANDOM_BYTES, RANDOM_ID_BYTES, SessionId, StoreId, object_name
from cairn.registry import entries_deletion as deletion
from cairn.registry.entries_attest import Attest
from cairn.registry.entries_audit import Policy, Reads
from cairn.registry.entries_deletion import DeletionPayload, Drop, Restore, Tombstone
from cairn.registry.entries_rights import ComponentPublic, Given, GrantSet, KeyRotate, MemberSet, PersonSet, RootRotate
from cairn.registry.numbers import Ranges
from cairn.registry.signedrecord import open_record, sign_record
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.signing import Identity

FORMAT = 1
_SIGNED = b"cairn/1/log-entry\0"


class ObjectRef(msgspec.Struct, frozen=True):
    """A collectable object: binary name (session, random), size, and BLAKE3 of its stored bytes."""

    name: bytes
    size: int
    hash: bytes

    def object_name(self, kind: str) -> str:
        """Name in the backend."""
        session, random = self.name[:RANDOM_ID_BYTES], self.name[RANDOM_ID_BYTES:]
        if len(random) != OBJECT_RANDOM_BYTES:
            raise IntegrityError("an entry names an object by an impossible name")
        return object_name(SessionId(session), random, kind)


class Init(msgspec.Struct, frozen=True):
    """Entry 0. `founding` is the tenant's record, verbatim in each of its stores; tenant id = its hash.

    Args:
        owner: actor of whoever made the store.
        recovery: actor whose private half lies beside the store's keys: whoever holds the root key is an owner.
    """

    founding: bytes
    owner: bytes
    recovery: bytes
    capabilities: dict[str, bool]
    heartbeat_seconds: float
    silence_seconds: float


class Founding(msgspec.Struct, frozen=True):
    """What a tenant is: a founder and randomness."""

    format: int
    founder: bytes
    random: bytes


class ModelCreate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new logical model. `name_tag` keeps names unique; the name itself is sealed to the model's meta key.

    Args:
        wraps: for exactly those members who may read all models.
    """

    model: bytes
    name_tag: bytes
    sealed_name: bytes
    keys: tuple[ComponentPublic, ...]
    wrap: str
    wraps: tuple[Given, ...] = ()


class RefChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A ref move inside a commit: from `expected` (None: must not exist) to the commit's checkpoint."""

    tag: bytes
    sealed_name: bytes
    expected: bytes | None
    kind: str = "branch"


class RootRef(msgspec.Struct, frozen=True):
    """Where a component root lies."""

    component: int
    generation: int
    object: ObjectRef


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry says that brings new content, or relies on what is there: the commit rule in `fold.py` checks it.

    Args:
        sessions: all sessions whose uploads it uses.
        epoch: the lowest epoch among them.
        hit_position: the log position that its dedup hits are good for.
        relied: numbers of packs of others that it relies on, as closed ranges, ascending.
        packs: its own packs, 36 bytes each: session, random, size (u64).
        pieces: index pieces that list exactly the own packs.
    """

    sessions: tuple[bytes, ...]
    epoch: int
    hit_position: int
    relied: Ranges
    packs: bytes
    pieces: tuple[ObjectRef, ...]


class Commit(Upload, frozen=True, kw_only=True):
    """Makes a checkpoint live and moves a branch to it, in one step.

    Args:
        meta: sealed to the model's meta key: message and step, for listings.
        run_epoch: of the training run that writes; another one than the branch's newest is void.
        envelope: times and places of the save, outside the checkpoint's identity.
        partial: only some of its content is here, as the reachability list says; a `supply` brings more.
        parent: for a ref that is new here, the checkpoint that the history goes on from; else `ref.expected` is that.
        carried: it was sealed in another store, perhaps to keys that are retired here.
    """

    model: bytes
    checkpoint: bytes
    body: ObjectRef
    roots: tuple[RootRef, ...]
    reachability: ObjectRef
    ref: RefChange
    meta: bytes
    run_epoch: int | None = None
    envelope: ObjectRef | None = None
    partial: bool = False
    parent: bytes | None = None
    carried: bool = False


class Supply(Upload, frozen=True, kw_only=True):
    """Brings content of a committed checkpoint that is not here: left out by a partial pull, or lost.

    Args:
        reachability: takes the place of the checkpoint's.
        body: likewise, if the checkpoint's was lost: the same body sealed anew, as the id shows to readers.
        roots, envelope: likewise: the same bytes under other names, as their hashes show.
    """

    model: bytes
    checkpoint: bytes
    reachability: ObjectRef
    partial: bool = False
    body: ObjectRef | None = None
    roots: tuple[RootRef, ...] = ()
    envelope: ObjectRef | None = None


class Condemn(Upload, frozen=True, kw_only=True):
    """Condemns what no live checkpoint needs, and sets the next collection epoch. Nothing is deleted by it.

    What is repacked moves with it: the own packs hold copies of all that lives in a condemned pack and nowhere else.

    Args:
        marked: length of the log that the marking went by; void if anything has been made live since.
        condemned: numbers of packs, as closed ranges, ascending.
        objects: keys (see `state.object_key`) of other objects, one after the other, ascending.
    """

    marked: int
    condemned: Ranges
    objects: bytes


class Floor(msgspec.Struct, frozen=True):
    """Every session below this epoch has ended, advanced or been given up: what its writer still commits is void."""

    epoch: int


class Swept(msgspec.Struct, frozen=True):
    """Names exactly what was deleted of what stood condemned at or below the floor. As in `Condemn`."""

    packs: Ranges
    objects: bytes


class Uncondemn(msgspec.Struct, frozen=True):
    """Takes back packs and objects that are condemned above the floor. As in `Condemn`."""

    packs: Ranges
    objects: bytes


class MergeIndex(msgspec.Struct, frozen=True):
    """Puts one index piece into the place of several that stand one after the other.

    Args:
        first, count: the packs that it lists, by number: all those of the pieces that it replaces, else deleted ones.
    """

    sessions: tuple[bytes, ...]
    epoch: int
    piece: ObjectRef
    first: int
    count: int


class Verified(msgspec.Struct, frozen=True):
    """Says that checkpoints were read and found whole; `depth` is `quick`, `sampled` or `full`."""

    model: bytes
    checkpoints: tuple[bytes, ...]
    depth: str


class Quarantine(msgspec.Struct, frozen=True):
    """Lets collection go on without a checkpoint's reachability list, which is damaged.

    What that checkpoint alone needs may be collected; a `supply` with a new list ends it.
    """

    model: bytes
    checkpoint: bytes


class RunOpen(msgspec.Struct, frozen=True):
    """A training run takes over a branch: from here on commits of its earlier runs are void.

    Args:
        tag: of the branch.
        epoch: one more than that of the run before; the first is 1.
    """

    model: bytes
    tag: bytes
    epoch: int


class RefMove(msgspec.Struct, frozen=True):
    """Creates or moves a branch or tag."""

    model: bytes
    tag: bytes
    kind: str
    sealed_name: bytes
    expected: bytes | None
    target: bytes


class RefDelete(msgspec.Struct, frozen=True):
    """Removes a branch or tag; the checkpoints stay."""

    model: bytes
    tag: bytes
    expected: bytes


class Abort(msgspec.Struct, frozen=True):
    """Fills a slot so that an answer that was lost is no longer open."""


Payload = (
    Init | ModelCreate | RunOpen | Commit | Supply | RefMove | RefDelete | Condemn | Floor | Swept | Uncondemn | Attest
    | MergeIndex | Tombstone | Restore | Drop | Verified | Quarantine | Policy | Reads | Abort | MemberSet | GrantSet
    | KeyRotate | RootRotate | DeletionPayload
    | PersonSet
)  # fmt: skip
PAYLOADS: dict[str, type[Payload]] = {
    "init": Init,
    "model.create": ModelCreate,
    "run.open": RunOpen,
    "commit": Commit,
    "supply": Supply,
    "ref.move": RefMove,
    "ref.delete": RefDelete,
    "gc.condemn": Condemn,
    "gc.floor": Floor,
    "gc.swept": Swept,
    "gc.uncondemn": Uncondemn,
    "index": MergeIndex,
    "tombstone": Tombstone,
    "restore": Restore,
    "drop": Drop,
    "verify": Verified,
    "quarantine": Quarantine,
    "policy": Policy,
    "reads": Reads,
    "abort": Abort,
    "member": MemberSet,
    "grant": GrantSet,
    "key.rotate": KeyRotate,
    "root.rotate": RootRotate,
    "person": PersonSet,
    "attest": Attest,
    **deletion.PAYLOADS,
}
TYPES = {kind: name for name, kind in PAYLOADS.items()}


class Entry(msgspec.Struct, frozen=True):
    """One log entry; `root` is the Merkle root of all entries before it, `claimed_at` its writer's clock (ns)."""

    format: int
    tenant: bytes
    store: bytes
    n: int
    root: bytes
    type: str
    actor: bytes
    write_id: bytes
    claimed_at: int
    payload: bytes


def seal_entry(entry: Entry, identity: Identity, k_log: bytes, entropy: Entropy) -> bytes:
    """Sign and seal; `entry.actor` must be the identity's."""
    signed = sign_record(entry, identity, _SIGNED)
    return seal_object(k_log, StoreId(entry.store), ObjectKind.LOG_ENTRY, signed, entropy)


def open_entry(stored: bytes, n: int, tenant: bytes, store: StoreId, k_log: bytes) -> Entry:
    """Open, check the signature and that the entry belongs at position `n` of this store.

    Raises:
        IntegrityError: any of it fails.
    """
    what = f"log entry {n}"
    entry = open_signed(stored, store, k_log, what)
    if (entry.tenant, entry.store, entry.n) != (tenant, store, n):
        raise IntegrityError(f"{what} was written for another place")
    return entry


def open_signed(stored: bytes, store: StoreId, k_log: bytes, what: str) -> Entry:
    """Open an entry, wherever it stands, and check its signature.

    Raises:
        IntegrityError: either fails.
    """
    return open_plain_entry(open_object(k_log, store, ObjectKind.LOG_ENTRY, stored, what), what)


def open_plain_entry(plain: bytes, what: str) -> Entry:
    """An entry out of what is sealed, its signature checked.

    Raises:
        IntegrityError: it does not decode, or is not signed by whom it names.
    """
    return open_record(plain, Entry, _SIGNED, what)


def payload_of(entry: Entry) -> Payload | None:
    """The typed payload; None for a type that this version does not know.

    Raises:
        IntegrityError: it does not decode.
    """
    kind = PAYLOADS.get(entry.type)
    if kind is None or entry.format != FORMAT:
        return None
    return decode(entry.payload, kind, f"payload of log entry {entry.n}")
