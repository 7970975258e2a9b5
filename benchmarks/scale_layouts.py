"""A training state of Llama 3.1 405B with Adam as ranks of any layout hold it, without any of its bytes.

Weights are bfloat16, both moments float32, steps scalars. Tensor parallelism splits a matrix as Megatron does, pipeline
stages take whole layers, and data-parallel ranks split the rows of what is left of every tensor.
"""

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from models import Shape

from cairn.manifests.dtypes import BITS
from cairn.manifests.pieces import cached_grid
from cairn.manifests.schema import Key
from cairn.store.crypto.components import ComponentClass
from cairn.training.capture import CapturePlan, plan_capture
from cairn.training.encode import Found, contribution_of, inline_slots
from cairn.training.fragment import Column, Contribution
from cairn.training.leaves import TensorLeaf
from cairn.training.ownership import name_hash
from cairn.training.placements import Placements, Split, local_parts, replica_of
from cairn.training.sharded import Holding

LAYERS, HIDDEN, WIDE, VOCABULARY = 126, 16384, 53248, 128256


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensor, pipeline and data parallelism; ranks count in this order, the first fastest."""

    tp: int
    pp: int
    dp: int

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.dp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Coordinates (tp, pp, dp) of a rank."""
        return rank % self.tp, rank // self.tp % self.pp, rank // self.tp // self.pp

    @staticmethod
    def parse(text: str) -> "Layout":
        """`TP,PP,DP`."""
        return Layout(*map(int, text.split(",")))


@dataclass(frozen=True, slots=True)
class Declared:
    """One tensor of the state: its name, type, shape, the axis that tensor parallelism splits, and its layer."""

    key: Key
    component: ComponentClass
    dtype: str
    shape: Shape
    split: int | None
    layer: int

    def stage(self, stages: int, layers: int) -> int:
        """The pipeline stage that holds it."""
        return self.layer * stages // layers


@cache
def declared(layers: int = LAYERS) -> tuple[Declared, ...]:
    """All tensors."""
    found = []
    for name, shape, split, layer in _weights(layers):
        found.append(Declared(Key("model", (name,)), ComponentClass.WEIGHTS, "bfloat16", shape, split, layer))
        for kind, of in (("exp_avg", shape), ("exp_avg_sq", shape), ("step", ())):
            key = Key("optimizer", ("state", name, kind))
            found.append(Declared(key, ComponentClass.OPTIMIZER, "float32", of, split if of else None, layer))
    return tuple(found)


def _weights(layers: int) -> Iterator[tuple[str, Shape, int | None, int]]:
    yield "embed_tokens.weight", (VOCABULARY, HIDDEN), 0, 0
    for layer in range(layers):
        of = f"layers.{layer}."
        yield of + "attention.wq.weight", (HIDDEN, HIDDEN), 0, layer
        yield of + "attention.wk.weight", (1024, HIDDEN), 0, layer
        yield of + "attention.wv.weight", (1024, HIDDEN), 0, layer
        yield of + "attention.wo.weight", (HIDDEN, HIDDEN), 1, layer
        yield of + "feed_forward.w1.weight", (WIDE, HIDDEN), 0, layer
        yield of + "feed_forward.w3.weight", (WIDE, HIDDEN), 0, layer
        yield of + "feed_forward.w2.weight", (HIDDEN, WIDE), 1, layer
        yield of + "attention_norm.weight", (HIDDEN,), None, layer
        yield of + "ffn_norm.weight", (HIDDEN,), None, layer
    yield "norm.weight", (HIDDEN,), None, layers - 1
    yield "output.weight", (VOCABULARY, HIDDEN), 0, layers - 1


def cuts_of(layout: Layout, rank: int, layers: int = LAYERS) -> Iterator[tuple[Key, tuple[int, ...]]]:
    """What tells which part of which tensor a rank holds, without the part itself."""
    tp, pp, dp = layout.place(rank)
    for one in declared(layers):
        if one.stage(layout.pp, layers) == pp:
            yield one.key, _cut(one, (tp, dp))


def _cut(one: Declared, at: tuple[int, int]) -> tuple[int, ...]:
    """The coordinates that matter to what is held of a tensor."""
    placements = _placements(one.split, len(one.shape))
    return tuple(place for place, split in zip(at, placements, strict=True) if split is not None)


def leaves_of(layout: Layout, rank: int, layers: int = LAYERS) -> list[TensorLeaf]:
    """What a rank holds. Local tensors have shapes and no memory of their own; of a stage's mesh each tells."""
    tp, pp, dp = layout.place(rank)
    return [
        _leaf(one, (layout.tp, layout.dp), (tp, dp)) for one in declared(layers) if one.stage(layout.pp, layers) == pp
    ]


def _placements(split: int | None, axes: int) -> Placements:
    if not axes:
        return None, None
    return None if split is None else Split(split), Split(0)


@dataclass(frozen=True, slots=True)
class _Form:
    """What a rank holds of a tensor of some form: places of tiles, of regions and of shards, and bytes of each."""

    tiles: list[tuple[int, ...]]
    regions: list[tuple[int, ...]]
    shards: list[tuple[int, ...]]
    lengths: list[int]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's contribution, and the digests that it names with the lengths of their chunks."""

    contribution: Contribution
    digests: bytes
    lengths: list[int]


class Shares:
    """What ranks contribute, one after the other, with random digests.

    What a rank holds of a tensor of some type, shape and split is planned once by the product's code, and taken again
    for every other tensor of that form.
    """

    def __init__(self, layout: Layout, layers: int = LAYERS) -> None:
        self._layout, self._mesh, self._layers = layout, (layout.tp, layout.dp), layers
        self._along: dict[int, set[Key]] = {}
        self._declared: dict[int, bytes] = {}
        self._forms: dict[tuple[object, ...], _Form] = {}
        self._of_stage = [
            [(one, name_hash(one.key)) for one in declared(layers) if one.stage(layout.pp, layers) == stage]
            for stage in range(layout.pp)
        ]

    def of(self, rank: int) -> Share:
        """One rank's."""
        tp, pp, dp = self._layout.place(rank)
        if pp not in self._along:
            # Which bytes come along in the fragment depends on all that a rank has; in a stage all have about the same.
            leaves = leaves_of(self._layout, rank, self._layers)
            plan = plan_capture(leaves, [None] * len(leaves), check=False)
            self._along[pp] = {leaves[number].key for number in inline_slots(plan, leaves)}
            self._declared[pp] = contribution_of(leaves, [Found() for _ in leaves]).declared
        forms = [self._form(one, first, (tp, dp), one.key in self._along[pp]) for one, first in self._of_stage[pp]]
        tiles, regions, shards = Random(), Random(), Random()
        for number, form in enumerate(forms):
            tiles.add(number, form.tiles, 32 * len(form.tiles))
            regions.add(number, form.regions, 32 * len(form.regions))
            shards.add(number, form.shards, sum(form.sizes))
        columns = tiles.column(), regions.column(), shards.column()
        lengths = [one for form in forms for one in form.lengths[: len(form.tiles)]]
        lengths += [one for form in forms for one in form.lengths[len(form.tiles) :]]
        return Share(Contribution(self._declared[pp], *columns), columns[0].contents + columns[1].contents, lengths)

    def _form(self, one: Declared, first: int, at: tuple[int, int], along: bool) -> _Form:
        # Who stores what of a replicated tensor follows from its name and the rank's number among those that hold it.
        placements = _placements(one.split, len(one.shape))
        index, count = replica_of(self._mesh, at, placements)
        name = one.dtype, one.shape, one.split, _cut(one, at), (first - index) % count, along
        form = self._forms.get(name)
        if form is None:
            form = self._forms[name] = _form(_leaf(one, self._mesh, at), along)
        return form


class Random:
    """A column whose contents are random."""

    def __init__(self) -> None:
        self._runs, self._places, self._size = array("q"), array("q"), 0

    def add(self, tensor: int, places: Sequence[tuple[int, ...]], size: int) -> None:
        """Some pieces of a tensor, and the bytes of their contents."""
        if places:
            self._runs.extend((tensor, len(places), size))
            self._places.extend(number for place in places for number in place)
            self._size += size

    def column(self) -> Column:
        """The column."""
        return Column(self._runs.tobytes(), self._places.tobytes(), os.urandom(self._size))


def _leaf(one: Declared, mesh: tuple[int, int], at: tuple[int, int]) -> TensorLeaf:
    placements = _placements(one.split, len(one.shape))
    parts = local_parts(one.shape, mesh, at, placements)
    # A shape and no memory of its own.
    local = torch.empty((), dtype=getattr(torch, one.dtype)).expand(parts[0].local.lengths if parts else (0,))
    holding = Holding(one.shape, local, parts, replica_of(mesh, at, placements))
    return TensorLeaf(one.key, one.component, one.dtype, one.shape, (holding,), prod(mesh))


def _form(leaf: TensorLeaf, along: bool) -> _Form:
    plan = plan_capture([leaf], [None], check=False)
    (found,) = found_of(plan, {0} if along else set(), 1)
    tiles, regions, shards = (
        [place for place, _ in sorted(kind)] for kind in (found.tiles, found.regions, found.shards)
    )
    width, layout, axes = BITS[leaf.dtype] // 8, cached_grid(leaf.dtype, leaf.shape), len(leaf.shape)
    lengths = [layout.tile_bytes(number) for (number,) in tiles] + [prod(box[axes:]) * width for box in regions]
    return _Form(tiles, regions, shards, lengths, [prod(box[axes:]) * width for box in shards])


def found_of(plan: CapturePlan, small: set[int], leaves: int) -> list[Found]:
    """What storing a plan's pieces would find: random digests, and random bytes of the leaves in `small`."""
    found = [Found() for _ in range(leaves)]
    for slot in plan.slots:
        one = found[slot.leaf]
        for cut in slot.cuts:
            box = cut.piece.box
            if slot.leaf in small:
                one.shards.append(((*box.offsets, *box.lengths), os.urandom(box.volume * slot.width)))
            elif cut.piece.tile >= 0:
                one.tiles.append(((cut.piece.tile,), os.urandom(32)))
            else:
                one.regions.append(((*box.offsets, *box.lengths), os.urandom(32)))
    return found
