"""Root keys: what wraps every other key, and how people hold it.

A wrap is a small object under `keys/`:

    0   4  magic "CRNW"
    4   1  format version (1)
    5   1  purpose
    6   2  root generation
    8  16  root key id (tells a wrong key from a damaged wrap)
    24 12  nonce, random
    36  n  AES-256-GCM ciphertext and tag; additional data = bytes 0..24 and the context
    -32 32 BLAKE3 of all before (tells damage from a wrong key without any key)
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cairn.core.canonical import encode
from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError, WrongKey
from cairn.core.ids import StoreId
from cairn.store.crypto.tenant import derive

MAGIC = b"CRNW"
VERSION = 1
ROOT_KEY_ID_BYTES = 16
_HEADER_BYTES = 24
_CHECK_BYTES = 32


class WrapPurpose(IntEnum):
    """What a wrap holds; part of its context."""

    STORE_KEYS = 1
    MODEL_KEYS = 2
    MEMBER_KEYS = 3
    GRANTED_KEYS = 4


@dataclass(frozen=True, slots=True)
class WrapContext:
    """What a wrap is bound to: it opens nowhere else. `model` is empty for the store's own keys.

    The tenant is not part of it: the tenant's secret is among the things that the first wrap yields, and the
    store id names the tenant through the init entry.
    """

    store: StoreId
    purpose: WrapPurpose
    model: bytes = b""


class KeyProvider(Protocol):
    """Holds a root key, or speaks to a service that does; it never hands the root key out."""

    def wrap(self, plaintext: bytes, context: WrapContext, entropy: Entropy) -> bytes:
        """Seal a key for `context`."""
        ...

    def unwrap(self, wrapped: bytes, context: WrapContext, what: str) -> bytes:
        """Open a wrap made for the same context.

        Raises:
            WrongKey: it was made under another root key.
            IntegrityError: it is damaged or belongs to another context.
        """
        ...


@dataclass(frozen=True, slots=True)
class RootKey:
    """A root key in memory: the provider behind key files and passphrases."""

    generation: int
    key: bytes = field(repr=False)

    def key_id(self) -> bytes:
        """Public name of this root key."""
        return derive(self.key, "root-key-id", ROOT_KEY_ID_BYTES)

    def wrap(self, plaintext: bytes, context: WrapContext, entropy: Entropy) -> bytes:
        head = MAGIC + bytes((VERSION, context.purpose)) + self.generation.to_bytes(2, "little") + self.key_id()
        nonce = entropy.token(12)
        sealed = head + nonce + AESGCM(self.key).encrypt(nonce, plaintext, head + _aad(context))
        return sealed + blake3(sealed).digest()

    def unwrap(self, wrapped: bytes, context: WrapContext, what: str) -> bytes:
        head, body = wrapped[:_HEADER_BYTES], wrapped[:-_CHECK_BYTES]
        if (
            len(wrapped) < _HEADER_BYTES + 12 + 16 + _CHECK_BYTES
            or blake3(body).digest() != wrapped[-_CHECK_BYTES:]
            or head[:6] != MAGIC + bytes((VERSION, context.purpose))
        ):
            raise IntegrityError(f"{what} is damaged", hint="restore this object from a backup or another copy")
        if head[8:] != self.key_id():
            raise WrongKey(
                f"{what} was made under another root key", hint="use the key file or passphrase of this store"
            )
        try:
            return AESGCM(self.key).decrypt(
                body[_HEADER_BYTES : _HEADER_BYTES + 12], body[_HEADER_BYTES + 12 :], head + _aad(context)
            )
        except InvalidTag:
            raise IntegrityError(f"{what} fails authentication in its place") from None


def _aad(context: WrapContext) -> bytes:
    return encode(["cairn/1/wrap", context.store, int(context.purpose), context.model])
