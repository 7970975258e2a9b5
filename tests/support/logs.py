"""Log entries by hand: each test says what is wrong with one, the rest is in order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from blake3 import blake3

from cairn.core.canonical import encode
from cairn.core.ids import SessionId, StoreId, TenantId
from cairn.registry.entries import (
    FORMAT,
    TYPES,
    Commit,
    Entry,
    Founding,
    Init,
    ModelCreate,
    ObjectRef,
    Payload,
    RefChange,
    seal_entry,
)
from cairn.registry.fold import apply_payload
from cairn.registry.merkle import append_leaf, leaf_hash, root_of
from cairn.registry.replay import Replay
from cairn.registry.state import State, pack_records
from cairn.store.crypto.signing import Identity
from cairn.store.index import PackRef
from tests.support.doubles import SeededEntropy

OBJECT = ObjectRef(bytes(28), 10, bytes(32))
MODEL, OTHER_MODEL = b"m" * 16, b"n" * 16
SESSION = SessionId(b"s" * 16)
MAIN, TAG = b"main", b"tag"

# Actor of the recovery identity; nobody here signs with it.
RECOVERY = b"r" * 32


def model_create(model: bytes = MODEL, tag: bytes = b"name") -> ModelCreate:
    """A model without keys."""
    return ModelCreate(model, tag, b"sealed", (), "keys/model/x")


def packs(*numbers: int, session: bytes = SESSION) -> list[PackRef]:
    """Packs that differ."""
    return [PackRef(SessionId(session), number.to_bytes(12, "big"), 1000 + number) for number in numbers]


def commit_entry(checkpoint: bytes = b"c" * 32, own: Sequence[PackRef] = (), **changes: Any) -> Commit:
    """A commit to the main branch of `MODEL`, with one index piece if it has packs."""
    payload = Commit(
        model=MODEL, checkpoint=checkpoint, sessions=(SESSION,), epoch=0, hit_position=0, relied=(),
        packs=pack_records(list(own)), pieces=(OBJECT,) if own else (), body=OBJECT, roots=(), reachability=OBJECT,
        ref=RefChange(MAIN, b"sealed", None), meta=b"",
    )  # fmt: skip
    return msgspec.structs.replace(payload, **changes)


@dataclass
class LogMaker:
    """Writes entries of one store as its owner, or as whoever is named."""

    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy(5))
    stored: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owner, self.stranger = Identity.generate(self.entropy), Identity.generate(self.entropy)
        self.store, self.k_log = StoreId(self.entropy.token(16)), self.entropy.token(32)
        self.founding = encode(Founding(1, self.owner.actor, self.entropy.token(16)))
        self.tenant = TenantId(blake3(self.founding).digest(length=16))

    def init(self, **changes: Any) -> Init:
        """An init payload."""
        capabilities = {"exclusive_create": True, "ranged_read": True, "durable": True}
        payload = Init(self.founding, self.owner.actor, RECOVERY, capabilities, 30.0, 900.0)
        return msgspec.structs.replace(payload, **changes)

    def root(self) -> bytes:
        """Merkle root of what stands in the log."""
        return merkle_root(self.stored)

    def entry(self, payload: Payload | bytes, **changes: Any) -> Entry:
        """The next entry; `changes` name fields of it."""
        raw = payload if isinstance(payload, bytes) else encode(payload)
        kind = "" if isinstance(payload, bytes) else TYPES[type(payload)]
        entry = Entry(
            FORMAT, self.tenant, self.store, len(self.stored), self.root(), kind, self.owner.actor,
            self.entropy.token(16), 7, raw,
        )  # fmt: skip
        return msgspec.structs.replace(entry, **changes)

    def seal(self, payload: Payload | bytes, by: Identity | None = None, **changes: Any) -> bytes:
        """Stored bytes of the next entry."""
        signer = by or self.owner
        return seal_entry(self.entry(payload, actor=signer.actor, **changes), signer, self.k_log, self.entropy)

    def add(self, payload: Payload | bytes, by: Identity | None = None, **changes: Any) -> bytes:
        """Append an entry."""
        self.stored.append(self.seal(payload, by, **changes))
        return self.stored[-1]

    def replay(self, stored: Iterable[bytes] | None = None, base: State | None = None) -> Replay:
        """Replay some entries, or all."""
        replay = Replay(base or State(), self.tenant, self.store, self.k_log)
        for one in self.stored if stored is None else stored:
            replay.feed(one)
        return replay

    def state(self, *payloads: Payload) -> State:
        """The fold of an init entry and some payloads, none of which may be void."""
        state = State()
        for payload in (self.init(), *payloads):
            assert self.apply(state, payload) is None
        return state

    def apply(self, state: State, payload: Payload, **changes: Any) -> str | None:
        """Apply the next entry to a state as a replay would; returns why it is void."""
        entry = msgspec.structs.replace(self.entry(payload), **{"n": state.length, **changes})
        reason = apply_payload(state, entry, payload)
        state.length += 1
        return reason


def merkle_root(stored: Iterable[bytes]) -> bytes:
    """Merkle root of stored entries."""
    frontier: tuple[bytes, ...] = ()
    for size, one in enumerate(stored):
        frontier = append_leaf(frontier, size, leaf_hash(one))
    return root_of(frontier)
