"""Sealing of everything that is not content-addressed: log entries, index pieces, footers, bodies, lists.

A key per object: HKDF of the class key under a random 32-byte salt gives the AES-256-GCM key and a key
commitment (GCM alone admits one ciphertext under two keys). The key is used once, so the nonce is zero.

    0   4  magic "CRNO"
    4   1  format version (1)
    5   1  kind
    6   2  zero
    8  32  salt
    40 32  key commitment
    72  n  AES-256-GCM ciphertext and tag; additional data = bytes 0..72
"""

import hmac
from enum import IntEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cairn.core.buffers import Buffer
from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError
from cairn.core.ids import StoreId
from cairn.store.crypto.tenant import derive

MAGIC = b"CRNO"
VERSION = 1
HEADER_BYTES = 72
OVERHEAD_BYTES = HEADER_BYTES + 16
_NONCE = bytes(12)


class ObjectKind(IntEnum):
    """Kinds of sealed objects; each opens only as what it was sealed as."""

    LOG_ENTRY = 1
    INDEX_PIECE = 2
    PACK_FOOTER = 3
    BODY = 4
    REACHABILITY = 5
    SESSION = 6
    CACHE = 7
    FRAGMENT = 8
    SNAPSHOT = 9
    PIN = 10
    PERSON_KEY = 11
    PERSON = 12


def seal_object(class_key: bytes, store: StoreId, kind: ObjectKind, plaintext: Buffer, entropy: Entropy) -> bytes:
    """Seal `plaintext` under a fresh key."""
    salt = entropy.token(32)
    key, commitment = _keys(class_key, store, kind, salt)
    header = MAGIC + bytes((VERSION, kind, 0, 0)) + salt + commitment
    return header + AESGCM(key).encrypt(_NONCE, bytes(plaintext), header)


def open_object(class_key: bytes, store: StoreId, kind: ObjectKind, sealed: Buffer, what: str) -> bytes:
    """Authenticate and open a sealed object.

    Args:
        what: names the object in errors.

    Raises:
        IntegrityError: damaged, of another kind, store or key.
    """
    view = memoryview(sealed)
    header = bytes(view[:HEADER_BYTES])
    if len(view) < OVERHEAD_BYTES or header[:8] != MAGIC + bytes((VERSION, kind, 0, 0)):
        raise IntegrityError(f"{what} is not a sealed object of kind {kind.name.lower()}")
    key, commitment = _keys(class_key, store, kind, header[8:40])
    if not hmac.compare_digest(commitment, header[40:72]):
        raise IntegrityError(f"{what} was sealed under another key, or its header is damaged")
    try:
        return AESGCM(key).decrypt(_NONCE, view[HEADER_BYTES:], header)
    except InvalidTag:
        raise IntegrityError(f"{what} fails authentication") from None


def key_of_object(class_key: bytes, store: StoreId, kind: ObjectKind, sealed: Buffer) -> bytes:
    """The key of one sealed object, to be given away: it opens that object and no other."""
    return _keys(class_key, store, kind, bytes(memoryview(sealed)[8:40]))[0]


def open_by_own_key(key: bytes, kind: ObjectKind, sealed: Buffer, what: str) -> bytes:
    """Open an object by the key that `key_of_object` told. Whether it is committed to that key cannot be checked.

    Raises:
        IntegrityError: damaged, or of another kind or key.
    """
    view = memoryview(sealed)
    header = bytes(view[:HEADER_BYTES])
    if len(view) < OVERHEAD_BYTES or len(key) != 32 or header[:8] != MAGIC + bytes((VERSION, kind, 0, 0)):
        raise IntegrityError(f"{what} is not a sealed object of kind {kind.name.lower()}")
    try:
        return AESGCM(key).decrypt(_NONCE, view[HEADER_BYTES:], header)
    except InvalidTag:
        raise IntegrityError(f"{what} fails authentication") from None


def _keys(class_key: bytes, store: StoreId, kind: ObjectKind, salt: bytes) -> tuple[bytes, bytes]:
    both = derive(class_key, f"object/{kind.value}/{store.hex()}", 64, salt)
    return both[:32], both[32:]
