"""A checkpoint becomes a tree, whole or not at all.

The tree is built beside the destination, under a name that says what it is, and renamed when complete; so nothing
half-written is ever seen at the destination. Order inside: folders, files (holes first, then bytes), links, modes.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cairn.core.errors import IntegrityError, RefusedError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import FILE_BLOCK_BYTES, READ_BYTES_TARGET, TENSOR_BYTES_MAX
from cairn.core.pool import threads_within_budget
from cairn.core.progress import Progress, Silent
from cairn.loader.execute import execute
from cairn.loader.plan import Group, Wanted, plan_reads
from cairn.manifests.dtypes import nbytes
from cairn.manifests.schema import FileEntry, Inline, Key, Literal, TensorEntry
from cairn.manifests.tiling import Band, grid
from cairn.registry.checkpoint import CheckpointManifest, split_digests
from cairn.registry.registry import Registry
from cairn.store.crypto.components import ComponentClass
from cairn.store.fills import fill_of
from cairn.workspace.casefold import check_names_fit
from cairn.workspace.destination import becoming, checked_destination
from cairn.workspace.links import is_plain_path, link_stays_inside
from cairn.workspace.scatter import rest_of, row_batches
from cairn.workspace.tree import PERMISSIONS

# A worker holds the sealed ranges of a batch and the plaintext of a band.
_WORKER_BYTES = READ_BYTES_TARGET + (16 << 20)


class CheckoutResult(msgspec.Struct, frozen=True):
    """What a checkout wrote."""

    files: int
    bytes_logical: int
    bytes_fetched: int
    requests: int


class _Place(msgspec.Struct, frozen=True):
    """Where a group's bytes go: a file, an offset, and how the tiles of a band interleave."""

    path: bytes
    offset: int
    band: Band | None


class _Recipe(msgspec.Struct):
    """What is to be written: groups to fetch with their places, and bytes that are at hand."""

    groups: list[Group] = msgspec.field(default_factory=list)
    places: list[_Place] = msgspec.field(default_factory=list)

    def add(self, chunks: Sequence[Wanted], place: _Place) -> None:
        """Add a group, unless it is all zeros: holes are zeros already."""
        if any(fill_of(chunk.digest) != 0 for chunk in chunks):
            self.groups.append(Group(len(self.places), tuple(chunks)))
            self.places.append(place)


def checkout(
    registry: Registry, model: ModelId, checkpoint: CheckpointId, destination: Path, progress: Progress | None = None
) -> CheckoutResult:
    """Write a checkpoint's tree to `destination`, which must not exist or be an empty folder.

    Raises:
        DestinationExists: something is there.
        IntegrityError: the checkpoint is damaged; the destination is untouched.
        StorageFull: no room; the destination is untouched.
    """
    progress = progress or Silent()
    destination = checked_destination(destination)
    manifest = CheckpointManifest(registry, model, checkpoint)
    if ComponentClass.FILES not in manifest.components:
        raise RefusedError(
            f"{manifest.what} holds no files: a training loop saved it",
            hint="write its tensors with --format safetensors, torch or dcp, or load it with cairn.Checkpointer",
        )
    files = list(manifest.files())
    with becoming(destination, registry.opened.entropy.token(6).hex()) as partial:
        return write_files(manifest, files, partial, progress)


def write_files(manifest: CheckpointManifest, files: list[FileEntry], root: Path, progress: Progress) -> CheckoutResult:
    """Write file entries into an empty folder.

    Raises:
        IntegrityError: an entry is impossible, or leads out of the folder.
    """
    for entry in files:
        _check_entry(entry, manifest.what)
    return _Writer(manifest, os.fsencode(root), progress).write(files)


def _check_entry(entry: FileEntry, what: str) -> None:
    """Paths come from a sealed manifest, yet its writer may have been hostile."""
    links_well = entry.kind != "link" or link_stays_inside(entry.path, entry.target)
    if not 0 <= entry.mode <= PERMISSIONS or not 0 <= entry.size <= TENSOR_BYTES_MAX or entry.part < 0:
        raise IntegrityError(f"{what} holds a path with impossible facts: {os.fsdecode(entry.path)!a}")
    if not is_plain_path(entry.path) or entry.kind not in ("file", "folder", "link") or not links_well:
        raise IntegrityError(f"{what} holds a path that leads out of its folder: {os.fsdecode(entry.path)!a}")


class _Writer:
    """Writes one tree into an empty folder."""

    def __init__(self, manifest: CheckpointManifest, root: bytes, progress: Progress) -> None:
        self._manifest = manifest
        self._root = root
        self._progress = progress
        self._tensors: dict[Key, TensorEntry] = {}
        self._recipe = _Recipe()

    def write(self, entries: list[FileEntry]) -> CheckoutResult:
        """Write all; modes last, so that a read-only folder can still be filled."""
        check_names_fit(self._root, [entry.path for entry in entries if entry.part == 0])
        self._tensors = {entry.key: entry for entry in self._manifest.tensors()}
        for entry in entries:
            if entry.kind == "folder":
                os.makedirs(self._path(entry.path), mode=0o700, exist_ok=True)
        size = self._write_files([entry for entry in entries if entry.kind == "file"])
        for entry in entries:
            if entry.kind == "link":
                os.symlink(entry.target, self._path(entry.path))
        for entry in sorted(entries, key=lambda entry: entry.path, reverse=True):
            if entry.kind != "link" and entry.part == 0:
                os.chmod(self._path(entry.path), entry.mode)
        return size

    def _path(self, path: bytes) -> bytes:
        return os.path.join(self._root, path)

    def _write_files(self, entries: list[FileEntry]) -> CheckoutResult:
        at: dict[bytes, int] = {}
        total = 0
        for entry in entries:
            if entry.part == 0:
                at[entry.path], total = 0, total + entry.size
                self._create(entry)
            elif entry.path not in at:
                raise IntegrityError(f"{self._manifest.what} holds a file without its first part")
            at[entry.path] = self._plan_segments(entry, at[entry.path])
        for entry in entries:
            if at[entry.path] != entry.size:
                raise IntegrityError(f"the recipe of a file in {self._manifest.what} does not add up to its size")
        self._progress.stage("write", total)
        chunks = self._manifest.chunks
        plan = plan_reads(self._recipe.groups, chunks.index, chunks.access.keys.chunk)
        threads = threads_within_budget(_WORKER_BYTES)
        execute(plan, chunks, self._deliver, threads)
        return CheckoutResult(sum(entry.part == 0 for entry in entries), total, plan.bytes_fetched, plan.requests)

    def _create(self, entry: FileEntry) -> None:
        os.makedirs(os.path.dirname(self._path(entry.path)), mode=0o700, exist_ok=True)
        descriptor = os.open(self._path(entry.path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, entry.size)
        finally:
            os.close(descriptor)

    def _plan_segments(self, entry: FileEntry, at: int) -> int:
        """Plan one entry's segments from offset `at` on; returns where they end."""
        for segment in entry.segments:
            if isinstance(segment, Inline):
                self._write_at(entry.path, at, [[memoryview(segment.data)]])
                at += len(segment.data)
            elif isinstance(segment, Literal):
                self._plan_literal(entry.path, at, segment)
                at += segment.length
            else:
                tensor = self._tensors.get(segment.key)
                if tensor is None:
                    raise IntegrityError(f"a file of {self._manifest.what} names tensor {segment.key}, which it lacks")
                self._plan_tensor(entry.path, at, tensor)
                at += nbytes(tensor.dtype, tensor.shape)
        return at

    def _plan_literal(self, path: bytes, at: int, segment: Literal) -> None:
        digests = split_digests(segment.digests, self._manifest.what)
        if segment.length < 0 or len(digests) != -(-segment.length // FILE_BLOCK_BYTES):
            raise IntegrityError(f"a file of {self._manifest.what} has another number of blocks than its length wants")
        for number, digest in enumerate(digests):
            start = number * FILE_BLOCK_BYTES
            length = min(FILE_BLOCK_BYTES, segment.length - start)
            self._recipe.add([Wanted(digest, length)], _Place(path, at + start, None))

    def _plan_tensor(self, path: bytes, at: int, tensor: TensorEntry) -> None:
        if tensor.inline is not None:
            if len(tensor.inline) != nbytes(tensor.dtype, tensor.shape):
                raise IntegrityError(f"tensor {tensor.key} of {self._manifest.what} has another size than its shape")
            self._write_at(path, at, [[memoryview(tensor.inline)]])
            return
        tiles = self._manifest.tiles(tensor)
        cells = grid(tensor.dtype, tensor.shape)
        for band in cells.bands():
            wanted = [Wanted(tiles[band.first + i], band.rows * width) for i, (_, width) in enumerate(band.columns)]
            self._recipe.add(wanted, _Place(path, at + band.offset, band if len(band.columns) > 1 else None))

    def _deliver(self, key: int, views: Sequence[memoryview]) -> None:
        place = self._recipe.places[key]
        self._write_at(place.path, place.offset, row_batches(place.band, views) if place.band else [views])
        self._progress.advance(sum(map(len, views)))

    def _write_at(self, path: bytes, offset: int, batches: Sequence[Sequence[memoryview]]) -> None:
        descriptor = os.open(self._path(path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            for views in batches:
                missing = sum(map(len, views))
                while missing:
                    count = os.pwritev(descriptor, views, offset)
                    offset, missing = offset + count, missing - count
                    if missing:
                        views = rest_of(views, count)
        finally:
            os.close(descriptor)
