"""Component keys: what makes a model's manifests readable, and their destruction final.

An X25519 pair per (model, component class, generation). A component root is sealed under a fresh key that
is itself sealed to the public half by HPKE (RFC 9180: X25519, HKDF-SHA256, AES-256-GCM), so a write-only trainer
needs no private half.

    0   4  magic "CRNR"
    4   1  format version (1)
    5   1  component class
    6   2  generation
    8  80  HPKE: encapsulated key (32), sealed fresh key (32), tag (16)
    88  n  AES-256-GCM ciphertext and tag under the fresh key, zero nonce; additional data = bytes 0..88
"""

from dataclasses import dataclass, field
from enum import IntEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cairn.core.canonical import encode
from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError, NewerFormat, NotAllowed
from cairn.core.ids import ModelId, TenantId

MAGIC = b"CRNR"
VERSION = 1
_HPKE_BYTES = 80
_HEADER_BYTES = 8 + _HPKE_BYTES
_NONCE = bytes(12)
_SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)


class ComponentClass(IntEnum):
    """Parts of a model with keys of their own; `META` seals names, messages and refs."""

    META = 0
    WEIGHTS = 1
    OPTIMIZER = 2
    TRAINING = 3
    FILES = 4
    PROVENANCE = 5


def component_class(number: int, what: str) -> ComponentClass:
    """The class of a number.

    Raises:
        NewerFormat: this version knows no such class.
    """
    try:
        return ComponentClass(number)
    except ValueError:
        raise NewerFormat(
            f"{what} has component {number}, which this version does not know", hint="upgrade Cairn"
        ) from None


@dataclass(frozen=True, slots=True)
class ComponentKey:
    """One half or both halves of a component key pair (32 bytes each)."""

    tenant: TenantId
    model: ModelId
    component: ComponentClass
    generation: int
    public: bytes
    private: bytes | None = field(default=None, repr=False)

    def _context(self, purpose: str) -> bytes:
        return encode(["cairn/1", purpose, self.tenant, self.model, int(self.component), self.generation])

    def seal(self, plaintext: bytes, purpose: str) -> bytes:
        """HPKE-seal a short value (a name, a message, a key) to the public half."""
        return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(self.public), info=self._context(purpose))

    def open(self, sealed: bytes, purpose: str, what: str) -> bytes:
        """Open what `seal` made for the same purpose.

        Raises:
            NotAllowed: only the public half is at hand.
            IntegrityError: damaged, or sealed to another key or purpose.
        """
        if self.private is None:
            raise NotAllowed(
                f"{what} needs the private {self.component.name.lower()} key of model {self.model.hex()}",
                hint="ask an owner to run: cairn grant MODEL IDENTITY --read "
                + ("weights" if self.component is ComponentClass.META else self.component.name.lower()),
            )
        try:
            key = X25519PrivateKey.from_private_bytes(self.private)
            return _SUITE.decrypt(sealed, key, info=self._context(purpose))
        except (InvalidTag, ValueError):
            raise IntegrityError(f"{what} fails authentication") from None

    def seal_root(self, plaintext: bytes, entropy: Entropy) -> bytes:
        """Seal a component root under a fresh key."""
        fresh = entropy.token(32)
        header = MAGIC + bytes((VERSION, self.component)) + self.generation.to_bytes(2, "little")
        header += self.seal(fresh, "root")
        return header + AESGCM(fresh).encrypt(_NONCE, plaintext, header)

    def open_root(self, sealed: bytes, what: str) -> bytes:
        """Open a sealed component root.

        Raises:
            NotAllowed: only the public half is at hand.
            IntegrityError: damaged, or of another component or generation.
        """
        header = sealed[:_HEADER_BYTES]
        expected = MAGIC + bytes((VERSION, self.component)) + self.generation.to_bytes(2, "little")
        if len(sealed) < _HEADER_BYTES + 16 or header[:8] != expected:
            raise IntegrityError(f"{what} is not a {self.component.name.lower()} root of generation {self.generation}")
        fresh = self.open(header[8:], "root", what)
        try:
            return AESGCM(fresh).decrypt(_NONCE, sealed[_HEADER_BYTES:], header)
        except (InvalidTag, ValueError):
            raise IntegrityError(f"{what} fails authentication") from None


def new_component_key(tenant: TenantId, model: ModelId, component: ComponentClass, entropy: Entropy) -> ComponentKey:
    """A fresh pair of generation 0."""
    private = X25519PrivateKey.from_private_bytes(entropy.token(32))
    return ComponentKey(
        tenant, model, component, 0, private.public_key().public_bytes_raw(), private.private_bytes_raw()
    )
