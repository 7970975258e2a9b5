"""Plain values of a training state: how they are spelled in a manifest. No pickle, ever.

A value is canonical MessagePack. `None`, booleans, integers of 64 bits, floats, strings and bytes stand for
themselves; everything else is a list whose first item says what it is:

    ["l", ...] list            ["t", ...] tuple          ["d", k, v, k, v, ...] dict, in its own order
    ["od", ...] OrderedDict    ["ctr", ...] Counter      ["set", ...] / ["fset", ...] sorted by encoding
    ["int", "123..."]          ["c", re, im]             ["ba", bytes] bytearray    ["io", bytes] io.BytesIO
    ["np", dtype, bytes] numpy scalar                    ["nd", dtype, shape, bytes] numpy array, little-endian
    ["sym", kind, text]        a name of the training framework (a dtype, a device), made by its adapter
    ["box", kind, k, k, ...]   a container whose items stand in entries of their own, since it holds tensors
"""

import io
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError, RefusedError
from cairn.core.limits import VALUE_DEPTH_MAX

if TYPE_CHECKING:
    import numpy as np

_ATOMS = (type(None), bool, float, str, bytes)


class Symbol(msgspec.Struct, frozen=True):
    """A value of a framework by name, such as a dtype: `kind` says of which family."""

    kind: str
    text: str


class Container(msgspec.Struct, frozen=True):
    """A container that holds tensors: its kind and, of a dict, its keys in order; of a list, 0 up to its length."""

    kind: str
    keys: tuple[str | int, ...]


def encode_value(value: object, what: str) -> bytes:
    """Canonical bytes of a plain value.

    Args:
        what: names the value in errors.

    Raises:
        RefusedError: a value of a type that is not plain data; names its place.
    """
    return encode(_spell(value, what, 0))


def decode_value(data: bytes, what: str) -> Any:
    """Inverse of `encode_value`; every container is fresh.

    Raises:
        IntegrityError: not a value.
    """
    try:
        return _read(msgspec.msgpack.decode(data))
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError, LookupError) as error:
        raise IntegrityError(f"{what} does not decode: {error}") from None


def _spell(value: Any, what: str, depth: int) -> Any:
    if depth > VALUE_DEPTH_MAX:
        raise RefusedError(
            f"{what} is nested deeper than {VALUE_DEPTH_MAX}", hint="flatten it, or let it not refer to itself"
        )
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else ["int", str(value)]
    spell = _SPELLINGS.get(kind) or _numpy_spelling(value)
    if spell is None:
        raise RefusedError(
            f"{what} is a {kind.__module__}.{kind.__qualname__}, which is not plain data",
            hint="make it plain data or tensors, or give it state_dict() and load_state_dict()",
        )
    return spell(value, what, depth + 1)


def _sequence(tag: str) -> Any:
    return lambda value, what, depth: [tag, *(_spell(v, f"{what}[{i}]", depth) for i, v in enumerate(value))]


def _mapping(tag: str) -> Any:
    def spell(value: Any, what: str, depth: int) -> list[Any]:
        flat = [tag]
        for key, item in value.items():
            flat += [_spell(key, f"a key of {what}", depth), _spell(item, f"{what}[{key!r}]", depth)]
        return flat

    return spell


def _unordered(tag: str) -> Any:
    return lambda value, what, depth: [tag, *sorted((_spell(v, what, depth) for v in value), key=encode)]


_SPELLINGS: dict[type, Any] = {
    list: _sequence("l"),
    tuple: _sequence("t"),
    dict: _mapping("d"),
    OrderedDict: _mapping("od"),
    Counter: _mapping("ctr"),
    set: _unordered("set"),
    frozenset: _unordered("fset"),
    complex: lambda value, what, depth: ["c", value.real, value.imag],
    bytearray: lambda value, what, depth: ["ba", bytes(value)],
    io.BytesIO: lambda value, what, depth: ["io", value.getvalue()],
    Symbol: lambda value, what, depth: ["sym", value.kind, value.text],
    Container: lambda value, what, depth: ["box", value.kind, *value.keys],
}


def _numpy_spelling(value: object) -> Any:
    if type(value).__module__ != "numpy":
        return None
    import numpy as np

    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return lambda value, what, depth: ["nd", value.dtype.newbyteorder("<").str, list(value.shape), _little(value)]
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return lambda value, what, depth: ["np", value.dtype.newbyteorder("<").str, _little(np.asarray(value))]
    return None


def _little(array: "np.ndarray[Any, Any]") -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _read(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    tag, *items = value
    return _READINGS[tag](items)


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    if len(items) % 2:
        raise ValueError("a key without a value")
    return [(_read(items[i]), _read(items[i + 1])) for i in range(0, len(items), 2)]


def _array(items: list[Any]) -> Any:
    import numpy as np

    dtype, shape, data = items
    return np.frombuffer(data, _plain_dtype(dtype)).reshape(shape).copy()


def _plain_dtype(text: str) -> Any:
    import numpy as np

    dtype = np.dtype(text)
    if dtype.kind not in "biufc":
        raise ValueError(f"dtype {text!r} is not one of numbers")
    return dtype


def _scalar(items: list[Any]) -> Any:
    import numpy as np

    dtype, data = items
    (scalar,) = np.frombuffer(data, _plain_dtype(dtype))
    return scalar


_READINGS: dict[str, Any] = {
    "l": lambda items: [_read(item) for item in items],
    "t": lambda items: tuple(_read(item) for item in items),
    "d": lambda items: dict(_pairs(items)),
    "od": lambda items: OrderedDict(_pairs(items)),
    "ctr": lambda items: Counter(dict(_pairs(items))),
    "set": lambda items: {_read(item) for item in items},
    "fset": lambda items: frozenset(_read(item) for item in items),
    "int": lambda items: int(*items),
    "c": lambda items: complex(*items),
    "ba": lambda items: bytearray(*items),
    "io": lambda items: io.BytesIO(*items),
    "sym": lambda items: Symbol(*items),
    "box": lambda items: Container(items[0], tuple(items[1:])),
    "np": _scalar,
    "nd": _array,
}
