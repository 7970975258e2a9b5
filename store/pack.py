"""Packs: immutable objects that hold many sealed chunks.

    0   4  magic "CRNP"
    4   1  format version (1)
    5   3  zero
    8   n  sealed chunks, one after the other, without gaps
    .   m  footer: sealed object of kind PACK_FOOTER (class key K_index)
    -16 4  length m of the footer, little-endian
    -12 4  zero
    -8  8  magic "CRNPEND\\x01"

Footer plaintext: count (u32), then per chunk id (32), offset (u64), stored length (u32), in pack order. The
footer lets the index be rebuilt; every byte of a pack belongs to something that is checked.
"""

import struct

import msgspec

from cairn.core.buffers import Buffer
from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError
from cairn.core.ids import ContentId, StoreId
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_MAX
from cairn.store.backends.contract import Backend
from cairn.store.crypto.chunks import OVERHEAD_BYTES
from cairn.store.crypto.objects import OVERHEAD_BYTES as SEALED_OVERHEAD_BYTES
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object

HEADER = b"CRNP\x01\x00\x00\x00"
END_MAGIC = b"CRNPEND\x01"
TRAILER_BYTES = 16
_TRAILER = struct.Struct("<II8s")
_RECORD = struct.Struct("<32sQI")


# What a pack holds beside its chunks: for itself, and for each chunk.
PACK_OVERHEAD_BYTES = len(HEADER) + SEALED_OVERHEAD_BYTES + 4 + TRAILER_BYTES
RECORD_BYTES = _RECORD.size


class PackedChunk(msgspec.Struct, frozen=True):
    """Where a sealed chunk lies in its pack: byte offset and stored length."""

    id: ContentId
    offset: int
    length: int


def seal_footer(k_index: bytes, store: StoreId, chunks: list[PackedChunk], entropy: Entropy) -> bytes:
    """Footer and trailer of a pack."""
    records = [_RECORD.pack(chunk.id, chunk.offset, chunk.length) for chunk in chunks]
    plain = struct.pack("<I", len(chunks)) + b"".join(records)
    footer = seal_object(k_index, store, ObjectKind.PACK_FOOTER, plain, entropy)
    return footer + _TRAILER.pack(len(footer), 0, END_MAGIC)


def read_footer(backend: Backend, name: str, k_index: bytes, store: StoreId) -> list[PackedChunk]:
    """Read the footer of a stored pack and check that its chunks tile the pack.

    Raises:
        ObjectNotFound: no such pack.
        IntegrityError: anything in header, footer or trailer is off.
    """
    size = backend.size(name)
    if not len(HEADER) + TRAILER_BYTES <= size <= PACK_BYTES_MAX:
        raise IntegrityError(f"pack {name} has an impossible size of {size} bytes")
    length, zero, magic = _TRAILER.unpack(backend.read(name, size - TRAILER_BYTES, TRAILER_BYTES))
    end = size - TRAILER_BYTES - length
    if magic != END_MAGIC or zero or end < len(HEADER):
        raise IntegrityError(f"pack {name} has a damaged trailer")
    if backend.read(name, 0, len(HEADER)) != HEADER:
        raise IntegrityError(f"pack {name} has a damaged header")
    footer = backend.read(name, end, length)
    return parse_footer(
        open_object(k_index, store, ObjectKind.PACK_FOOTER, footer, f"footer of pack {name}"), end, name
    )


def parse_footer(plain: Buffer, end: int, name: str) -> list[PackedChunk]:
    """Decode an opened footer; chunks must follow each other from the header to byte `end`.

    Raises:
        IntegrityError: they do not.
    """
    count = int.from_bytes(plain[:4], "little")
    if len(plain) != 4 + count * _RECORD.size:
        raise IntegrityError(f"footer of pack {name} has another length than its count says")
    at, chunks = len(HEADER), []
    for identifier, offset, length in _RECORD.iter_unpack(memoryview(plain)[4:]):
        if offset != at or not OVERHEAD_BYTES <= length <= CHUNK_BYTES_MAX + OVERHEAD_BYTES:
            raise IntegrityError(f"footer of pack {name} has a gap, an overlap or an impossible length")
        chunks.append(PackedChunk(ContentId(identifier), offset, length))
        at += length
    if at != end:
        raise IntegrityError(f"footer of pack {name} does not cover the pack")
    return chunks
