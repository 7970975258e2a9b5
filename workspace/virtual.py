"""Files of a checkpoint that are read where they lie: of a checkout, only the pieces that a read touches.

* **piece cache** - pieces that a read took a part of; the next read is likely to want the rest.
* **virtual file** - one file, read at any place.
* **virtual tree** - all paths of a checkpoint, and what links among them lead to.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice, takewhile

from cairn.core.errors import NotFoundError, RefusedError
from cairn.core.limits import PATH_LINKS_MAX, READ_BYTES_TARGET
from cairn.loader.execute import execute, reading_threads
from cairn.loader.plan import Group, Wanted, plan_reads
from cairn.manifests.schema import FileEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.workspace.links import is_plain_path
from cairn.workspace.recipe import Piece, Recipe
from cairn.workspace.scatter import join_tiles

# A worker holds the sealed ranges of a batch, the plaintext of a band, and the band put together.
_WORKER_BYTES = READ_BYTES_TARGET + (32 << 20)
_Content = tuple[Wanted, ...]


class PieceCache:
    """Contents of pieces, within a limit of bytes; the one that was used longest ago goes first. Safe for threads."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self.bytes_held = bytes_max, 0
        self._held: OrderedDict[_Content, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, chunks: _Content) -> bytes | None:
        """Content of a piece, if it is held."""
        with self._lock:
            if chunks in self._held:
                self._held.move_to_end(chunks)
            return self._held.get(chunks)

    def put(self, chunks: _Content, data: bytes) -> None:
        """Hold a piece, unless it is larger than the limit."""
        with self._lock:
            if chunks in self._held or len(data) > self.bytes_max:
                return
            while self.bytes_held + len(data) > self.bytes_max:
                self.bytes_held -= len(self._held.popitem(last=False)[1])
            self._held[chunks] = data
            self.bytes_held += len(data)


class VirtualFile:
    """One file, read at any place, from any thread."""

    def __init__(self, manifest: CheckpointManifest, pieces: Sequence[Piece], cache: PieceCache) -> None:
        self._chunks, self._pieces, self._cache = manifest.chunks, pieces, cache
        self._starts = [piece.offset for piece in pieces]
        self.size = pieces[-1].offset + pieces[-1].length if pieces else 0

    def read(self, start: int, end: int) -> bytes:
        """Bytes `[start, end)`, as far as there are any."""
        buffer = bytearray(max(min(end, self.size) - start, 0))
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, target: memoryview) -> int:
        """Fill bytes of memory from an offset on; returns how many there were.

        Raises:
            IntegrityError: a chunk is damaged everywhere; the memory may then hold anything.
        """
        target = target[: max(self.size - start, 0)]
        end, missing = start + len(target), list[Piece]()
        first = max(bisect_right(self._starts, start) - 1, 0)
        for piece in takewhile(lambda piece: piece.offset < end, islice(self._pieces, first, None)):
            data = piece.data if piece.data is not None else self._cache.get(piece.chunks)
            if data is None:
                missing.append(piece)
            else:
                _copy(piece, memoryview(data), start, target)
        if missing:
            self._fetch(missing, start, target)
        return len(target)

    def _fetch(self, pieces: Sequence[Piece], start: int, target: memoryview) -> None:
        def room(piece: Piece) -> memoryview | None:
            """Where all of a piece belongs, if all of it is wanted."""
            at = piece.offset - start
            return target[at : at + piece.length] if 0 <= at <= len(target) - piece.length else None

        def place(number: int) -> memoryview | None:
            return room(pieces[number]) if pieces[number].band is None else None

        def deliver(number: int, views: Sequence[memoryview]) -> None:
            piece = pieces[number]
            whole = room(piece)
            into = memoryview(bytearray(piece.length)) if whole is None else whole
            if piece.band is not None:
                join_tiles(piece.band, views, into)
            elif views[0].obj is not into.obj:
                into[:] = views[0]
            if whole is None:
                self._cache.put(piece.chunks, bytes(into))
                _copy(piece, into, start, target)

        groups = [Group(number, piece.chunks) for number, piece in enumerate(pieces)]
        plan = plan_reads(groups, self._chunks.index, self._chunks.access.keys.chunk)
        threads = min(reading_threads(self._chunks, _WORKER_BYTES), len(plan.batches))
        execute(plan, self._chunks, deliver, threads, place)


def _copy(piece: Piece, data: memoryview, start: int, target: memoryview) -> None:
    """Copy what a piece has of the bytes that `target` holds from `start` on."""
    low, high = max(piece.offset, start), min(piece.offset + piece.length, start + len(target))
    if low < high:
        target[low - start : high - start] = data[low - piece.offset : high - piece.offset]


class VirtualTree:
    """The paths of a checkpoint, as bytes relative to its root, which is the empty one."""

    def __init__(self, manifest: CheckpointManifest, cache: PieceCache) -> None:
        """Read all file entries.

        Raises:
            RefusedError: the checkpoint has no files.
            IntegrityError: it is damaged, or a path leads out of it.
        """
        self.manifest, self._cache = manifest, cache
        self._recipe = Recipe(manifest)
        self._parts: dict[bytes, list[FileEntry]] = {}
        self._names: dict[bytes, dict[bytes, None]] = {b"": {}}
        for entry in self._recipe.files():
            self._parts.setdefault(entry.path, []).append(entry)
            below = entry.path
            while below and below not in self._names.setdefault(folder := below.rpartition(b"/")[0], {}):
                self._names[folder][below] = None
                below = folder
            if entry.kind == "folder":
                self._names.setdefault(entry.path, {})

    def resolve(self, path: bytes) -> bytes:
        """Where a path leads, links followed.

        Raises:
            NotFoundError: nowhere, or out of the checkpoint.
        """
        if path and not is_plain_path(path):
            raise NotFoundError(f"{_show(path)} is no path in a checkpoint: it has empty, '.' or '..' segments")
        done: list[bytes] = []
        todo, links = path.split(b"/")[::-1], 0
        while todo:
            name = todo.pop()
            if name in (b"", b".", b".."):
                done = done[:-1] if name == b".." else done
                continue
            here = b"/".join([*done, name])
            target = self.link_target(here)
            if target is not None and links < PATH_LINKS_MAX:
                links += 1
                todo += target.split(b"/")[::-1]
            elif target is None and (here in self._parts or here in self._names):
                done.append(name)
            else:
                raise NotFoundError(f"{self.manifest.what} has no file or folder {_show(path)}")
        return b"/".join(done)

    def link_target(self, path: bytes) -> bytes | None:
        """Target of a link; None for what is none."""
        parts = self._parts.get(path)
        return parts[0].target if parts and parts[0].kind == "link" else None

    def names(self, folder: bytes) -> list[bytes] | None:
        """Paths right below a folder, sorted; None for what is no folder. Both resolved."""
        return sorted(self._names[folder]) if folder in self._names else None

    def entry(self, path: bytes) -> FileEntry | None:
        """First entry of a resolved path; a folder need not have one."""
        return self._parts[path][0] if path in self._parts else None

    def file(self, path: bytes) -> VirtualFile:
        """Open a file by its resolved path.

        Raises:
            RefusedError: it is a folder.
            IntegrityError: its recipe does not add up.
        """
        if path in self._names:
            raise RefusedError(f"{_show(path)} is a folder")
        return VirtualFile(self.manifest, list(self._recipe.pieces(self._parts[path])), self._cache)


def _show(path: bytes) -> str:
    return ascii(path.decode("utf-8", "surrogateescape"))
