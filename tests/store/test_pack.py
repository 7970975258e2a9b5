"""Packs: a footer that can be read back, and every way in which a pack does not add up."""

import struct

import pytest

from cairn.core.errors import IntegrityError, ObjectNotFound
from cairn.core.ids import ContentId, StoreId
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_MAX
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto.chunks import OVERHEAD_BYTES
from cairn.store.crypto.objects import ObjectKind, seal_object
from cairn.store.pack import END_MAGIC, HEADER, TRAILER_BYTES, PackedChunk, parse_footer, read_footer, seal_footer
from tests.support.doubles import SeededEntropy

ENTROPY = SeededEntropy(2)
STORE, KEY = StoreId(ENTROPY.token(16)), ENTROPY.token(32)
LENGTHS = [100, OVERHEAD_BYTES, 5000]
NAME = "objects/00/a.pack"


def chunks_of(lengths: list[int], at: int = len(HEADER)) -> list[PackedChunk]:
    chunks = []
    for number, length in enumerate(lengths):
        chunks.append(PackedChunk(ContentId(bytes([number]) * 32), at, length))
        at += length
    return chunks


CHUNKS = chunks_of(LENGTHS)
END = CHUNKS[-1].offset + CHUNKS[-1].length
PACK = HEADER + bytes(sum(LENGTHS)) + seal_footer(KEY, STORE, CHUNKS, ENTROPY)


def footer_of(pack: bytes, store: StoreId = STORE, key: bytes = KEY) -> list[PackedChunk]:
    backend = MemoryBackend()
    backend.create(NAME, [pack])
    return read_footer(backend, NAME, key, store)


def test_a_footer_lists_what_is_in_the_pack() -> None:
    assert footer_of(PACK) == CHUNKS


def test_a_pack_of_nothing_has_a_footer_too() -> None:
    assert footer_of(HEADER + seal_footer(KEY, STORE, [], ENTROPY)) == []


def test_an_absent_pack_is_not_found() -> None:
    with pytest.raises(ObjectNotFound):
        read_footer(MemoryBackend(), NAME, KEY, STORE)


def test_each_bit_around_the_chunks_is_checked() -> None:
    for at in [*range(len(HEADER)), *range(END, len(PACK))]:
        changed = bytearray(PACK)
        changed[at] ^= 1 << at % 8
        with pytest.raises(IntegrityError):
            footer_of(bytes(changed))


def test_truncated_lengthened_and_spliced_packs_are_refused() -> None:
    tail = PACK[END:]
    defects = [PACK[:length] for length in (0, 8, 23, 24, 100, END, len(PACK) - 16, len(PACK) - 1)]
    defects += [PACK + b"\0", PACK[:END] + b"\0" + tail, PACK[: END - 1] + tail, tail, PACK + tail, HEADER + tail]
    for defect in defects:
        with pytest.raises(IntegrityError):
            footer_of(defect)


@pytest.mark.parametrize("length", [0, 1, 87, len(PACK) - TRAILER_BYTES, len(PACK), (1 << 32) - 1])
def test_a_trailer_that_lies_about_the_footer_is_refused(length: int) -> None:
    with pytest.raises(IntegrityError):
        footer_of(PACK[:-TRAILER_BYTES] + struct.pack("<II8s", length, 0, END_MAGIC))


def test_the_footer_of_another_store_or_key_is_refused() -> None:
    with pytest.raises(IntegrityError):
        footer_of(PACK, store=StoreId(bytes(16)))
    with pytest.raises(IntegrityError):
        footer_of(PACK, key=bytes(32))


def test_a_pack_over_the_limit_is_not_read() -> None:
    class Huge(MemoryBackend):
        def size(self, name: str) -> int:
            return PACK_BYTES_MAX + 1

    with pytest.raises(IntegrityError, match="impossible size"):
        read_footer(Huge(), NAME, KEY, STORE)


# --- The footer's plaintext: authentic, yet its writer may have been faulty -------------------


def plain(chunks: list[PackedChunk], count: int | None = None) -> bytes:
    records = [struct.pack("<32sQI", chunk.id, chunk.offset, chunk.length) for chunk in chunks]
    return struct.pack("<I", len(chunks) if count is None else count) + b"".join(records)


def moved(by: int, at: int) -> list[PackedChunk]:
    return [PackedChunk(c.id, c.offset + (by if n >= at else 0), c.length) for n, c in enumerate(CHUNKS)]


DEFECTS = {
    "gap at the start": plain(moved(1, 0)),
    "gap": plain(moved(1, 1)),
    "overlap": plain(moved(-1, 1)),
    "into the header": plain(moved(-8, 0)),
    "other order": plain([CHUNKS[1], CHUNKS[0], CHUNKS[2]]),
    "twice": plain([CHUNKS[0], CHUNKS[0], CHUNKS[1], CHUNKS[2]]),
    "one is missing at the end": plain(CHUNKS[:2]),
    "one too many at the end": plain([*CHUNKS, PackedChunk(CHUNKS[0].id, END, 100)]),
    "too short a chunk": plain(chunks_of([OVERHEAD_BYTES - 1, *LENGTHS])),
    "empty chunk": plain(chunks_of([0, *LENGTHS])),
    "count too high": plain(CHUNKS, 4),
    "count too low": plain(CHUNKS, 2),
    "count absurd": plain(CHUNKS, (1 << 32) - 1),
    "offset absurd": plain(moved((1 << 64) - 1 - CHUNKS[2].offset, 2)),
    "half a record": plain(CHUNKS)[:-1],
    "no count": b"\0\0",
    "nothing": b"",
}


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_a_footer_must_tile_its_pack(defect: bytes) -> None:
    with pytest.raises(IntegrityError, match=NAME):
        parse_footer(defect, END, NAME)
    sealed = seal_object(KEY, STORE, ObjectKind.PACK_FOOTER, defect, ENTROPY)
    with pytest.raises(IntegrityError, match=NAME):
        footer_of(PACK[:END] + sealed + struct.pack("<II8s", len(sealed), 0, END_MAGIC))


def test_a_chunk_may_be_as_long_as_the_limit_and_no_longer() -> None:
    longest = CHUNK_BYTES_MAX + OVERHEAD_BYTES
    assert parse_footer(plain(chunks_of([longest])), len(HEADER) + longest, NAME)[0].length == longest
    with pytest.raises(IntegrityError):
        parse_footer(plain(chunks_of([longest + 1])), len(HEADER) + longest + 1, NAME)
