"""Folders that are built beside their destination and renamed when complete.

A partial folder is locked while its maker lives, so that the next one for the same destination can tell what a killed
maker left behind, and removes it.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SUFFIX = ".cairn-partial"
# Signs of the destination's name that stand in the temporary one; a name has at most 255 bytes.
_SHOWN_MAX = 50


@contextmanager
def partial_folder(destination: Path, unique: str) -> Iterator[Path]:
    """A new folder for what will become `destination`; removed at the end unless it was renamed.

    Args:
        unique: makes the name a new one.

    Raises:
        OSError: it cannot be made.
    """
    stem = f".{destination.name[:_SHOWN_MAX]}."
    destination.parent.mkdir(parents=True, exist_ok=True)
    _remove_dead(destination.parent, stem)
    folder = destination.with_name(f"{stem}{unique}{_SUFFIX}")
    lock = -1
    try:
        folder.mkdir(mode=0o700)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # without locks nothing is ever taken for dead
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        if lock >= 0:
            os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_dead(parent: Path, stem: str) -> None:
    for path in parent.iterdir():
        if path.name.startswith(stem) and path.name.endswith(_SUFFIX):
            with suppress(OSError):
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
                finally:
                    os.close(lock)
