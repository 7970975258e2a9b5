"""What the restricted pickle reader makes of data: plain values, and labels for the rest."""

import collections
import pickle
import pickletools
from typing import Any

import numpy as np
import pytest
import torch

from cairn.formats.pickle_plain import PLAIN
from cairn.formats.pickle_values import Name, OpaqueTensor, Record, StorageRef, TensorRef
from tests.formats.pickle_making import HEAD, glob, read, refusal, tensor, text

PLAIN_VALUES: list[Any] = [
    None, True, False, 0, 1, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31), 2**63, -(2**63) - 1, 2**1000,
    0.0, -1.5, float("inf"), "", "abc", "\u00fc\U0001f600", "x" * 300, "x" * 70000, b"", b"\x00\xff", b"y" * 300,
    b"z" * 70000, bytearray(b"ab\xff"), bytearray(), 1j, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [1],
    [1, [2, []]], {}, {"a": 1}, {"a": {"b": [None]}, 0: "x", "0": "y", 1.5: 2, None: 3, True: 4, b"k": 5},
    set(), {1, 2, "a"}, frozenset(), frozenset({"x"}), list(range(3000)), {i: str(i) for i in range(3000)},
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickle_plain_values_come_back(protocol: int) -> None:
    for value in [*PLAIN_VALUES, PLAIN_VALUES]:
        for program in (pickle.dumps(value, protocol), pickle._dumps(value, protocol)):  # type: ignore[attr-defined]  # the pure Python pickler is not in the stub
            for spelling in (program, pickletools.optimize(program)):
                result = read(spelling)
                assert result == value and type(result) is type(value)


def test_pickle_nan_and_dict_order() -> None:
    result = read(pickle.dumps([float("nan"), {"z": 1, "a": 2}], 4))
    assert result[0] != result[0]
    assert list(result[1]) == ["z", "a"]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickle_python_classes_become_plain_data(protocol: int) -> None:
    ordered = collections.OrderedDict(b=1, a=2)
    ordered.note = "attribute"  # type: ignore[attr-defined]  # as `_metadata` of a state dict
    result = read(pickle.dumps({"o": ordered, "c": collections.Counter("aab")}, protocol))
    assert result == {"o": {"b": 1, "a": 2}, "c": {"a": 2, "b": 1}}
    assert type(result["o"]) is dict and list(result["o"]) == ["b", "a"]


def test_pickle_ordered_dict_of_pairs() -> None:
    pairs = pickle.dumps([("a", 1), ["b", 2], ("a", 3)], 2)[2:-1]
    assert read(HEAD + glob("collections.OrderedDict") + pairs + b"\x85R.") == {"a": 3, "b": 2}
    for wrong in ([1], [(1,)], [("a", 1, 2)], "ab"):
        program = HEAD + glob("collections.OrderedDict") + pickle.dumps(wrong, 2)[2:-1] + b"\x85R."
        assert "a dict or a list of pairs" in refusal(program)


def test_pickle_shared_values_stay_shared() -> None:
    inner = [1]
    first, second = read(pickle.dumps([inner, inner], 4))
    assert first is second


def test_pickle_python_2_text() -> None:
    assert read(HEAD + b"U\x03abc.") == "abc"
    assert read(HEAD + b"T\x03\x00\x00\x00abc.") == "abc"


def test_pickle_numpy_values_are_records() -> None:
    for protocol in range(2, 6):
        program = pickle.dumps({"s": np.float32(1), "a": np.arange(4), "d": np.dtype("<i4")}, protocol)
        result = read(program)
        assert {type(value) for value in result.values()} == {Record}
        assert result["d"].name == "numpy.dtype"
    assert "numpy" in refusal(pickle.dumps(np.arange(3)), vocabulary=PLAIN)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickle_torch_values(protocol: int) -> None:
    value = {
        "dtype": torch.bfloat16,
        "device": [torch.device("cuda", 1), torch.device("cpu")],
        "size": torch.Size([2, 3]),
        "layout": torch.sparse_csr,
        "scheme": torch.per_tensor_affine,
    }
    assert read(pickle.dumps(value, protocol)) == {
        "dtype": Name("torch.bfloat16"),
        "device": [Name("torch.device('cuda', 1)"), Name("torch.device('cpu')")],
        "size": (2, 3),
        "layout": Name("torch.sparse_csr"),
        "scheme": Name("torch.per_tensor_affine"),
    }


def test_pickle_tensor_by_hand() -> None:
    result = read(HEAD + tensor(b"K\x01", b"K\x01K\x02\x86", b"K\x09K\x01\x86") + b".")
    assert result == TensorRef(StorageRef("0", "float32", 4), "float32", 1, (1, 2), (9, 1))


def test_pickle_parameters_and_attributes_are_their_tensor() -> None:
    ref = TensorRef(StorageRef("0", "float32", 4), "float32", 0, (4,), (1,))
    hooks = glob("collections.OrderedDict") + b")R"
    inner = tensor()[len(glob("torch._utils._rebuild_tensor_v2")) : -1]
    programs = [
        glob("torch._utils._rebuild_parameter") + tensor() + b"\x88" + hooks + b"\x87R",
        glob("torch._utils._rebuild_parameter_with_state") + b"(" + tensor() + b"\x88" + hooks + b"}tR",
        glob("torch._tensor._rebuild_from_type_v2")
        + b"("
        + glob("torch._utils._rebuild_tensor_v2")
        + glob("torch.Tensor")
        + inner
        + b"}tR",
        glob("torch._utils._rebuild_device_tensor_from_cpu_tensor")
        + b"("
        + tensor()
        + glob("torch.float32")
        + text("xla:0")
        + b"\x89tR",
    ]
    for program in programs:
        assert read(HEAD + program + b".") == ref
    cast = (
        glob("torch._utils._rebuild_device_tensor_from_cpu_tensor")
        + b"("
        + tensor()
        + glob("torch.int32")
        + text("xla:0")
        + b"\x89tR"
    )
    assert isinstance(read(HEAD + cast + b"."), OpaqueTensor)
    for function in ("torch.Size", "torch._tensor._rebuild_from_type_v2", "collections.OrderedDict"):
        program = glob("torch._tensor._rebuild_from_type_v2") + b"(" + glob(function) + glob("torch.Tensor") + b")NtR."
        assert "must not call" in refusal(HEAD + program)
