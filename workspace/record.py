"""What ingesting one file yields: its tensors and its recipe, free of the place of the file in a tree.

A record is also what the file-digest cache keeps, sealed, so that an unchanged file need not be read again.
"""

from collections.abc import Iterator

import msgspec

from cairn.core.canonical import encode
from cairn.core.ids import Digest
from cairn.core.limits import FILE_BLOCK_BYTES
from cairn.manifests.dtypes import nbytes
from cairn.manifests.schema import FileEntry, Key, Literal, Segment, TensorBytes, TensorEntry
from cairn.manifests.tiling import grid
from cairn.registry.checkpoint import split_digests

TensorPath = tuple[str | int, ...]
# Blocks of one literal segment: 1 GiB of a file, 32 KiB of digests.
BLOCKS_PER_SEGMENT = 1024
# Encoded bytes of one file entry's segments, about; a longer recipe continues in further entries, so pages stay small.
_ENTRY_BYTES = 64 << 10


class TensorRecord(msgspec.Struct, frozen=True):
    """One tensor of a file: its key there, and either its bytes or the digests of its grid."""

    path: TensorPath
    dtype: str
    shape: tuple[int, ...]
    inline: bytes | None
    tiles: bytes | None
    tied_to: TensorPath | None = None

    def same_content(self, other: "TensorRecord") -> bool:
        """Whether both hold the same values in the same form."""
        mine = self.dtype, self.shape, self.inline, self.tiles
        return mine == (other.dtype, other.shape, other.inline, other.tiles)


class FileRecord(msgspec.Struct, frozen=True):
    """One file. Tensor segments name tensors by their path, with an empty scope."""

    size: int
    container: str
    tensors: tuple[TensorRecord, ...]
    segments: tuple[Segment, ...]
    warnings: tuple[str, ...] = ()

    def entries(self, path: bytes, mode: int, scope: str) -> list[FileEntry]:
        """File entries of this file at a place in a tree."""
        parts: list[list[Segment]] = [[]]
        size = 0
        for segment in self.segments:
            if size >= _ENTRY_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(scoped(segment, scope))
            size += len(encode(parts[-1][-1]))
        return [
            FileEntry(path, "file", mode, self.size, tuple(part), container=self.container, part=number)
            for number, part in enumerate(parts)
        ]

    def tensor_entry(self, tensor: TensorRecord, scope: str) -> TensorEntry:
        """Entry of one of its tensors."""
        tied = None if tensor.tied_to is None else Key(scope, tensor.tied_to)
        return TensorEntry(
            Key(scope, tensor.path), tensor.dtype, tensor.shape, tensor.inline, tensor.tiles, tied_to=tied
        )


def scoped(segment: Segment, scope: str) -> Segment:
    """A segment with its tensor key in a scope."""
    return TensorBytes(Key(scope, segment.key.path)) if isinstance(segment, TensorBytes) else segment


def chunks_of(record: FileRecord) -> Iterator[tuple[Digest, int]]:
    """Digests and lengths of every chunk that a record names, fills included."""
    for tensor in record.tensors:
        if tensor.tiles is not None:
            lengths = grid(tensor.dtype, tensor.shape).lengths()
            yield from zip(split_digests(tensor.tiles, "a file record"), lengths, strict=True)
    for segment in record.segments:
        if isinstance(segment, Literal):
            for number, digest in enumerate(split_digests(segment.digests, "a file record")):
                yield digest, min(FILE_BLOCK_BYTES, segment.length - number * FILE_BLOCK_BYTES)


def record_bytes(record: FileRecord) -> int:
    """Bytes of a record's tensors."""
    return sum(nbytes(tensor.dtype, tensor.shape) for tensor in record.tensors)
