"""Joining fragments in the plainest way: a dictionary entry for each piece, and a count for each element."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from cairn.core.limits import INLINE_BYTES_MAX
from cairn.manifests.dtypes import BITS
from cairn.manifests.pieces import cached_grid
from cairn.manifests.schema import Key, Region, TensorEntry
from cairn.manifests.tiling import Box
from cairn.training.fragment import Declared

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Share:
    """A piece that some rank holds: `kind` as a column of a contribution, `box` and `tile` where it lies."""

    rank: int
    key: Key
    kind: str
    box: Box
    tile: int
    data: bytes

    @property
    def place(self) -> tuple[int, ...]:
        """As in a column."""
        return (self.tile,) if self.kind.endswith("tiles") else (*self.box.offsets, *self.box.lengths)

    @property
    def content(self) -> bytes:
        """As in a column."""
        return self.data if self.kind == "shards" else digest(self.data)


@dataclass
class Joined:
    """What comes of it; a fault that names two parts that overlap is cut off before them."""

    entries: dict[Key, TensorEntry] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)
    doubled: int = 0


def digest(data: bytes) -> bytes:
    """Some digest."""
    return sha256(data).digest()


def join(ranks: Sequence[tuple[int, Sequence[Declared], Sequence[Share]]]) -> Joined:
    """Join what ranks say, in this order."""
    joined, known = Joined(), dict[Key, tuple[Declared, int]]()
    of: dict[Key, list[Share]] = {}
    for rank, declared, shares in ranks:
        for one in declared:
            first, holder = known.setdefault(one.key, (one, rank))
            if (first.dtype, first.shape) != (one.dtype, one.shape):
                joined.faults.add(
                    f"{one.key} is {first.dtype}{list(first.shape)} on rank {holder} "
                    f"and {one.dtype}{list(one.shape)} on rank {rank}"
                )
            else:
                of.setdefault(one.key, []).extend(share for share in shares if share.key == one.key)
    for key, (first, _) in known.items():
        entry = _entry(joined, first, of.get(key, []))
        if entry is not None:
            joined.entries[key] = entry
    return joined


def _entry(joined: Joined, first: Declared, shares: Sequence[Share]) -> TensorEntry | None:
    kinds: dict[str, dict[Box, Share]] = {"tiles": {}, "regions": {}, "shards": {}}
    for share in shares:
        if not share.kind.startswith("seen"):
            other = kinds[share.kind].setdefault(share.box, share)
            if other.data != share.data:
                joined.faults.add(_differs(other, share))
            elif other.rank != share.rank:
                joined.doubled += 1
    held = kinds["shards"] | kinds["regions"] | kinds["tiles"]
    for share in shares:
        other = held.get(share.box, share)
        if share.kind.startswith("seen") and other.data != share.data:
            joined.faults.add(_differs(other, share))
    counts = np.zeros(first.shape, np.int64)
    for box in (box for of in kinds.values() for box in of):
        counts[_slices(box)] += 1
    ranks = f"(of ranks {sorted({share.rank for share in held.values()})[:8]})"
    if (counts > 1).any():
        joined.faults.add(f"{first.key}: parts at")
        return None
    if (counts == 0).any():
        lacking = f"{(counts == 0).sum()} of its {counts.size} elements are held by no rank"
        joined.faults.add(f"{first.key}: {lacking} {ranks}")
        return None
    if not counts.size:
        return TensorEntry(first.key, first.dtype, first.shape, inline=b"")
    if all(share.kind == "shards" for share in held.values()):
        return _whole(first, held)
    if all(share.tile >= 0 and share.kind == "tiles" for share in held.values()):
        ordered = sorted(held.values(), key=lambda share: share.tile)
        return TensorEntry(first.key, first.dtype, first.shape, tiles=b"".join(digest(one.data) for one in ordered))
    boxes = sorted(held, key=lambda box: box.offsets)
    regions = tuple(Region(box.offsets, box.lengths, digest(held[box].data)) for box in boxes)
    return TensorEntry(first.key, first.dtype, first.shape, regions=regions)


def _whole(first: Declared, held: dict[Box, Share]) -> TensorEntry:
    width = BITS[first.dtype] // 8
    whole = np.zeros((*first.shape, width), np.uint8)
    for box, share in held.items():
        whole[_slices(box)] = np.frombuffer(share.data, np.uint8).reshape(*box.lengths, width)
    if whole.nbytes <= INLINE_BYTES_MAX:
        return TensorEntry(first.key, first.dtype, first.shape, inline=whole.tobytes())
    layout = cached_grid(first.dtype, first.shape)
    tiles = [digest(whole[_slices(layout.tile(number))].tobytes()) for number in range(layout.tile_count)]
    return TensorEntry(first.key, first.dtype, first.shape, tiles=b"".join(tiles))


def _differs(one: Share, other: Share) -> str:
    return f"{one.key} differs between ranks {min(one.rank, other.rank)} and {max(one.rank, other.rank)}"


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(box.offsets, box.lengths, strict=True))
