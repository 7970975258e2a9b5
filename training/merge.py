"""Joining fragments into a manifest: coverage, replicas, names. The coordinator's work.

Every declared element must be held exactly once; equal boxes with different bytes are an error that names the
ranks; what small shards brought along is joined into tiles.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from cairn.core.errors import StateMismatch
from cairn.core.ids import Digest
from cairn.core.limits import INLINE_BYTES_MAX, LISTED_NAMES_MAX
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.pieces import cached_grid, uncovered
from cairn.manifests.schema import Key, Region, TensorEntry
from cairn.manifests.tiling import Box
from cairn.manifests.values import Container, decode_value, encode_value
from cairn.store.chunkstore import ChunkWriter
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType
from cairn.training.fragment import ContributedValue, Contribution, Fragment

Place = int | tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class _Tensor:
    """All that is known of one tensor; `held` by tile number or box: digest or bytes, and the rank."""

    first: Contribution
    rank: int
    held: dict[Place, tuple[bytes, int]] = field(default_factory=dict)
    inline: dict[Place, tuple[bytes, int]] = field(default_factory=dict)
    seen: list[tuple[Place, bytes, int]] = field(default_factory=list)


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

    def finish(self, writer: ChunkWriter) -> Merged:
        """Check everything and make the entries.

        Args:
            writer: stores what small shards are joined into.

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
                    merged.tensors.setdefault(component, []).append(entry)
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
        for span in tensor.spans:
            for number in range(len(span.digests) // 32):
                self._hold(known, known.held, span.first + number, span.digests[32 * number : 32 * number + 32], rank)
        for shard in tensor.shards:
            kept = known.held if shard.data is None else known.inline
            self._hold(known, kept, (shard.offsets, shard.lengths), shard.data or shard.digest, rank)
        for span in tensor.seen_spans:
            for number in range(len(span.digests) // 32):
                known.seen.append((span.first + number, span.digests[32 * number : 32 * number + 32], rank))
        known.seen += [((shard.offsets, shard.lengths), shard.digest, rank) for shard in tensor.seen_shards]

    def _hold(
        self, tensor: _Tensor, kept: dict[Place, tuple[bytes, int]], place: Place, data: bytes, rank: int
    ) -> None:
        other = kept.setdefault(place, (data, rank))
        if other[0] != data:
            self._differs(tensor, other[1], rank)
        elif other[1] != rank:
            self._doubled += 1

    def _differs(self, tensor: _Tensor, one: int, other: int) -> None:
        text = f"{tensor.first.key} differs between ranks {min(one, other)} and {max(one, other)}"
        if text not in self._faults:
            self._faults.append(text)

    def _check_seen(self, tensor: _Tensor, writer: ChunkWriter) -> None:
        inline = {
            place: (bytes(writer.digest(ContentType.CHUNK, data)), rank)
            for place, (data, rank) in (tensor.inline.items() if tensor.seen else ())
        }
        for place, digest, rank in tensor.seen:
            holder = tensor.held.get(place) or inline.get(_ends(_box(tensor.first, place)))
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
        count = layout.tile_count
        if not tensor.inline and len(tensor.held) == count and all(isinstance(p, int) for p in tensor.held):
            tiles = b"".join(tensor.held[number][0] for number in range(count))
            if count == 0:
                return TensorEntry(first.key, first.dtype, first.shape, inline=b"")
            return TensorEntry(first.key, first.dtype, first.shape, tiles=tiles)
        boxes = [_box(first, place) for place in (*tensor.held, *tensor.inline)]
        fault = uncovered(first.shape, boxes)
        if fault:
            ranks = sorted({rank for _, rank in (*tensor.held.values(), *tensor.inline.values())})
            self._faults.append(f"{first.key}: {fault} (of ranks {ranks[:8]})")
            return None
        if not tensor.held:
            return _join(first, tensor.inline, writer)
        regions = [Region(*_ends(_box(first, place)), digest) for place, (digest, _) in tensor.held.items()]
        for place, (data, _) in tensor.inline.items():
            box, width = _box(first, place), BITS[first.dtype] // 8
            regions.append(Region(*_ends(box), bytes(writer.put(ContentType.CHUNK, data, width))))
        return TensorEntry(first.key, first.dtype, first.shape, regions=tuple(sorted(regions, key=_offsets)))

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


def _offsets(region: Region) -> tuple[int, ...]:
    return region.offsets


def _box(tensor: Contribution, place: Place) -> Box:
    return cached_grid(tensor.dtype, tensor.shape).tile(place) if isinstance(place, int) else Box(*place)


def _ends(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return box.offsets, box.lengths


def _join(tensor: Contribution, shards: dict[Place, tuple[bytes, int]], writer: ChunkWriter) -> TensorEntry:
    """A tensor whose bytes all came along: put together, then in line or in tiles."""
    width = max(BITS[tensor.dtype] // 8, 1)
    whole = np.empty((*tensor.shape, width), np.uint8)
    for place, (data, _) in shards.items():
        box = _box(tensor, place)
        slices = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.lengths, strict=True))
        whole[slices] = np.frombuffer(data, np.uint8).reshape(*box.lengths, width)
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


def stored_digests(entries: Iterable[TensorEntry]) -> Iterable[Digest]:
    """Digests of all chunks of fresh entries, which have no pages yet."""
    for entry in entries:
        for at in range(0, len(entry.tiles or b""), 32):
            yield Digest((entry.tiles or b"")[at : at + 32])
        for region in entry.regions:
            yield Digest(region.digest)
