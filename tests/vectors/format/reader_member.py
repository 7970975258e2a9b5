"""A store as a member opens it: sections 3, 6 and 10. Imports nothing of Cairn."""

from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.vectors.format.reader import CHUNK, PAGE, Damaged, Fields, Vault, decode, derive, encode, hash_of, require


class MemberVault(Vault):
    """What an identity opens of a store in a folder."""

    def __init__(self, folder: Path, seed: bytes) -> None:
        self._find(folder)
        self.actor = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
        self._agreement = X25519PrivateKey.from_private_bytes(derive(seed, "identity/agreement"))
        fingerprint = hash_of(self.actor + self._agreement.public_key().public_bytes_raw(), length=16)
        wraps = sorted((folder / "keys/member" / fingerprint.hex()).glob("*"))
        require(wraps != [], "no wrap for this identity")
        self.stored = wraps[-1].read_bytes()
        held = decode(self._open(self.stored, 3, b""))
        nothing = bytes(32)
        self.k_log, self.k_index = held["k_log"], held.get("index_key", nothing)
        self.k_ckpt = held.get("checkpoint_key", nothing)
        keys = held.get("content_keys", [nothing] * 6)
        self.content = {CHUNK: tuple(keys[:3]), PAGE: tuple(keys[3:])}

    def model_keys(self, model: bytes, held: Fields) -> dict[tuple[int, int], bytes]:
        """Private halves that were granted."""
        name = held["readers"].get(self.actor)
        if name is None:
            return {}
        keys = decode(self._open(self.read(name), 4, model))["keys"]
        return {(key["component"], key["generation"]): key["private"] for key in keys}

    def _open(self, data: bytes, purpose: int, model: bytes) -> bytes:
        head = b"CRNM\x01" + bytes((purpose, 0, 0))
        require(len(data) >= 88 and hash_of(data[:-32]) == data[-32:] and data[:8] == head, "damaged wrap")
        context = encode(["cairn/1/member-wrap", self.id, purpose, model, self.actor])
        suite = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
        try:
            return suite.decrypt(data[8:-32], self._agreement, info=head + context)
        except (InvalidTag, ValueError):
            raise Damaged("a wrap for somebody else") from None
