"""Bands between a file and their tiles."""

import os
from pathlib import Path

import pytest

from cairn.core.errors import InputChanged
from cairn.manifests.tiling import Band, grid
from cairn.workspace.scatter import IOV_MAX, Scratch, rest_of, row_batches, tile_views
from cairn.workspace.source import FileSource

# Eight columns of 2 KiB: too many pieces for one call; and bands of two heights.
SHAPE, ROW_BYTES = (4100, 8192), 16384


def bands() -> list[Band]:
    return list(grid("bfloat16", SHAPE).bands())


def rows_of(data: bytes) -> list[bytes]:
    return [data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)]


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SHAPE[0] * ROW_BYTES)


def test_the_shape_has_what_the_tests_are_about() -> None:
    kinds = {(band.rows, len(band.columns)) for band in bands()}
    assert len(kinds) > 1 and max(rows * columns for rows, columns in kinds) > IOV_MAX


def test_what_is_read_lies_tile_by_tile(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(b"head" + content)
    scratch = Scratch(memoryview(bytearray(16 << 20)))
    with FileSource(os.fsencode(tmp_path / "f"), "f") as source:
        for band in bands():
            tiles, batches = scratch.take(band)
            source.read_scattered(4 + band.offset, batches)
            rows = rows_of(content[band.offset : band.offset + band.length])
            for tile, (start, width) in zip(tiles, band.columns, strict=True):
                assert tile == b"".join(row[start : start + width] for row in rows)


def test_what_is_written_is_in_the_order_of_the_file(tmp_path: Path) -> None:
    band = bands()[0]
    plain = os.urandom(band.length)
    tiles = tile_views(band, memoryview(bytearray(band.length)))
    for tile, (start, width) in zip(tiles, band.columns, strict=True):
        tile[:] = b"".join(row[start : start + width] for row in rows_of(plain))
    batches = row_batches(band, tiles)
    assert max(map(len, batches)) <= IOV_MAX
    assert b"".join(b"".join(batch) for batch in batches) == plain


def test_a_file_that_got_shorter_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    with FileSource(os.fsencode(tmp_path / "f"), "f") as source, pytest.raises(InputChanged):
        source.read_scattered(0, [[memoryview(bytearray(60)), memoryview(bytearray(60))]])


@pytest.mark.parametrize("done", range(11))
def test_what_is_left_after_a_short_answer(done: int) -> None:
    views = [memoryview(b"abc"), memoryview(b"defgh"), memoryview(b"ij")]
    assert b"".join(rest_of(views, done)) == b"abcdefghij"[done:]
