"""Receipts of deletion: their form, and checking one offline, with nothing but the file and the log's public key.

A receipt is a signed claim with evidence. Its evidence are log entries, each opened by a key of its own that opens
nothing else, and proofs (RFC 6962) that they stand in the log whose head is signed beside them.
"""

import binascii
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec

from cairn.core.errors import BadInput, IntegrityError, UsageError
from cairn.core.ids import ActorId, StoreId
from cairn.core.limits import RECEIPT_BYTES_MAX
from cairn.registry.entries import Entry, Swept, open_plain_entry, payload_of
from cairn.registry.entries_deletion import Confirm, Content, Destroyed, ModelDelete, Shred
from cairn.registry.entries_rights import RootRotate
from cairn.registry.merkle import leaf_hash
from cairn.registry.numbers import Ranges, are_ranges, ranges, without
from cairn.registry.proofs import proves_inclusion
from cairn.registry.signedhead import open_head, origin_of
from cairn.registry.state import split_keys
from cairn.store.crypto.objects import ObjectKind, open_by_own_key
from cairn.store.crypto.signing import Identity, verify_signature

FORMAT = "cairn deletion receipt 1"
OWNER: Final = "owner"
MEMBER: Final = "member"
HOLDER, ROOT_COPIES, STORAGE = "holder:", "root-copies", "storage"
_SIGNED = b"cairn/1/receipt\0"
_Payload = TypeVar("_Payload")
# What stands in the file and in no entry is bounded as such: times that a clock can show, ids of their length.
_Time = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Id = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32}|[0-9a-f]{64})\Z")]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log entry, who wrote it, and when by its writer's clock (ns)."""

    entry: int
    actor: _Id
    claimed_at_ns: _Time


class Amount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Chunks and pages, as a `Content`; `model` needs them and keeps them, where it says one."""

    chunks: int
    stored_bytes: int
    ids: str
    model: str = ""


class Reader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who read the model or could.

    Args:
        as_: `owner`, `member` (was given keys of it), or empty where only reads are known.
        reads: how many are recorded; `last_ns` is the newest, by the reader's clock.
    """

    actor: _Id
    as_: Literal["owner", "member", ""] = msgspec.field(name="as", default="")
    reads: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)] = 0
    last_ns: _Time | None = None


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may still open the model, or keep its bytes.

    Args:
        of: its name; `confirmable` ones are closed by `cairn delete confirm`, the others by what happens in the store.
    """

    of: str
    why: str
    confirmable: bool


class Confirmed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody has confirmed to be gone."""

    of: str
    event: Event


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a receipt says. Ids are hexadecimal digits, times nanoseconds by the clock of whoever wrote the entry.

    Args:
        signer, made_at_ns: who made the receipt, and when.
        length, root: head of the log that it goes by.
        deleted, shredded, destroyed: the entries that did it; the last is None as long as keys may be there.
        cause: why it was deleted, in the words of the entry.
        root_key: the entry of the new root key, between the shred and the destruction.
        checkpoints: how many there were.
        alone: what nothing else needed.
        shared: what stays, and for which models.
        packs: that held what nothing else needed, by numbers; `packs_left`, those that are not deleted yet.
        objects: keys of bodies, roots, lists and envelopes, in hexadecimal digits; `objects_left` likewise.
        readers: recorded reads and those who could.
        confirmed, open: what could still open it or kept its bytes: what is confirmed to be gone, and what is not.
        inaccessible_since_ns: no key of this store opens it since; None: not yet.
        irrecoverable_since_ns: all of `open` is closed since; None: not yet.
    """

    format: str = FORMAT
    store: _Id
    tenant: _Id
    model: _Id
    signer: _Id
    made_at_ns: _Time
    length: int
    root: str
    deleted: Event
    cause: str
    shredded: Event
    destroyed: Event | None
    root_key: Event | None
    checkpoints: int
    alone: Amount
    shared: tuple[Amount, ...]
    packs: Ranges
    packs_left: tuple[int, ...]
    objects: tuple[str, ...]
    objects_left: tuple[str, ...]
    readers: tuple[Reader, ...]
    confirmed: tuple[Confirmed, ...]
    open: tuple[Open, ...]
    inaccessible_since_ns: int | None
    irrecoverable_since_ns: int | None


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log entry: its stored bytes (base64), the key that opens it, and the hashes that prove it."""

    entry: int
    stored: str
    key: str
    path: tuple[str, ...]


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A receipt's file; `signature` is over the canonical JSON of the statement, `head` a signed note."""

    statement: Statement
    signature: str
    head: str
    evidence: tuple[Evidence, ...]


def sign_statement(statement: Statement, identity: Identity) -> str:
    """Signature of a statement; `signer` must be the identity's."""
    return identity.sign(_signed_bytes(statement)).hex()


def encode_receipt(receipt: Receipt) -> bytes:
    """JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(receipt, order="sorted"), indent=1) + b"\n"


def decode_receipt(data: bytes) -> Receipt:
    """Inverse of `encode_receipt`; checks the form alone.

    Raises:
        BadInput: it is no receipt.
    """
    try:
        if len(data) > RECEIPT_BYTES_MAX:
            raise ValueError(f"it is longer than {RECEIPT_BYTES_MAX} bytes")
        receipt = msgspec.json.decode(data, type=Receipt)
        if receipt.statement.format != FORMAT:
            raise ValueError(f"its format is {receipt.statement.format[:80]!r}")
    except ValueError as error:
        raise BadInput(f"this is no receipt of deletion: {error}", hint="'cairn receipt create' makes one") from None
    return receipt


def check_receipt(data: bytes, key: str) -> Statement:
    """The statement of a receipt, once all that can be checked offline was found right.

    Args:
        key: the log's public key, as `cairn audit head --json` prints it, or an owner's id.

    Raises:
        BadInput: it is no receipt.
        UsageError: that is no key, or another log's.
        IntegrityError: a signature or proof is bad, or the entries do not say what the statement does.
    """
    receipt = decode_receipt(data)
    try:
        return _Check(receipt, _actor_of(key, receipt.statement.store)).run()
    except ValueError as error:
        raise IntegrityError(f"the receipt is damaged: {error}") from None


def _signed_bytes(statement: Statement) -> bytes:
    return _SIGNED + msgspec.json.encode(statement, order="sorted")


def _actor_of(key: str, store: str) -> ActorId:
    """The public key in what names one."""
    # The last part may have the separator in it.
    name, *rest = key.strip().split("+", 2)
    try:
        if len(rest) != 2:
            actor = bytes.fromhex(name)
        else:
            actor = b64decode(rest[1], validate=True)[1:]
            if name != origin_of(StoreId(bytes.fromhex(store))):
                raise UsageError(f"that is the key of {name[:80]!r}, and the receipt is of store {store}")
    except (binascii.Error, ValueError):
        actor = b""
    if len(actor) != 32:
        raise UsageError(f"{key[:80]!r} is no public key of a log", hint="it stands in 'cairn audit head --json'")
    return ActorId(actor)


class _Check:
    def __init__(self, receipt: Receipt, actor: ActorId) -> None:
        self._receipt, self._told, self._actor = receipt, receipt.statement, actor
        self._entries: dict[int, Entry] = {}

    def run(self) -> Statement:
        told, receipt = self._told, self._receipt
        store = StoreId(bytes.fromhex(told.store))
        if told.signer != self._actor.hex():
            raise IntegrityError(f"the receipt is signed by {told.signer[:64]}, not by the key that was given")
        if not verify_signature(self._actor, bytes.fromhex(receipt.signature), _signed_bytes(told)):
            raise IntegrityError("the receipt's signature is bad: it was changed, or signed with another key")
        head = open_head(receipt.head, store, (self._actor,), "the receipt's head").head
        if (head.length, head.root.hex()) != (told.length, told.root):
            raise IntegrityError("the receipt speaks of another head of the log than the signed one beside it")
        for one in receipt.evidence:
            self._entries[one.entry] = self._proved(one, store)
        self._compare()
        return told

    def _proved(self, one: Evidence, store: StoreId) -> Entry:
        """The entry, which is in the log, and in this place."""
        told, stored, what = self._told, b64decode(one.stored, validate=True), f"entry {one.entry} of the receipt"
        path = [bytes.fromhex(sibling) for sibling in one.path]
        if not proves_inclusion(leaf_hash(stored), one.entry, told.length, path, bytes.fromhex(told.root)):
            raise IntegrityError(f"{what} is not proved to be in the log")
        plain = open_by_own_key(bytes.fromhex(one.key), ObjectKind.LOG_ENTRY, stored, what)
        entry = open_plain_entry(plain, what)
        if (entry.n, entry.store, entry.tenant.hex()) != (one.entry, store, told.tenant):
            raise IntegrityError(f"{what} was written for another place")
        return entry

    def _compare(self) -> None:
        """Raise unless the entries say what the statement says."""
        told, model = self._told, bytes.fromhex(self._told.model)
        deleted = self._payload(told.deleted, ModelDelete)
        shred = self._payload(told.shredded, Shred)
        if told.deleted.entry > told.shredded.entry or deleted.due_at > told.shredded.claimed_at_ns:
            raise IntegrityError("the receipt shows a shred of what could be restored then")
        _same("model", {deleted.model, shred.model}, {model})
        _same("cause", deleted.cause, told.cause)
        _same("checkpoints", shred.checkpoints, told.checkpoints)
        _same("alone", amount_of(shred.alone), told.alone)
        _same("shared", tuple(amount_of(one.content, one.model) for one in shred.shared), told.shared)
        _same("packs", tuple(shred.packs), told.packs)
        if told.destroyed is not None:
            if told.root_key is None or not told.shredded.entry < told.root_key.entry < told.destroyed.entry:
                raise IntegrityError("the receipt shows no new root key between the shred and the destruction of keys")
            rotated = self._payload(told.root_key, RootRotate)
            if model in {one.whose for one in rotated.models}:
                raise IntegrityError("the receipt's new root key opens keys of the model")
            owners = {one.actor for one in told.readers if one.as_ == OWNER}
            _same("readers", {one.member.hex() for one in rotated.members} <= owners, True)
            _same("destroyed", model in self._payload(told.destroyed, Destroyed).models, True)
        since = told.destroyed.claimed_at_ns if told.destroyed is not None else None
        _same("inaccessible_since_ns", since, told.inaccessible_since_ns)
        for one in told.confirmed:
            _same("confirmed", self._payload(one.event, Confirm), Confirm(model, one.of))
            _same("confirmed", one.event.entry > told.shredded.entry, True)
        payloads = [(entry, payload_of(entry)) for entry in self._entries.values()]
        sweeps = [(entry, payload) for entry, payload in payloads if isinstance(payload, Swept)]
        left = left_by(sweeps, shred, told.objects)
        _same("packs_left", ranges(told.packs_left), left.packs)
        _same("objects_left", told.objects_left, left.objects)
        _same("open", [one for one in told.open if not one.confirmable], list(left_open(told)))
        listed = {one.of for one in told.open} | {one.of for one in told.confirmed}
        _same("open", set(always_open(told)) - listed, set())
        _same("irrecoverable_since_ns", irrecoverable_since(told, left.last_ns), told.irrecoverable_since_ns)

    def _payload(self, event: Event, kind: type[_Payload]) -> _Payload:
        entry = self._entries.get(event.entry)
        payload = payload_of(entry) if entry is not None else None
        if entry is None or not isinstance(payload, kind):
            raise IntegrityError(f"the receipt lacks entry {event.entry}, or it is of another kind than it says")
        _same("event", Event(entry.n, entry.actor.hex(), entry.claimed_at), event)
        return payload


def amount_of(content: Content, model: bytes = b"") -> Amount:
    """A content as a receipt tells it."""
    return Amount(content.chunks, content.stored_bytes, content.ids.hex(), model.hex())


class Left(NamedTuple):
    """What no collection told of: packs, and keys of objects; `last_ns` is when the last of the others was told of."""

    packs: Ranges
    objects: tuple[str, ...]
    last_ns: int | None


def left_by(sweeps: Iterable[tuple[Entry, Swept]], shred: Shred, objects: tuple[str, ...]) -> Left:
    """What sweeps left of a shredded model. Those count from the marking on: a pack may have gone before the shred."""
    left = Left(tuple(shred.packs), objects, None)
    for entry, swept in sweeps:
        keys = {key.hex() for key in split_keys(swept.objects) or ()}
        if entry.n < shred.marked or not are_ranges(swept.packs, sys.maxsize):
            continue
        packs, others = without(left.packs, swept.packs), tuple(key for key in left.objects if key not in keys)
        if (packs, others) != left[:2]:
            left = Left(packs, others, max(entry.claimed_at, left.last_ns or 0))
    return left


def irrecoverable_since(told: Statement, swept_ns: int | None) -> int | None:
    """When the last of what could open a model or kept its bytes was gone; None while something is open.

    Args:
        swept_ns: when the last of its packs and objects was told to be deleted.
    """
    if told.open or told.inaccessible_since_ns is None:
        return None
    return max([told.inaccessible_since_ns, swept_ns or 0, *(one.event.claimed_at_ns for one in told.confirmed)])


def always_open(told: Statement) -> Iterator[str]:
    """What no log can speak for: it is open until somebody confirms that it is gone."""
    for reader in told.readers:
        if reader.as_ == MEMBER or (reader.as_ == OWNER and reader.actor != told.signer):
            yield f"{HOLDER}{reader.actor}"
    yield from (ROOT_COPIES, STORAGE)


def left_open(told: Statement) -> Iterator[Open]:
    """What is open by what the store's own log says."""
    for of, why in _left(told).items():
        yield Open(of, why, False)


def _left(told: Statement) -> dict[str, str]:
    found = {}
    if told.inaccessible_since_ns is None:
        found["keys"] = "the keys may still be there: 'cairn gc apply' of an owner destroys them"
    if told.packs_left:
        found["packs"] = f"{len(told.packs_left)} packs with its chunks are not deleted yet: 'cairn gc apply' does it"
    if told.objects_left:
        found["objects"] = f"{len(told.objects_left)} of its objects are not deleted yet: 'cairn gc apply' does it"
    return found


def _same(what: str, found: object, told: object) -> None:
    if found != told:
        raise IntegrityError(f"the receipt's {what!r} is not what its entries say")
