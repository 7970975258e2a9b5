"""Canonical encoding: one value, one byte string.

MessagePack with shortest integers, map keys sorted, and no floats outside `float64`. A decoder encodes
what it read again and compares, so a second spelling of the same value is refused and hashes and
signatures over the bytes speak for the value.
"""

from typing import Any, TypeVar

import msgspec

from cairn.core.errors import IntegrityError

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder(order="sorted")


def encode(value: Any) -> bytes:
    """Encode a struct, map, list, string, bytes, int, float, bool or None."""
    return _encoder.encode(value)


def decode(data: bytes, kind: type[T], what: str) -> T:
    """Decode `data` as `kind`; unknown fields of structs are allowed and ignored.

    Args:
        what: names the object in errors.

    Raises:
        IntegrityError: not canonical, or not of that type.
    """
    try:
        value = msgspec.msgpack.decode(data, type=kind)
        # The second decoding is for fields that `kind` does not know.
        same = _encoder.encode(value) == data or _encoder.encode(msgspec.msgpack.decode(data)) == data
    except (msgspec.MsgspecError, RecursionError, TypeError) as error:
        raise IntegrityError(f"{what} does not decode: {error}") from None
    if not same:
        raise IntegrityError(f"{what} is not in canonical form")
    return value
