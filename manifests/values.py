"""Plain values of a training state: how they are spelled in a manifest. No pickle, ever.

A value is canonical MessagePack. `None`, booleans, integers from -2^63 to 2^63 - 1, floats, strings and bytes stand for
themselves; everything else is a list whose first item says what it is:

    ["l", ...] list            ["t", ...] tuple          ["d", k, v, k, v, ...] dict, in its own order
    ["od", ...] OrderedDict    ["ctr", ...] Counter      ["set", ...] / ["fset", ...] sorted by encoding
    ["int", "123..."]          ["c", re, im]             ["ba", bytes] bytearray    ["io", bytes] io.BytesIO
    ["np", dtype, bytes] numpy scalar                    ["nd", dtype, shape, bytes] numpy array, little-endian
    ["sym", kind, text]        a name of the training framework (a dtype, a device), made by its adapter
    ["box", kind, k, k, ...]   a container whose items stand in entries of their own; inside no other value

Each value has one spelling, and a reader takes no other: bytes that say the same otherwise are damaged.
"""

import io
import re
from collections import Counter, OrderedDict
from contextlib import suppress
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError, RefusedError
from cairn.core.limits import TENSOR_DIMS_MAX, VALUE_DEPTH_MAX, VALUE_DIGITS_MAX

if TYPE_CHECKING:
    import numpy as np

Held = TypeVar("Held", dict[Any, Any], set[Any], frozenset[Any])
# The kind of a container that is a set of names and has no items.
NAMES = "names"
_ATOMS = (type(None), bool, float, bytes)
_DECIMAL = re.compile(f"-?[1-9][0-9]{{0,{VALUE_DIGITS_MAX - 1}}}")
# Of numpy's numbers those that are the same everywhere; `longdouble` is another one on each platform.
_NUMBERS = frozenset(
    ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")
)


class Symbol(msgspec.Struct, frozen=True):
    """A value of a framework by name, such as a dtype: `kind` says of which family."""

    kind: str
    text: str


class Container(msgspec.Struct, frozen=True):
    """A container that holds tensors: its kind and, of a dict, its keys in order; of a list, 0 up to its length."""

    kind: str
    keys: tuple[str | int, ...]


def encode_value(value: object, what: str) -> bytes:
    """Canonical bytes of a plain value, or of a `Container`, which stands alone.

    Args:
        what: names the value in errors.

    Raises:
        RefusedError: a value of a type that is not plain data; names its place.
    """
    if isinstance(value, Container):
        spelled = [_spell(part, f"{what}, a container", 0) for part in (value.kind, *value.keys)]
        if any(isinstance(part, list) for part in spelled):
            raise RefusedError(f"{what} has a key beyond 64 bits beside tensors", hint="use a string as the key")
        return encode(["box", *spelled])
    return encode(_spell(value, what, 0))


def decode_value(data: bytes, what: str) -> Any:
    """Inverse of `encode_value`; every container is fresh.

    Raises:
        IntegrityError: not a value, or not in its one spelling.
    """
    try:
        plain = msgspec.msgpack.decode(data)
        if encode(plain) != data:
            raise ValueError("it is not in canonical form")
        return _container(plain[1:]) if isinstance(plain, list) and plain[:1] == ["box"] else _read(plain, 0)
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
    if kind is str:
        return value if value.isascii() else _text(value, what)
    if kind is int:
        return value if _fits(value) else _digits(value, what)
    spell = _SPELLINGS.get(kind) or _numpy_spelling(value)
    if spell is None:
        raise RefusedError(
            f"{what} is a {kind.__module__}.{kind.__qualname__}, which is not plain data",
            hint="make it plain data or tensors, or give it state_dict() and load_state_dict()",
        )
    return spell(value, what, depth + 1)


def _text(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RefusedError(
            f"{what} is a string with a lone surrogate, which has no UTF-8: {value[:40]!a}",
            hint="keep names of files as bytes (os.fsencode)",
        ) from None
    return value


def _fits(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _digits(value: int, what: str) -> list[str]:
    with suppress(ValueError):  # more digits than the interpreter turns into text
        if _DECIMAL.fullmatch(text := str(value)):
            return ["int", text]
    raise RefusedError(f"{what} is an integer of {value.bit_length()} bits", hint="keep it as bytes (int.to_bytes)")


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
    Symbol: lambda value, what, depth: ["sym", _text(value.kind, what), _text(value.text, what)],
}


def _numpy_spelling(value: object) -> Any:
    if type(value).__module__ != "numpy":
        return None
    import numpy as np

    if type(value) in (np.ndarray, np.memmap) and _number(value) in _NUMBERS:
        return lambda value, what, depth: ["nd", _number(value), list(value.shape), _little(value)]
    if isinstance(value, np.generic) and _number(value) in _NUMBERS:
        return lambda value, what, depth: ["np", _number(value), _little(np.asarray(value))]
    return None


def _number(value: Any) -> str:
    return str(value.dtype.newbyteorder("<").str)


def _little(array: "np.ndarray[Any, Any]") -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _read(value: Any, depth: int) -> Any:
    if depth > VALUE_DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {VALUE_DEPTH_MAX}")
    kind = type(value)
    if kind is list:
        tag, *items = value
        return _READINGS[tag](items, depth + 1)
    if kind is str or kind in _ATOMS or (kind is int and _fits(value)):
        return value
    raise ValueError(f"a {kind.__name__} stands there for itself")


def _all(items: list[Any], depth: int) -> list[Any]:
    return [_read(item, depth) for item in items]


def _ascending(items: list[Any], depth: int) -> list[Any]:
    if any(a > b for a, b in pairwise(map(encode, items))):
        raise ValueError("members of a set are not in order")
    return _all(items, depth)


def _pairs(items: list[Any], depth: int) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("a key has no value")
    return _distinct(dict(zip(_all(items[::2], depth), _all(items[1::2], depth), strict=True)), len(items) // 2)


def _distinct(found: Held, count: int) -> Held:
    if len(found) != count:
        raise ValueError("a key or member stands twice")
    return found


def _typed(items: list[Any], *kinds: type) -> list[Any]:
    """Items of exactly these types."""
    if [type(item) for item in items] != list(kinds):
        raise ValueError(f"where {', '.join(kind.__name__ for kind in kinds)} should stand, something else does")
    return items


def _integer(items: list[Any], depth: int) -> int:
    (text,) = _typed(items, str)
    value = int(text) if _DECIMAL.fullmatch(text) else 0
    if _fits(value):
        raise ValueError("an integer is not spelled as it should be")
    return value


def _container(items: list[Any]) -> Container:
    kind, *keys = items
    _typed([kind], str)
    if not all(type(key) is str or (type(key) is int and _fits(key)) for key in keys):
        raise ValueError("a key of a container is neither a string nor an integer")
    return Container(kind, tuple(_distinct(dict.fromkeys(keys), len(keys))))


def _numbers(dtype: str, data: bytes) -> Any:
    import numpy as np

    if dtype not in _NUMBERS:
        raise ValueError(f"{dtype[:20]!a} is no dtype of numbers")
    return np.frombuffer(data, dtype)


def _array(items: list[Any], depth: int) -> Any:
    dtype, shape, data = _typed(items, str, list, bytes)
    found = _numbers(dtype, data)
    possible = len(shape) <= TENSOR_DIMS_MAX and all(type(length) is int and length >= 0 for length in shape)
    # An array without elements has a shape too, and numpy bounds that by the other axes.
    if not possible or prod(shape) != len(found) or found.itemsize * prod(n or 1 for n in shape) >= 1 << 63:
        raise ValueError("the shape of an array is not that of its bytes")
    return found.reshape(shape).copy()


def _scalar(items: list[Any], depth: int) -> Any:
    (scalar,) = _numbers(*_typed(items, str, bytes))
    return scalar


_READINGS: dict[str, Any] = {
    "l": _all,
    "t": lambda items, depth: tuple(_all(items, depth)),
    "d": _pairs,
    "od": lambda items, depth: OrderedDict(_pairs(items, depth)),
    "ctr": lambda items, depth: Counter(_pairs(items, depth)),
    "set": lambda items, depth: _distinct(set(_ascending(items, depth)), len(items)),
    "fset": lambda items, depth: _distinct(frozenset(_ascending(items, depth)), len(items)),
    "int": _integer,
    "c": lambda items, depth: complex(*_typed(items, float, float)),
    "ba": lambda items, depth: bytearray(*_typed(items, bytes)),
    "io": lambda items, depth: io.BytesIO(*_typed(items, bytes)),
    "sym": lambda items, depth: Symbol(*_typed(items, str, str)),
    "np": _scalar,
    "nd": _array,
}
