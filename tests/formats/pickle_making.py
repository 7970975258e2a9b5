"""Pickles by hand, and how the tests read them."""

import struct
from typing import Any

import pytest

from cairn.core.errors import BadInput
from cairn.formats.pickle_reader import read_pickle
from cairn.formats.pickle_torch import TORCH, StorageTable

HEAD = b"\x80\x02"


def read(program: bytes, **options: Any) -> Any:
    return read_pickle(program, options.pop("vocabulary", TORCH), options.pop("resolve", StorageTable().resolve))


def refusal(program: bytes, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        read(program, **options)
    assert caught.value.hint, "an error says what to do next"
    return caught.value.message


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def glob(name: str) -> bytes:
    module, _, leaf = name.rpartition(".")
    return f"c{module}\n{leaf}\n".encode()


def storage(kind: str = "FloatStorage", key: str = "0", elements: bytes = b"K\x04") -> bytes:
    return b"(" + text("storage") + glob(f"torch.{kind}") + text(key) + text("cpu") + elements + b"tQ"


def tensor(
    offset: bytes = b"K\x00", shape: bytes = b"K\x04\x85", strides: bytes = b"K\x01\x85", ref: bytes = b""
) -> bytes:
    """A call of _rebuild_tensor_v2."""
    return (
        glob("torch._utils._rebuild_tensor_v2")
        + b"("
        + (ref or storage())
        + offset
        + shape
        + strides
        + b"\x89"
        + glob("collections.OrderedDict")
        + b")RtR"
    )
