"""Joining fragments into a manifest: coverage, replicas, names. The coordinator's work.

Every declared element must be held exactly once; equal boxes with different bytes are an error that names the
ranks; what small shards brought along is joined into tiles.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from cairn.core.errors import IntegrityError, StateMismatch
from cairn.core.limits import INLINE_BYTES_MAX, LISTED_NAMES_MAX
from cairn.manifests.coverage import Rows, uncovered_rows
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.pieces import cached_grid
from cairn.manifests.schema import Key, Region, TensorEntry
from cairn.manifests.values import Container, decode_value, encode_value
from cairn.store.chunkstore import ChunkWriter
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType
from cairn.training.fragment import ContributedValue, Contribution, Declared, Fragment, Ints
from cairn.training.merge_pieces import (
    Carried,
    Digested,
    Digests,
    Held,
    differing,
    digests_of,
    firsts,
    pairs_of,
    split,
    tile_rows,
)

Settle = Callable[[TensorEntry], TensorEntry]
# Boxes, digests and ranks.
Seen = tuple[Rows, Digests, Rows]
_decoder = msgspec.msgpack.Decoder(tuple[Declared, ...])


@dataclass(slots=True)
class _Tensor:
    """One tensor: its number, how it was declared, and the rank that declared it first."""

    number: int
    first: Declared
    rank: int

    @property
    def item_bytes(self) -> int:
        return max(BITS[self.first.dtype] // 8, 1)


@dataclass(frozen=True, slots=True)
class _Table:
    """A list of tensors as some ranks send it.

    Args:
        numbers: of the merger's tensors; -1 for one that does not fit.
        words: of each, how many numbers say where a box of it lies.
        misfits: those that do not fit.
    """

    numbers: Rows
    words: Rows
    misfits: tuple[Declared, ...]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Distinct pieces of one tensor."""

    tiles: Held
    regions: Held
    shards: Held

    def is_grid(self, count: int) -> bool:
        """Whether they are the tiles of a grid of so many, all of them."""
        if len(self.regions) or len(self.shards) or not len(self.tiles) == count > 0:
            return False
        return bool(self.tiles.places[0, 0] == 0 and self.tiles.places[-1, 0] == count - 1)

    def ranks(self) -> list[int]:
        return sorted({*self.tiles.ranks.tolist(), *self.regions.ranks.tolist(), *self.shards.ranks.tolist()})


@dataclass(slots=True)
class Merged:
    """The entries of a checkpoint, by component, and what was worth a word."""

    tensors: dict[ComponentClass, list[TensorEntry]] = field(default_factory=dict)
    values: dict[ComponentClass, list[tuple[Key, bytes]]] = field(default_factory=dict)
    trainable: list[Key] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_logical: dict[ComponentClass, int] = field(default_factory=dict)


class _Columns:
    """All pieces of all tensors and ranks."""

    def __init__(self) -> None:
        self.tiles, self.regions, self.shards = Digested(), Digested(), Carried()
        self.seen_tiles, self.seen_regions = Digested(), Digested()

    def add(self, tensors: Contribution, table: _Table, rank: int) -> None:
        """Take up a rank's; raises as `Digested.add` does."""
        numbers, boxes, ones = table.numbers, table.words, np.ones_like(table.words)
        self.tiles.add(tensors.tiles, numbers, ones, rank)
        self.regions.add(tensors.regions, numbers, boxes, rank)
        self.shards.add(tensors.shards, numbers, boxes, rank)
        self.seen_tiles.add(tensors.seen_tiles, numbers, ones, rank)
        self.seen_regions.add(tensors.seen_regions, numbers, boxes, rank)

    def sort(self, tensors: int) -> None:
        """Bring together what belongs to each of so many tensors."""
        for column in (self.tiles, self.regions, self.shards, self.seen_tiles, self.seen_regions):
            column.sort(tensors)


class Merger:
    """Takes fragments one by one."""

    def __init__(self) -> None:
        self._tensors: dict[Key, _Tensor] = {}
        self._tables: dict[bytes, _Table] = {}
        self._columns = _Columns()
        self._values: dict[Key, tuple[ContributedValue, int]] = {}
        self._faults: dict[str, None] = {}
        self._doubled = 0

    def add(self, fragment: Fragment) -> None:
        """Take up one rank's part.

        Raises:
            IntegrityError: it is no fragment.
        """
        self._add_tensors(fragment.tensors, fragment.rank)
        for value in fragment.values:
            self._add_value(value, fragment.rank)

    def finish(self, writer: ChunkWriter, settle: Settle) -> Merged:
        """Check everything and make the entries.

        Args:
            writer: stores what small shards are joined into.
            settle: takes each entry as soon as it is made, and returns what is to be kept of it.

        Raises:
            StateMismatch: ranks disagree or leave gaps; lists all tensors and the ranks.
        """
        self._columns.sort(len(self._tensors))
        merged = Merged()
        for key, tensor in self._tensors.items():
            first = tensor.first
            component = ComponentClass(first.component)
            entry = self._entry(tensor, writer)
            if entry is not None and first.tied_to is None:
                merged.tensors.setdefault(component, []).append(settle(entry))
            if first.trainable:
                merged.trainable.append(key)
            size = nbytes(first.dtype, first.shape)
            merged.bytes_logical[component] = merged.bytes_logical.get(component, 0) + size
        self._columns = _Columns()  # there may be gigabytes, and the merger lives on
        self._add_tied(merged)
        for key, (value, _) in self._values.items():
            merged.values.setdefault(ComponentClass(value.component), []).append((key, value.data))
        if self._faults:
            faults = list(self._faults)
            shown = "; ".join(faults[:LISTED_NAMES_MAX])
            more = len(faults) - LISTED_NAMES_MAX
            raise StateMismatch(
                f"the ranks' states do not fit together: {shown}" + (f"; and {more} more" if more > 0 else ""),
                hint="nothing was committed; make the named state agree, or declare it per rank",
            )
        if self._doubled:
            merged.notes.append(f"{self._doubled} pieces were stored by more than one rank, with equal bytes")
        return merged

    # --- taking up ---------------------------------------------------------------------------------

    def _add_tensors(self, tensors: Contribution, rank: int) -> None:
        table = self._tables.get(tensors.declared)
        if table is None:
            table = self._tables[tensors.declared] = self._table(tensors.declared, rank)
        for declared in table.misfits:
            known = self._tensors[declared.key]
            self._fault(
                f"{declared.key} is {known.first.dtype}{list(known.first.shape)} on rank {known.rank} "
                f"and {declared.dtype}{list(declared.shape)} on rank {rank}"
            )
        self._columns.add(tensors, table, rank)

    def _table(self, declared: bytes, rank: int) -> _Table:
        try:
            listed = _decoder.decode(declared)
        except msgspec.MsgspecError as error:
            raise IntegrityError(f"fragment of rank {rank} does not decode: {error}") from None
        numbers, misfits = [], []
        for one in listed:
            known = self._tensors.get(one.key)
            if known is None:
                known = self._tensors[one.key] = _Tensor(len(self._tensors), one, rank)
            fits = (known.first.dtype, known.first.shape) == (one.dtype, one.shape)
            numbers.append(known.number if fits else -1)
            if not fits:
                misfits.append(one)
            elif known.first.tied_to is not None and one.tied_to is None:
                known.first = one
        words = np.array([2 * len(one.shape) for one in listed], np.int64)
        return _Table(np.array(numbers, np.int64), words, tuple(misfits))

    def _fault(self, text: str) -> None:
        self._faults[text] = None

    def _differ(self, tensor: _Tensor, pairs: Iterable[tuple[int, int]]) -> None:
        for one, other in pairs:
            self._fault(f"{tensor.first.key} differs between ranks {min(one, other)} and {max(one, other)}")

    def _add_value(self, value: ContributedValue, rank: int) -> None:
        known = self._values.get(value.key)
        if known is None:
            self._values[value.key] = value, rank
        elif known[0].data != value.data:
            joined = _union(known[0], value) if value.union and known[0].union else None
            if joined is None:
                self._fault(f"value {value.key} differs between ranks {known[1]} and {rank}")
            else:
                self._values[value.key] = joined, known[1]

    # --- entries -----------------------------------------------------------------------------------

    def _pieces(self, tensor: _Tensor) -> _Pieces:
        """The distinct pieces of a tensor; what ranks disagree on is noted."""
        words = 2 * len(tensor.first.shape)
        found = _Pieces(
            self._columns.tiles.held(tensor.number, 1),
            self._columns.regions.held(tensor.number, words),
            self._columns.shards.held(tensor.number, words, tensor.item_bytes),
        )
        for held in (found.tiles, found.regions, found.shards):
            self._doubled += held.doubled
            self._differ(tensor, held.differing)
        return found

    def _seen(self, tensor: _Tensor) -> list[Seen]:
        """What others than its owners have seen of a tensor, by box."""
        found = []
        if self._columns.seen_tiles.holds(tensor.number):
            numbers, digests, ranks = self._columns.seen_tiles.seen(tensor.number)
            found.append((self._tile_rows(tensor, numbers, ranks), digests, ranks))
        if self._columns.seen_regions.holds(tensor.number):
            found.append(self._columns.seen_regions.seen(tensor.number))
        return found

    def _check_seen(self, tensor: _Tensor, held: _Pieces, boxes: Rows, seen: list[Seen], writer: ChunkWriter) -> None:
        """Compare what was seen of a tensor with what is held of it, whose boxes are those of its pieces."""
        carried = b"".join(writer.digest(ContentType.CHUNK, data) for data in held.shards.contents)
        places, digests, ranks = (np.concatenate(column) for column in zip(*seen, strict=True))
        digests = np.concatenate([held.tiles.contents, held.regions.contents, digests_of(carried), digests])
        ranks = np.concatenate([held.tiles.ranks, held.regions.ranks, held.shards.ranks, ranks])
        _, first = firsts(np.concatenate([boxes, places]))
        differ = differing(digests, first) & (first < len(boxes))
        differ[: len(boxes)] = False
        self._differ(tensor, pairs_of(ranks[first[differ]], ranks[differ]))

    def _tile_rows(self, tensor: _Tensor, numbers: Rows, ranks: Rows) -> Rows:
        layout, first = cached_grid(tensor.first.dtype, tensor.first.shape), tensor.first
        outside = (numbers[:, 0] < 0) | (numbers[:, 0] >= layout.tile_count)
        if outside.any():
            at = outside.argmax()
            raise IntegrityError(
                f"fragment of rank {ranks[at]} holds tile {numbers[at, 0]} of {first.key}, of {layout.tile_count}"
            )
        return tile_rows(layout, numbers[:, 0])

    def _entry(self, tensor: _Tensor, writer: ChunkWriter) -> TensorEntry | None:
        first, held, seen = tensor.first, self._pieces(tensor), self._seen(tensor)
        tiles, regions, shards = held.tiles, held.regions, held.shards
        count = cached_grid(first.dtype, first.shape).tile_count
        if not seen and first.tied_to is None and held.is_grid(count):
            return TensorEntry(first.key, first.dtype, first.shape, tiles=tiles.contents.tobytes())
        boxes = np.concatenate([self._tile_rows(tensor, tiles.places, tiles.ranks), regions.places, shards.places])
        if seen:
            self._check_seen(tensor, held, boxes, seen, writer)
        if first.tied_to is not None:
            return None
        if not (len(boxes) or count):
            return TensorEntry(first.key, first.dtype, first.shape, inline=b"")
        if held.is_grid(count):
            return TensorEntry(first.key, first.dtype, first.shape, tiles=tiles.contents.tobytes())
        fault = uncovered_rows(first.shape, boxes)
        if fault:
            self._fault(f"{first.key}: {fault} (of ranks {held.ranks()[:8]})")
            return None
        if len(shards) == len(boxes):
            return _join(tensor, shards, writer)
        digests = tiles.contents.tobytes() + regions.contents.tobytes()
        digests += b"".join(writer.put(ContentType.CHUNK, data, tensor.item_bytes) for data in shards.contents)
        order, _ = firsts(boxes[:, : len(first.shape)])
        found = _regions(boxes[order], digests_of(digests)[order])
        return TensorEntry(first.key, first.dtype, first.shape, regions=found)

    def _add_tied(self, merged: Merged) -> None:
        stored = {entry.key: entry for entries in merged.tensors.values() for entry in entries}
        for key, tensor in self._tensors.items():
            if tensor.first.tied_to is None:
                continue
            source = stored.get(tensor.first.tied_to)
            if source is None:
                self._fault(f"{key} is tied to {tensor.first.tied_to}, which no rank holds")
                continue
            entry = msgspec.structs.replace(source, key=key, tied_to=source.key)
            merged.tensors.setdefault(ComponentClass(tensor.first.component), []).append(entry)


def _regions(rows: Rows, digests: Digests) -> tuple[Region, ...]:
    axes = rows.shape[1] // 2
    columns = rows.T.tolist()
    offsets, lengths = zip(*columns[:axes], strict=True), zip(*columns[axes:], strict=True)
    return tuple(map(Region, offsets, lengths, split(digests.tobytes())))


def _join(tensor: _Tensor, shards: Held, writer: ChunkWriter) -> TensorEntry:
    """A tensor whose bytes all came along: put together, then in line or in tiles."""
    first, width = tensor.first, tensor.item_bytes
    whole = _joined(first.shape, width, shards)
    if whole.nbytes <= INLINE_BYTES_MAX:
        return TensorEntry(first.key, first.dtype, first.shape, inline=whole.tobytes())
    layout = cached_grid(first.dtype, first.shape)
    digests = []
    for number in range(layout.tile_count):
        box = layout.tile(number)
        slices = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.lengths, strict=True))
        digests.append(writer.put(ContentType.CHUNK, np.ascontiguousarray(whole[slices]).reshape(-1).data, width))
    return TensorEntry(first.key, first.dtype, first.shape, tiles=b"".join(digests))


def _joined(shape: Ints, width: int, shards: Held) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """The bytes of a tensor of which each element stands in one shard."""
    axes = len(shape)
    if (shards.places[:, axes + 1 :] == shape[1:]).all():  # whole rows, in order
        return np.frombuffer(b"".join(shards.contents), np.uint8).reshape(*shape, width)
    whole = np.empty((*shape, width), np.uint8)
    for row, data in zip(shards.places.tolist(), shards.contents, strict=True):
        offsets, lengths = row[:axes], row[axes:]
        slices = tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True))
        whole[slices] = np.frombuffer(data, np.uint8).reshape(*lengths, width)
    return whole


def _union(one: ContributedValue, other: ContributedValue) -> ContributedValue | None:
    """Containers of one kind with the keys of both; None if they are something else."""
    a, b = decode_value(one.data, str(one.key)), decode_value(other.data, str(one.key))
    if not (isinstance(a, Container) and isinstance(b, Container) and a.kind == b.kind):
        return None
    keys = tuple(dict.fromkeys((*a.keys, *b.keys)))
    if a.kind not in ("dict", "list", "tuple"):  # sets of names, which have no order
        keys = tuple(sorted(keys, key=str))
    return msgspec.structs.replace(one, data=encode_value(Container(a.kind, keys), str(one.key)))
