"""Comparing training states, down to types."""

import io
from typing import Any

import torch


def equal(a: Any, b: Any) -> bool:
    """Whether two trees have the same types, keys in the same order, values and tensors."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(type(x) is type(y) and equal(a[x], b[y]) for x, y in zip(a, b, strict=True))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, io.BytesIO):
        return a.getvalue() == b.getvalue()
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)
