"""How a file of a checkpoint is put together again: piece by piece, each checked before it is believed.

Entries come from a sealed manifest, yet its writer may have been hostile: paths, sizes and counts are claims.
"""

import os
from collections.abc import Iterable, Iterator

import msgspec

from cairn.core.errors import IntegrityError, RefusedError
from cairn.core.limits import FILE_BLOCK_BYTES, TENSOR_BYTES_MAX
from cairn.loader.plan import Wanted
from cairn.manifests.dtypes import nbytes
from cairn.manifests.schema import FileEntry, Inline, Key, Literal, Segment, TensorEntry
from cairn.manifests.tiling import Band, grid
from cairn.registry.checkpoint import CheckpointManifest, split_digests
from cairn.store.crypto.components import ComponentClass
from cairn.store.fills import fill_of
from cairn.workspace.links import is_plain_path, link_stays_inside
from cairn.workspace.tree import PERMISSIONS


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Bytes `[offset, offset + length)` of a file: at hand, or chunks that a band interleaves if there is one."""

    offset: int
    length: int
    data: bytes | None = None
    chunks: tuple[Wanted, ...] = ()
    band: Band | None = None

    @property
    def is_zeros(self) -> bool:
        """Whether all its bytes are zeros without being read."""
        return self.data is None and all(fill_of(chunk.digest) == 0 for chunk in self.chunks)


class Recipe:
    """Pieces of the files of one checkpoint."""

    def __init__(self, manifest: CheckpointManifest) -> None:
        self._manifest = manifest
        self._tensors: dict[Key, TensorEntry] = {}

    def files(self) -> list[FileEntry]:
        """All entries, sorted by path and part.

        Raises:
            RefusedError: the checkpoint has no files.
            IntegrityError: one leads out of its folder, or has impossible facts.
        """
        manifest = self._manifest
        if ComponentClass.FILES not in manifest.components:
            raise RefusedError(
                f"{manifest.what} holds no files: a training loop saved it",
                hint="write its tensors with --format safetensors, torch or dcp, load it with cairn.Checkpointer, or "
                "read them with cairn.open",
            )
        entries = list(manifest.files())
        self.admit(entries)
        return entries

    def admit(self, entries: Iterable[FileEntry]) -> None:
        """Check some entries of the checkpoint, and get ready for their pieces.

        Raises:
            IntegrityError: one leads out of its folder, or has impossible facts.
        """
        for entry in entries:
            _check_entry(entry, self._manifest.what)
        self._tensors = {entry.key: entry for entry in self._manifest.entries() if isinstance(entry, TensorEntry)}

    def pieces(self, parts: Iterable[FileEntry]) -> Iterator[Piece]:
        """Pieces of one file, from all of its parts in order.

        Raises:
            IntegrityError: the recipe does not add up to the file's size, or names what the checkpoint lacks.
        """
        at, size = 0, -1
        for number, part in enumerate(parts):
            if part.part != number:
                raise IntegrityError(f"{self._manifest.what} holds a file without its first part, or with a gap")
            size = part.size
            for segment in part.segments:
                for piece in self._of_segment(segment, at):
                    yield piece
                    at = piece.offset + piece.length
        if at != size:
            raise IntegrityError(f"the recipe of a file in {self._manifest.what} does not add up to its size")

    def _of_segment(self, segment: Segment, at: int) -> Iterator[Piece]:
        if isinstance(segment, Inline):
            yield Piece(at, len(segment.data), segment.data)
        elif isinstance(segment, Literal):
            yield from self._of_literal(segment, at)
        else:
            tensor = self._tensors.get(segment.key)
            if tensor is None:
                raise IntegrityError(f"a file of {self._manifest.what} names tensor {segment.key}, which it lacks")
            yield from self._of_tensor(tensor, at)

    def _of_literal(self, segment: Literal, at: int) -> Iterator[Piece]:
        digests = split_digests(segment.digests, self._manifest.what)
        if segment.length < 0 or len(digests) != -(-segment.length // FILE_BLOCK_BYTES):
            raise IntegrityError(f"a file of {self._manifest.what} has another number of blocks than its length wants")
        for start, digest in zip(range(0, segment.length, FILE_BLOCK_BYTES), digests, strict=True):
            length = min(FILE_BLOCK_BYTES, segment.length - start)
            yield Piece(at + start, length, chunks=(Wanted(digest, length),))

    def _of_tensor(self, tensor: TensorEntry, at: int) -> Iterator[Piece]:
        if tensor.inline is not None:
            if len(tensor.inline) != nbytes(tensor.dtype, tensor.shape):
                raise IntegrityError(f"tensor {tensor.key} of {self._manifest.what} has another size than its shape")
            yield Piece(at, len(tensor.inline), tensor.inline)
            return
        if tensor.regions or tensor.region_pages is not None:
            raise IntegrityError(f"a file of {self._manifest.what} names tensor {tensor.key}, which has no grid")
        tiles = self._manifest.tiles(tensor)
        for band in grid(tensor.dtype, tensor.shape).bands():
            wanted = (Wanted(tiles[band.first + i], band.rows * width) for i, (_, width) in enumerate(band.columns))
            yield Piece(
                at + band.offset, band.length, chunks=tuple(wanted), band=band if len(band.columns) > 1 else None
            )


def _check_entry(entry: FileEntry, what: str) -> None:
    links_well = entry.kind != "link" or link_stays_inside(entry.path, entry.target)
    if not 0 <= entry.mode <= PERMISSIONS or not 0 <= entry.size <= TENSOR_BYTES_MAX or entry.part < 0:
        raise IntegrityError(f"{what} holds a path with impossible facts: {os.fsdecode(entry.path)!a}")
    if not is_plain_path(entry.path) or entry.kind not in ("file", "folder", "link") or not links_well:
        raise IntegrityError(f"{what} holds a path that leads out of its folder: {os.fsdecode(entry.path)!a}")
