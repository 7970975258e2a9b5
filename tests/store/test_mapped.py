"""Stored bytes lent as memory."""

import mmap
import os
from pathlib import Path

import pytest

from cairn.core.errors import ObjectNotFound
from cairn.store.backends import mapped
from cairn.store.backends.contract import Lender
from cairn.store.backends.memory import MemoryBackend
from cairn.store.backends.posix import PosixBackend

DATA = os.urandom(2 << 20)


@pytest.fixture
def posix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PosixBackend:
    monkeypatch.setattr(mapped, "_local", lambda device: True)
    backend = PosixBackend(tmp_path / "store")
    backend.create("objects/a.pack", [DATA])
    return backend


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 65537])
@pytest.mark.parametrize("length", [mapped._BYTES_MIN, mapped._BYTES_MIN + 1, 1 << 20])
def test_lent_bytes_are_those_stored(posix: PosixBackend, offset: int, length: int) -> None:
    lent = posix.lend("objects/a.pack", offset, length)
    assert lent is not None
    assert bytes(lent) == DATA[offset : offset + length]


def test_what_is_short_or_past_the_end_is_to_be_read(posix: PosixBackend) -> None:
    assert posix.lend("objects/a.pack", 0, mapped._BYTES_MIN - 1) is None
    assert posix.lend("objects/a.pack", 1, len(DATA)) is None
    with pytest.raises(ObjectNotFound):
        posix.lend("objects/b.pack", 0, 1 << 20)


def test_a_mapping_outlives_its_object_and_ends_with_its_views(posix: PosixBackend) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("a.pack")

    lent = posix.lend("objects/a.pack", 0, len(DATA))
    assert lent is not None
    part = lent[5:10]
    posix.delete("objects/a.pack")
    del lent
    assert bytes(part) == DATA[5:10]
    assert mappings() == 1
    del part
    assert mappings() == 0


def test_pages_that_cannot_be_had_are_an_answer_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), len(DATA), access=mmap.ACCESS_COPY)
    os.truncate(path, 4096)
    assert not mapped._populate(mapping)


def test_only_what_is_known_to_be_local_is_mapped(posix: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not mapped._local(os.makedev(0, 0xFFFFF))
    assert isinstance(posix, Lender)
    assert not isinstance(MemoryBackend(), Lender)
