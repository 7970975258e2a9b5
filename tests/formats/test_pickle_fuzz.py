"""Whatever the bytes are: a value, or `BadInput`."""

import collections
import pickle
import pickletools
import struct
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.core.errors import BadInput
from cairn.formats.pickle_torch import TORCH
from tests.formats.pickle_making import HEAD, glob, read, storage, tensor, text
from tests.formats.test_pickle_values import PLAIN_VALUES


def outcome(program: bytes) -> Any:
    try:
        return read(program)
    except BadInput as error:
        assert str(error)
        return error


@settings(max_examples=1500)
@given(st.binary(max_size=64), st.sampled_from([b"", b"\x80\x02", b"\x80\x04"]))
def test_pickle_random_bytes(program: bytes, head: bytes) -> None:
    outcome(head + program)


OPERATIONS = [bytes([code.code.encode("latin-1")[0]]) for code in pickletools.opcodes]
UNITS = [
    *OPERATIONS, *[glob(name) for name in TORCH], *[glob(name) for name in TORCH if "rebuild" in name],
    b"K\x00", b"K\x01", b"K\x04", b"(", b"t", b")", b"]", b"}", b"N", b"h\x00", b"h\x01", b"\x94", b"R", b"R",
    b"\x85", b"\x86", storage(), tensor(),
    text("cpu"), text("latin1"), text("torch.strided"), b"G" + struct.pack(">d", 1.5),
]  # fmt: skip


@settings(max_examples=1500)
@given(st.lists(st.sampled_from(UNITS), max_size=30))
def test_pickle_random_programs(units: list[bytes]) -> None:
    outcome(b"\x80\x04" + b"".join(units) + b".")


SEEDS = [
    *(pickle.dumps(PLAIN_VALUES[20:], protocol)[:4000] for protocol in (2, 4, 5)),
    pickle.dumps(
        {"a": np.arange(3), "b": torch.float32, "c": collections.OrderedDict(x=1), "d": torch.device("cpu")}, 2
    ),
    HEAD + b"}(" + text("w") + tensor() + text("v") + tensor(b"K\x01", b"K\x03\x85") + b"u.",
]


@settings(max_examples=1500)
@given(st.data())
def test_pickle_mutations(data: st.DataObject) -> None:
    program = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(program)))
        patch = data.draw(st.binary(max_size=4) | st.sampled_from(UNITS))
        program = program[:at] + patch + program[at + data.draw(st.integers(0, 4)) :]
    outcome(program)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(-9, 9) | st.floats(allow_nan=False), inner, max_size=4)
    ),
    max_leaves=25,
)


@settings(max_examples=400)
@given(plain, st.integers(2, 5))
def test_pickle_agrees_with_python(value: Any, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol)) == value
