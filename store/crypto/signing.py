"""Identities: who wrote an entry (Ed25519), and to whom a key is given (X25519).

Both private halves come from one seed of 32 bytes: the Ed25519 key is the seed, the X25519 key is derived from it.
"""

import re
from typing import NamedTuple

from blake3 import blake3
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError, UsageError
from cairn.core.ids import ActorId
from cairn.store.crypto.tenant import derive

_TITLE = "cairn-identity"
_SIGNED = b"cairn/1/identity\0"
_LINE = re.compile(rf"{_TITLE}:([0-9a-f]{{64}}):([0-9a-f]{{64}}):([0-9a-f]{{128}})", re.ASCII)
_SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)


class PublicIdentity(NamedTuple):
    """The public halves of an identity (32 bytes each): what an owner needs to make somebody a member."""

    actor: ActorId
    agreement: bytes

    @staticmethod
    def parse(line: str) -> "PublicIdentity":
        """What an identity's `line` says. Only its holder can have made it: nobody gets keys in another one's name.

        Raises:
            UsageError: it is not such a line.
        """
        match = _LINE.fullmatch(line.strip())
        actor, agreement, signature = map(bytes.fromhex, match.groups()) if match else (b"", b"", b"")
        if not verify_signature(ActorId(actor), signature, _SIGNED + agreement):
            shown = f"{line[:24]!r}..." if len(line) > 24 else repr(line)
            raise UsageError(f"{shown} is not the line of an identity", hint="take what 'cairn identity' prints, whole")
        return PublicIdentity(ActorId(actor), agreement)

    def pem(self) -> str:
        """The signing half as other tools read it."""
        # Slow to import, and needed here alone.
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = Ed25519PublicKey.from_public_bytes(self.actor)
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def fingerprint(self) -> bytes:
        """16 bytes that stand for both halves."""
        return blake3(self.actor + self.agreement).digest(length=16)

    def seal(self, plaintext: bytes, context: bytes) -> bytes:
        """HPKE-seal to whoever holds the private half."""
        return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(self.agreement), info=context)


class Identity:
    """The private keys of a user; the public half of the signing key is the actor's id."""

    __slots__ = ("_key", "actor")

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.actor = ActorId(self._key.public_key().public_bytes_raw())

    @staticmethod
    def generate(entropy: Entropy) -> "Identity":
        """A new identity from 32 random bytes."""
        return Identity(entropy.token(32))

    @property
    def public(self) -> PublicIdentity:
        """What others may know."""
        return PublicIdentity(self.actor, self._agreement().public_key().public_bytes_raw())

    def line(self) -> str:
        """One line that can be sent: both public halves, and a signature that binds one to the other."""
        agreement = self.public.agreement
        return f"{_TITLE}:{self.actor.hex()}:{agreement.hex()}:{self.sign(_SIGNED + agreement).hex()}"

    def seed(self) -> bytes:
        """The private half, to be kept in a file of mode 0600."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """64-byte signature (RFC 8032)."""
        return self._key.sign(message)

    def open(self, sealed: bytes, context: bytes, what: str) -> bytes:
        """Open what was sealed to this identity for the same context.

        Raises:
            IntegrityError: damaged, or sealed to somebody else.
        """
        try:
            return _SUITE.decrypt(sealed, self._agreement(), info=context)
        except (InvalidTag, ValueError):
            raise IntegrityError(f"{what} fails authentication") from None

    def _agreement(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(derive(self.seed(), "identity/agreement"))

    def __repr__(self) -> str:
        return f"Identity({self.actor.hex()[:12]})"


def verify_signature(actor: ActorId, signature: bytes, message: bytes) -> bool:
    """Whether `actor` signed `message`."""
    try:
        Ed25519PublicKey.from_public_bytes(actor).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
