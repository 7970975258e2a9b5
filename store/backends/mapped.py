"""Stored bytes as memory, without a copy, where the page cache can lend them.

A plain `mapping[i]` ends the process with SIGBUS where the disk fails or the file is cut short. Here all pages are
brought in first, by a call that returns such failures (MADV_POPULATE_READ, Linux 5.14); objects never change after.
Only local file systems are mapped: on those of a cluster, faults are slower than reads.
"""

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path

_LOCAL = {"ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs"}
_WILL_NEED, _POPULATE_READ = 3, 22
# A mapping costs some calls, whatever its length; what is short is copied.
_BYTES_MIN = 256 << 10


def map_range(file: int, offset: int, length: int) -> memoryview | None:
    """Bytes of an open file, all in memory; None where they are better read. Releases the GIL while it waits.

    The mapping lasts as long as the view and its slices.
    """
    if length < _BYTES_MIN or not _local(os.fstat(file).st_dev):
        return None
    start = offset % mmap.ALLOCATIONGRANULARITY
    try:
        # Private, hence writable in name only: that lets ctypes tell its address.
        mapping = mmap.mmap(file, start + length, access=mmap.ACCESS_COPY, offset=offset - start)
    except (OSError, ValueError):  # no memory to map it; the file is shorter
        return None
    return memoryview(mapping)[start:] if _populate(mapping) else None


def _populate(mapping: mmap.mmap) -> bool:
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    advise = _madvise()
    advise(address, len(mapping), _WILL_NEED)
    return not advise(address, len(mapping), _POPULATE_READ)


@cache
def _madvise() -> "ctypes._FuncPointer":
    function = ctypes.CDLL(None).madvise
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function


@cache
def _local(device: int) -> bool:
    """Whether a device holds a local file system; what mountinfo does not list by its device counts as none."""
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split(" ")[2] == name:
            return after.split(" ")[0] in _LOCAL
    return False
