"""Torch's own named values (dtypes, devices, sizes) among plain data."""

from typing import Any

import torch

from cairn.core.errors import BadInput
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


def torch_dtype(name: str, what: str) -> torch.dtype:
    """Torch's element type of a name.

    Raises:
        BadInput: this torch has none of that name; some types of files are packed in ways that it does not know.
    """
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(dtype, torch.dtype):
        raise BadInput(f"{what} has dtype {name[:40]!r}, which this torch does not know")
    return dtype


def _of_symbol(symbol: Symbol) -> Any:
    what = f"a stored {symbol.kind[:20]}"
    if symbol.kind == "dtype":
        return torch_dtype(symbol.text, what)
    if symbol.kind != "device":
        raise BadInput(f"{what} is a name of a kind that this version does not know", hint="upgrade Cairn")
    try:
        return torch.device(symbol.text)
    except RuntimeError:
        raise BadInput(f"{what} {symbol.text[:40]!r} is none that this torch knows") from None


def unplain(value: Any) -> Any:
    """Inverse of `plain`.

    Raises:
        BadInput: a name that this torch does not know.
    """
    if isinstance(value, Symbol):
        return _of_symbol(value)
    if type(value) is dict:
        return {k: unplain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unplain(v) for v in value)
    return value
