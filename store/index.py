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
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cairn.core.buffers import Buffer
from cairn.core.errors import IntegrityError
from cairn.core.ids import OBJECT_RANDOM_BYTES, RANDOM_ID_BYTES, ContentId, SessionId, object_name
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_MAX
from cairn.store.crypto.chunks import OVERHEAD_BYTES

if TYPE_CHECKING:
    import numpy as np

VERSION = 1
# Entries of a block in the cache, which then fills one page of LMDB's (4096 bytes, of which 16 are its own).
_BLOCK_ENTRIES = 84
# Blocks that are cut at once: 4 MB.
_BLOCKS_AT_ONCE = 1024
# Fewer are sorted before numpy is imported.
_FEW_IDS = 50_000
# Bytes of an entry over all four columns.
ENTRY_BYTES = 48
_HEAD = struct.Struct("<IIQ")
_PACK = struct.Struct("<16s12sQ")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# Of the four columns, as numpy has it: ids, packs, offsets, lengths.
_COLUMNS = ("S32", "<u4", "<u8", "<u4")


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


class Location(msgspec.Struct, frozen=True, gc=False):
    """One place of a content id: number of the pack in the log's numbering, byte offset, stored length."""

    pack: int
    offset: int
    length: int


class PieceEntry(msgspec.Struct, frozen=True, gc=False):
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


def join_pieces(pieces: Sequence[bytes]) -> bytes:
    """One piece of several, whose packs stand one after the other; all have passed `check_piece`."""
    import numpy as np  # few commands join pieces

    columns: list[list[np.ndarray[Any, Any]]] = [[], [], [], []]
    tables, first = [], 0
    for plain in pieces:
        _, pack_count, count = _HEAD.unpack_from(plain)
        at = _HEAD.size + pack_count * _PACK.size
        tables.append(plain[_HEAD.size : at])
        for column, kind in zip(columns, _COLUMNS, strict=True):
            column.append(np.frombuffer(plain, kind, count, at))
            at += count * np.dtype(kind).itemsize
        columns[1][-1] = columns[1][-1] + np.uint32(first)
        first += pack_count
    pairs = zip(columns, _COLUMNS, strict=True)
    joined = [np.concatenate(column) if column else np.zeros(0, kind) for column, kind in pairs]
    return piece_of_columns(b"".join(tables), joined)


def piece_of_columns(table: bytes, columns: "Sequence[np.ndarray[Any, Any]]") -> bytes:
    """A piece of given packs (36 bytes each) and columns (ids, packs by their place in the table, offsets, lengths)."""
    import numpy as np

    order = np.argsort(columns[0], kind="stable")
    head = _HEAD.pack(VERSION, len(table) // _PACK.size, len(order))
    rows = (column[order].astype(kind).tobytes() for column, kind in zip(columns, _COLUMNS, strict=True))
    return b"".join((head, table, *rows))


def without_first_packs(plain: bytes, count: int) -> bytes:
    """A piece without its first packs and what is in them; it has passed `check_piece`."""
    ids, packs, offsets, lengths = columns_of(plain, "an index piece")
    kept = packs >= count
    columns = [ids[kept], packs[kept] - packs.dtype.type(count), offsets[kept], lengths[kept]]
    return piece_of_columns(pack_table(plain)[count * _PACK.size :], columns)


def sorted_ids(ids: Iterable[ContentId]) -> bytes:
    """Distinct ids, one after the other, ascending."""
    ids = list(ids)
    if len(ids) < _FEW_IDS:
        return b"".join(sorted(ids))
    import numpy as np

    return np.sort(np.frombuffer(b"".join(ids), _COLUMNS[0])).tobytes()


def check_piece(plain: bytes, what: str) -> None:
    """Refuse what `decode_piece` does, at once.

    Raises:
        IntegrityError: lengths, order or ranges are off.
    """
    import numpy as np

    at = _ids_at(plain, what)[0]
    record, pack_count = np.dtype([("key", "V28"), ("size", "<u8")]), (at - _HEAD.size) // _PACK.size
    sizes = np.frombuffer(plain, record, pack_count, _HEAD.size)["size"]
    ids, packs, offsets, lengths = columns_of(plain, what)
    if (ids[1:] < ids[:-1]).any():
        raise IntegrityError(f"{what} is not sorted")
    if (packs >= len(sizes)).any() or (sizes > PACK_BYTES_MAX).any():
        raise IntegrityError(f"{what} points outside its packs")
    if (offsets > PACK_BYTES_MAX).any() or (offsets + lengths > sizes[packs]).any():
        raise IntegrityError(f"{what} points outside its packs")
    if ((lengths < OVERHEAD_BYTES) | (lengths > CHUNK_BYTES_MAX + OVERHEAD_BYTES)).any():
        raise IntegrityError(f"{what} holds an impossible length")


def columns_of(plain: bytes, what: str) -> "list[np.ndarray[Any, Any]]":
    """Ids, packs by their place in the table, offsets and stored lengths of a piece's entries, unchecked."""
    import numpy as np

    at, count = _ids_at(plain, what)
    found = []
    for kind in _COLUMNS:
        found.append(np.frombuffer(plain, kind, count, at))
        at += count * np.dtype(kind).itemsize
    return found


def pack_table(plain: bytes, what: str = "an index piece") -> bytes:
    """The packs of a piece, 36 bytes each, as a commit lists them.

    Raises:
        IntegrityError: the piece is not as long as it says.
    """
    return plain[_HEAD.size : _ids_at(plain, what)[0]]


def blocks_of(plain: bytes) -> Iterator[tuple[bytes, bytes]]:
    """A piece cut in short ones without packs, in order, each with its last id; it has passed `check_piece`."""
    count = _ids_at(plain, "an index piece")[1]
    whole = count - count % _BLOCK_ENTRIES
    step = _BLOCK_ENTRIES * _BLOCKS_AT_ONCE
    for first in range(0, whole, step):
        yield from _blocks(plain, first, min(first + step, whole), _BLOCK_ENTRIES)
    if whole < count:
        yield from _blocks(plain, whole, count, count - whole)


def _blocks(plain: bytes, first: int, end: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Some entries of a piece in blocks of one size, which divides their number."""
    import numpy as np

    columns = [np.frombuffer(_HEAD.pack(VERSION, 0, size) * ((end - first) // size), np.uint8)]
    columns += [column[first:end].view(np.uint8) for column in columns_of(plain, "an index piece")]
    rows = np.concatenate([column.reshape((end - first) // size, -1) for column in columns], axis=1)
    last = _HEAD.size + 32 * (size - 1)
    for row in rows:
        block = row.tobytes()
        yield block[last : last + 32], block


def find_in_piece(plain: Buffer, identifier: bytes) -> list[tuple[int, int, int]]:
    """Pack in the piece's own table, offset and stored length of each entry of an id.

    The piece has passed `check_piece`.
    """
    _, pack_count, count = _HEAD.unpack_from(plain)
    ids = _HEAD.size + pack_count * _PACK.size
    packs = ids + 32 * count
    data: bytes | memoryview = bytes(plain) if count <= _BLOCK_ENTRIES else memoryview(plain)
    if isinstance(data, bytes):  # searched by C code, that is
        place = data.find(identifier, ids, packs)
        while place >= 0 and (place - ids) % 32:
            place = data.find(identifier, place + 1, packs)
        if place < 0:
            return []
        at = (place - ids) // 32
    else:
        at = bisect_left(range(count), identifier, key=lambda n: bytes(data[ids + 32 * n : ids + 32 * n + 32]))
    found = []
    while at < count and data[ids + 32 * at : ids + 32 * at + 32] == identifier:
        (pack,), (offset,) = _U32.unpack_from(data, packs + 4 * at), _U64.unpack_from(data, packs + 4 * count + 8 * at)
        found.append((pack, offset, _U32.unpack_from(data, packs + 12 * count + 4 * at)[0]))
        at += 1
    return found


class KnownPacks:
    """Which pack holds an id, for many ids at once: 40 bytes of memory an entry."""

    def __init__(self, blocks: Sequence[tuple[int, bytes]]) -> None:
        """Take up blocks of pieces, each with the number of its piece's first pack."""
        self._any = bool(blocks)
        if not blocks:
            return
        import numpy as np

        ids, packs = [], []
        for first, block in blocks:
            count = _HEAD.unpack_from(block)[2]
            ids.append(np.frombuffer(block, _COLUMNS[0], count, _HEAD.size))
            packs.append(first + np.frombuffer(block, _COLUMNS[1], count, _HEAD.size + 32 * count).astype(np.int64))
        self._ids, self._packs = np.concatenate(ids), np.concatenate(packs)
        if (self._ids[1:] < self._ids[:-1]).any():
            order = np.argsort(self._ids, kind="stable")
            self._ids, self._packs = self._ids[order], self._packs[order]

    def find(self, ids: Sequence[bytes]) -> list[int]:
        """Number of a pack that holds each id; -1 for one that is in no block."""
        if not self._any or not ids:
            return [-1] * len(ids)
        import numpy as np

        wanted = np.frombuffer(b"".join(ids), _COLUMNS[0])
        at = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        found: list[int] = np.where(self._ids[at] == wanted, self._packs[at], -1).tolist()
        return found


def decode_piece(plain: bytes, what: str) -> tuple[list[PackRef], Iterator[PieceEntry]]:
    """Packs and entries of a piece.

    Raises:
        IntegrityError: lengths, order or ranges are off.
    """
    ids_at, count = _ids_at(plain, what)
    assert RANDOM_ID_BYTES + OBJECT_RANDOM_BYTES == 28
    packs = [
        PackRef(SessionId(session), random, size)
        for session, random, size in _PACK.iter_unpack(plain[_HEAD.size : ids_at])
    ]
    return packs, _entries(plain, ids_at, count, packs, what)


def _ids_at(plain: bytes, what: str) -> tuple[int, int]:
    """Where the ids of a piece begin, and how many entries it has."""
    if len(plain) < _HEAD.size:
        raise IntegrityError(f"{what} is too short")
    version, pack_count, count = _HEAD.unpack_from(plain)
    ids_at = _HEAD.size + pack_count * _PACK.size
    if version != VERSION or len(plain) != ids_at + 48 * count:
        raise IntegrityError(f"{what} has another length than its counts say")
    return ids_at, count


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
