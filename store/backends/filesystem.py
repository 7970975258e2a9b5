"""Any other place that fsspec reaches: `memory://`, and by their own packages Google's, Azure's and Hadoop's storage.

What such a place can do is measured when a store is created there. Nothing is remembered of listings. Calls take as
long as the package behind them lets them; its repetitions are its own, so "exists already" is doubted where what exists
is what was to be stored.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import fsspec

from cairn.core.buffers import Buffer
from cairn.core.errors import (
    AnswerLost,
    CairnError,
    NotAllowed,
    ObjectExists,
    ObjectNotFound,
    StorageError,
)
from cairn.store.backends.contract import Capabilities, Listed, check_name, is_name

# Storage in this process alone: one dictionary for all, which looks and stores in two steps.
_MEMORY = "memory"
_MEMORY_LOCK = threading.Lock()
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


# What packages tell of an object that changes with its bytes; a time may be as coarse as a second, and is not enough.
_VERSIONS = ("ETag", "etag", "generation", "md5Hash")


class FilesystemBackend:
    """Objects as files below `root` of an fsspec file system. Safe in threads and after `fork`, as far as that one is.

    Args:
        protocol: fsspec's name of the kind.
        root: path, as that kind wants it.
        options: for the file system, none of them secret: credentials are its package's business.
    """

    def __init__(self, url: str, protocol: str, root: str, options: dict[str, Any] | None = None) -> None:
        self.url = url
        self.capabilities = Capabilities(exclusive_create=True, ranged_read=True, durable=protocol != _MEMORY)
        self._protocol = protocol
        self._root = root.rstrip("/")
        self._options = options or {}
        self._process = 0
        self._system: Any = None
        self._inherited: list[Any] = []
        self._lock = threading.Lock()

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        path, data = self._path(name), b"".join(memoryview(part).cast("B") for part in parts if memoryview(part).nbytes)
        with self._failures("create", name), _MEMORY_LOCK if self._protocol == _MEMORY else nullcontext():
            if self._exists(path):
                raise ObjectExists(f"{name} exists already")
            try:
                self._create(path, data)
            except Exception as error:
                self._doubt(error, name, path, data)

    def _create(self, path: str, data: bytes) -> None:
        try:
            self._files.pipe_file(path, data, mode="create")
        except FileNotFoundError:
            # It has folders, and this one is still to be made.
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, data, mode="create")

    def _doubt(self, error: Exception, name: str, path: str, data: bytes) -> None:
        """What a failed creation means, seen from what is there now."""
        if isinstance(error, PermissionError | NotImplementedError | ImportError):
            raise error
        try:
            found = self._files.cat_file(path)
        except _ABSENT:
            raise error from None
        if found != data:
            raise ObjectExists(f"{name} exists already") from None
        # It was absent before: ours by a repeated request, or the same bytes from a rival.
        raise AnswerLost(f"{name} was stored, by this call or by another at the same time") from None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)
        if offset < 0:
            raise StorageError(f"cannot read {name} at byte {offset}: there is no such place")
        size = self.size(name)
        end = size if length is None else min(size, offset + max(0, length))
        if offset >= end:
            return b""
        with self._failures("read", name):
            return bytes(self._files.cat_file(path, start=offset, end=end))

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        data = self.read(name, offset, memoryview(target).nbytes)
        if data:
            memoryview(target).cast("B")[: len(data)] = data
        return len(data)

    def size(self, name: str) -> int:
        path = self._path(name)
        with self._failures("read", name):
            found = self._files.info(path)
        if found["type"] != "file":
            raise ObjectNotFound(f"there is no object {name}, only a folder of that name")
        return int(found["size"])

    def list(self, prefix: str = "") -> Iterator[Listed]:
        return self._list(check_name(prefix) if prefix else "")

    def _list(self, prefix: str) -> Iterator[Listed]:
        found: dict[str, Any] = {}
        with self._failures("list", prefix):
            try:
                found = self._files.find(f"{self._root}/{prefix}".rstrip("/"), detail=True)
            except _ABSENT:
                return
        below = f"{prefix}/" if prefix else ""
        entries = {self._name(path): entry for path, entry in found.items()}
        for name in sorted(entries):
            if name.startswith(below) and is_name(name):
                yield Listed(name, int(entries[name]["size"]), _stamp(entries[name]))

    def folders(self, prefix: str = "") -> Sequence[str]:
        path = f"{self._root}/{check_name(prefix)}" if prefix else self._root
        with self._failures("list", prefix):
            try:
                entries = self._files.ls(path or "/", detail=True)
            except _ABSENT:
                return []
        leaves = (self._name(entry["name"]).rpartition("/")[2] for entry in entries if entry["type"] == "directory")
        return sorted(leaf for leaf in leaves if is_name(leaf))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._failures("delete", name):
            try:
                self._files.rm_file(path)
            except (*_ABSENT, KeyError):
                return

    def settle(self, name: str) -> None:
        # What can be read is durable, as far as anything here is.
        self.size(name)

    def reclaim(self, prefix: str) -> int:
        # Whatever a dead writer leaves is the storage's own to remove.
        if prefix:
            check_name(prefix)
        return 0

    @property
    def _files(self) -> Any:
        """The file system; a new one after `fork`, since those that run threads do not survive it."""
        with self._lock:
            if self._process != os.getpid():
                # The parent's stays unused and unclosed: it may have threads, which are not here.
                self._inherited.append(self._system)
                self._system = fsspec.filesystem(
                    self._protocol, skip_instance_cache=True, use_listings_cache=False, **self._options
                )
                self._process = os.getpid()
            return self._system

    def _exists(self, path: str) -> bool:
        try:
            self._files.info(path)
        except _ABSENT:
            return False
        return True

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    def _name(self, path: str) -> str:
        return path.strip("/")[len(self._root.strip("/")) :].strip("/")

    @contextmanager
    def _failures(self, action: str, name: str) -> Iterator[None]:
        """Turn what the package behind raises into the contract's errors; its text may hold anything, so it goes."""
        told = f"cannot {action} {name or 'the store'}"
        try:
            yield
        except CairnError:
            raise
        except _ABSENT:
            raise ObjectNotFound(f"there is no object {name}") from None
        except ImportError as error:
            raise StorageError(f"{told}: package {error.name} is missing", hint="install the extra for it") from None
        except PermissionError:
            raise NotAllowed(f"{told}: the storage does not allow it", hint="check the credentials for it") from None
        except Exception as error:
            kind = type(error).__name__
            if action == "create" and not isinstance(error, NotImplementedError):
                raise AnswerLost(
                    f"{told} for certain: {self._protocol} fails ({kind}); it may or may not exist"
                ) from None
            raise StorageError(f"{told}: {self._protocol} fails ({kind})") from None


def _stamp(entry: dict[str, Any]) -> bytes:
    """Version of a listed object, as far as its package tells one."""
    return repr(told).encode() if (told := [(key, entry[key]) for key in _VERSIONS if entry.get(key)]) else b""
