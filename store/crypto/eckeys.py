"""Elliptic-curve keys of other tools, in PEM files: P-256, P-384 and P-521, as the OpenSSF signs models with."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cairn.core.errors import BadInput, NotAllowed

# Each curve goes with the hash of its own strength.
_HASHES: dict[str, type[hashes.HashAlgorithm]] = {
    "secp256r1": hashes.SHA256,
    "secp384r1": hashes.SHA384,
    "secp521r1": hashes.SHA512,
}
_HINT = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE makes one"


class EcKey:
    """A private key; never shown."""

    __slots__ = ("_key",)

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key

    @staticmethod
    def read(path: Path, ask: Callable[[], str | None] | None = None) -> "EcKey":
        """The key in a PEM file.

        Args:
            ask: called for the passphrase of a file that has one.

        Raises:
            NotAllowed: it cannot be read, or opened.
            BadInput: it holds no key of these curves.
        """
        try:
            pem = path.read_bytes()
        except OSError as error:
            raise NotAllowed(f"{path} cannot be read: {error.strerror}", hint=_HINT) from None
        try:
            key: object | None = serialization.load_pem_private_key(pem, None)
        except TypeError:
            key = _unlocked(pem, path, ask)
        except ValueError:
            raise BadInput(f"{path} is no private key in PEM", hint=_HINT) from None
        except UnsupportedAlgorithm:
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in _HASHES:
            raise BadInput(f"{path} holds a key of another kind than P-256, P-384 or P-521", hint=_HINT)
        return EcKey(key)

    def sign(self, message: bytes) -> bytes:
        """ECDSA, DER."""
        return self._key.sign(message, ec.ECDSA(_HASHES[self._key.curve.name]()))

    def public_pem(self) -> bytes:
        """The public half."""
        return self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def hint(self) -> str:
        """What tells verifiers that they hold the other half: SHA-256 of its PEM."""
        return hashlib.sha256(self.public_pem()).hexdigest()

    def __repr__(self) -> str:
        return "EcKey(<secret>)"


def _unlocked(pem: bytes, path: Path, ask: Callable[[], str | None] | None) -> object | None:
    passphrase = ask() if ask is not None else None
    if not passphrase:
        raise NotAllowed(f"{path} has a passphrase", hint="run where it can be asked for")
    try:
        return serialization.load_pem_private_key(pem, passphrase.encode())
    except UnsupportedAlgorithm:
        return None
    except ValueError:
        raise NotAllowed(f"{path} does not open with this passphrase", hint="repeat the command") from None
