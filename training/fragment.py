"""Fragments: what one rank contributes to a checkpoint.

A fragment names pieces by digest, so it is sealed under the attempt's key, which only the ranks of the job know, and is
of no use once the attempt has ended. A job of thousands of ranks has millions of tensors' shares, so a fragment has
columns and no object for a share or a piece.
"""

import struct
from collections.abc import Sequence

import msgspec

from cairn.manifests.schema import Key
from cairn.registry.envelope import Stages
from cairn.store.written import WriteCounts

Ints = tuple[int, ...]
# Where a piece lies, and its digest or its bytes. A place is a tile's number, or a box's offsets and then its lengths.
Piece = tuple[Ints, bytes]


class Declared(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One tensor, whatever a rank holds of it."""

    key: Key
    component: int
    dtype: str
    shape: Ints
    trainable: bool = False
    tied_to: Key | None = None


class Column(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rank's pieces of one kind, in runs of one tensor each. Numbers are int64, little-endian.

    Args:
        runs: of each run three numbers: which tensor of the rank's list, how many pieces, bytes of their contents.
        places: of each piece the numbers that say where it lies.
        contents: of each piece its digest or its bytes.
    """

    runs: bytes = b""
    places: bytes = b""
    contents: bytes = b""

    @staticmethod
    def of(held: Sequence[Sequence[Piece]]) -> "Column":
        """Pieces of each tensor."""
        runs: list[int] = []
        places: list[int] = []
        contents: list[bytes] = []
        for tensor, pieces in enumerate(held):
            if pieces:
                runs += (tensor, len(pieces), sum(len(content) for _, content in pieces))
                places += (number for place, _ in pieces for number in place)
                contents += (content for _, content in pieces)
        return Column(_packed(runs), _packed(places), b"".join(contents))

    def __repr__(self) -> str:
        return f"Column({len(self.runs) // 24} runs, <secret>)"


class Contribution(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a rank holds of its tensors.

    Args:
        declared: the tensors, `Declared` each, as encoded: ranks of one kind say the same, byte for byte.
        tiles, regions: what it stored.
        shards: small boxes whose bytes come along, for the coordinator to store.
        seen_tiles, seen_regions: replicas that others store.
    """

    declared: bytes
    tiles: Column = Column()
    regions: Column = Column()
    shards: Column = Column()
    seen_tiles: Column = Column()
    seen_regions: Column = Column()


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
    tensors: Contribution
    values: tuple[ContributedValue, ...]
    pieces: bytes
    relied: tuple[int, ...]
    counts: WriteCounts
    stages: Stages
    host: str = ""
    replan: bool = False
    notes: tuple[str, ...] = ()


def _packed(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)
