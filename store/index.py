"""Index pieces: which pack holds which content id.

Plaintext of a piece (sealed as INDEX_PIECE under K_index), little-endian:

    0   4  version (1)
    4   4  number of packs p
    8   8  number of entries n
    16  36p  packs: session (16), random (12), size (u64)
    .   32n  ids, ascending; equal ids may stand side by side
    .   4n   position of the pack in the table above (u32)
    .   8n   offset in the pack (u64)
    .   4n   stored length (u32)
"""

import struct
from collections.abc import Iterator

import msgspec

from cairn.core.errors import IntegrityError
from cairn.core.ids import OBJECT_RANDOM_BYTES, RANDOM_ID_BYTES, ContentId, SessionId, object_name
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_MAX
from cairn.store.crypto.chunks import OVERHEAD_BYTES

VERSION = 1
_HEAD = struct.Struct("<IIQ")
_PACK = struct.Struct("<16s12sQ")


class PackRef(msgspec.Struct, frozen=True):
    """Name and size of a pack."""

    session: SessionId
    random: bytes
    size: int

    @property
    def name(self) -> str:
        """Name of the object."""
        return object_name(self.session, self.random, "pack")

    @property
    def key(self) -> bytes:
        """Binary name: what log entries and pieces hold."""
        return self.session + self.random


class Location(msgspec.Struct, frozen=True):
    """One place of a content id: number of the pack in the log's numbering, byte offset, stored length."""

    pack: int
    offset: int
    length: int


class PieceEntry(msgspec.Struct, frozen=True):
    """One line of a piece; `pack` counts in the piece's own table."""

    id: ContentId
    pack: int
    offset: int
    length: int


def encode_piece(packs: list[PackRef], entries: list[PieceEntry]) -> bytes:
    """Plaintext of a piece; entries in any order."""
    ordered = sorted(entries, key=lambda entry: (entry.id, entry.pack, entry.offset))
    count = len(ordered)
    return b"".join(
        (
            _HEAD.pack(VERSION, len(packs), count),
            *(_PACK.pack(pack.session, pack.random, pack.size) for pack in packs),
            *(entry.id for entry in ordered),
            struct.pack(f"<{count}I", *(entry.pack for entry in ordered)),
            struct.pack(f"<{count}Q", *(entry.offset for entry in ordered)),
            struct.pack(f"<{count}I", *(entry.length for entry in ordered)),
        )
    )


def decode_piece(plain: bytes, what: str) -> tuple[list[PackRef], Iterator[PieceEntry]]:
    """Packs and entries of a piece.

    Raises:
        IntegrityError: lengths, order or ranges are off.
    """
    if len(plain) < _HEAD.size:
        raise IntegrityError(f"{what} is too short")
    version, pack_count, count = _HEAD.unpack_from(plain)
    ids_at = _HEAD.size + pack_count * _PACK.size
    if version != VERSION or len(plain) != ids_at + 48 * count:
        raise IntegrityError(f"{what} has another length than its counts say")
    assert RANDOM_ID_BYTES + OBJECT_RANDOM_BYTES == 28
    packs = [
        PackRef(SessionId(session), random, size)
        for session, random, size in _PACK.iter_unpack(plain[_HEAD.size : ids_at])
    ]
    return packs, _entries(plain, ids_at, count, packs, what)


def _entries(plain: bytes, ids_at: int, count: int, packs: list[PackRef], what: str) -> Iterator[PieceEntry]:
    at = ids_at + 32 * count
    pack_numbers = struct.unpack_from(f"<{count}I", plain, at)
    offsets = struct.unpack_from(f"<{count}Q", plain, at + 4 * count)
    lengths = struct.unpack_from(f"<{count}I", plain, at + 12 * count)
    previous = b""
    for i in range(count):
        identifier = plain[ids_at + 32 * i : ids_at + 32 * i + 32]
        pack, offset, length = pack_numbers[i], offsets[i], lengths[i]
        if identifier < previous:
            raise IntegrityError(f"{what} is not sorted")
        if pack >= len(packs) or packs[pack].size > PACK_BYTES_MAX or offset + length > packs[pack].size:
            raise IntegrityError(f"{what} points outside its packs")
        if not OVERHEAD_BYTES <= length <= CHUNK_BYTES_MAX + OVERHEAD_BYTES:
            raise IntegrityError(f"{what} holds an impossible length")
        yield PieceEntry(ContentId(identifier), pack, offset, length)
        previous = identifier
