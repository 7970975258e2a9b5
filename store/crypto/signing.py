"""Ed25519 identities: who wrote an entry."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cairn.core.clock import Entropy
from cairn.core.ids import ActorId


class Identity:
    """A private signing key; its public half is the actor's id."""

    __slots__ = ("_key", "actor")

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.actor = ActorId(self._key.public_key().public_bytes_raw())

    @staticmethod
    def generate(entropy: Entropy) -> "Identity":
        """A new identity from 32 random bytes."""
        return Identity(entropy.token(32))

    def seed(self) -> bytes:
        """The private half, to be kept in a file of mode 0600."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """64-byte signature (RFC 8032)."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity({self.actor.hex()[:12]})"


def verify_signature(actor: ActorId, signature: bytes, message: bytes) -> bool:
    """Whether `actor` signed `message`."""
    try:
        Ed25519PublicKey.from_public_bytes(actor).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
