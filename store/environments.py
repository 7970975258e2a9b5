"""LMDB environments: one a process and path, none inherited across fork, none on a file that lost its end.

LMDB maps its file into memory, so a file shorter than its own account of itself would kill the process (SIGBUS) when it
is read. Such a file, or one that is no database, is removed: a cache can be made again.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

# Address space, not disk: the file grows as it is used. The smaller ones are for hosts that limit address space.
_MAP_BYTES = (1 << 38, 1 << 32, 1 << 28)
_META_PAGES = 2
_FILES = ("data.mdb", "lock.mdb")

_open: dict[str, lmdb.Environment] = {}
# Handles of an environment's databases, opened before anybody else has it: `open_db` takes LMDB's write lock without
# letting go of Python's, so that it stops the whole process for ever if another thread is writing.
_handles: dict[str, list[Any]] = {}
_owner = os.getpid()
_lock = threading.Lock()


def open_environment(folder: Path, databases: Sequence[bytes]) -> tuple[lmdb.Environment, list[Any]]:
    """The environment of a folder, shared by all who ask for it in this process, and handles of its databases.

    Args:
        databases: their names, the same at each call.

    Raises:
        lmdb.Error, OSError: it can neither be opened nor made.
    """
    global _owner
    with _lock:
        if _owner != os.getpid():
            # LMDB's locks belong to the process that took them; a child lets go of what it inherited.
            for inherited in _open.values():
                with suppress(lmdb.Error):
                    inherited.close()
            _open.clear()
            _owner = os.getpid()
        path = str(folder.resolve())
        environment = _open.get(path)
        if environment is None or not _usable(environment):
            environment = _open[path] = _open_sound(folder)
            _handles.pop(path, None)
        if path not in _handles:
            _handles[path] = [environment.open_db(name) for name in databases]
        return environment, _handles[path]


def remove_environment(folder: Path) -> None:
    """Close and remove the environment of a folder; others in this process lose it too."""
    with _lock:
        environment = _open.pop(str(folder.resolve()), None)
        if environment is not None:
            environment.close()
        _remove(folder)


def _open_sound(folder: Path) -> lmdb.Environment:
    data = folder / _FILES[0]
    with suppress(FileNotFoundError):
        if 0 < data.stat().st_size < _META_PAGES * 4096:
            _remove(folder)
    try:
        environment = _map(folder)
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError):
        _remove(folder)
        return _map(folder)
    pages = environment.info()["last_pgno"] + 1
    if data.stat().st_size < pages * environment.stat()["psize"] and pages > _META_PAGES:
        environment.close()
        _remove(folder)
        environment = _map(folder)
    return environment


def _map(folder: Path) -> lmdb.Environment:
    for size in _MAP_BYTES:
        try:
            return lmdb.open(str(folder), map_size=size, max_dbs=4, max_readers=512, mode=0o600, lib_version=0)
        except lmdb.MemoryError:
            if size == _MAP_BYTES[-1]:
                raise
    raise AssertionError("unreachable")


def _remove(folder: Path) -> None:
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)


def _usable(environment: lmdb.Environment) -> bool:
    try:
        environment.stat()
    except lmdb.Error:
        return False
    return True
