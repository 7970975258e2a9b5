"""Index pieces: what comes back, and each field that can be wrong."""

import random
import struct

import pytest

from cairn.core.errors import IntegrityError
from cairn.core.ids import ContentId, SessionId
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_MAX
from cairn.store.crypto.chunks import OVERHEAD_BYTES
from cairn.store.index import KnownPacks, PackRef, PieceEntry, blocks_of, decode_piece, encode_piece, find_in_piece

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


# --- Asking for ids ---------------------------------------------------------------------------


def test_ids_are_found_one_by_one_and_many_at_once() -> None:
    packs = [PackRef(SessionId(bytes(16)), n.to_bytes(12, "big"), 1 << 20) for n in range(5)]
    twins = [DRAW.randbytes(32) for _ in range(20)]
    # Ids that hold another's beginning across the border of two, and zeros at the end.
    odd = [twins[0][16:] + twins[1][:16], twins[2][:31] + b"\0", bytes(32)]
    ids = twins + twins[:7] + odd + [DRAW.randbytes(32) for _ in range(300)]
    entries = [entry(DRAW.randrange(5), 8 + 100 * n, 100, one) for n, one in enumerate(ids)]
    plain = encode_piece(packs, entries)
    absent = [DRAW.randbytes(32) for _ in range(50)] + [twins[3][16:] + twins[4][:16]]
    expected = {one: sorted((e.pack, e.offset, e.length) for e in entries if e.id == one) for one in {*ids, *absent}}
    blocks = [block for _, block in blocks_of(plain)]
    for one, places in expected.items():
        assert sorted(find_in_piece(plain, one)) == places
        assert sorted(place for block in blocks for place in find_in_piece(block, one)) == places
    known = KnownPacks([(10, block) for block in blocks])
    wanted = [*expected]
    for one, pack in zip(wanted, known.find(wanted), strict=True):
        assert pack in [10 + place[0] for place in expected[one]] or (pack == -1 and not expected[one])
    assert known.find([]) == [] and KnownPacks([]).find(wanted[:3]) == [-1, -1, -1]


def test_packs_of_several_pieces_are_known() -> None:
    first, second = ([entry(0, 8 + 100 * n) for n in range(200)] for _ in range(2))
    packs = [PackRef(SessionId(bytes(16)), bytes(12), 1 << 20)]
    blocks = [
        (start, block) for start, some in ((7, first), (3, second)) for _, block in blocks_of(encode_piece(packs, some))
    ]
    known = KnownPacks(blocks)
    assert set(known.find([one.id for one in first])) == {7} and set(known.find([one.id for one in second])) == {3}
