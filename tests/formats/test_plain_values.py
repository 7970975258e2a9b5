"""Plain values out of pickles, numpy's made anew without running one."""

import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from cairn.core.errors import BadInput
from cairn.formats.plain_values import plain_of
from cairn.formats.torch_zip import read_torch_value
from cairn.manifests.values import Symbol
from tests.formats.support import BytesSource, torch_archive, torch_file

ARRAYS = [
    np.arange(6, dtype="<i4").reshape(2, 3), np.arange(3, dtype=">f8"), np.empty((0, 4), "f4"), np.array(2.5),
    np.array([True, False]), np.arange(4).astype("c16"), np.uint8([1, 2]),
]  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
def test_arrays_and_scalars_of_numpy(array: Any, protocol: int) -> None:
    found = plain_of(read_torch_value(BytesSource(torch_archive(pickle.dumps(array, protocol)))))
    assert found.shape == array.shape and (found == array).all() and found.dtype.kind == array.dtype.kind
    scalar = array.reshape(-1)[0] if array.size else np.float32(1)
    found = plain_of(read_torch_value(BytesSource(torch_archive(pickle.dumps(scalar, protocol)))))
    assert found == scalar and found.dtype == scalar.dtype.newbyteorder("<")


def test_named_values_and_containers() -> None:
    value = OrderedDict(
        a=torch.float16, b=torch.device("cuda", 1), c=torch.device("cpu"), d=torch.Size([1, 2]), e=io.BytesIO(b"x"),
        f={(1, "k"): {1, 2}}, g=[1 << 70, -2.5, 1j, None, b"", bytearray(b"y")],
    )  # fmt: skip
    found = plain_of(read_torch_value(BytesSource(torch_file(value))))
    assert found.pop("e").getvalue() == b"x"
    assert found == {
        "a": Symbol("dtype", "float16"), "b": Symbol("device", "cuda:1"), "c": Symbol("device", "cpu"), "d": (1, 2),
        "f": {(1, "k"): {1, 2}}, "g": [1 << 70, -2.5, 1j, None, b"", bytearray(b"y")],
    }  # fmt: skip


@pytest.mark.parametrize(
    "value", [np.array([object()]), np.zeros((2, 2), order="F"), np.array(["a"]), {"x": torch.ones(2)}]
)
def test_what_has_no_plain_form_is_refused(value: Any) -> None:
    with pytest.raises(BadInput):
        plain_of(read_torch_value(BytesSource(torch_file(value))))


def test_an_array_whose_bytes_are_not_its_shape() -> None:
    content = torch_archive(
        pickle.dumps(np.arange(6, dtype="<i4").reshape(2, 3), 2).replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86")
    )
    with pytest.raises(BadInput, match="bytes of its shape"):
        plain_of(read_torch_value(BytesSource(content)))
