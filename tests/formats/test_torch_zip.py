"""torch archives: the bytes at each found place are the bytes of the tensor that was saved."""

import io
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from cairn.formats.parsed import ParsedFile
from cairn.manifests.dtypes import SWAP_BYTES
from tests.formats.support import by_path, gathered, raw_bytes, rezipped, torch_file
from tests.formats.torch_making import assert_found, model, parsed, refusal, saved


def test_torch_views_of_all_kinds() -> None:
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    value = {
        "whole": base,
        "transposed": base.transpose(0, 2),
        "row": base[1],
        "step": base[:, ::2, 1:4],
        "column": base[:, 0, 0],
        "expanded": torch.ones(3, 1).expand(3, 7),
        "scalar": torch.tensor(7),
        "inner scalar": base[2, 3, 4],
        "empty": torch.empty(0),
        "empty matrix": torch.empty(3, 0, 2),
        "empty slice": base[3:],
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "one wide": torch.arange(10)[3:4].reshape(1, 1, 1),
        "diagonal": base.diagonal(dim1=0, dim2=1),
        "bool": torch.tensor([True, False]),
        "complex": torch.randn(3, dtype=torch.complex128),
        "windows": torch.arange(10).unfold(0, 3, 1),
    }
    found = assert_found(value)
    assert found[("whole",)].strides is None
    assert found[("transposed",)].strides == (1, 5, 20)
    assert found[("row",)].strides == (5, 1), "inside `whole`, so it keeps its strides"
    assert found[("expanded",)].strides == (1, 0)
    assert found[("channels_last",)].strides is not None
    assert found[("one wide",)].strides is None
    assert found[("empty matrix",)].strides is None


def test_torch_parts_of_one_storage_that_do_not_touch() -> None:
    fused = torch.arange(30).reshape(6, 5)
    found = assert_found({"q": fused[:2], "k": fused[2:4], "v": fused[4:]})
    assert all(tensor.strides is None for tensor in found.values())


def test_torch_state_dict_with_optimizer() -> None:
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    module(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    value = {
        "model": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": [torch.get_rng_state(), np.random.default_rng(0).bit_generator.state, np.float32(2)],
        "parameters": list(module.parameters()),
        "step": 3,
        "note": ("x", 2.5, None, True, b"bytes", {1, 2}),
    }
    found = assert_found(value)
    assert ("model", "0.weight") in found
    assert ("optimizer", "state", 0, "exp_avg") in found
    assert ("parameters", 0) in found
    state = module.state_dict()
    assert set(assert_found(state)) == {(name,) for name in state}
    for protocol in (2, 3, 4, 5):
        assert_found(value, torch_file(value, pickle_protocol=protocol))


def test_T10_T33_paths_are_injective() -> None:
    one = torch.zeros(1)
    value = {
        "a.b": one + 1,
        "a": {"b": one + 2, "": one + 3},
        0: one + 4,
        "0": one + 5,
        "k": [{"a": one + 6}, {"b": one + 7}, (one + 8, [one + 9])],
        "": {0: one + 10, -1: one + 11, 1 << 40: one + 12},
        "norm.1.weight": one + 13,
        "norm": {1: {"weight": one + 14}, "1": {"weight": one + 15}},
    }
    found = assert_found(value)
    assert len(found) == 15
    assert ("a.b",) in found and ("a", "b") in found and (0,) in found and ("0",) in found
    assert ("k", 2, 1, 0) in found


def test_torch_root() -> None:
    assert list(assert_found(torch.arange(3))) == [()]
    assert list(assert_found([torch.arange(3)])) == [(0,)]
    assert saved(5).tensors == saved({}).tensors == saved(None).tensors == ()


@pytest.mark.parametrize("value", [{}, {"a": 1}, [], OrderedDict()])
def test_T20_no_tensors(value: Any) -> None:
    assert saved(value) == ParsedFile("torch-zip", ())


def test_torch_keys_that_are_no_path_stay_bytes() -> None:
    value = {("a", 1): torch.ones(1), 1.5: torch.ones(2), None: torch.ones(3), b"k": torch.ones(4), "k": torch.ones(5)}
    result = saved(value | {True: torch.ones(6)})
    assert [tensor.path for tensor in result.tensors] == [("k",)]
    assert len([line for line in result.warnings if "neither text nor integer" in line]) == 5
    assert any("5 storage records" in line for line in result.warnings)


def test_torch_attributes_of_tensors_are_left_alone() -> None:
    tensor, parameter = torch.arange(3.0), torch.nn.Parameter(torch.arange(4.0))
    tensor.note = "x"  # type: ignore[attr-defined]  # any attribute may be set
    parameter.shard = {"rank": 1}  # type: ignore[attr-defined]  # any attribute may be set
    assert_found({"t": tensor, "p": parameter, "b": torch.nn.Buffer(torch.arange(5.0))})


# --- Dtypes -----------------------------------------------------------------------------------

TORCH_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_T08_every_dtype_of_torch(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    assert name in SWAP_BYTES, "the runtime knows a dtype that Cairn does not"
    if "q" in name:
        return  # quantized: below
    data = torch.arange(64, dtype=torch.uint8)
    try:
        tensor = (data % 2).bool() if dtype is torch.bool else data.view(dtype)
        content = torch_file({"x": tensor.reshape(2, -1), "part": tensor[1:]})
    except KeyError:
        assert name.removeprefix("u").removeprefix("int") in set("1234567"), "torch saves none of these, and all others"
        return
    for found in parsed(content).tensors:
        width = 64 // tensor.numel()
        expected = raw_bytes(tensor) if dtype is torch.bool else data.numpy().tobytes()
        assert found.dtype == name
        assert found.shape == ((2, 32 // width) if found.path == ("x",) else (64 // width - 1,))
        assert gathered(content, found) == expected[0 if found.path == ("x",) else width :]


# --- Byte order -------------------------------------------------------------------------------


def big_endian(value: dict[str, torch.Tensor]) -> bytes:
    """The archive that a big-endian machine would write: each storage's elements reversed."""
    content = torch_file(value)
    change: dict[str, bytes | None] = {"byteorder": b"big"}
    for tensor in parsed(content).tensors:
        part = SWAP_BYTES[tensor.dtype]
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.filename.startswith("archive/data/") and str(tensor.path[0]) == "x":
                    record = np.frombuffer(archive.read(info), dtype=f"u{part}")
                    change[info.filename.removeprefix("archive/")] = record.byteswap().tobytes()
    return rezipped(content, change)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.uint16, torch.int8]
)
def test_T18_big_endian_archive(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).to(dtype).reshape(4, 6)
    content = big_endian({"x": tensor, "view": tensor.t()[1:3]})
    result = by_path(parsed(content))
    assert gathered(content, result[("x",)]) == raw_bytes(tensor)
    assert gathered(content, result[("view",)]) == raw_bytes(tensor.t()[1:3])
    assert result[("x",)].swapped == (dtype is not torch.int8)
    if dtype is not torch.uint16:  # torch 2.13 does not swap its untyped storages
        loaded = torch.load(io.BytesIO(content), weights_only=True)["x"]
        assert raw_bytes(loaded) == raw_bytes(tensor), "torch reads the archive the same way"


def test_T18_missing_byte_order() -> None:
    content = torch_file({"x": torch.arange(3)})
    assert parsed(content).warnings == ()
    old = parsed(rezipped(content, {"byteorder": None, ".data/serialization_id": None, "version": None}))
    assert old.warnings == ("the archive does not state its byte order; little-endian was assumed",)
    assert not old.tensors[0].swapped


@pytest.mark.parametrize("order", [b"", b"middle", b"BIG", b"big\n"])
def test_T18_unknown_byte_order(order: bytes) -> None:
    assert "must say little or big" in refusal(rezipped(torch_file({"x": torch.arange(3)}), {"byteorder": order}))
    assert "over the limit of 6" in refusal(rezipped(torch_file({}), {"byteorder": b"little-endian"}))
