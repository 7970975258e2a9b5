"""Index, packs and content: sections 11 and 12 of `docs/format/v1.md`. Imports nothing of Cairn."""

import struct

import zstandard

from tests.vectors.format.reader import (
    INDEX_PIECE,
    MIB,
    PACK_FOOTER,
    Damaged,
    Fields,
    Vault,
    hash_of,
    open_gcm,
    require,
)
from tests.vectors.format.reader_log import Log

CHUNK_BYTES_MAX, OVERHEAD = 8 * MIB, 68
PLANES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8}


def pack_place(record: bytes) -> tuple[str, int]:
    """Object name and size of a pack record."""
    return f"objects/{record[:16].hex()}/{record[16:28].hex()}.pack", int.from_bytes(record[28:], "little")


class Content:
    """Chunks and pages by digest."""

    def __init__(self, vault: Vault, log: Log) -> None:
        self._vault = vault
        self.places: dict[bytes, list[tuple[bytes, int, int]]] = {}
        held = log.collection
        offered = {record for number, record in enumerate(held.packs) if held.in_force(number)}
        for piece, first, count in held.pieces:
            self._index(piece, held.packs[first : first + count], offered)
        for record in sorted(offered):
            self._check_pack(record)

    def _index(self, piece: Fields, packs: list[bytes], offered: set[bytes]) -> None:
        vault = self._vault
        plain = vault.open(vault.k_index, INDEX_PIECE, vault.read_named(piece, "index"))
        version, tabled, count = struct.unpack_from("<IIQ", plain)
        start = 16 + 36 * tabled
        require(version == 1 and len(plain) == start + 48 * count, "length of an index piece")
        require(plain[16:start] == b"".join(packs), "piece lists other packs than its commit")
        at = start + 32 * count
        numbers = struct.unpack_from(f"<{count}I", plain, at)
        offsets = struct.unpack_from(f"<{count}Q", plain, at + 4 * count)
        lengths = struct.unpack_from(f"<{count}I", plain, at + 12 * count)
        ids = [plain[i : i + 32] for i in range(start, at, 32)]
        require(ids == sorted(ids), "piece is not sorted")
        for identifier, number, offset, length in zip(ids, numbers, offsets, lengths, strict=True):
            require(number < tabled and OVERHEAD <= length <= CHUNK_BYTES_MAX + OVERHEAD, "impossible place")
            require(offset + length <= pack_place(packs[number])[1], "place outside its pack")
            if packs[number] in offered:
                self.places.setdefault(identifier, []).append((packs[number], offset, length))

    def _check_pack(self, record: bytes) -> None:
        """Header, footer and trailer of a pack; its chunks fill it."""
        name, size = pack_place(record)
        data = self._vault.read(name)
        require(len(data) == size >= 24 and data[:8] == b"CRNP\x01\0\0\0" and data[-8:] == b"CRNPEND\x01", "pack")
        length, zero = struct.unpack("<II", data[-16:-8])
        end = size - 16 - length
        require(zero == 0 and end >= 8, "trailer")
        footer = self._vault.open(self._vault.k_index, PACK_FOOTER, data[end:-16])
        require(len(footer) == 4 + 44 * int.from_bytes(footer[:4], "little"), "length of a footer")
        at = 8
        for identifier, offset, stored in struct.iter_unpack("<32sQI", footer[4:]):
            require(offset == at and data[at + 8 : at + 40] == identifier, "footer does not tile the pack")
            at += stored
        require(at == end, "footer does not cover the pack")

    def read(self, kind: int, digest: bytes) -> bytes:
        """Plaintext of a chunk or page; any of its places will do."""
        identifier = hash_of(digest, self._vault.content[kind][1])
        failure = Damaged(f"{identifier.hex()} is in no pack")
        for record, offset, length in self.places.get(identifier, []):
            sealed = self._vault.read(pack_place(record)[0])[offset : offset + length]
            try:
                return self._open(kind, digest, identifier, sealed)
            except Damaged as error:
                failure = error
        raise failure

    def _open(self, kind: int, digest: bytes, identifier: bytes, sealed: bytes) -> bytes:
        k_hash, _, k_enc = self._vault.content[kind]
        require(len(sealed) >= OVERHEAD, "short chunk")
        version, found, code, zero, raw_length = struct.unpack_from("<BBBBI", sealed)
        require((version, found, zero) == (1, kind, 0) and raw_length <= CHUNK_BYTES_MAX, "chunk header")
        require(sealed[8:40] == identifier, "another chunk")
        extra = self._vault.tenant + sealed[:40]
        plain = unfold(code, open_gcm(hash_of(digest, k_enc), sealed[40:52], sealed[52:], extra), raw_length)
        require(hash_of(plain, k_hash) == digest, "content of another digest")
        return plain


def unfold(code: int, data: bytes, raw_length: int) -> bytes:
    """Undo a chunk's encoding."""
    require(code in PLANES, "unknown encoding")
    if code:
        try:
            require(zstandard.get_frame_parameters(data).content_size == raw_length, "content size")
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw_length)
        except zstandard.ZstdError:
            raise Damaged("zstd") from None
    width = PLANES[code]
    require(len(data) == raw_length and raw_length % width == 0, "length of a chunk")
    plain, count = bytearray(raw_length), raw_length // width
    for plane in range(width):
        plain[plane::width] = data[plane * count : (plane + 1) * count]
    return bytes(plain)
