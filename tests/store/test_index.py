"""Index pieces: what comes back, and each field that can be wrong."""

import random
import struct

import pytest

from cairn.core.errors import IntegrityError
from cairn.core.ids import ContentId, SessionId
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_MAX
from cairn.store.crypto.chunks import OVERHEAD_BYTES
from cairn.store.index import PackRef, PieceEntry, decode_piece, encode_piece

DRAW = random.Random(3)
PACKS = [PackRef(SessionId(DRAW.randbytes(16)), DRAW.randbytes(12), size) for size in (10_000, 2_000, PACK_BYTES_MAX)]


def entry(pack: int, offset: int, length: int = 100, identifier: bytes | None = None) -> PieceEntry:
    return PieceEntry(ContentId(identifier or DRAW.randbytes(32)), pack, offset, length)


TWIN = DRAW.randbytes(32)
ENTRIES = [entry(0, 8), entry(0, 108, 9_892), entry(1, 1_900), entry(2, PACK_BYTES_MAX - 100)]
ENTRIES += [entry(1, 8, 68, TWIN), entry(0, 8, 68, TWIN)]
PIECE = encode_piece(PACKS, ENTRIES)
IDS_AT = 16 + 36 * len(PACKS)
PACKS_AT = IDS_AT + 32 * len(ENTRIES)
OFFSETS_AT = PACKS_AT + 4 * len(ENTRIES)
LENGTHS_AT = OFFSETS_AT + 8 * len(ENTRIES)


def test_entries_come_back_sorted_with_twins_side_by_side() -> None:
    packs, entries = decode_piece(PIECE, "it")
    assert packs == PACKS
    assert list(entries) == sorted(ENTRIES, key=lambda one: (one.id, one.pack, one.offset))


def test_the_order_of_entries_does_not_matter() -> None:
    assert encode_piece(PACKS, ENTRIES[::-1]) == PIECE


@pytest.mark.parametrize("packs", [[], PACKS])
def test_an_empty_piece_is_a_piece(packs: list[PackRef]) -> None:
    found, entries = decode_piece(encode_piece(packs, []), "it")
    assert (found, list(entries)) == (packs, [])


def put(at: int, form: str, value: int) -> bytes:
    return PIECE[:at] + struct.pack(form, value) + PIECE[at + struct.calcsize(form) :]


DEFECTS = {
    "version 0": put(0, "<I", 0),
    "version 2": put(0, "<I", 2),
    "a pack more": put(4, "<I", 4),
    "a pack less": put(4, "<I", 2),
    "packs absurd": put(4, "<I", (1 << 32) - 1),
    "an entry more": put(8, "<Q", 7),
    "an entry less": put(8, "<Q", 5),
    "entries absurd": put(8, "<Q", (1 << 64) - 1),
    "ids unsorted": PIECE[:IDS_AT] + b"\xff" * 32 + PIECE[IDS_AT + 32 :],
    "pack number past the table": put(PACKS_AT, "<I", 3),
    "pack number absurd": put(PACKS_AT + 8, "<I", (1 << 32) - 1),
    "offset past the pack": put(OFFSETS_AT, "<Q", PACK_BYTES_MAX),
    "offset wraps": put(OFFSETS_AT, "<Q", (1 << 64) - 50),
    "length past the pack": put(LENGTHS_AT, "<I", CHUNK_BYTES_MAX),
    "length too short": put(LENGTHS_AT, "<I", OVERHEAD_BYTES - 1),
    "length nothing": put(LENGTHS_AT, "<I", 0),
    "length too long": put(LENGTHS_AT, "<I", CHUNK_BYTES_MAX + OVERHEAD_BYTES + 1),
    "pack size too small": put(16 + 28, "<Q", 50),
    "pack size over the limit": put(16 + 2 * 36 + 28, "<Q", PACK_BYTES_MAX + 1),
    "a byte more": PIECE + b"\0",
    "a byte less": PIECE[:-1],
    "head only": PIECE[:16],
    "half a head": PIECE[:15],
    "nothing": b"",
}


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_a_malformed_piece_is_refused(defect: bytes) -> None:
    assert defect != PIECE
    with pytest.raises(IntegrityError, match="piece x"):
        list(decode_piece(defect, "piece x")[1])


def test_lengths_are_bounded_where_the_pack_is_not() -> None:
    longest = CHUNK_BYTES_MAX + OVERHEAD_BYTES
    assert len(list(decode_piece(encode_piece(PACKS, [entry(2, 8, longest)]), "it")[1])) == 1
    for length in (OVERHEAD_BYTES - 1, longest + 1):
        with pytest.raises(IntegrityError, match="length"):
            list(decode_piece(encode_piece(PACKS, [entry(2, 8, length)]), "it")[1])


def test_every_changed_byte_changes_what_is_read_or_is_refused() -> None:
    truth = list(decode_piece(PIECE, "it")[1]), PACKS
    for at in range(len(PIECE)):
        changed = bytearray(PIECE)
        changed[at] ^= 1 << at % 8
        try:
            packs, entries = decode_piece(bytes(changed), "it")
            assert (list(entries), packs) != truth
        except IntegrityError:
            pass
