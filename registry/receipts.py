"""Making a receipt of a model's deletion, out of the log."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from msgspec.structs import replace

from cairn.core.errors import ConflictError, IntegrityError, NotFoundError
from cairn.core.ids import ModelId, StoreId
from cairn.registry.audit import KnownHead, judge
from cairn.registry.deletion import check_is_owner
from cairn.registry.entries import Commit, Entry, Init, ModelCreate, Payload, Supply, Swept, payload_of
from cairn.registry.entries_audit import Reads
from cairn.registry.entries_deletion import Confirm, Shred
from cairn.registry.entries_rights import GrantSet, KeyRotate, MemberSet, RootRotate
from cairn.registry.logview import LogView, StoredEntry, WholeLog
from cairn.registry.numbers import numbers_of
from cairn.registry.proofs import inclusion_paths
from cairn.registry.reads import open_read
from cairn.registry.receiptform import (
    HOLDER,
    MEMBER,
    OWNER,
    ROOT_COPIES,
    STORAGE,
    Confirmed,
    Event,
    Evidence,
    Left,
    Open,
    Reader,
    Receipt,
    Statement,
    always_open,
    amount_of,
    irrecoverable_since,
    left_by,
    left_open,
    sign_statement,
)
from cairn.registry.registry import Registry
from cairn.registry.remotes import noted_remotes
from cairn.registry.rights import Role
from cairn.registry.rotation import service_in_force
from cairn.registry.signedhead import sign_head
from cairn.registry.state import DeletedModel, object_key, split_keys
from cairn.store.crypto.objects import ObjectKind, key_of_object


def make_receipt(registry: Registry, model: ModelId) -> Receipt:
    """A receipt of a model whose keys are destroyed, or about to be, as of now.

    Raises:
        ConflictError: the model is not shredded.
        IntegrityError: the log cannot be vouched for.
        NotAllowed: this user is no owner.
    """
    opened = registry.opened
    deleted = _shredded(registry, model)
    check_is_owner(registry)
    head = opened.home.remembered_head(opened.store)
    known = [KnownHead(head, "this user's memory")] if head is not None else []
    trail = _Trail(model)
    whole = WholeLog(LogView.of(opened), {one.head.length for one in known}, trail.take)
    judge(whole, known).require_whole()
    trail.leave_out({void.n for void in whole.state.voids})
    signer = registry.signer()
    statement = _statement(registry, model, deleted, trail, whole)
    evidence = []
    for n, path in inclusion_paths(whole.leaves, sorted(trail.proof_of(deleted))).items():
        stored = trail.stored[n]
        key = key_of_object(opened.secrets.k_log, opened.store, ObjectKind.LOG_ENTRY, stored)
        evidence.append(Evidence(n, b64encode(stored).decode(), key.hex(), tuple(one.hex() for one in path)))
    note = sign_head(opened.store, whole.head, signer, whole.state.owners)
    return Receipt(statement, sign_statement(statement, signer), note, tuple(evidence))


def confirm(registry: Registry, model: ModelId, of: str) -> None:
    """Note that something which could still open a shredded model is gone.

    Args:
        of: its name in the receipt.

    Raises:
        NotFoundError: the receipt lists no such thing as open.
    """
    told = make_receipt(registry, model).statement
    names = [one.of for one in told.open if one.confirmable]
    if of not in names:
        raise NotFoundError(
            f"{of[:80]!r} is not open in the receipt of model {model.hex()}",
            hint=f"one of: {', '.join(names)}" if names else "nothing is left to confirm",
        )
    registry.append(lambda state: Confirm(model, of))


def _shredded(registry: Registry, model: ModelId) -> DeletedModel:
    deleted = registry.refresh().deleted.get(model)
    if deleted is None or deleted.shredded_n is None:
        raise ConflictError(
            f"the keys of model {model.hex()} are not destroyed",
            hint="'cairn gc apply --yes' of an owner destroys those of deleted models that are due",
        )
    return deleted


# --- what the log tells -----------------------------------------------------------------------------


class _Trail:
    """What the log tells of a model, by the positions of the entries that tell it.

    Attributes:
        stored: bytes of entries that may be shown.
    """

    def __init__(self, model: ModelId) -> None:
        self._model = model
        self.entries: dict[int, tuple[Entry, Payload]] = {}
        self.stored: dict[int, bytes] = {}
        self.objects: dict[int, list[bytes]] = {}
        self.swept: dict[int, tuple[Entry, Swept]] = {}
        self.reads: dict[str, list[int]] = {}
        self.given: dict[int, set[bytes]] = {}
        self.owners: dict[int, set[bytes]] = {}

    def take(self, found: StoredEntry) -> None:
        """One more entry."""
        entry, payload = found.entry, None
        if entry is not None:
            with suppress(IntegrityError):
                payload = payload_of(entry)
        if entry is None or payload is None or found.stored is None:
            return
        n = entry.n
        self._rights(n, payload)
        if isinstance(payload, Reads):
            self._read(payload, entry)
        elif isinstance(payload, Commit | Supply) and payload.model == self._model:
            self.objects[n] = list(_objects_in(payload))
        elif isinstance(payload, Swept):
            self.swept[n] = entry, payload
            self.stored[n] = found.stored
        elif isinstance(payload, RootRotate) or self._is_about(payload):
            self.entries[n] = entry, payload
            self.stored[n] = found.stored

    def leave_out(self, voids: set[int]) -> None:
        """Forget entries that have no effect."""
        for held in (self.entries, self.stored, self.objects, self.swept, self.given, self.owners):
            for n in voids & held.keys():
                del held[n]

    def event(self, n: int) -> Event:
        """What a receipt says of an entry."""
        entry = self.entries[n][0]
        return Event(n, entry.actor.hex(), entry.claimed_at)

    def root_key(self, deleted: DeletedModel) -> int | None:
        """The entry of the new root key behind which the old one was destroyed."""
        if deleted.destroyed_n is None or deleted.shredded_n is None:
            return None
        between = range(deleted.shredded_n, deleted.destroyed_n)
        return max(n for n, (_, payload) in self.entries.items() if isinstance(payload, RootRotate) and n in between)

    def own_objects(self, deleted: DeletedModel) -> list[bytes]:
        """Keys of what it had of its own when its keys were destroyed."""
        n = deleted.shredded_n or 0
        before = {key for at, (_, one) in self.swept.items() if at < n for key in split_keys(one.objects) or ()}
        return sorted({key for keys in self.objects.values() for key in keys} - before)

    def left(self, deleted: DeletedModel) -> Left:
        """What collections left of it."""
        objects = tuple(key.hex() for key in self.own_objects(deleted))
        return left_by(self.swept.values(), self.shred(deleted), objects)

    def proof_of(self, deleted: DeletedModel) -> set[int]:
        """Entries that show what the receipt says."""
        shred = self.shred(deleted)
        all_of_it = Left(tuple(shred.packs), tuple(key.hex() for key in self.own_objects(deleted)), None)
        found = {deleted.n, deleted.shredded_n, deleted.destroyed_n, self.root_key(deleted)} - {None}
        told = {n for n, (_, payload) in self.entries.items() if isinstance(payload, Confirm)}
        told |= {n for n, one in self.swept.items() if left_by([one], shred, all_of_it.objects) != all_of_it}
        return told | {n for n in found if n is not None}

    def shred(self, deleted: DeletedModel) -> Shred:
        """The accounts that were made when it was decided."""
        payload = self.entries[deleted.shredded_n or 0][1]
        assert isinstance(payload, Shred)
        return payload

    def _is_about(self, payload: Payload) -> bool:
        return self._model == getattr(payload, "model", None) or self._model in getattr(payload, "models", ())

    def _rights(self, n: int, payload: Payload) -> None:
        """Note who was given keys: owners have all of them."""
        if isinstance(payload, Init):
            self.owners[n] = {payload.owner}
        elif isinstance(payload, MemberSet) and payload.role == Role.OWNER:
            self.owners[n] = {payload.member}
        elif isinstance(payload, GrantSet) and any(one.whose == self._model for one in payload.wraps):
            self.given[n] = {payload.member}
        elif isinstance(payload, ModelCreate | KeyRotate) and payload.model == self._model:
            self.given[n] = {one.whose for one in payload.wraps}

    def _read(self, payload: Reads, entry: Entry) -> None:
        for one in payload.reads:
            with suppress(IntegrityError):
                read = open_read(one, StoreId(entry.store), f"a read in log entry {entry.n}")
                if read.model == self._model:
                    self.reads.setdefault(read.actor.hex(), []).append(read.at)


def _objects_in(payload: Commit | Supply) -> Iterator[bytes]:
    yield object_key(payload.reachability, "reach")
    if payload.body is not None:
        yield object_key(payload.body, "body")
    if payload.envelope is not None:
        yield object_key(payload.envelope, "envelope")
    for root in payload.roots:
        yield object_key(root.object, "root")


# --- the statement ----------------------------------------------------------------------------------


def _statement(registry: Registry, model: ModelId, deleted: DeletedModel, trail: _Trail, whole: WholeLog) -> Statement:
    opened, shred = registry.opened, trail.shred(deleted)
    left, root_key = trail.left(deleted), trail.root_key(deleted)
    destroyed = trail.event(deleted.destroyed_n) if deleted.destroyed_n is not None else None
    confirmed = tuple(
        Confirmed(payload.of, trail.event(n))
        for n, (_, payload) in trail.entries.items()
        if isinstance(payload, Confirm)
    )
    told = Statement(
        store=opened.store.hex(),
        tenant=opened.tenant.hex(),
        model=model.hex(),
        signer=registry.signer().actor.hex(),
        made_at_ns=opened.clock.wall_ns(),
        length=whole.head.length,
        root=whole.head.root.hex(),
        deleted=trail.event(deleted.n),
        cause=deleted.cause,
        shredded=trail.event(deleted.shredded_n or 0),
        destroyed=destroyed,
        root_key=trail.event(root_key) if root_key is not None else None,
        checkpoints=shred.checkpoints,
        alone=amount_of(shred.alone),
        shared=tuple(amount_of(one.content, one.model) for one in shred.shared),
        packs=shred.packs,
        packs_left=tuple(numbers_of(left.packs)),
        objects=tuple(key.hex() for key in trail.own_objects(deleted)),
        objects_left=left.objects,
        readers=tuple(_readers(trail)),
        confirmed=confirmed,
        open=(),
        inaccessible_since_ns=destroyed.claimed_at_ns if destroyed is not None else None,
        irrecoverable_since_ns=None,
    )
    closed = {one.of for one in confirmed}
    elsewhere = tuple(one for one in _elsewhere(registry, deleted, told) if one.of not in closed)
    told = replace(told, open=(*left_open(told), *elsewhere))
    return replace(told, irrecoverable_since_ns=irrecoverable_since(told, left.last_ns))


def _readers(trail: _Trail) -> Iterator[Reader]:
    """Who read it, or could: everybody who was ever given its keys."""
    owners = {one.hex() for some in trail.owners.values() for one in some}
    given = {one.hex() for some in trail.given.values() for one in some}
    for actor in sorted(owners | given | trail.reads.keys()):
        reads = trail.reads.get(actor, [])
        as_: Literal["owner", "member", ""] = OWNER if actor in owners else MEMBER if actor in given else ""
        yield Reader(actor, as_, len(reads), max(reads, default=None))


def _elsewhere(registry: Registry, deleted: DeletedModel, told: Statement) -> Iterator[Open]:
    """What this store's log cannot speak for."""
    members = {f"{HOLDER}{reader.actor}" for reader in told.readers if reader.as_ == MEMBER}
    generations = f"up to generation {deleted.generation}" if deleted.generation else "of generation 0"
    why = {
        ROOT_COPIES: f"copies of key files, recovery files and passphrases {generations}",
        STORAGE: "versions and backups of its objects that the storage keeps",
    }
    for of in always_open(told):
        held = "was given keys of it, and may have kept them" if of in members else why.get(of)
        yield Open(of, held or "held the root key, and may have kept it", True)
    service = service_in_force(registry)
    if service is not None:
        yield Open(f"service:{service}", "the key service opens old root records, where copies of them are", True)
    for name, remote in noted_remotes(registry.opened.home, registry.opened.store).items():
        yield Open(f"store:{name}", f"{remote.url} may hold the model: it is deleted in each store by itself", True)
