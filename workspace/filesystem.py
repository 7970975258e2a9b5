"""`cairn://model@ref/path`: the files of a checkpoint for everything that reads through fsspec. Read-only.

A ref is resolved when it is first used, and means the same checkpoint for the life of the file system, so that a
reader never meets the files of two; `invalidate_cache` forgets. A model whose name holds `/` is written with `%2F`.
"""

import errno
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from cairn.core.errors import CairnError, NotAllowed, NotFoundError, RefusedError, UsageError
from cairn.core.limits import FILE_CACHE_BYTES
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.pins import Pin
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve
from cairn.workspace.opening import registry_at
from cairn.workspace.virtual import PieceCache, VirtualFile, VirtualTree


class CairnFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Files of committed checkpoints. Reads are authenticated; anything that writes raises `OSError` (EROFS)."""

    protocol = "cairn"

    def __init__(
        self,
        store: str | Path | Registry | None = None,
        key_file: str | Path | None = None,
        cache_bytes: int = FILE_CACHE_BYTES,
        **options: Any,
    ) -> None:
        """Open the store.

        Args:
            store: a path, a URL, or an opened store; by default `CAIRN_STORE`, else `.cairn/` here or above.
            key_file: overrides `CAIRN_KEY_FILE`.
            cache_bytes: most memory for parts of files that were read in part.

        Raises:
            NotAStore, NotAllowed: see `open_store`.
        """
        super().__init__(**options)
        self._registry, self._owned = registry_at(store, None if key_file is None else Path(key_file))
        self._pieces = PieceCache(cache_bytes)
        self._trees: dict[str, VirtualTree] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go of the store, unless it was given opened. No file can be read after it."""
        type(self)._cache.pop(self._fs_token, None)  # fsspec hands out one instance for equal arguments
        if self._owned:
            self._registry.close()

    def invalidate_cache(self, path: str | None = None) -> None:
        """Resolve refs anew: of one path, or of all."""
        with self._lock:
            if path is None:
                self._trees.clear()
            else:
                self._trees.pop(self._strip_protocol(path).partition("/")[0], None)
        super().invalidate_cache(path)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Name, size and type of a file or folder; its permission bits; the checkpoint's id.

        Raises:
            FileNotFoundError: there is none.
        """
        path = self._strip_protocol(path)
        with _as_os_errors(path):
            tree, inside = self._find(path)
            return _facts(tree, path, inside, tree.resolve(inside))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """What is in a folder; of a file, the file itself. A link to a folder is listed as `other`, so nobody walks it.

        Raises:
            FileNotFoundError: there is nothing.
        """
        path = self._strip_protocol(path)
        with _as_os_errors(path):
            tree, inside = self._find(path)
            names = tree.names(tree.resolve(inside))
            if names is None:
                found = [_facts(tree, path, inside, tree.resolve(inside))]
            else:
                found = [_listed(tree, f"{path}/{os.fsdecode(name.rpartition(b'/')[2])}", name) for name in names]
        return found if detail else [one["name"] for one in found]

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> "CairnFile":
        if mode != "rb":
            self._refuse(path)
        with _as_os_errors(path):
            tree, inside = self._find(path)
            resolved = tree.resolve(inside)
            if tree.names(resolved) is not None:
                raise IsADirectoryError(errno.EISDIR, "is a folder of the checkpoint", path)
            return CairnFile(self, path, tree.file(resolved), block_size, **options)

    def _find(self, path: str) -> tuple[VirtualTree, bytes]:
        """The tree that a path lies in, and the path inside."""
        selector, _, inside = path.partition("/")
        with self._lock:
            if selector not in self._trees:
                self._registry.refresh()
                found = resolve(self._registry, unquote(selector))
                # Whoever streams a file may come back to it at any time, as long as this file system lives.
                weakref.finalize(self, Pin(self._registry, *found).release)
                self._trees[selector] = VirtualTree(CheckpointManifest(self._registry, *found), self._pieces)
            return self._trees[selector], os.fsencode(inside)

    def _refuse(self, path: Any, *_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, "a checkpoint does not change; commit a folder to make a new one", str(path))

    mkdir = makedirs = rmdir = touch = rm = rm_file = _rm = cp_file = pipe_file = put_file = mv = _refuse


class CairnFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec ships no types
    """A file of a checkpoint, seekable. The file system keeps what is worth keeping, so the file buffers nothing."""

    def __init__(
        self,
        fs: CairnFileSystem,
        path: str,
        file: VirtualFile,
        block_size: Any,
        cache_type: str = "none",
        **options: Any,
    ) -> None:
        super().__init__(fs, path, "rb", block_size or "default", cache_type=cache_type, size=file.size, **options)
        self._file = file

    def _fetch_range(self, start: int, end: int) -> bytes:
        with _as_os_errors(self.path):
            return self._file.read(start, end)

    def readinto(self, b: Any) -> int:
        """Read straight into memory."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        with _as_os_errors(self.path):
            count = self._file.read_into(self.loc, memoryview(b).cast("B"))
        self.loc += count
        return count


def _listed(tree: VirtualTree, name: str, inside: bytes) -> dict[str, Any]:
    """Facts of what stands in a folder, a link that leads nowhere included."""
    try:
        resolved = tree.resolve(inside)
    except NotFoundError:
        return {"name": name, "size": 0, "type": "other", "islink": True, "checkpoint": tree.manifest.id.hex()}
    facts = _facts(tree, name, inside, resolved)
    return facts | {"type": "other"} if facts["islink"] and facts["type"] == "directory" else facts


def _facts(tree: VirtualTree, name: str, inside: bytes, resolved: bytes) -> dict[str, Any]:
    entry, folder = tree.entry(resolved), tree.names(resolved) is not None
    return {
        "name": name,
        "size": 0 if folder or entry is None else entry.size,
        "type": "directory" if folder else "file",
        "mode": 0o755 if entry is None else entry.mode,
        "islink": tree.link_target(inside) is not None,
        "checkpoint": tree.manifest.id.hex(),
    }


@contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    """Our errors as those that users of fsspec expect, with our words."""
    try:
        yield
    except (NotFoundError, RefusedError, UsageError) as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error
    except NotAllowed as error:
        raise PermissionError(errno.EACCES, str(error), path) from error
    except CairnError as error:
        raise OSError(errno.EIO, str(error), path) from error
