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
class Held:
    """Distinct pieces of one kind of one tensor, ascending.

    Args:
        places: of each a row of numbers: of a tile its number, of a box its offsets and lengths.
        ranks: of each.
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
    """Pieces of one kind of all tensors and ranks: `add` all, `sort`, then ask for those of each tensor."""

    def __init__(self) -> None:
        self._runs: list[Rows] = []
        self._places: list[bytes] = []
        self._contents: list[bytes] = []
        # Once sorted, of each tensor: where its runs, its pieces and the numbers of their places begin.
        self._edges: list[int] = []
        self._first: list[int] = []
        self._at: list[int] = []

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
        self._runs.append(np.stack([tensors[numbers], counts, counts * widths, sizes, np.full(len(runs), rank)]))
        self._places.append(column.places)
        self._contents.append(column.contents)

    def sort(self, tensors: int) -> None:
        """Bring the pieces of each of so many tensors together, as they came in.

        Raises:
            IntegrityError: the parts of a column do not fit together.
        """
        runs = np.concatenate(self._runs, axis=1) if self._runs else np.zeros((5, 0), np.int64)
        numbers, counts, words, sizes, ranks = runs
        order = np.argsort(numbers, kind="stable")
        of = runs[:, order]
        # Runs of one tensor after the other: how many pieces, their bytes, where these begin, and whose they are.
        self._counts, self._sizes, self._begins, self._owners = of[1], of[3], _begins(sizes)[order], of[4]
        self._ranks = np.repeat(ranks[order], counts[order])
        places = np.frombuffer(b"".join(self._places), "<i8").astype(np.int64, copy=False)
        self._numbers = places[_each(_begins(words)[order], of[2])]
        edges = np.searchsorted(of[0], np.arange(tensors + 1))
        self._edges = edges.tolist()
        self._first, self._at = _edges(of[1])[edges].tolist(), _edges(of[2])[edges].tolist()
        self._runs, self._places = [], []

    def holds(self, tensor: int) -> bool:
        """Whether there is any piece of a tensor."""
        return self._first[tensor] < self._first[tensor + 1]

    def _taken(self, tensor: int) -> tuple[Rows, Rows]:
        """Places of a tensor's pieces, of which there are some, and their ranks."""
        first, end = self._first[tensor], self._first[tensor + 1]
        places = self._numbers[self._at[tensor] : self._at[tensor + 1]]
        return places.reshape(end - first, len(places) // (end - first)), self._ranks[first:end]


class Digested(_Gathered):
    """Pieces that are stored: contents are digests."""

    def sort(self, tensors: int) -> None:
        """As of all."""
        super().sort(tensors)
        wrong = self._sizes != self._counts * HASH_BYTES
        if wrong.any():
            raise _broken(int(self._owners[wrong.argmax()]))
        digests = digests_of(b"".join(self._contents))
        self._digests = digests[_each(self._begins // HASH_BYTES, self._counts)]
        self._contents = []

    def seen(self, tensor: int) -> tuple[Rows, Digests, Rows]:
        """Places, digests and ranks, as they came in."""
        places, ranks = self._taken(tensor)
        return places, self._digests[self._first[tensor] : self._first[tensor + 1]], ranks

    def held(self, tensor: int, width: int) -> Held:
        """Sorted, and each once: the first that came in."""
        if not self.holds(tensor):
            return Held(_NONE.reshape(0, width), _NONE, np.zeros((0, 4), np.uint64))
        places, digests, ranks = self.seen(tensor)
        if len(ranks) == 1:
            return Held(places, ranks, digests)
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
        self._views = [memoryview(content) for content in self._contents]
        self._starts = _begins(np.array([len(content) for content in self._contents], np.int64))

    def held(self, tensor: int, width: int, item_bytes: int) -> Held:
        """Sorted, and each once: the first that came in. Contents are a list.

        Raises:
            IntegrityError: a rank's contents are of another length than its boxes.
        """
        if not self.holds(tensor):
            return Held(_NONE.reshape(0, width), _NONE, [])
        places, ranks = self._taken(tensor)
        order, first = firsts(places)
        kept = order[first[order] == order]
        contents = self._bytes(tensor, places[:, width // 2 :].prod(axis=1) * item_bytes)
        held = [contents[number] for number in kept.tolist()]
        if len(kept) == len(ranks):
            return Held(places[kept], ranks[kept], held)
        differ = np.array([contents[one] != contents[number] for number, one in enumerate(first.tolist())])
        return Held(places[kept], ranks[kept], held, *_compared(first, ranks, differ))

    def _bytes(self, tensor: int, lengths: Rows) -> list[memoryview]:
        """The bytes of a tensor's pieces, whose lengths follow from their boxes."""
        runs = slice(self._edges[tensor], self._edges[tensor + 1])
        counts = self._counts[runs]
        wrong = np.add.reduceat(lengths, _begins(counts)) != self._sizes[runs]
        if wrong.any():
            raise _broken(int(self._owners[runs][wrong.argmax()]))
        begins = _spread(self._begins[runs], counts, lengths)
        whole = np.searchsorted(self._starts, begins, side="right") - 1
        begins -= self._starts[whole]
        columns = zip(whole.tolist(), begins.tolist(), (begins + lengths).tolist(), strict=True)
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


def _edges(lengths: Rows) -> Rows:
    """The same, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)])


def _each(starts: Rows, counts: Rows) -> Rows:
    """The numbers of all members of some stretches."""
    numbers: Rows = np.repeat(starts - _begins(counts), counts)
    numbers += np.arange(len(numbers))
    return numbers


def _spread(starts: Rows, counts: Rows, lengths: Rows) -> Rows:
    """Where each piece of some runs begins, by the runs' starts and counts and the pieces' lengths."""
    begins = _begins(lengths)
    return begins + np.repeat(starts - begins[_begins(counts)], counts)


def _broken(rank: int) -> IntegrityError:
    return IntegrityError(f"fragment of rank {rank} holds columns whose parts do not fit together")
