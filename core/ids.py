"""Ids and digests.

An id is public and printed as lowercase hexadecimal. A digest is a secret: whoever holds it can
derive the chunk's key, so its `repr` and `str` are redacted.
"""

from typing import NewType

from cairn.core.errors import BadName

TenantId = NewType("TenantId", bytes)  # 16 bytes, from the founding record
StoreId = NewType("StoreId", bytes)  # 16 bytes, random
ModelId = NewType("ModelId", bytes)  # 16 bytes, random
SessionId = NewType("SessionId", bytes)  # 16 bytes, random
CheckpointId = NewType("CheckpointId", bytes)  # 32 bytes, keyed hash of the manifest body
ContentId = NewType("ContentId", bytes)  # 32 bytes, keyed hash of a digest: a chunk's or page's public name
ActorId = NewType("ActorId", bytes)  # 32 bytes, Ed25519 public key

RANDOM_ID_BYTES = 16
HASH_BYTES = 32
# Random part of an object's name; 96 bits under a 128-bit session never meet again.
OBJECT_RANDOM_BYTES = 12
# Shortest prefix accepted in a selector: 4 hex digits, as in git.
ID_PREFIX_HEX_MIN = 4


class Digest(bytes):
    """Keyed BLAKE3 of a plaintext (32 bytes). Secret: opens the chunk it names."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Digest(<secret>)"

    __str__ = __repr__


def short(identifier: bytes) -> str:
    """First 12 hex digits, for people."""
    return identifier.hex()[:12]


def object_name(session: SessionId, random: bytes, kind: str) -> str:
    """Name of a collectable object; random, so it never comes back."""
    return f"objects/{session.hex()}/{random.hex()}.{kind}"


def parse_object_name(name: str) -> tuple[SessionId, bytes, str]:
    """Inverse of `object_name`.

    Raises:
        BadName: the name is not of that form.
    """
    parts = name.split("/")
    stem, dot, kind = parts[-1].partition(".")
    try:
        if len(parts) != 3 or parts[0] != "objects" or not dot or not kind.isascii() or not kind.isalpha():
            raise ValueError
        session, random = bytes.fromhex(parts[1]), bytes.fromhex(stem)
        if len(session) != RANDOM_ID_BYTES or len(random) != OBJECT_RANDOM_BYTES:
            raise ValueError
    except ValueError:
        raise BadName(f"{name!r} is not the name of a stored object") from None
    return SessionId(session), random, kind
