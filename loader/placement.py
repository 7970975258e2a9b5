"""Tensors as the bytes that content is copied to and from."""

from typing import Any

import numpy as np
import torch

from cairn.loader.boxes import NUMPY_OF_WIDTH

_TORCH_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_array(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """A numpy view of a CPU tensor's memory, element by element, whatever its dtype and strides."""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("a view that is conjugated or negated lazily has no bytes of its own: resolve it first")
    if tensor.dtype is torch.complex128:
        return tensor.numpy()
    width = tensor.element_size()
    array: np.ndarray[Any, Any] = tensor.view(_TORCH_OF_WIDTH[width]).numpy()
    return array.view(NUMPY_OF_WIDTH[width])


def as_tensor(array: "np.ndarray[Any, Any]", dtype: torch.dtype) -> torch.Tensor:
    """The inverse: a tensor of some dtype over the memory of an array of its elements' bits."""
    flat = torch.from_numpy(array)
    return flat if dtype is torch.complex128 else flat.view(dtype)
