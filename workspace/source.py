"""Positional reads of one file, with proof that it did not change meanwhile."""

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from cairn.core.errors import InputChanged, NotAllowed, StorageError
from cairn.core.limits import RACY_WINDOW_COARSE_NS, RACY_WINDOW_NS
from cairn.workspace.scatter import rest_of

# Dirty pages are written out after 30 s, and looked for every 5 s, unless somebody set it otherwise.
_DIRTY_NS = 60_000_000_000


class FileStamp(msgspec.Struct, frozen=True):
    """What tells one version of a file from another."""

    device: int
    inode: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @staticmethod
    def of(status: os.stat_result) -> "FileStamp":
        """Stamp of a stat result."""
        return FileStamp(
            status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )

    def is_settled(self, at_ns: int) -> bool:
        """Whether a change after `at_ns` would show in the stamp.

        A stamp as young as the file system's clock tick proves nothing. Whole seconds hint at a coarse tick.
        """
        coarse = self.mtime_ns % 1_000_000_000 == 0
        return at_ns - max(self.mtime_ns, self.ctime_ns) > (RACY_WINDOW_COARSE_NS if coarse else RACY_WINDOW_NS)


class FileSource:
    """An open regular file. Safe for threads; close it when done."""

    def __init__(self, path: bytes, shown: str, now_ns: int = 0) -> None:
        """Open for reading, following no link.

        Args:
            now_ns: the time, if the stamp shall prove later that the file did not change: writes through a memory map
                move no time stamp while their page is dirty, so what was written lately is written out first.

        Raises:
            NotAllowed: it cannot be read.
            InputChanged: it is no regular file (any more).
        """
        self.shown = shown
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                raise self._changed() from None
            raise NotAllowed(f"{shown} cannot be read: {error.strerror}") from None
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise self._changed()
        if now_ns - status.st_mtime_ns < _DIRTY_NS and now_ns:
            with suppress(OSError):  # a read-only file system has no dirty pages
                os.fdatasync(self._descriptor)
            status = os.fstat(self._descriptor)
        self.stamp = FileStamp.of(status)
        self.size = self.stamp.size

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`; releases the GIL.

        Raises:
            InputChanged: the file is shorter than it was.
        """
        self.read_scattered(offset, ((target,),))

    def read_scattered(self, offset: int, batches: Sequence[Sequence[memoryview]]) -> None:
        """Fill views one after the other from `offset`, a batch of at most `IOV_MAX` a call; releases the GIL.

        Raises:
            InputChanged: the file is shorter than it was.
        """
        for views in batches:
            missing = sum(map(len, views))
            while missing:
                try:
                    count = os.preadv(self._descriptor, views, offset)
                except OSError as error:
                    raise StorageError(f"{self.shown} cannot be read: {error.strerror}") from None
                if count == 0:
                    raise self._changed()
                offset, missing = offset + count, missing - count
                if missing:
                    views = rest_of(views, count)

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        pieces: list[bytes] = []
        while length:
            try:
                piece = os.pread(self._descriptor, length, offset)
            except OSError as error:
                raise StorageError(f"{self.shown} cannot be read: {error.strerror}") from None
            if not piece:
                raise self._changed()
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def next_data(self, offset: int) -> int:
        """First offset from `offset` on that may hold something but zeros; `size` if none."""
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            # ENXIO: only a hole is left. Anything else: the file system cannot tell, so all may be data.
            return self.size if error.errno == errno.ENXIO else offset

    def check_unchanged(self) -> None:
        """Raise `InputChanged` if the file changed since it was opened."""
        # Files that the kernel makes up, as under /proc, say that they are empty.
        if FileStamp.of(os.fstat(self._descriptor)) != self.stamp or os.pread(self._descriptor, 1, self.size):
            raise self._changed()

    def _changed(self) -> InputChanged:
        return InputChanged(
            f"{self.shown} changed while it was read", hint="wait until its writer is done and repeat the command"
        )

    def close(self) -> None:
        """Close the file; once is enough."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> "FileSource":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
