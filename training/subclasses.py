"""Tensor subclasses (quantised weights, jagged tensors) by the plain tensors that they are made of.

Whatever follows torch's `__tensor_flatten__` protocol is taken apart, recursively. The parts are tensors of their
own in the manifest, under the name of the whole; the whole is recorded as a container of its class.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cairn.manifests.schema import Key
from cairn.manifests.values import Container
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import TensorLeaf, ValueLeaf, tensor_leaf

SUBCLASS = "tensor:"


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
    attributes, _ = tensor.__tensor_flatten__()
    yield ValueLeaf(key, component, Container(class_of(tensor), tuple(attributes)))
    for name in attributes:
        part = Key(key.scope, (*key.path, name))
        yield from flat_leaves(part, component, getattr(tensor, name), trainable)


def is_wrapper(tensor: Any) -> bool:
    """Whether a tensor is made of other tensors, and not sharded over ranks."""
    return (
        isinstance(tensor, torch.Tensor) and not isinstance(tensor, DTensor) and is_traceable_wrapper_subclass(tensor)
    )


def class_of(tensor: Any) -> str:
    """What a container of this subclass is called."""
    kind = type(tensor)
    return f"{SUBCLASS}{kind.__module__}.{kind.__qualname__}"
