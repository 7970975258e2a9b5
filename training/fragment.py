"""Fragments: what one rank contributes to a checkpoint.

A fragment names pieces by digest, so it is sealed under the attempt's key, which only the ranks of the job know, and is
of no use once the attempt has ended.
"""

import msgspec

from cairn.manifests.schema import Key
from cairn.registry.envelope import Stages
from cairn.store.chunkstore import WriteCounts

Box2 = tuple[tuple[int, ...], tuple[int, ...]]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Digests of neighbouring tiles, 32 bytes each, from number `first` on."""

    first: int
    digests: bytes

    def __repr__(self) -> str:
        return f"Span({self.first}, <secret>)"


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """A box that is no tile (offsets, lengths): its digest, or its bytes if they are few."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    digest: bytes = b""
    data: bytes | None = None

    def __repr__(self) -> str:
        return f"Shard({list(self.offsets)}, {list(self.lengths)}, <secret>)"


class Contribution(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank holds of one tensor.

    Args:
        spans, shards: what it stored.
        seen_spans, seen_shards: digests of replicas that others store.
    """

    key: Key
    component: int
    dtype: str
    shape: tuple[int, ...]
    spans: tuple[Span, ...] = ()
    shards: tuple[Shard, ...] = ()
    seen_spans: tuple[Span, ...] = ()
    seen_shards: tuple[Shard, ...] = ()
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
        packs, pieces: what it uploaded, as an index piece (see `store/index.py`).
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
