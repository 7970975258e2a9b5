"""Memory without a name that processes of one host share."""

import mmap
import os


class HostMemory:
    """Bytes without a name, which other processes of the same user and host open by process and descriptor.

    They go when nobody holds them any more, so a killed process leaves nothing behind.

    Args:
        size: at least one byte.

    Raises:
        OSError: there is no room for them.
    """

    def __init__(self, size: int) -> None:
        self._file = os.memfd_create("cairn-shared", os.MFD_CLOEXEC)
        self.size = size
        try:
            os.posix_fallocate(self._file, 0, size)  # fails here, and not with a signal when it is touched
        except OSError:
            self.close()
            raise

    def write(self, data: bytes) -> None:
        """Put bytes at the start."""
        os.pwrite(self._file, data, 0)

    @property
    def address(self) -> tuple[int, int, int]:
        """What `open_memory` takes."""
        return os.getpid(), self._file, self.size

    def close(self) -> None:
        """Let go of it; mappings stay."""
        os.close(self._file)


def map_memory(address: tuple[int, int, int]) -> mmap.mmap:
    """Map what another process holds.

    Raises:
        OSError: the process is gone, is another user's, or has less than it said.
    """
    process, file, size = address
    opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(opened).st_size < size:
            raise OSError(f"shared memory of process {process} is shorter than it said")
        return mmap.mmap(opened, size)
    finally:
        os.close(opened)
