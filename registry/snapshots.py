"""Fold snapshots: the state at one length of the log, signed by one of its first owners.

Stored bytes = sealed object (kind SNAPSHOT, class key K_log) of

    0   4  length of the following
    4   n  canonical [statement bytes, signature]
    .   m  state

The signature (Ed25519) covers a label and the statement bytes, which hold the hash of the state. Whoever opens a store
without a cache may start from one; it is trusted for its signature, and for the log's still holding the last entry that
it knows. It does not hold the index.
"""

import re
import struct
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import msgspec
from blake3 import blake3

from cairn.core.canonical import decode
from cairn.core.errors import IntegrityError
from cairn.core.heap import collection_paused
from cairn.core.limits import SEALED_OBJECT_BYTES_MAX, SNAPSHOTS_TRIED_MAX
from cairn.registry.bundles import or_else
from cairn.registry.fold import STATE_VERSION, decode_state, encode_state
from cairn.registry.merkle import root_of
from cairn.registry.opened import OpenStore
from cairn.registry.signedrecord import Signed, sign_record
from cairn.registry.state import State
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.signing import Identity

FOLDER = "snapshots"
FORMAT = 1
_SIGNED = b"cairn/1/snapshot\0"
_LENGTH = struct.Struct("<I")
_NAME = re.compile(rf"{FOLDER}/(\d{{12}})-(0|[1-9]\d{{0,8}})", re.ASCII)


class SnapshotName(NamedTuple):
    """What a name says: by which rules the state was folded, and at which length of the log."""

    version: int
    length: int

    @property
    def object(self) -> str:
        """Name in the backend."""
        return f"{FOLDER}/{self.length:012d}-{self.version}"


class Statement(msgspec.Struct, frozen=True):
    """What the owner signs: at `length` entries with this Merkle root, the log says this state.

    Args:
        state: BLAKE3 of the encoded state; whatever changes how that is to be read changes `version`.
    """

    format: int
    tenant: bytes
    store: bytes
    length: int
    root: bytes
    version: int
    actor: bytes
    state: bytes


class Newest(NamedTuple):
    """The newest snapshot that serves, if any, and the names of newer ones that are damaged or of another log."""

    state: State | None
    useless: frozenset[SnapshotName]


def seal_snapshot(opened: OpenStore, identity: Identity, state: State) -> bytes:
    """Sign and seal a state."""
    encoded = encode_state(state)
    said = Statement(
        FORMAT, opened.tenant, opened.store, state.length, root_of(state.frontier), STATE_VERSION, identity.actor,
        blake3(encoded).digest(),
    )  # fmt: skip
    return seal_statement(opened, identity, said, encoded)


def seal_statement(opened: OpenStore, identity: Identity, said: Statement, encoded: bytes) -> bytes:
    """Sign and seal a statement about an encoded state."""
    signed = sign_record(said, identity, _SIGNED)
    plain = b"".join((_LENGTH.pack(len(signed)), signed, encoded))
    return seal_object(opened.secrets.k_log, opened.store, ObjectKind.SNAPSHOT, plain, opened.entropy)


def open_snapshot(opened: OpenStore, owners: Collection[bytes], name: SnapshotName, sealed: bytes) -> State:
    """The state of a snapshot.

    Args:
        owners: the store's first ones, by its log entry 0.

    Raises:
        IntegrityError: damaged, not signed by one of them, or not what its name says.
    """
    what = f"snapshot {name.object}"
    plain = memoryview(open_object(opened.secrets.k_log, opened.store, ObjectKind.SNAPSHOT, sealed, what))
    start = _LENGTH.size + (_LENGTH.unpack_from(plain)[0] if len(plain) >= _LENGTH.size else len(plain))
    signed, encoded = decode(bytes(plain[_LENGTH.size : start]), Signed, what), plain[start:]
    said = decode(signed.record, Statement, what)
    if said.actor not in owners or not signed.is_by(said.actor, _SIGNED):
        raise IntegrityError(f"{what} is not signed by an owner")
    place = said.format, said.tenant, said.store, said.length, said.version
    if place != (FORMAT, opened.tenant, opened.store, name.length, name.version):
        raise IntegrityError(f"{what} was written for another place")
    if blake3(encoded).digest() != said.state:
        raise IntegrityError(f"{what} holds another state than its owner signed")
    try:
        with collection_paused():
            state = decode_state(bytes(encoded))
    except ValueError as error:
        raise IntegrityError(f"{what} holds no state: {error}") from None
    if (state.length, root_of(state.frontier)) != (said.length, said.root):
        raise IntegrityError(f"{what} holds the state of another log")
    # The frontier has a node for each bit of the length; with any other, no entry could be added.
    if len(state.frontier) != state.length.bit_count():
        raise IntegrityError(f"{what} holds an impossible state")
    return state


def read_snapshot(opened: OpenStore, owners: Collection[bytes], name: SnapshotName) -> State:
    """The state of a stored snapshot.

    Raises:
        ObjectNotFound: there is no such snapshot.
        IntegrityError: see `open_snapshot`.
    """
    return open_snapshot(opened, owners, name, opened.backend.read(name.object, 0, SEALED_OBJECT_BYTES_MAX))


def listed_snapshots(opened: OpenStore) -> list[SnapshotName]:
    """Names of the snapshots that there are, those of each version by ascending length."""
    names = (_NAME.fullmatch(listed.name) for listed in opened.backend.list(FOLDER))
    return sorted(SnapshotName(int(name[2]), int(name[1])) for name in names if name)


def newest_snapshot(opened: OpenStore, owners: Collection[bytes], serves: Callable[[State], bool]) -> Newest:
    """The newest snapshot that opens here and serves; one that does not costs nothing but time."""
    nothing: list[SnapshotName] = []
    listed = or_else(nothing, partial(listed_snapshots, opened))
    own = [name for name in listed if name.version == STATE_VERSION]
    useless = set[SnapshotName]()

    def serving(name: SnapshotName) -> State | None:
        try:
            state = read_snapshot(opened, owners, name)
        except IntegrityError:
            state = None
        if state is not None and serves(state):
            return state
        useless.add(name)
        return None

    for name in own[: -SNAPSHOTS_TRIED_MAX - 1 : -1]:
        state = or_else(None, partial(serving, name))
        if state is not None:
            return Newest(state, frozenset(useless))
    return Newest(None, frozenset(useless))
