"""safetensors: what is accepted lies where the parser says."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import save, save_file

from cairn.formats.parsed import FoundTensor, ParsedFile
from cairn.formats.safetensors import DTYPES, parse_safetensors
from cairn.manifests.dtypes import BITS
from tests.formats.safetensors_making import accepted_by_library, entry, parsed
from tests.formats.support import BytesSource, by_path, gathered, raw_bytes, safetensors_file


def test_safetensors_finds_the_bytes_of_every_tensor(tmp_path: Path) -> None:
    tensors = {
        "a.weight": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        'ünï/\n"q"': torch.arange(6, dtype=torch.int16).reshape(1, 2, 3),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt", "k": "v\u00fc"})
    content = (tmp_path / "x.safetensors").read_bytes()
    source = BytesSource(content)
    result = parse_safetensors(source)
    found = by_path(result)
    assert set(found) == {(name,) for name in tensors}
    for name, tensor in tensors.items():
        assert found[(name,)].shape == tuple(tensor.shape)
        assert found[(name,)].dtype == str(tensor.dtype).removeprefix("torch.")
        assert gathered(content, found[(name,)]) == raw_bytes(tensor)
    assert (result.container, result.ties, result.warnings) == ("safetensors", (), ())
    assert source.bytes_read < len(content), "tensors are not read"


def test_T08_every_torch_dtype_that_the_library_writes() -> None:
    written = set()
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        try:
            tensor = torch.arange(16, dtype=torch.uint8).view(dtype).reshape(2, -1)
            content = save({"x": tensor})
        except (RuntimeError, KeyError, TypeError, ValueError, safetensors.SafetensorError):
            continue  # the library has no name for it
        written.add(dtype)
        (found,) = parse_safetensors(BytesSource(content)).tensors
        assert gathered(content, found) == bytes(range(16)), dtype
        if found.dtype != "float4_e2m1fn":  # torch counts pairs, safetensors elements
            assert found.dtype == str(dtype).removeprefix("torch."), dtype
            assert found.shape == tuple(tensor.shape)
    assert len(written) >= 20


def test_T08_dtypes_are_those_of_the_library() -> None:
    # The library names what it knows when it meets what it does not.
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(safetensors_file({"x": entry([1], 0, 4, "NO")}, bytes(4)))
    known = set(re.findall(r"`([A-Z0-9_]+)`", str(caught.value))) - {"NO"}
    assert known == set(DTYPES)
    for name, ours in DTYPES.items():
        data = bytes(BITS[ours])  # eight elements
        content = safetensors_file({"x": entry([8], 0, len(data), name)}, data)
        assert accepted_by_library(content)
        assert parse_safetensors(BytesSource(content)).tensors[0].dtype == ours


def test_T20_empty_tensor_set_is_legal() -> None:
    for header in ({}, {"__metadata__": {}}, {"__metadata__": {"k": "v"}}):
        assert parsed(header) == ParsedFile("safetensors", ())
    assert parsed("{}   \n\t ").tensors == ()


@pytest.mark.parametrize("metadata", [{}, {"k": "v"}, {"dtype": "F32", "shape": "x"}, None])
def test_T21_metadata_is_told_by_its_key(metadata: Any) -> None:
    header = {"x": entry([2], 0, 8)} | ({} if metadata is None else {"__metadata__": metadata})
    content = safetensors_file(header, bytes(8))
    assert parse_safetensors(BytesSource(content)).tensors == (FoundTensor(("x",), "float32", (2,), len(content) - 8),)


def test_T33_names_are_opaque() -> None:
    header = {
        "norm.1.weight": entry([1], 0, 4),
        "norm": entry([1], 4, 8),
        "": entry([1], 8, 12),
        "a/../b": entry([0], 12, 12),
    }
    assert [tensor.path for tensor in parsed(header, bytes(12)).tensors] == [
        ("norm.1.weight",),
        ("norm",),
        ("",),
        ("a/../b",),
    ]


def test_safetensors_order_is_that_of_the_header() -> None:
    header = {"z": entry([1], 4, 8), "e": entry([0], 4, 4), "a": entry([1], 0, 4)}
    assert [tensor.path[0] for tensor in parsed(header, bytes(8)).tensors] == ["z", "e", "a"]


@pytest.mark.parametrize(
    "text",
    [
        '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}   ',
        '{ "x" :\t{\n"data_offsets" : [ 0 ,\r\n 8 ] , "shape":[ 2 ],"dtype":"F32" } }\n',
        '{"\\u0078":{"d\\u0074ype":"F\\u00332","shape":[2],"data_offsets":[0,8]}}',
    ],
)
def test_safetensors_spellings_of_one_header(text: str) -> None:
    content = safetensors_file(text, bytes(8))
    assert accepted_by_library(content)
    assert parse_safetensors(BytesSource(content)).tensors == (FoundTensor(("x",), "float32", (2,), len(content) - 8),)


def test_safetensors_many_tensors_are_fast() -> None:
    count = 20_000
    header = {
        f"model.layers.{i}.mlp.gate_proj.weight": entry([64, 2], i * 256, i * 256 + 256, "BF16") for i in range(count)
    }
    content = safetensors_file(header)
    source = BytesSource(content, len(content) + count * 256)
    start = time.perf_counter()
    assert len(parse_safetensors(source).tensors) == count
    # Measured: 0.12 s, where json.loads alone takes 0.05; a quadratic step would take minutes.
    assert time.perf_counter() - start < 5
