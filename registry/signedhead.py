"""Signed heads of the log: C2SP checkpoints (c2sp.org/tlog-checkpoint), which are signed notes (c2sp.org/signed-note).

    <origin> LF <length> LF <base64 of root> LF LF, then lines of EM DASH <key name> <base64 of key id and signature> LF

Origin and key name are `cairn/<hex(store)>`; where somebody else than an owner signs, as a witness, the key name has
that actor behind it. Key id = first 4 bytes of SHA-256(key name, LF, 01, public key).
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Collection
from hashlib import sha256
from typing import NamedTuple

from cairn.core.errors import IntegrityError
from cairn.core.ids import ActorId, StoreId
from cairn.core.limits import HEAD_NOTE_BYTES_MAX
from cairn.registry.localfiles import Head
from cairn.store.crypto.signing import Identity, verify_signature

_ED25519 = b"\1"
_KEY_ID_BYTES = 4
_MARK = "\N{EM DASH} "


class SignedHead(NamedTuple):
    """A head, and who signed it."""

    head: Head
    actor: ActorId


def origin_of(store: StoreId) -> str:
    """First line of a store's heads."""
    return f"cairn/{store.hex()}"


def key_name(store: StoreId, actor: bytes, owners: Collection[bytes]) -> str:
    """The name by which an actor signs: the log's own for an owner."""
    return origin_of(store) if actor in owners else f"{origin_of(store)}/{actor.hex()}"


def verifier_key(name: str, actor: bytes) -> str:
    """What tools that verify notes take as a key: name, id, kind and public half."""
    return f"{name}+{_key_id(name, actor).hex()}+{b64encode(_ED25519 + actor).decode()}"


def sign_head(store: StoreId, head: Head, identity: Identity, owners: Collection[bytes]) -> str:
    """A head as a signed note."""
    text = f"{origin_of(store)}\n{head.length}\n{b64encode(head.root).decode()}\n"
    name = key_name(store, identity.actor, owners)
    signature = b64encode(_key_id(name, identity.actor) + identity.sign(text.encode())).decode()
    return f"{text}\n{_MARK}{name} {signature}\n"


def open_head(note: str, store: StoreId, owners: Collection[bytes], what: str) -> SignedHead:
    """The head of a note that an owner has signed; signatures of others are passed over.

    Raises:
        IntegrityError: it is no such note, of another log, or no owner's signature is on it.
    """
    head, text, lines = _parsed(note, store, what)
    name = origin_of(store)
    for line in lines:
        if line.startswith(f"{_MARK}{name} "):
            try:
                signed = b64decode(line.rpartition(" ")[2], validate=True)
            except (binascii.Error, ValueError):
                continue
            for actor in map(ActorId, owners):
                if signed[:_KEY_ID_BYTES] == _key_id(name, actor) and verify_signature(
                    actor, signed[_KEY_ID_BYTES:], text.encode()
                ):
                    return SignedHead(head, actor)
    raise IntegrityError(f"{what} has no good signature of an owner of this store")


def claimed_head(note: str, store: StoreId, what: str) -> Head:
    """The head that a note speaks of, whoever wrote it.

    Raises:
        IntegrityError: it is no such note, or of another log.
    """
    return _parsed(note, store, what)[0]


def _parsed(note: str, store: StoreId, what: str) -> tuple[Head, str, list[str]]:
    """Head, signed text, and lines of signatures."""
    text, found, lines = note.rpartition("\n\n")
    fields = text.split("\n")
    if not found or len(note) > HEAD_NOTE_BYTES_MAX or len(fields) < 3:
        raise IntegrityError(f"{what} is no signed head of a log")
    if fields[0] != origin_of(store):
        raise IntegrityError(f"{what} is the head of another log, {fields[0]!r:.80}")
    return _head(fields[1], fields[2], what), f"{text}\n", lines.split("\n")


def _head(length: str, root: str, what: str) -> Head:
    try:
        head = Head(int(length), b64decode(root, validate=True))
    except (binascii.Error, ValueError):
        raise IntegrityError(f"{what} is no signed head of a log") from None
    if str(head.length) != length or len(head.root) != 32:
        raise IntegrityError(f"{what} is no signed head of a log")
    return head


def _key_id(name: str, actor: bytes) -> bytes:
    return sha256(name.encode() + b"\n" + _ED25519 + actor).digest()[:_KEY_ID_BYTES]
