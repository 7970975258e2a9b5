"""Joining fragments: in columns as one piece at a time, whatever ranks hold, lack or disagree on."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError, StateMismatch
from cairn.manifests.dtypes import BITS
from cairn.manifests.schema import Key, TensorEntry
from cairn.manifests.tiling import Box
from cairn.registry.envelope import Stages
from cairn.store.crypto.components import ComponentClass
from cairn.store.written import WriteCounts
from cairn.training.fragment import Column, Contribution, Declared, Fragment
from cairn.training.merge import Merged, Merger
from cairn.training.ownership import deal
from cairn.training.placements import Split, local_parts, replica_of
from tests.training.merges import Joined, Share, digest, join

KINDS = ("tiles", "regions", "shards", "seen_tiles", "seen_regions")
# With one tile, with several along one axis or two, with none.
SHAPES = [
    ("uint8", ()), ("float32", (5,)), ("float64", (0, 3)), ("bfloat16", (7, 3)), ("int16", (3, 4, 5)),
    ("uint8", (1_300_000,)), ("float32", (1000, 700)), ("uint8", (1024, 4096)),
]  # fmt: skip
Rank = tuple[int, list[Declared], list[Share]]


class Chunks:
    """A writer that stores nothing."""

    def digest(self, kind: object, data: Any) -> bytes:
        return digest(bytes(data))

    def put(self, kind: object, data: Any, width: int = 1) -> bytes:
        return digest(bytes(data))


def fragment(rank: int, declared: Sequence[Declared], shares: Sequence[Share]) -> Fragment:
    """What a rank sends."""
    columns = []
    for kind in KINDS:
        of = {one.key: [(s.place, s.content) for s in shares if (s.key, s.kind) == (one.key, kind)] for one in declared}
        columns.append(Column.of([sorted(of[one.key], key=lambda piece: piece[0]) for one in declared]))
    tensors = Contribution(encode(list(declared)), *columns)
    return Fragment(rank, 1, bytes(16), 0, 0, tensors, (), b"", (), WriteCounts(), Stages())


def finish(merger: Merger) -> Merged:
    """All that was added, joined."""
    return merger.finish(Chunks(), lambda entry: entry)  # type: ignore[arg-type]  # joining asks for no more


def merged(ranks: Sequence[Rank]) -> Joined:
    """What the product makes of it."""
    merger = Merger()
    for one in ranks:
        merger.add(fragment(*one))
    try:
        found = finish(merger)
    except StateMismatch as error:
        faults = error.message.removeprefix("the ranks' states do not fit together: ").split("; ")
        return Joined(faults={re.sub(r"(parts at).*overlap.*", r"\1", fault) for fault in faults})
    entries: list[TensorEntry] = [entry for entries in found.tensors.values() for entry in entries]
    doubled = sum(int(note.split()[0]) for note in found.notes)
    return Joined({entry.key: entry for entry in entries}, set(), doubled)


@st.composite
def jobs(draw: st.DrawFn) -> list[Rank]:
    """The ranks of a mesh, each with its part of some tensors."""
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    ranks: list[Rank] = [(rank, [], []) for rank in range(prod(mesh))]
    for number, (dtype, shape) in enumerate(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))):
        axis = st.integers(0, len(shape) - 1) if shape else st.nothing()
        placements = tuple(draw(st.none() | axis.map(Split)) for _ in mesh)
        one = Declared(Key("model", (f"w{number}",)), int(ComponentClass.WEIGHTS), dtype, shape)
        whole = np.random.default_rng(number).integers(0, 256, (*shape, BITS[dtype] // 8), np.uint8)
        along, check = draw(st.booleans()), draw(st.booleans())
        for (rank, declared, shares), place in zip(ranks, np.ndindex(mesh), strict=True):
            parts = local_parts(shape, mesh, place, placements)
            declared.append(one)
            for _, piece, stored in deal(one.key, dtype, shape, parts, replica_of(mesh, place, placements)):
                kind = "tiles" if piece.tile >= 0 else "regions"
                if not stored:
                    kind = f"seen_{kind}"
                elif along and draw(st.booleans()):
                    kind = "shards"
                if stored or check:
                    data = whole[_slices(piece.box)].tobytes()
                    shares.append(Share(rank, one.key, kind, piece.box, piece.tile, data))
    return ranks


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(box.offsets, box.lengths, strict=True))


@st.composite
def disturbed(draw: st.DrawFn) -> list[Rank]:
    """A job where some ranks lack, repeat or change what they hold, or declare another shape."""
    ranks = draw(jobs())
    for how in draw(st.lists(st.sampled_from(["lack", "repeat", "change", "move", "declare"]), max_size=3)):
        _, declared, shares = ranks[draw(st.integers(0, len(ranks) - 1))]
        other = ranks[draw(st.integers(0, len(ranks) - 1))]
        if how == "declare":
            at = draw(st.integers(0, len(declared) - 1))
            declared[at] = Declared(declared[at].key, declared[at].component, "int8", (3, 1))
            shares[:] = [share for share in shares if share.key != declared[at].key]
        elif shares:
            at = draw(st.integers(0, len(shares) - 1))
            share = shares[at]
            if how == "lack":
                del shares[at]
            elif how == "repeat" and {one.key: one.shape for one in declared} == {
                one.key: one.shape for one in other[1]
            }:
                other[2].append(replace(share, rank=other[0], kind=share.kind.removeprefix("seen_")))
            elif how == "change":
                shares[at] = replace(share, data=bytes([share.data[0] ^ 1]) + share.data[1:])
            elif how == "move" and share.kind == "regions" and share.box.offsets[0]:
                box = Box((share.box.offsets[0] - 1, *share.box.offsets[1:]), share.box.lengths)
                shares[at] = replace(share, box=box)
    return ranks


@settings(max_examples=150, deadline=None)
@given(disturbed())
def test_columns_say_what_single_pieces_do(ranks: list[Rank]) -> None:
    expected, found = join(ranks), merged(ranks)
    event("faults" if expected.faults else "none")
    assert found.faults == expected.faults
    if not expected.faults:
        assert found.entries == expected.entries
        assert found.doubled == expected.doubled


def test_ranks_that_declare_alike_share_what_is_known_of_their_tensors() -> None:
    declared = [Declared(Key("model", ("w",)), 1, "uint8", (4,))]
    other = [Declared(Key("model", ("w",)), 1, "uint8", (5,))]
    ranks: list[Rank] = [(rank, other if rank else declared, []) for rank in range(3)]
    assert merged(ranks).faults >= {
        "model:w is uint8[4] on rank 0 and uint8[5] on rank 1", "model:w is uint8[4] on rank 0 and uint8[5] on rank 2",
    }  # fmt: skip


WHOLE = Column.of([[((0, 4), b"abcd")]])
BROKEN = {
    "runs": Column(WHOLE.runs[:-1], WHOLE.places, WHOLE.contents),
    "places": Column(WHOLE.runs, WHOLE.places[:-8], WHOLE.contents),
    "contents": Column(WHOLE.runs, WHOLE.places, WHOLE.contents[:-1]),
    "tensor": Column.of([[], [((0, 4), b"abcd")]]),
    "bytes": Column.of([[((0, 3), b"abcd")]]),
}


@pytest.mark.parametrize("column", BROKEN.values(), ids=BROKEN)
def test_a_column_whose_parts_do_not_fit_is_refused_with_its_rank(column: Column) -> None:
    merger, good = Merger(), fragment(7, [Declared(Key("model", ("w",)), 1, "uint8", (4,))], [])
    tensors = Contribution(good.tensors.declared, shards=column)
    with pytest.raises(IntegrityError, match="fragment of rank 7"):
        merger.add(Fragment(7, 1, bytes(16), 0, 0, tensors, (), b"", (), WriteCounts(), Stages()))
        finish(merger)


def test_a_tile_that_no_grid_has_is_refused_with_its_rank() -> None:
    key = Key("model", ("w",))
    share = Share(3, key, "tiles", Box((0,), (4,)), 1, b"abcd")
    with pytest.raises(IntegrityError, match="fragment of rank 3 holds tile 1 of model:w, of 1"):
        merged([(3, [Declared(key, 1, "uint8", (4,))], [share])])


def test_a_list_that_does_not_decode_is_refused_with_its_rank() -> None:
    fault = Fragment(5, 1, bytes(16), 0, 0, Contribution(b"\xc1"), (), b"", (), WriteCounts(), Stages())
    with pytest.raises(IntegrityError, match="fragment of rank 5 does not decode"):
        Merger().add(fault)
