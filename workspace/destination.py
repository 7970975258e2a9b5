"""Destinations: what is written beside them, and becomes them by one rename, whole or not at all."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cairn.core.errors import DestinationExists, RefusedError, StorageError, StorageFull
from cairn.registry.location import store_around
from cairn.workspace.partial import partial_folder


def checked_destination(path: Path) -> Path:
    """The absolute path of a destination, which must not exist or be an empty folder, and lie in no store.

    Raises:
        DestinationExists: something is there, or it is the working folder.
        RefusedError: it lies inside a store.
    """
    destination = Path(os.path.abspath(path))  # `.` has no name
    if destination == Path.cwd():
        raise DestinationExists("the working folder cannot be replaced", hint="name a new folder in it")
    inside = store_around(destination)
    if inside is not None:
        raise RefusedError(f"{destination} lies inside the store {inside}", hint="name a destination outside of it")
    _check_free(destination)
    return destination


@contextmanager
def becoming(destination: Path, unique: str) -> Iterator[Path]:
    """A new folder that is renamed to `destination` if the block ends well, and removed if not.

    Args:
        unique: makes its name a new one.

    Raises:
        StorageError: it cannot be written, or has no room.
    """
    try:
        with partial_folder(destination, unique) as partial:
            yield partial
            os.chmod(partial, 0o777 & ~_umask())
            _publish(partial, destination)
    except OSError as error:
        raise _storage_error(error, destination) from None


def _check_free(destination: Path) -> None:
    try:
        empty_folder = stat.S_ISDIR(destination.lstat().st_mode) and not any(destination.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise _storage_error(error, destination) from None
    if not empty_folder:
        raise DestinationExists(
            f"{destination} exists and is not an empty folder", hint="name another destination, or move it away"
        )


def _publish(partial: Path, destination: Path) -> None:
    """The line that makes the content visible: one rename."""
    try:
        partial.rename(destination)
    except OSError:
        _check_free(destination)
        raise


def _storage_error(error: OSError, destination: Path) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFull(
            f"no room to write {destination}: {error.strerror}", hint="free space there and repeat the command"
        )
    return StorageError(f"{destination} cannot be written: {error.strerror}")


def _umask() -> int:
    """The process's umask, without changing it under other threads' feet."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077
