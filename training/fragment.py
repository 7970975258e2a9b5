"""Fragments: what one rank contributes to a checkpoint.

A fragment names pieces by digest, so it is sealed under the attempt's key, which only the ranks of the job know, and is
of no use once the attempt has ended.
"""

import struct
from collections.abc import Sequence

import msgspec

from cairn.manifests.schema import Key
from cairn.registry.envelope import Stages
from cairn.store.written import WriteCounts

Ints = tuple[int, ...]


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Digests of neighbouring tiles, 32 bytes each, from number `first` on."""

    first: int
    digests: bytes

    def __repr__(self) -> str:
        return f"Span({self.first}, <secret>)"


class Regions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Boxes that are no tiles, packed, since a coordinator takes up millions.

    Args:
        boxes: of each its offsets, then its lengths, as int64, little-endian.
        digests: 32 bytes of each, in the same order.
    """

    boxes: bytes = b""
    digests: bytes = b""

    @staticmethod
    def of(found: Sequence[tuple[Ints, Ints, bytes]]) -> "Regions":
        """Offsets, lengths and digest of each."""
        numbers = [number for offsets, lengths, _ in found for number in (*offsets, *lengths)]
        return Regions(struct.pack(f"<{len(numbers)}q", *numbers), b"".join(digest for _, _, digest in found))

    def __repr__(self) -> str:
        return f"Regions({len(self.digests) // 32}, <secret>)"


class Shard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A small box by offsets and lengths, with the bytes themselves."""

    offsets: Ints
    lengths: Ints
    data: bytes

    def __repr__(self) -> str:
        return f"Shard({list(self.offsets)}, {list(self.lengths)}, <secret>)"


class Contribution(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What a rank holds of one tensor.

    Args:
        spans, regions: what it stored.
        shards: what comes along, for the coordinator to store.
        seen_spans, seen_regions: digests of replicas that others store.
    """

    key: Key
    component: int
    dtype: str
    shape: Ints
    spans: tuple[Span, ...] = ()
    regions: Regions | None = None
    shards: tuple[Shard, ...] = ()
    seen_spans: tuple[Span, ...] = ()
    seen_regions: Regions | None = None
    trainable: bool = False
    tied_to: Key | None = None


class ContributedValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plain value, encoded; `union` as in the leaf."""

    key: Key
    component: int
    data: bytes
    union: bool = False

    def __repr__(self) -> str:
        return f"ContributedValue({self.key}, <secret>)"


class Fragment(msgspec.Struct, frozen=True):
    """One rank's part of one attempt.

    Args:
        pieces: what it uploaded, as an index piece (see `store/index.py`).
        relied: numbers of packs of others that it relies on.
        hit_position: log position that its hits are good for.
        coordinates: of the rank, for people (`dp=0,tp=1`, or its number).
        replan: whether ranks should agree anew on who stores what, since the state's structure changed here.
    """

    rank: int
    step: int
    session: bytes
    epoch: int
    hit_position: int
    tensors: tuple[Contribution, ...]
    values: tuple[ContributedValue, ...]
    pieces: bytes
    relied: tuple[int, ...]
    counts: WriteCounts
    stages: Stages
    host: str = ""
    replan: bool = False
    notes: tuple[str, ...] = ()
