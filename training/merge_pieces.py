"""What all ranks have stored of one tensor, as columns: numbers or boxes, digests, and the ranks that hold them.

A checkpoint of thousands of ranks has millions of pieces; no object stands for one of them.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cairn.manifests.coverage import Rows
from cairn.manifests.tiling import Grid
from cairn.training.fragment import Ints, Regions, Span

Place = int | tuple[Ints, Ints]
# Four numbers a digest.
Digests = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class Held:
    """Distinct pieces of a tensor, ascending.

    Args:
        places: rows of numbers: of a tile its number, of a region its offsets and lengths.
        digests, ranks: of each.
        doubled: how many more than one rank has stored, with equal bytes.
        differing: pairs of ranks that hold the same piece with different bytes.
    """

    places: Rows
    digests: Digests
    ranks: Rows
    doubled: int
    differing: list[tuple[int, int]]


@dataclass(slots=True)
class Column:
    """Pieces of one kind as they come in, a run from each rank: so many numbers say where each piece lies."""

    numbers: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def add(self, numbers: bytes, digests: bytes, rank: int) -> None:
        """Take up some of a rank's."""
        self.numbers.append(numbers)
        self.digests.append(digests)
        self.ranks.append(rank)

    def each(self, width: int) -> tuple[Rows, list[bytes], list[int]]:
        """Of each piece a row of numbers, the digest and the rank."""
        return self._places(width), split(b"".join(self.digests)), self._ranks().tolist()

    def _places(self, width: int) -> Rows:
        return np.frombuffer(b"".join(self.numbers), "<i8").astype(np.int64, copy=False).reshape(-1, width)

    def _ranks(self) -> Rows:
        return np.repeat(np.array(self.ranks, np.int64), [len(run) // 32 for run in self.digests])

    def held(self, width: int) -> Held:
        """Sorted, and each once: the first that came in."""
        if not self.ranks:
            none = np.zeros(0, np.int64)
            return Held(none.reshape(0, width), np.zeros((0, 4), np.uint64), none, 0, [])
        places, ranks = self._places(width), self._ranks()
        digests = np.frombuffer(b"".join(self.digests), np.uint64).reshape(-1, 4)
        order = np.lexsort(places.T[::-1])
        places, digests, ranks = places[order], digests[order], ranks[order]
        # Equal places stand side by side; each is compared with the first of its run.
        new = np.ones(len(ranks), dtype=bool)
        new[1:] = (places[1:] != places[:-1]).any(axis=1)
        if new.all():
            return Held(places, digests, ranks, 0, [])
        of = np.flatnonzero(new)[np.cumsum(new) - 1]
        differ = (digests != digests[of]).any(axis=1)
        pairs = np.unique(np.stack([ranks[of][differ], ranks[differ]], axis=1), axis=0)
        doubled = int((~new & ~differ & (ranks != ranks[of])).sum())
        return Held(places[new], digests[new], ranks[new], doubled, [(one, other) for one, other in pairs.tolist()])


@dataclass(slots=True)
class Pieces:
    """All pieces of a tensor."""

    tiles: Column = field(default_factory=Column)
    regions: Column = field(default_factory=Column)

    def add(self, spans: tuple[Span, ...], regions: Regions | None, rank: int) -> None:
        """Take up one rank's."""
        for span in spans:
            numbers = range(span.first, span.first + len(span.digests) // 32)
            self.tiles.add(array("q", numbers).tobytes(), span.digests, rank)
        if regions is not None:
            self.regions.add(regions.boxes, regions.digests, rank)

    def __bool__(self) -> bool:
        return bool(self.tiles.ranks or self.regions.ranks)

    def each(self, axes: int) -> Iterator[tuple[Place, bytes, int]]:
        """One by one: place, digest, rank."""
        if self.tiles.ranks:
            for (number,), digest, rank in zip(*self.tiles.each(1), strict=True):
                yield int(number), digest, rank
        if self.regions.ranks:
            for row, digest, rank in zip(*self.regions.each(2 * axes), strict=True):
                ends = tuple(row.tolist())
                yield (ends[:axes], ends[axes:]), digest, rank


def split(digests: bytes) -> list[bytes]:
    """Digests one by one."""
    found: list[bytes] = np.frombuffer(digests, "V32").tolist()
    return found


def tile_rows(layout: Grid, numbers: Rows) -> Rows:
    """Boxes of tiles, as rows."""
    if not layout.edges:
        return np.zeros((len(numbers), 0), np.int64)
    offsets, lengths = [], []
    for edges, cells in zip(layout.edges, np.unravel_index(numbers, layout.counts), strict=True):
        cuts = np.array(edges, dtype=np.int64)
        offsets.append(cuts[cells])
        lengths.append(cuts[cells + 1] - cuts[cells])
    return np.stack([*offsets, *lengths], axis=1)
