"""Inert values of a pickle as plain data of a manifest."""

import io
from typing import Any

from cairn.formats.pickle_numpy import array_of, scalar_of
from cairn.formats.pickle_values import FrozenKey, Name, Record, Value
from cairn.formats.refusal import malformed, shown
from cairn.manifests.values import Symbol

_ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray)
_DTYPE = "torch."
_DEVICE = "torch.device("


def plain_of(value: Value) -> Any:
    """The value, with named values of torch as symbols and numpy's made anew.

    Raises:
        BadInput: something in it is no plain data (a tensor, an object).
    """
    if type(value) in _ATOMS:
        return value
    if isinstance(value, FrozenKey):
        return plain_of(value.value)
    if isinstance(value, dict):
        return {plain_of(key): plain_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(plain_of(item) for item in value)
    if isinstance(value, Name):
        return _symbol(value.text)
    if isinstance(value, Record):
        match value.name.rpartition(".")[2], value.state:
            case "BytesIO", (bytes(content), int(), _):
                return io.BytesIO(content)
            case "scalar", _:
                return scalar_of(value)
            case "_reconstruct" | "_frombuffer", _:
                return array_of(value)
        raise malformed(f"an object of {shown(value.name)}")
    raise malformed("a tensor inside a value")


def _symbol(text: str) -> Symbol:
    if text.startswith(_DEVICE):
        kind, _, index = text.removeprefix(_DEVICE).rstrip(")").partition(", ")
        return Symbol("device", kind.strip("'") + (f":{index}" if index else ""))
    if text.startswith(_DTYPE) and text.count(".") == 1:
        return Symbol("dtype", text.removeprefix(_DTYPE))
    raise malformed(f"the name {shown(text)}")
