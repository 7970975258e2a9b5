"""Small files on this machine in which an interrupted operation finds again what it had done; one process has one."""

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path


class HeldFile:
    """Bytes that are only ever added to, or forgotten. Safe for threads.

    Where the file cannot be opened, read or written, or another process holds it, nothing is remembered: that costs a
    repetition, nothing else.
    """

    def __init__(self, path: Path) -> None:
        """Open or create, and hold."""
        self._path = path
        self._lock = threading.Lock()
        self._file: int | None = None
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._file = file
            except OSError:
                os.close(file)

    @property
    def held(self) -> bool:
        """Whether this process may note anything."""
        return self._file is not None

    def read(self) -> bytes:
        """All that was noted."""
        with suppress(OSError):
            return self._path.read_bytes() if self._file is not None else b""
        return b""

    def truncate(self, length: int = 0) -> None:
        """Forget what stands behind the first `length` bytes."""
        with self._lock, suppress(OSError):
            if self._file is not None:
                os.ftruncate(self._file, length)

    def add(self, data: bytes, *, durable: bool = False) -> None:
        """Note more.

        Args:
            durable: it survives a power cut once this returns.
        """
        with self._lock, suppress(OSError):
            if self._file is not None:
                os.lseek(self._file, 0, os.SEEK_END)
                os.write(self._file, data)
                if durable:
                    os.fsync(self._file)

    def remove(self) -> None:
        """Remove the file: there is nothing to go on with."""
        with suppress(OSError):
            if self._file is not None:
                self._path.unlink()

    def close(self) -> None:
        """Let another process have it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
