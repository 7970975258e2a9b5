"""Torch's own named values (dtypes, devices, sizes) among plain data."""

from typing import Any

import torch

from cairn.manifests.values import Symbol


def plain(value: Any) -> Any:
    """A plain value with torch's own named values (dtypes, devices, sizes) made symbols, at any depth."""
    if isinstance(value, torch.dtype):
        return Symbol("dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Symbol("device", str(value))
    if isinstance(value, torch.Size):
        return tuple(value)
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(v) for v in value)
    return value


def unplain(value: Any) -> Any:
    """Inverse of `plain`."""
    if isinstance(value, Symbol):
        if value.kind == "dtype":
            return getattr(torch, value.text)
        return torch.device(value.text) if value.kind == "device" else value
    if type(value) is dict:
        return {k: unplain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unplain(v) for v in value)
    return value
