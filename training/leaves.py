"""Leaves of a training state: tensors, with what this rank holds of them, and plain values."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from cairn.core.errors import RefusedError
from cairn.core.limits import LISTED_NAMES_MAX
from cairn.manifests.dtypes import BITS
from cairn.manifests.schema import Key, TensorEntry
from cairn.manifests.tiling import Box
from cairn.store.crypto.components import ComponentClass
from cairn.training.placements import Part
from cairn.training.sharded import Holding, holdings_of

Path = tuple[str | int, ...]

# Names of our spelling, which is torch's own without the prefix.
DTYPE_NAMES: dict[torch.dtype, str] = {
    dtype: name for name in BITS if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
# Tensors that hold all of themselves.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_QUANTIZED = {"quint8", "qint8", "qint32", "quint4x2", "quint2x4"}


@dataclass(slots=True, eq=False)
class TensorLeaf:
    """One tensor of the state on this rank.

    Args:
        holdings: local tensors and which boxes of the global one they are.
        told_ranks: of how many ranks its placements tell what they hold; 1 for a plain tensor. Copies on others are
            found by the layout exchange. None if its source says itself which copy is the main one.
        trainable: whether training changes it.
        tied_to: the first leaf that shares its memory.
        owner: identity of the parameter that it is, or whose state it is.
    """

    key: Key
    component: ComponentClass
    dtype: str
    shape: tuple[int, ...]
    holdings: tuple[Holding, ...]
    told_ranks: int | None
    trainable: bool = False
    tied_to: Key | None = None
    owner: int = 0

    @property
    def form(self) -> tuple[str, tuple[int, ...]]:
        """Dtype and global shape."""
        return self.dtype, self.shape


@dataclass(slots=True, eq=False)
class ValueLeaf:
    """One plain value; ranks that have it must agree, unless `union`: then it is a container, and its keys add up."""

    key: Key
    component: ComponentClass
    value: Any
    union: bool = False


Leaf = TensorLeaf | ValueLeaf


@dataclass(slots=True)
class Leaves:
    """All leaves of a state, and what was worth a word on the way.

    Args:
        lasting: number of tensors, the first ones, that may be the same objects from save to save.
    """

    tensors: list[TensorLeaf] = field(default_factory=list)
    values: list[ValueLeaf] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lasting: int = 0

    def add(self, leaf: "TensorLeaf | ValueLeaf") -> None:
        """Take up one leaf."""
        if isinstance(leaf, TensorLeaf):
            self.tensors.append(leaf)
        else:
            self.values.append(leaf)

    def extend(self, leaves: "Iterable[TensorLeaf | ValueLeaf]") -> None:
        """Take up several."""
        for leaf in leaves:
            self.add(leaf)


def tensor_leaf(key: Key, component: ComponentClass, tensor: object, trainable: bool = False) -> TensorLeaf:
    """The leaf of a tensor of any kind.

    Raises:
        RefusedError: it has no bytes (meta), no plain dense form, or a dtype that the format does not know.
    """
    plain = type(tensor) in _PLAIN
    holdings = None if plain else holdings_of(tensor, f"tensor {key}")
    told_ranks: int | None = 1
    if holdings is None:
        assert isinstance(tensor, torch.Tensor)
        if tensor.is_nested:
            _check_bytes(f"tensor {key}", tensor)  # before its shape, which it has not
        shape = tuple(tensor.shape)
        holdings = (whole(tensor),)
    else:
        shape = holdings[0].shape
        if isinstance(tensor, DTensor):
            told_ranks = tensor.device_mesh.size()
        elif holdings[0].replica[1] == 0:
            told_ranks = None
    local = holdings[0].local
    if not plain or not local.is_cpu or local.layout is not torch.strided:
        _check_bytes(f"tensor {key}", local)
    name = DTYPE_NAMES.get(local.dtype)
    if name is None or name in _QUANTIZED:
        raise RefusedError(
            f"tensor {key} has dtype {local.dtype}, which cannot be stored as plain bytes",
            hint="save its integer values and its scales as plain tensors",
        )
    return TensorLeaf(key, component, name, shape, holdings, told_ranks, trainable, None, id(tensor))


def whole(tensor: torch.Tensor) -> Holding:
    """The holding of a plain tensor: all of it."""
    shape = tuple(tensor.shape)
    box = Box((0,) * len(shape), shape)
    return Holding(shape, tensor, (Part(box, box),) if box.volume else (), (0, 1))


def _check_bytes(what: str, local: torch.Tensor) -> None:
    if local.is_meta:
        raise MetaTensor(what)
    if local.layout is not torch.strided or local.is_nested:
        raise RefusedError(
            f"{what} has layout {'nested' if local.is_nested else local.layout}, which has no dense bytes",
            hint="save its parts (indices, values) as plain tensors",
        )


class MetaTensor(RefusedError):
    """Tensors on the meta device: they have shapes and no bytes."""

    def __init__(self, *names: str) -> None:
        listed = ", ".join(names[:LISTED_NAMES_MAX])
        super().__init__(
            f"{len(names)} tensors are on the meta device and have no bytes: {listed}",
            hint="materialise or load them before saving",
        )
        self.names = names

    @staticmethod
    def gather(parts: "Iterable[Iterable[Leaf]]") -> "Iterator[Leaf]":
        """All leaves of some iterators; raises once, with the names of all that have no bytes."""
        names: list[str] = []
        for part in parts:
            try:
                yield from part
            except MetaTensor as error:
                names += error.names
        if names:
            raise MetaTensor(*names)


def memory_marks(tensor: Any) -> tuple[int, int]:
    """What tells a tensor object and where its memory lies; cheap."""
    local = getattr(tensor, "_local_tensor", tensor)
    try:
        return id(tensor), local.data_ptr()
    except RuntimeError:  # a wrapper without memory of its own: told apart by its parts
        return id(tensor), 0


@dataclass(slots=True)
class StoredScope:
    """What a checkpoint holds under one prefix: entries by their path below it."""

    tensors: dict[Path, TensorEntry] = field(default_factory=dict)
    values: dict[Path, Callable[[], Any]] = field(default_factory=dict)

    def below(self, prefix: Path) -> "StoredScope":
        """What stands under a longer prefix."""
        n = len(prefix)
        return StoredScope(
            {path[n:]: entry for path, entry in self.tensors.items() if path[:n] == prefix},
            {path[n:]: value for path, value in self.values.items() if path[:n] == prefix},
        )

    def children(self) -> dict[str | int, "StoredScope"]:
        """What stands under each first segment; itself, at the empty path, belongs to none."""
        found: dict[str | int, StoredScope] = {}
        for path, entry in self.tensors.items():
            if path:
                found.setdefault(path[0], StoredScope()).tensors[path[1:]] = entry
        for path, value in self.values.items():
            if path:
                found.setdefault(path[0], StoredScope()).values[path[1:]] = value
        return found


@dataclass(slots=True, eq=False)
class Read:
    """One stored tensor to be read into what this rank holds of it."""

    entry: TensorEntry
    leaf: TensorLeaf


@dataclass(slots=True)
class Binding:
    """How a stored scope fits a part of the live state.

    Args:
        reads: tensors to fill.
        missing: names that the state has and the checkpoint lacks; `extra` the other way round.
        problems: what does not fit, each naming its tensor or value.
        notes: what is told in the report: casts, skips, defaults.
        finish: called when all tensors are filled; puts plain values in place, returns more notes. Those of
            `last` (random states) are called after all others.
    """

    reads: list[Read] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    finish: list[Callable[[], list[str]]] = field(default_factory=list)
    last: list[Callable[[], list[str]]] = field(default_factory=list)

    def add(self, other: "Binding") -> None:
        """Take up another part's."""
        for name in ("reads", "missing", "extra", "problems", "notes", "finish", "last"):
            getattr(self, name).extend(getattr(other, name))

    def match(self, leaves: Mapping[Path, TensorLeaf], stored: Mapping[Path, TensorEntry]) -> None:
        """Pair targets with stored tensors by path, and note what has no partner."""
        for path, leaf in leaves.items():
            entry = stored.get(path)
            if entry is None:
                self.missing.append(str(leaf.key))
            else:
                self.reads.append(Read(entry, leaf))
        self.extra.extend(str(stored[path].key) for path in stored.keys() - leaves.keys())
