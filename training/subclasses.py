"""Tensor subclasses (quantised weights, jagged tensors) by the plain tensors that they are made of.

Whatever follows torch's `__tensor_flatten__` protocol is taken apart, recursively. The parts are tensors of their
own in the manifest, under the name of the whole; the whole is recorded as a container of its class, with the plain
data that it flattens to beside its tensors: bytes of another block size mean something else.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cairn.core.errors import RefusedError
from cairn.manifests.schema import Key
from cairn.manifests.values import Container, encode_value
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import StoredScope, TensorLeaf, ValueLeaf, tensor_leaf
from cairn.training.plaindata import plain, unplain

SUBCLASS = "tensor:"
# Beside the parts stands the plain data; no attribute of a tensor has that name.
SIDE_DATA = "(side data)"
# Lengths that a jagged tensor remembers once they were asked for; they follow from its offsets.
_REMEMBERED = ("_min_seqlen_tensor", "_max_seqlen_tensor")


def flat_leaves(
    key: Key, component: ComponentClass, tensor: Any, trainable: bool = False
) -> Iterator[TensorLeaf | ValueLeaf]:
    """The leaf of a tensor, or of each part of a subclass and the container that they make.

    Raises:
        RefusedError: a part cannot be stored; names it.
    """
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) or not is_wrapper(tensor):
        yield tensor_leaf(key, component, tensor, trainable)
        return
    names = part_names(tensor)
    yield ValueLeaf(key, component, Container(class_of(tensor), (*names, SIDE_DATA)))
    yield ValueLeaf(Key(key.scope, (*key.path, SIDE_DATA)), component, side_data(tensor))
    for name in names:
        part = Key(key.scope, (*key.path, name))
        yield from flat_leaves(part, component, getattr(tensor, name), trainable)


def is_wrapper(tensor: Any) -> bool:
    """Whether a tensor is made of other tensors, and not sharded over ranks."""
    return (
        isinstance(tensor, torch.Tensor) and not isinstance(tensor, DTensor) and is_traceable_wrapper_subclass(tensor)
    )


def part_names(tensor: Any) -> list[str]:
    """Attributes of a subclass that hold the tensors which it is made of."""
    return [name for name in tensor.__tensor_flatten__()[0] if name not in _REMEMBERED]


def class_of(tensor: Any) -> str:
    """What a container of this subclass is called."""
    kind = type(tensor)
    return f"{SUBCLASS}{kind.__module__}.{kind.__qualname__}"


def side_data(tensor: Any) -> Any:
    """The plain part of what a subclass flattens to beside its tensors."""
    context = tensor.__tensor_flatten__()[1]
    if not isinstance(context, dict):
        return plain(context) if _is_plain(context) else None
    return {name: plain(value) for name, value in context.items() if name != "requires_grad" and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    try:
        encode_value(plain(value), "side data")
    except RefusedError:
        return False
    return True


def misfit(key: Key, stored: StoredScope, tensor: Any) -> str:
    """Why a stored container is not the same kind of tensor as one here; empty if it is."""
    read, beside = stored.values.get(()), stored.values.get((SIDE_DATA,))
    if read is None:
        return f"{key} is a {class_of(tensor).removeprefix(SUBCLASS)} here, and none in the checkpoint"
    there = read()
    if not isinstance(there, Container) or there.kind != class_of(tensor):
        kind = there.kind.removeprefix(SUBCLASS) if isinstance(there, Container) else "plain value"
        return f"{key} is a {class_of(tensor).removeprefix(SUBCLASS)} here, in the checkpoint a {kind}"
    was, now = (unplain(beside()) if beside is not None else None), unplain(side_data(tensor))
    return "" if was == now else f"{key} was saved with {was}, and has {now} here"


def forget_lengths(tensor: Any) -> None:
    """Let a jagged tensor, whose offsets have been filled anew, forget the lengths that it remembers."""
    remembered = getattr(tensor, "_metadata_cache", None)
    if isinstance(remembered, dict):
        remembered.clear()
