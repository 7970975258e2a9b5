"""Bands between a file and their tiles, without a copy of our own: the kernel scatters what it reads and gathers
what it writes, row by row."""

from collections.abc import Sequence

from cairn.manifests.tiling import Band

# Linux takes no more buffers in one call.
IOV_MAX = 1024


def tile_views(band: Band, buffer: memoryview) -> list[memoryview]:
    """Room for each tile of a band in a buffer, one after the other."""
    tiles, at = [], 0
    for _, width in band.columns:
        tiles.append(buffer[at : at + band.rows * width])
        at += band.rows * width
    return tiles


def row_batches(band: Band, tiles: Sequence[memoryview]) -> list[list[memoryview]]:
    """Views into a band's tiles in the order of its bytes in the file, as many as one call takes."""
    if len(tiles) == 1:
        return [[tiles[0]]]
    widths = [(tile, width) for tile, (_, width) in zip(tiles, band.columns, strict=True)]
    views = [tile[row * width : (row + 1) * width] for row in range(band.rows) for tile, width in widths]
    return [views[at : at + IOV_MAX] for at in range(0, len(views), IOV_MAX)]


def join_tiles(band: Band, tiles: Sequence[memoryview], target: memoryview) -> None:
    """A band's bytes in the order of its file, from its tiles."""
    import numpy as np

    rows = np.frombuffer(target, np.uint8).reshape(band.rows, band.row_bytes)
    for (start, width), tile in zip(band.columns, tiles, strict=True):
        rows[:, start : start + width] = np.frombuffer(tile, np.uint8).reshape(band.rows, width)


def rest_of(views: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of `views` after their first `done` bytes."""
    for number, view in enumerate(views):
        if done < len(view):
            return [view[done:], *views[number + 1 :]]
        done -= len(view)
    return []


class Scratch:
    """One thread's buffer, and the row views of the kind of band that it last took."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self._kind: tuple[object, ...] = ()
        self._tiles: list[memoryview] = []
        self._batches: list[list[memoryview]] = []

    def take(self, band: Band) -> tuple[list[memoryview], list[list[memoryview]]]:
        """Views of a band's tiles, and of its rows; bands of one kind get the same ones."""
        kind = band.rows, band.columns
        if kind != self._kind:
            self._kind, self._tiles = kind, tile_views(band, self.buffer)
            self._batches = row_batches(band, self._tiles)
        return self._tiles, self._batches
