"""Values and training states: section 15 of `docs/format/v1.md`. Imports nothing of Cairn, and no numpy."""

import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Mapping
from io import BytesIO
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from tests.vectors.format.reader import Damaged, decode, encode, require

DEPTH_MAX = 100
WHOLE = range(-(1 << 63), 1 << 63)
# How `struct` reads numpy's numbers; two reals make a complex one.
FORMATS = {
    "|b1": "?", "|i1": "b", "|u1": "B", "<i2": "h", "<u2": "H", "<i4": "i", "<u4": "I", "<i8": "q", "<u8": "Q",
    "<f2": "e", "<f4": "f", "<f8": "d", "<c8": "ff", "<c16": "dd",
}  # fmt: skip
Key = tuple[str, tuple[str | int, ...]]


class Number(NamedTuple):
    """A number of numpy."""

    dtype: str
    number: Any

    def __eq__(self, other: object) -> bool:
        """Numbers of any kind are equal by their value, as keys."""
        return bool(self.number == other)

    def __hash__(self) -> int:
        return hash(self.number)


class Array(NamedTuple):
    """An array of numpy: elements in row-major order."""

    dtype: str
    shape: list[int]
    numbers: list[Any]


class Symbol(NamedTuple):
    """A name of the training framework."""

    kind: str
    text: str


class Container(NamedTuple):
    """What holds tensors: its items are entries of their own."""

    kind: str
    keys: tuple[str | int, ...]


def read_value(data: bytes) -> Any:
    """A value from its encoding."""
    plain = decode(data)
    if isinstance(plain, list) and plain[:1] == ["box"]:
        return _container(plain[1:])
    try:
        return _read(plain, 0)
    except TypeError as error:  # what has no hash, as a key
        raise Damaged(str(error)) from None


def _container(items: list[Any]) -> Container:
    require(bool(items) and isinstance(items[0], str), "kind of a container")
    keys = items[1:]
    require(all(isinstance(key, str) or _is_whole(key) for key in keys), "key of a container")
    require(len(set(keys)) == len(keys), "a key of a container stands twice")
    return Container(items[0], tuple(keys))


def _is_whole(value: Any) -> bool:
    return type(value) is int and value in WHOLE


def _read(plain: Any, depth: int) -> Any:
    require(depth <= DEPTH_MAX, "too deep")
    if not isinstance(plain, list):
        require(plain is None or isinstance(plain, bool | float | str | bytes) or _is_whole(plain), "foreign type")
        return plain
    require(bool(plain) and isinstance(plain[0], str), "no tag")
    tag, items = plain[0], plain[1:]
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_read(item, depth + 1) for item in items)
    if tag in _DICTS:
        require(len(items) % 2 == 0, "a key without a value")
        read = [_read(item, depth + 1) for item in items]
        found = dict(zip(read[::2], read[1::2], strict=True))
        require(len(found) * 2 == len(read), "a key stands twice")
        return _DICTS[tag](found)
    if tag in _SETS:
        require(all(a <= b for a, b in pairwise(map(encode, items))), "members out of order")
        members = _SETS[tag](_read(item, depth + 1) for item in items)
        require(len(members) == len(items), "a member stands twice")
        return members
    require(tag in _LEAVES, f"no tag {tag!r}")
    kinds, make = _LEAVES[tag]
    require([type(item) for item in items] == list(kinds), f"items of {tag!r}")
    return make(*items)


def _integer(text: str) -> int:
    require(re.fullmatch("-?[1-9][0-9]{0,4299}", text) is not None, "decimal digits")
    require(int(text) not in WHOLE, "an integer that stands for itself")
    return int(text)


def _numbers(dtype: str, data: bytes) -> list[Any]:
    require(dtype in FORMATS, "dtype of numpy")
    form = struct.Struct("<" + FORMATS[dtype])
    require(len(data) % form.size == 0, "bytes of numbers")
    return [pair[0] if len(pair) == 1 else complex(*pair) for pair in form.iter_unpack(data)]


def _number(dtype: str, data: bytes) -> Number:
    numbers = _numbers(dtype, data)
    require(len(numbers) == 1, "one number")
    return Number(dtype, numbers[0])


def _array(dtype: str, shape: list[Any], data: bytes) -> Array:
    numbers = _numbers(dtype, data)
    require(len(shape) <= 64 and all(type(length) is int for length in shape), "shape of an array")
    require(min(shape, default=0) >= 0 and prod(shape) == len(numbers), "elements of an array")
    require(struct.calcsize(FORMATS[dtype]) * prod(length or 1 for length in shape) < 1 << 63, "size of an array")
    return Array(dtype, shape, numbers)


_SEQUENCES: dict[str, Any] = {"l": list, "t": tuple}
_DICTS: dict[str, Any] = {"d": dict, "od": OrderedDict, "ctr": Counter}
_SETS: dict[str, Any] = {"set": set, "fset": frozenset}
_LEAVES: dict[str, Any] = {
    "int": ((str,), _integer), "c": ((float, float), complex), "ba": ((bytes,), bytearray), "io": ((bytes,), BytesIO),
    "np": ((str, bytes), _number), "nd": ((str, list, bytes), _array), "sym": ((str, str), Symbol),
}  # fmt: skip


def assemble_state(tensors: Mapping[Key, bytes], values: Mapping[Key, Any]) -> dict[str, Any]:
    """A state by scope, as nested plain data: tensors are their bytes, containers hold their items again."""
    scopes = dict.fromkeys(scope for scope, _ in (*values, *tensors))
    return {scope: _assemble(scope, (), tensors, values) for scope in scopes}


def _assemble(scope: str, path: tuple[str | int, ...], tensors: Mapping[Key, bytes], values: Mapping[Key, Any]) -> Any:
    if (scope, path) in tensors:
        return tensors[scope, path]
    value, at = values.get((scope, path)), len(path)
    if (scope, path) not in values:
        # Modules and optimizers record no containers: names are what they are.
        below = [p[at] for s, p in (*values, *tensors) if s == scope and len(p) > at and p[:at] == path]
        require(bool(below), f"nothing at {scope} {path}")
        return {name: _assemble(scope, (*path, name), tensors, values) for name in dict.fromkeys(below)}
    if not isinstance(value, Container):
        return value
    if value.kind == "names":
        return set(value.keys)
    items = [_assemble(scope, (*path, key), tensors, values) for key in value.keys]
    if value.kind in ("list", "tuple"):
        require(value.keys == tuple(range(len(items))), "positions")
        return items if value.kind == "list" else tuple(items)
    require(value.kind in ("dict", "ranks") or value.kind.startswith("tensor:"), "kind of a container")
    return dict(zip(value.keys, items, strict=True))
