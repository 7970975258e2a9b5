"""Joining fragments into a manifest: coverage, replicas, names. The coordinator's work.

Every declared element must be held exactly once; equal boxes with different bytes are an error that names the
ranks; what small shards brought along is joined into tiles.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
import numpy as np

from cairn.core.errors import StateMismatch
from cairn.core.limits import INLINE_BYTES_MAX, LISTED_NAMES_MAX
from cairn.manifests.coverage import Rows, rows_of, uncovered_rows
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.pieces import cached_grid
from cairn.manifests.schema import Key, Region, TensorEntry
from cairn.manifests.tiling import Box
from cairn.manifests.values import Container, decode_value, encode_value
from cairn.store.chunkstore import ChunkWriter
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType
from cairn.training.fragment import ContributedValue, Contribution, Fragment, Ints
from cairn.training.merge_pieces import Digests, Pieces, split, tile_rows

Settle = Callable[[TensorEntry], TensorEntry]


@dataclass(slots=True)
class _Tensor:
    """All that is known of one tensor: what ranks have stored, what came along by box, and what others have seen."""

    first: Contribution
    rank: int
    pieces: Pieces = field(default_factory=Pieces)
    inline: dict[tuple[Ints, Ints], tuple[bytes, int]] = field(default_factory=dict)
    seen: Pieces = field(default_factory=Pieces)


@dataclass(slots=True)
class Merged:
    """The entries of a checkpoint, by component, and what was worth a word."""

    tensors: dict[ComponentClass, list[TensorEntry]] = field(default_factory=dict)
    values: dict[ComponentClass, list[tuple[Key, bytes]]] = field(default_factory=dict)
    trainable: list[Key] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_logical: dict[ComponentClass, int] = field(default_factory=dict)


class Merger:
    """Takes fragments one by one."""

    def __init__(self) -> None:
        self._tensors: dict[Key, _Tensor] = {}
        self._values: dict[Key, tuple[ContributedValue, int]] = {}
        self._faults: list[str] = []
        self._doubled = 0

    def add(self, fragment: Fragment) -> None:
        """Take up one rank's part."""
        for tensor in fragment.tensors:
            self._add_tensor(tensor, fragment.rank)
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
        for tensor in self._tensors.values():
            self._check_seen(tensor, writer)
        merged = Merged()
        for key, tensor in self._tensors.items():
            first = tensor.first
            component = ComponentClass(first.component)
            if first.tied_to is None:
                entry = self._entry(tensor, writer)
                if entry is not None:
                    merged.tensors.setdefault(component, []).append(settle(entry))
                tensor.pieces, tensor.inline = Pieces(), {}
            if first.trainable:
                merged.trainable.append(key)
            size = nbytes(first.dtype, first.shape)
            merged.bytes_logical[component] = merged.bytes_logical.get(component, 0) + size
        self._add_tied(merged)
        for key, (value, _) in self._values.items():
            merged.values.setdefault(ComponentClass(value.component), []).append((key, value.data))
        if self._faults:
            shown = "; ".join(self._faults[:LISTED_NAMES_MAX])
            more = len(self._faults) - LISTED_NAMES_MAX
            raise StateMismatch(
                f"the ranks' states do not fit together: {shown}" + (f"; and {more} more" if more > 0 else ""),
                hint="nothing was committed; make the named state agree, or declare it per rank",
            )
        if self._doubled:
            merged.notes.append(f"{self._doubled} pieces were stored by more than one rank, with equal bytes")
        return merged

    # --- taking up ---------------------------------------------------------------------------------

    def _add_tensor(self, tensor: Contribution, rank: int) -> None:
        known = self._tensors.get(tensor.key)
        if known is None:
            known = self._tensors[tensor.key] = _Tensor(tensor, rank)
        elif (known.first.dtype, known.first.shape) != (tensor.dtype, tensor.shape):
            self._faults.append(
                f"{tensor.key} is {known.first.dtype}{list(known.first.shape)} on rank {known.rank} "
                f"and {tensor.dtype}{list(tensor.shape)} on rank {rank}"
            )
            return
        elif known.first.tied_to is not None and tensor.tied_to is None:
            known.first = tensor
        known.pieces.add(tensor.spans, tensor.regions, rank)
        if tensor.seen_spans or tensor.seen_regions:
            known.seen.add(tensor.seen_spans, tensor.seen_regions, rank)
        for shard in tensor.shards:
            data, holder = known.inline.setdefault((shard.offsets, shard.lengths), (shard.data, rank))
            if data != shard.data:
                self._differs(known, holder, rank)
            elif holder != rank:
                self._doubled += 1

    def _differs(self, tensor: _Tensor, one: int, other: int) -> None:
        text = f"{tensor.first.key} differs between ranks {min(one, other)} and {max(one, other)}"
        if text not in self._faults:
            self._faults.append(text)

    def _check_seen(self, tensor: _Tensor, writer: ChunkWriter) -> None:
        if not tensor.seen:
            return
        layout, axes = cached_grid(tensor.first.dtype, tensor.first.shape), len(tensor.first.shape)
        held = {place: (digest, rank) for place, digest, rank in tensor.pieces.each(axes)}
        inline = {
            place: (bytes(writer.digest(ContentType.CHUNK, data)), rank)
            for place, (data, rank) in tensor.inline.items()
        }
        for place, digest, rank in tensor.seen.each(axes):
            holder = held.get(place) or inline.get(_ends(layout.tile(place)) if isinstance(place, int) else place)
            if holder is not None and holder[0] != digest:
                self._differs(tensor, holder[1], rank)

    def _add_value(self, value: ContributedValue, rank: int) -> None:
        known = self._values.get(value.key)
        if known is None:
            self._values[value.key] = value, rank
        elif known[0].data != value.data:
            joined = _union(known[0], value) if value.union and known[0].union else None
            if joined is None:
                self._faults.append(f"value {value.key} differs between ranks {known[1]} and {rank}")
            else:
                self._values[value.key] = joined, known[1]

    # --- entries -----------------------------------------------------------------------------------

    def _entry(self, tensor: _Tensor, writer: ChunkWriter) -> TensorEntry | None:
        first = tensor.first
        layout = cached_grid(first.dtype, first.shape)
        axes, count = len(first.shape), layout.tile_count
        if not (tensor.pieces or tensor.inline or count):
            return TensorEntry(first.key, first.dtype, first.shape, inline=b"")
        tiles, held = tensor.pieces.tiles.held(1), tensor.pieces.regions.held(2 * axes)
        self._doubled += tiles.doubled + held.doubled
        for one, other in (*tiles.differing, *held.differing):
            self._differs(tensor, one, other)
        if len(tiles.ranks) == count and not len(held.ranks) and not tensor.inline:
            return TensorEntry(first.key, first.dtype, first.shape, tiles=tiles.digests.tobytes())
        boxes = [Box(*place) for place in tensor.inline]
        rows = [tile_rows(layout, tiles.places[:, 0]), held.places, rows_of(axes, boxes)]
        fault = uncovered_rows(first.shape, np.concatenate(rows))
        if fault:
            ranks = {*tiles.ranks.tolist(), *held.ranks.tolist(), *(rank for _, rank in tensor.inline.values())}
            self._faults.append(f"{first.key}: {fault} (of ranks {sorted(ranks)[:8]})")
            return None
        if not tensor.pieces:
            return _join(first, tensor.inline, writer)
        regions = _regions(held.places, held.digests)
        if len(tiles.ranks) or tensor.inline:
            regions += _regions(rows[0], tiles.digests)
            width = BITS[first.dtype] // 8
            for place, (data, _) in tensor.inline.items():
                regions.append(Region(*place, bytes(writer.put(ContentType.CHUNK, data, width))))
            regions.sort(key=attrgetter("offsets"))
        return TensorEntry(first.key, first.dtype, first.shape, regions=tuple(regions))

    def _add_tied(self, merged: Merged) -> None:
        stored = {entry.key: entry for entries in merged.tensors.values() for entry in entries}
        for key, tensor in self._tensors.items():
            if tensor.first.tied_to is None:
                continue
            source = stored.get(tensor.first.tied_to)
            if source is None:
                self._faults.append(f"{key} is tied to {tensor.first.tied_to}, which no rank holds")
                continue
            entry = msgspec.structs.replace(source, key=key, tied_to=source.key)
            merged.tensors.setdefault(ComponentClass(tensor.first.component), []).append(entry)


def _regions(rows: Rows, digests: Digests) -> list[Region]:
    axes = rows.shape[1] // 2
    columns = rows.T.tolist()
    offsets, lengths = zip(*columns[:axes], strict=True), zip(*columns[axes:], strict=True)
    return list(map(Region, offsets, lengths, split(digests.tobytes())))


def _ends(box: Box) -> tuple[Ints, Ints]:
    return box.offsets, box.lengths


def _join(tensor: Contribution, shards: dict[tuple[Ints, Ints], tuple[bytes, int]], writer: ChunkWriter) -> TensorEntry:
    """A tensor whose bytes all came along: put together, then in line or in tiles."""
    width = max(BITS[tensor.dtype] // 8, 1)
    whole = np.empty((*tensor.shape, width), np.uint8)
    for (offsets, lengths), (data, _) in shards.items():
        slices = tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True))
        whole[slices] = np.frombuffer(data, np.uint8).reshape(*lengths, width)
    if whole.nbytes <= INLINE_BYTES_MAX:
        return TensorEntry(tensor.key, tensor.dtype, tensor.shape, inline=whole.tobytes())
    layout = cached_grid(tensor.dtype, tensor.shape)
    digests = []
    for number in range(layout.tile_count):
        box = layout.tile(number)
        slices = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.lengths, strict=True))
        digests.append(writer.put(ContentType.CHUNK, np.ascontiguousarray(whole[slices]).reshape(-1).data, width))
    return TensorEntry(tensor.key, tensor.dtype, tensor.shape, tiles=b"".join(digests))


def _union(one: ContributedValue, other: ContributedValue) -> ContributedValue | None:
    """Containers of one kind with the keys of both; None if they are something else."""
    a, b = decode_value(one.data, str(one.key)), decode_value(other.data, str(one.key))
    if not (isinstance(a, Container) and isinstance(b, Container) and a.kind == b.kind):
        return None
    keys = tuple(dict.fromkeys((*a.keys, *b.keys)))
    if a.kind not in ("dict", "list", "tuple"):  # sets of names, which have no order
        keys = tuple(sorted(keys, key=str))
    return msgspec.structs.replace(one, data=encode_value(Container(a.kind, keys), str(one.key)))
