"""Sealed chunks and pages: encrypted, authenticated and bound to their content, not to a place.

    0   1  format version (1)
    1   1  content type (1 chunk, 2 page)
    2   1  codec
    3   1  zero (encrypted padding is reserved here)
    4   4  raw length, little-endian
    8  32  content id
    40 12  nonce, random
    52  n  AES-256-GCM ciphertext and tag; additional data = tenant id and bytes 0..40

One key per distinct content (`TenantKeys`), so random nonces never meet under one key in earnest: the same
content is sealed anew only when it is stored twice by chance.
"""

import struct

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cairn.core.buffers import Buffer
from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError
from cairn.core.ids import ContentId, Digest
from cairn.core.limits import CHUNK_BYTES_MAX
from cairn.store.crypto.tenant import ContentType, TenantKeys

VERSION = 1
HEADER_BYTES = 52
TAG_BYTES = 16
OVERHEAD_BYTES = HEADER_BYTES + TAG_BYTES
_HEADER = struct.Struct("<BBBBI32s12s")


class ChunkHeader(msgspec.Struct, frozen=True):
    """The cleartext facts of a sealed chunk; authenticated as additional data."""

    type: ContentType
    codec: int
    raw_length: int
    id: ContentId
    nonce: bytes


def parse_header(sealed: Buffer, what: str) -> ChunkHeader:
    """Read and check a header.

    Raises:
        IntegrityError: too short, another version, an impossible field.
    """
    if len(sealed) < OVERHEAD_BYTES:
        raise IntegrityError(f"{what} is shorter than a sealed chunk")
    version, kind, codec, zero, raw_length, identifier, nonce = _HEADER.unpack_from(sealed)
    if version != VERSION or kind not in (1, 2) or zero or raw_length > CHUNK_BYTES_MAX:
        raise IntegrityError(f"{what} has an impossible chunk header")
    return ChunkHeader(ContentType(kind), codec, raw_length, ContentId(identifier), nonce)


def seal_into(
    keys: TenantKeys,
    kind: ContentType,
    digest: Digest,
    codec: int,
    raw_length: int,
    encoded: Buffer,
    target: memoryview,
    entropy: Entropy,
) -> int:
    """Seal `encoded` into the start of `target`; returns the stored length. Releases the GIL while it encrypts.

    Args:
        digest: of the plaintext (before encoding).
        target: writable, at least `len(encoded) + OVERHEAD_BYTES` long.
    """
    content = keys.of(kind)
    nonce = entropy.token(12)
    _HEADER.pack_into(target, 0, VERSION, kind, codec, 0, raw_length, content.content_id(digest), nonce)
    stored = len(encoded) + OVERHEAD_BYTES
    aad = keys.tenant + bytes(target[:40])
    AESGCM(content.content_key(digest)).encrypt_into(nonce, encoded, aad, target[HEADER_BYTES:stored])
    return stored


def open_into(
    keys: TenantKeys, header: ChunkHeader, digest: Digest, sealed: memoryview, target: memoryview, what: str
) -> None:
    """Authenticate and decrypt a sealed chunk into `target` (exactly the encoded length). Releases the GIL.

    On failure `target` holds unauthenticated bytes: do not use it.

    Args:
        header: what `parse_header` says of it.

    Raises:
        IntegrityError: damaged, or the content of another digest.
    """
    content = keys.of(header.type)
    if header.id != content.content_id(digest):
        raise IntegrityError(f"{what} is another chunk than the one asked for")
    aad = keys.tenant + bytes(sealed[:40])
    try:
        AESGCM(content.content_key(digest)).decrypt_into(header.nonce, sealed[HEADER_BYTES:], aad, target)
    except (InvalidTag, ValueError):
        raise IntegrityError(f"{what} fails authentication") from None
