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
    *where, size = memory.address
    with pytest.raises(OSError, match="something else"):
        map_memory((*where, size + 1))
    memory.close()


def test_other_memory_of_the_same_number_is_not_mapped() -> None:
    gone = HostMemory(5000)
    address = gone.address
    gone.close()
    other = HostMemory(5000)
    assert other.address[:2] == address[:2]
    with pytest.raises(OSError, match="something else"):
        map_memory(address)
    other.close()


def test_pythons_that_lack_the_call_ask_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    memory = HostMemory(5000)
    with map_memory(memory.address) as mapped:
        assert len(mapped) == 5000 and not os.get_inheritable(memory.address[1])
    memory.close()


def test_memory_is_allocated_in_parts_that_each_fit_between_two_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    allocate, parts = os.posix_fallocate, list[tuple[int, int]]()

    def recorded(file: int, offset: int, size: int) -> None:
        parts.append((offset, size))
        allocate(file, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", recorded)
    memory = HostMemory((9 << 20) + 5)
    assert os.fstat(memory.address[1]).st_blocks * 512 >= memory.size
    memory.close()
    assert [offset for offset, _ in parts] == [sum(size for _, size in parts[:n]) for n in range(len(parts))]
    assert sum(size for _, size in parts) == memory.size and max(size for _, size in parts) <= 4 << 20


def test_memory_that_is_not_there_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no space"):
        HostMemory(5000)
    assert len(os.listdir("/proc/self/fd")) == open_files
