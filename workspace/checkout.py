"""A checkpoint becomes a tree, whole or not at all.

The tree is built beside the destination, under a name that says what it is, and renamed when complete; so nothing
half-written is ever seen at the destination. Order inside: folders, files (holes first, then bytes), links, modes.
"""

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import READ_BYTES_TARGET
from cairn.core.progress import Progress, Silent
from cairn.loader.execute import execute, reading_threads
from cairn.loader.plan import Group, plan_reads
from cairn.manifests.schema import FileEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.pins import pinned
from cairn.registry.registry import Registry
from cairn.workspace.casefold import check_names_fit
from cairn.workspace.destination import becoming, checked_destination
from cairn.workspace.recipe import Piece, Recipe
from cairn.workspace.scatter import rest_of, row_batches

# A worker holds the sealed ranges of a batch and the plaintext of a band.
_WORKER_BYTES = READ_BYTES_TARGET + (16 << 20)


class CheckoutResult(msgspec.Struct, frozen=True):
    """What a checkout wrote."""

    files: int
    bytes_logical: int
    bytes_fetched: int
    requests: int


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
    with pinned(registry, model, checkpoint):
        manifest = CheckpointManifest(registry, model, checkpoint)
        recipe = Recipe(manifest)
        files = recipe.files()
        with becoming(destination, registry.opened.entropy.token(6).hex()) as partial:
            return _Writer(manifest, recipe, os.fsencode(partial), progress).write(files)


def write_files(manifest: CheckpointManifest, files: list[FileEntry], root: Path) -> CheckoutResult:
    """Write some of a checkpoint's file entries into an empty folder.

    Raises:
        IntegrityError: an entry is impossible, or leads out of the folder.
    """
    recipe = Recipe(manifest)
    recipe.admit(files)
    return _Writer(manifest, recipe, os.fsencode(root), Silent()).write(files)


class _Writer:
    """Writes one tree into an empty folder."""

    def __init__(self, manifest: CheckpointManifest, recipe: Recipe, root: bytes, progress: Progress) -> None:
        self._manifest = manifest
        self._recipe = recipe
        self._root = root
        self._progress = progress
        self._groups: list[Group] = []
        self._places: list[tuple[bytes, Piece]] = []

    def write(self, entries: list[FileEntry]) -> CheckoutResult:
        """Write all; modes last, so that a read-only folder can still be filled."""
        check_names_fit(self._root, [entry.path for entry in entries if entry.part == 0])
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
        files, total = 0, 0
        for _, group in groupby(entries, lambda entry: entry.path):
            parts = list(group)
            self._create(parts[0])
            self._plan(parts)
            files, total = files + 1, total + parts[0].size
        self._progress.stage("write", total)
        chunks = self._manifest.chunks
        with self._manifest.explained():
            plan = plan_reads(self._groups, chunks.index, chunks.access.keys.chunk)
        threads = reading_threads(chunks, _WORKER_BYTES)
        execute(plan, chunks, self._deliver, threads)
        return CheckoutResult(files, total, plan.bytes_fetched, plan.requests)

    def _create(self, entry: FileEntry) -> None:
        os.makedirs(os.path.dirname(self._path(entry.path)), mode=0o700, exist_ok=True)
        descriptor = os.open(self._path(entry.path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, entry.size)
        finally:
            os.close(descriptor)

    def _plan(self, parts: list[FileEntry]) -> None:
        """Write what is at hand, and plan the rest but for zeros, which holes are already."""
        path = parts[0].path
        for piece in self._recipe.pieces(parts):
            if piece.data is not None:
                self._write_at(path, piece.offset, [[memoryview(piece.data)]])
            elif not piece.is_zeros:
                self._groups.append(Group(len(self._places), piece.chunks))
                self._places.append((path, piece))

    def _deliver(self, key: int, views: Sequence[memoryview]) -> None:
        path, piece = self._places[key]
        self._write_at(path, piece.offset, row_batches(piece.band, views) if piece.band else [views])
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
