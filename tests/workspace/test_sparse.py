"""Holes: neither read nor stored nor written, however large."""

import os
import time
from pathlib import Path

import pytest

from cairn.workspace.source import FileSource
from tests.support.stores import Site, checkout_to, commit_tree

GIB = 1 << 30
ISLANDS = {0: b"first", 1 * GIB + 77: b"x" * 5000, 3 * GIB: os.urandom(3 << 20), 5 * GIB - 4: b"last"}


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A file of 5 GiB that takes 3 MiB."""
    (tmp_path / "tree").mkdir()
    path = tmp_path / "tree" / "big"
    with path.open("wb") as file:
        file.truncate(5 * GIB)
        for offset, data in ISLANDS.items():
            file.seek(offset)
            file.write(data)
    assert path.stat().st_blocks * 512 < 8 << 20, "this file system has no holes"
    return path


def test_a_sparse_file_of_5_gib_stays_sparse_and_is_fast(
    site: Site, big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = FileSource.read_into

    def read_into(self: FileSource, offset: int, target: memoryview) -> None:
        read.append(len(target))
        real(self, offset, target)

    monkeypatch.setattr(FileSource, "read_into", read_into)
    started = time.monotonic()
    registry = site.registry()
    result = commit_tree(registry, big.parent)
    written = checkout_to(registry, "m", tmp_path / "out")
    seconds = time.monotonic() - started
    assert (result.bytes_logical, written.bytes_logical) == (5 * GIB, 5 * GIB)
    # Reads are of 8 MiB, an island each and one that straddles two.
    assert sum(read) <= 5 * (8 << 20)
    assert result.counts.bytes_stored < 8 << 20
    out = tmp_path / "out" / "big"
    assert out.stat().st_size == 5 * GIB
    assert out.stat().st_blocks * 512 < 10 << 20
    with out.open("rb") as file:
        for offset, data in ISLANDS.items():
            file.seek(offset)
            assert file.read(len(data)) == data
        file.seek(2 * GIB)
        assert file.read(1 << 20) == bytes(1 << 20)
    assert seconds < 10


def test_a_file_larger_than_any_page_of_digests(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    path = tmp_path / "tree" / "huge"
    with path.open("wb") as file:
        file.truncate(200 * GIB)
        file.seek(150 * GIB)
        file.write(b"island")
    registry = site.registry()
    commit_tree(registry, tmp_path / "tree")
    checkout_to(registry, "m", tmp_path / "out")
    out = tmp_path / "out" / "huge"
    assert (out.stat().st_size, out.stat().st_blocks < 10_000) == (200 * GIB, True)
    with out.open("rb") as file:
        file.seek(150 * GIB)
        assert file.read(6) == b"island"


def test_zeros_that_are_no_hole_become_one(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "zeros").write_bytes(bytes(32 << 20))
    registry = site.registry()
    assert commit_tree(registry, tmp_path / "tree").counts.bytes_new == 0
    assert checkout_to(registry, "m", tmp_path / "out").bytes_fetched == 0
    out = tmp_path / "out" / "zeros"
    assert (out.stat().st_size, out.stat().st_blocks) == (32 << 20, 0)
