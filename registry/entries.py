"""Log entries: what they say, how they are signed and sealed.

Stored bytes = sealed object (kind LOG_ENTRY, class key K_log) of canonical [entry bytes, signature]. The
signature (Ed25519) covers a label and the entry bytes. Payload types are listed in `PAYLOADS`; a correctly signed
entry of another type means a newer format: the store is read-only from there.
"""

import msgspec

from cairn.core.canonical import decode, encode
from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError
from cairn.core.ids import OBJECT_RANDOM_BYTES, RANDOM_ID_BYTES, ActorId, SessionId, StoreId, object_name
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.signing import Identity, verify_signature

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


class ComponentPublic(msgspec.Struct, frozen=True):
    """Public half of a component key."""

    component: int
    generation: int
    public: bytes


class ModelCreate(msgspec.Struct, frozen=True):
    """A new logical model. `name_tag` keeps names unique; the name itself is sealed to the model's meta key."""

    model: bytes
    name_tag: bytes
    sealed_name: bytes
    keys: tuple[ComponentPublic, ...]
    wrap: str


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


class Commit(msgspec.Struct, frozen=True):
    """Makes a checkpoint live and moves a branch to it, in one step. See the commit rule in `fold.py`.

    Args:
        sessions: all sessions whose uploads the commit uses.
        epoch: the lowest epoch among them.
        hit_position: the log position that its dedup hits are good for.
        relied: numbers of packs of others that it relies on, as closed ranges, ascending.
        packs: its own packs, 36 bytes each: session, random, size (u64).
        pieces: index pieces that list exactly the own packs.
        meta: sealed to the model's meta key: message and step, for listings.
        run_epoch: of the training run that writes; another one than the branch's newest is void.
        envelope: times and places of the save, outside the checkpoint's identity.
        partial: only some of its content is here, as the reachability list says; a `supply` brings more.
        parent: for a ref that is new here, the checkpoint that the history goes on from; else `ref.expected` is that.
    """

    model: bytes
    checkpoint: bytes
    sessions: tuple[bytes, ...]
    epoch: int
    hit_position: int
    relied: tuple[tuple[int, int], ...]
    packs: bytes
    pieces: tuple[ObjectRef, ...]
    body: ObjectRef
    roots: tuple[RootRef, ...]
    reachability: ObjectRef
    ref: RefChange
    meta: bytes
    run_epoch: int | None = None
    envelope: ObjectRef | None = None
    partial: bool = False
    parent: bytes | None = None


class Supply(msgspec.Struct, frozen=True):
    """Brings content of a committed checkpoint that is not here: left out by a partial pull, or lost.

    What it shares with a commit means the same, and obeys the same rule. `reachability` replaces the checkpoint's.
    """

    model: bytes
    checkpoint: bytes
    sessions: tuple[bytes, ...]
    epoch: int
    hit_position: int
    relied: tuple[tuple[int, int], ...]
    packs: bytes
    pieces: tuple[ObjectRef, ...]
    reachability: ObjectRef
    partial: bool = False


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


Payload = Init | ModelCreate | RunOpen | Commit | Supply | RefMove | RefDelete | Abort
PAYLOADS: dict[str, type[Payload]] = {
    "init": Init,
    "model.create": ModelCreate,
    "run.open": RunOpen,
    "commit": Commit,
    "supply": Supply,
    "ref.move": RefMove,
    "ref.delete": RefDelete,
    "abort": Abort,
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


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    entry: bytes
    signature: bytes


def seal_entry(entry: Entry, identity: Identity, k_log: bytes, entropy: Entropy) -> bytes:
    """Sign and seal; `entry.actor` must be the identity's."""
    plain = encode(entry)
    signed = encode(_Signed(plain, identity.sign(_SIGNED + plain)))
    return seal_object(k_log, StoreId(entry.store), ObjectKind.LOG_ENTRY, signed, entropy)


def open_entry(stored: bytes, n: int, tenant: bytes, store: StoreId, k_log: bytes) -> Entry:
    """Open, check the signature and that the entry belongs at position `n` of this store.

    Raises:
        IntegrityError: any of it fails.
    """
    what = f"log entry {n}"
    signed = decode(open_object(k_log, store, ObjectKind.LOG_ENTRY, stored, what), _Signed, what)
    entry = decode(signed.entry, Entry, what)
    if not verify_signature(ActorId(entry.actor), signed.signature, _SIGNED + signed.entry):
        raise IntegrityError(f"{what} has a bad signature")
    if (entry.tenant, entry.store, entry.n) != (tenant, store, n):
        raise IntegrityError(f"{what} was written for another place")
    return entry


def payload_of(entry: Entry) -> Payload | None:
    """The typed payload; None for a type that this version does not know.

    Raises:
        IntegrityError: it does not decode.
    """
    kind = PAYLOADS.get(entry.type)
    if kind is None or entry.format != FORMAT:
        return None
    return decode(entry.payload, kind, f"payload of log entry {entry.n}")
