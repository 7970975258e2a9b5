"""Memory that other processes map, and that is gone with its last holder."""

import errno
import os

import pytest

from cairn.loader.memfd import HostMemory, map_memory


def test_memory_is_reached_by_process_and_descriptor_and_gone_with_its_last_holder() -> None:
    memory = HostMemory(5000)
    memory.write(b"abc")
    address = memory.address
    with map_memory(address) as mapped:
        assert mapped[:4] == b"abc\0" and len(mapped) == 5000
        mapped[0:1] = b"x"
        with map_memory(address) as other:
            assert other[:3] == b"xbc"
        memory.close()
        assert mapped[:3] == b"xbc"
    with pytest.raises(OSError):
        map_memory(address)


def test_memory_that_is_shorter_than_told_is_not_mapped() -> None:
    memory = HostMemory(5000)
    process, file, size = memory.address
    with pytest.raises(OSError, match="shorter"):
        map_memory((process, file, size + 1))
    memory.close()


def test_memory_that_is_not_there_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no space"):
        HostMemory(5000)
    assert len(os.listdir("/proc/self/fd")) == open_files
