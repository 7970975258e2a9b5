"""Memory without a name that processes of one host share."""

import ctypes
import errno
import mmap
import os

from cairn.core.limits import MIB

# 1 ms of work: before Linux 6.11 a signal undoes what was under way, so that a profiler's timer would let none end.
_ALLOCATED_AT_ONCE = 4 * MIB
_CLOEXEC = 1

# Process, descriptor, device and inode (which tell it from all other memory of the host), bytes.
Address = tuple[int, int, int, int, int]


class HostMemory:
    """Bytes without a name, which other processes of the same user and host open by process and descriptor.

    They go when nobody holds them any more, so a killed process leaves nothing behind.

    Args:
        size: at least one byte.

    Raises:
        OSError: there is no room for them.
    """

    def __init__(self, size: int) -> None:
        self._file = _anonymous_file(b"cairn-shared")
        self.size = size
        try:
            for at in range(0, size, _ALLOCATED_AT_ONCE):  # fails here, and not with a signal when it is touched
                os.posix_fallocate(self._file, at, min(_ALLOCATED_AT_ONCE, size - at))
        except BaseException:
            self.close()
            raise

    def write(self, data: bytes) -> None:
        """Put bytes at the start."""
        os.pwrite(self._file, data, 0)

    @property
    def address(self) -> Address:
        """What `map_memory` takes."""
        found = os.fstat(self._file)
        return os.getpid(), self._file, found.st_dev, found.st_ino, self.size

    def close(self) -> None:
        """Let go of it; mappings stay."""
        os.close(self._file)


def map_memory(address: Address) -> mmap.mmap:
    """Map what another process holds.

    Raises:
        OSError: the process is gone, is another user's, or has something else there, as one of the same number may.
    """
    process, file, *identity, size = address
    opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(opened)
        if [found.st_dev, found.st_ino] != identity or found.st_size < size:
            raise OSError(f"process {process} has something else where its shared memory was")
        return mmap.mmap(opened, size)
    finally:
        os.close(opened)


def _anonymous_file(name: bytes) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(os.fsdecode(name), os.MFD_CLOEXEC)
    # Pythons that run on any Linux, such as those of conda and uv, were built where there was no such function.
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "memfd_create"):
        raise OSError(errno.ENOSYS, "the C library makes no anonymous memory")
    file = int(library.memfd_create(name, _CLOEXEC))
    if file < 0:
        raise OSError(ctypes.get_errno(), "no anonymous memory can be made")
    return file
