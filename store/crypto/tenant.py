"""Keys of one trust domain, derived from the tenant secret S by HKDF-SHA256 (RFC 5869).

One label an object type, so that no key serves two purposes. S lives as long as the tenant, hence no
content id ever changes.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from enum import IntEnum
from typing import TypeVar

from blake3 import blake3
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cairn.core.buffers import Buffer
from cairn.core.errors import NotAllowed
from cairn.core.ids import ContentId, Digest, TenantId

Key = TypeVar("Key")


class ContentType(IntEnum):
    """What a content-addressed object is; part of its sealed header."""

    CHUNK = 1
    PAGE = 2


def derive(secret: bytes, label: str, length: int = 32, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256 of a uniformly random `secret` under a label of this format version."""
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=b"cairn/1/" + label.encode()).derive(secret)


@dataclass(frozen=True, slots=True)
class ContentKeys:
    """The three keys of one content type."""

    hash: bytes = field(repr=False)
    id: bytes = field(repr=False)
    enc: bytes = field(repr=False)

    def digest(self, plaintext: Buffer) -> Digest:
        """Secret keyed hash of a plaintext; releases the GIL."""
        return Digest(blake3(plaintext, key=self.hash).digest())

    def content_id(self, digest: Digest) -> ContentId:
        """Public name of a digest."""
        return ContentId(blake3(digest, key=self.id).digest())

    def content_ids(self, digests: Iterable[bytes]) -> list[ContentId]:
        """Public names of many."""
        key = self.id
        return [ContentId(blake3(digest, key=key).digest()) for digest in digests]

    def content_key(self, digest: Digest) -> bytes:
        """The one AES-256 key of this content."""
        return blake3(digest, key=self.enc).digest()


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """All that content of a tenant needs."""

    tenant: TenantId
    chunk: ContentKeys
    page: ContentKeys

    @staticmethod
    def from_secret(tenant: TenantId, secret: bytes) -> "TenantKeys":
        """Derive every key from S (32 bytes)."""
        return TenantKeys(tenant, _content_keys(secret, "chunk"), _content_keys(secret, "page"))

    @staticmethod
    def from_parts(tenant: TenantId, parts: tuple[bytes, ...]) -> "TenantKeys":
        """Inverse of `parts`."""
        return TenantKeys(tenant, ContentKeys(*parts[:3]), ContentKeys(*parts[3:]))

    def parts(self) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
        """The six keys: hash, id, enc of chunks, then of pages. S does not follow from them."""
        return (*astuple(self.chunk), *astuple(self.page))

    def of(self, kind: ContentType) -> ContentKeys:
        """Keys of one content type."""
        return self.chunk if kind is ContentType.CHUNK else self.page


def held(key: Key | None, what: str, role: str) -> Key:
    """A key that this user may not have been given.

    Args:
        role: the least one that comes with it.

    Raises:
        NotAllowed: it was not.
    """
    if key is None:
        raise NotAllowed(
            f"this needs {what}, which your role in this store does not come with",
            hint=f"ask an owner for another role: cairn members role IDENTITY {role}",
        )
    return key


def _content_keys(secret: bytes, name: str) -> ContentKeys:
    return ContentKeys(*(derive(secret, f"{use}/{name}") for use in ("hash", "id", "enc")))
