"""What all ranks have stored, as columns: places, contents, and the ranks that hold them.

A checkpoint of thousands of ranks has millions of shares and pieces; no object stands for one of them. Runs of pieces
are taken up as they come in, sorted by tensor when all are there, and cut out for one tensor after the other.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cairn.core.errors import IntegrityError
from cairn.core.ids import HASH_BYTES
from cairn.manifests.coverage import Rows
from cairn.manifests.tiling import Grid
from cairn.training.fragment import Column

# Four numbers a digest.
Digests = np.ndarray[Any, np.dtype[np.uint64]]
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Taken:
    """All pieces of one kind of one tensor, as they came in.

    Args:
        places: of each a row of numbers: of a tile its number, of a box its offsets and lengths.
        begins: of each where its content begins among all contents.
        ranks: of each.
    """

    places: Rows
    begins: Rows
    ranks: Rows


@dataclass(frozen=True, slots=True)
class Held:
    """Distinct pieces of one kind of one tensor, ascending.

    Args:
        places, ranks: as in `Taken`.
        contents: of each its digest or its bytes.
        doubled: how many more than one rank has stored, with equal bytes.
        differing: pairs of ranks that hold the same piece with different bytes.
    """

    places: Rows
    ranks: Rows
    contents: Any
    doubled: int = 0
    differing: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.ranks)


class _Gathered:
    """Pieces of one kind of all tensors and ranks: `add` all, `sort`, `take` of each tensor."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self._runs: list[Rows] = []
        self._places: list[bytes] = []
        # Once sorted: of each run its columns, of each tensor its first run, and all places.
        self._of, self._edges, self._numbers = _NONE, _NONE, _NONE

    def add(self, column: Column, tensors: Rows, words: Rows, rank: int) -> None:
        """Take up a rank's.

        Args:
            tensors: of each tensor of the rank's list its number here, or -1 for one whose pieces are left out.
            words: of each, the numbers that say where a piece lies.

        Raises:
            IntegrityError: the column's parts do not fit together.
        """
        if not column.runs:
            return
        runs = _int64(column.runs, 3, rank)
        numbers, counts, sizes = runs.T
        if (numbers < 0).any() or (numbers >= len(tensors)).any() or (counts <= 0).any() or (sizes < 0).any():
            raise _broken(rank)
        widths = words[numbers]
        if (counts * widths).sum() * 8 != len(column.places) or sizes.sum() != len(column.contents):
            raise _broken(rank)
        self._runs.append(np.stack([tensors[numbers], counts, widths, sizes, np.full(len(runs), rank)], axis=1))
        self._places.append(column.places)
        self.contents.append(column.contents)

    def sort(self, tensors: int) -> None:
        """Bring the runs of each of so many tensors together."""
        runs = np.concatenate(self._runs) if self._runs else np.zeros((0, 5), np.int64)
        numbers, counts, widths, sizes, ranks = runs.T
        order = np.argsort(numbers, kind="stable")
        columns = (counts, widths, _begins(counts * widths), sizes, _begins(sizes), ranks)
        self._of = np.stack([column[order] for column in columns], axis=1)
        self._edges = np.searchsorted(numbers[order], np.arange(tensors + 1))
        self._numbers = np.frombuffer(b"".join(self._places), "<i8").astype(np.int64, copy=False)
        self._runs, self._places = [], []

    def holds(self, tensor: int) -> bool:
        """Whether there is any piece of a tensor."""
        return bool(self._edges[tensor] < self._edges[tensor + 1])

    def take(self, tensor: int, item_bytes: int = 0) -> Taken:
        """The pieces of a tensor of which there are some.

        Args:
            item_bytes: of an element, if contents are the bytes of boxes; 0 if they are digests.

        Raises:
            IntegrityError: a rank's contents are of another length than its pieces.
        """
        of = self._of[self._edges[tensor] : self._edges[tensor + 1]]
        counts, widths, first, sizes, begin, ranks = of.T
        total, width = int(counts.sum()), int(widths[0])
        at = _spread(first, counts, np.full(total, width))
        places = self._numbers[at[:, None] + np.arange(width)]
        axes = width // 2
        lengths = places[:, axes:].prod(axis=1) * item_bytes if item_bytes else np.full(total, HASH_BYTES)
        wrong = np.add.reduceat(lengths, _begins(counts)) != sizes
        if wrong.any():
            raise _broken(int(ranks[wrong.argmax()]))
        return Taken(places, _spread(begin, counts, lengths), np.repeat(ranks, counts))


class Digested(_Gathered):
    """Pieces that are stored: contents are digests."""

    def sort(self, tensors: int) -> None:
        """As of all."""
        super().sort(tensors)
        self.contents = [b"".join(self.contents)]

    def seen(self, tensor: int) -> tuple[Rows, Digests, Rows]:
        """Places, digests and ranks, as they came in."""
        taken = self.take(tensor)
        return taken.places, digests_of(self.contents[0])[taken.begins // HASH_BYTES], taken.ranks

    def held(self, tensor: int, width: int) -> Held:
        """Sorted, and each once: the first that came in."""
        if not self.holds(tensor):
            return Held(_NONE.reshape(0, width), _NONE, np.zeros((0, 4), np.uint64))
        places, digests, ranks = self.seen(tensor)
        order, first = firsts(places)
        kept = order[first[order] == order]
        if len(kept) == len(ranks):
            return Held(places[kept], ranks[kept], digests[kept])
        return Held(places[kept], ranks[kept], digests[kept], *_compared(first, ranks, differing(digests, first)))


class Carried(_Gathered):
    """Pieces whose bytes came along; these stay where they are, since there may be gigabytes of them."""

    def sort(self, tensors: int) -> None:
        """As of all."""
        super().sort(tensors)
        self._views = [memoryview(content) for content in self.contents]
        self._starts = _begins(np.array([len(content) for content in self.contents], np.int64))

    def held(self, tensor: int, width: int, item_bytes: int) -> Held:
        """Sorted, and each once: the first that came in. Contents are a list."""
        if not self.holds(tensor):
            return Held(_NONE.reshape(0, width), _NONE, [])
        taken = self.take(tensor, item_bytes)
        places, ranks = taken.places, taken.ranks
        order, first = firsts(places)
        kept = order[first[order] == order]
        contents = self._contents(taken, item_bytes)
        held = [contents[number] for number in kept.tolist()]
        if len(kept) == len(ranks):
            return Held(places[kept], ranks[kept], held)
        differ = np.array([contents[one] != contents[number] for number, one in enumerate(first.tolist())])
        return Held(places[kept], ranks[kept], held, *_compared(first, ranks, differ))

    def _contents(self, taken: Taken, item_bytes: int) -> list[memoryview]:
        whole = np.searchsorted(self._starts, taken.begins, side="right") - 1
        begins = taken.begins - self._starts[whole]
        ends = begins + taken.places[:, taken.places.shape[1] // 2 :].prod(axis=1) * item_bytes
        columns = zip(whole.tolist(), begins.tolist(), ends.tolist(), strict=True)
        return [self._views[number][begin:end] for number, begin, end in columns]


def firsts(places: Rows) -> tuple[Rows, Rows]:
    """The ascending order of rows, and of each row the number of the first that equals it."""
    count, width = places.shape
    order = np.lexsort(places.T[::-1]) if width else np.arange(count)
    ordered = places[order]
    new = np.ones(count, dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.empty(count, np.int64)
    first[order] = order[np.flatnonzero(new)[np.cumsum(new) - 1]]
    return order, first


def differing(digests: Digests, first: Rows) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Whether each digest differs from that of the first equal piece."""
    differ: np.ndarray[Any, np.dtype[np.bool_]] = (digests != digests[first]).any(axis=1)
    return differ


def pairs_of(ones: Rows, others: Rows) -> tuple[tuple[int, int], ...]:
    """Distinct pairs, ascending."""
    return tuple((one, other) for one, other in np.unique(np.stack([ones, others], axis=1), axis=0).tolist())


def digests_of(joined: bytes) -> Digests:
    """Digests laid end to end, as rows."""
    return np.frombuffer(joined, np.uint64).reshape(-1, 4)


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


def _compared(first: Rows, ranks: Rows, differ: Any) -> tuple[int, tuple[tuple[int, int], ...]]:
    """How many pieces were stored again by another rank, and the pairs of ranks that differ."""
    again = first != np.arange(len(first))
    doubled = int((again & ~differ & (ranks != ranks[first])).sum())
    return doubled, pairs_of(ranks[first[differ]], ranks[differ])


def _int64(data: bytes, width: int, rank: int) -> Rows:
    if len(data) % (8 * width):
        raise _broken(rank)
    return np.frombuffer(data, "<i8").astype(np.int64, copy=False).reshape(-1, width)


def _begins(lengths: Rows) -> Rows:
    """Where each of some stretches, laid end to end, begins."""
    begins: Rows = np.cumsum(lengths) - lengths
    return begins


def _spread(starts: Rows, counts: Rows, lengths: Rows) -> Rows:
    """Where each piece of some runs begins, by the runs' starts and counts and the pieces' lengths."""
    begins = _begins(lengths)
    return begins + np.repeat(starts - begins[_begins(counts)], counts)


def _broken(rank: int) -> IntegrityError:
    return IntegrityError(f"fragment of rank {rank} holds columns whose parts do not fit together")
