"""Group T, what a tensor is: ties, strides, element types, byte order. From a file into a store and back."""

import io
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from cairn.manifests.dtypes import SWAP_BYTES
from cairn.manifests.schema import Key, TensorEntry
from tests.cases.shell import Shell
from tests.formats.support import raw_bytes, rezipped, torch_file

Make = Callable[[], torch.Tensor]


def loaded(path: Path) -> Any:
    """What torch reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some dtypes are experimental
        return torch.load(path, weights_only=True)


def content(entry: TensorEntry) -> tuple[object, ...]:
    """What an entry says of a tensor's value: type, shape, and its bytes or their digests."""
    return entry.dtype, entry.shape, entry.inline, entry.tiles, entry.tile_pages


def data_new(shell: Shell, files: dict[str, bytes], model: str) -> int:
    """Plaintext bytes that a commit of files stores anew."""
    new = shell.commit(files, model)["bytes_new"]
    assert isinstance(new, int)
    return new


# --- Ties ---------------------------------------------------------------------------------------

CONFIG = {"config.json": b'{"tie_word_embeddings": true}'}


@pytest.mark.parametrize("size", [(64, 8), (4, 2)], ids=["tiles", "in line"])
@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_T01_a_flag_that_says_tied_ties_nothing(shell: Shell, size: tuple[int, int], name: str) -> None:
    embed, head = torch.randn(size), torch.randn(size)
    state = {"embed": embed, "head": head}
    shell.commit({**CONFIG, name: torch_file(state) if name.endswith(".pt") else save(state)})
    assert [row["tied_to"] for row in shell.tensors().values()] == [None, None]
    back = shell.back() / name
    read = loaded(back) if name.endswith(".pt") else load_file(back)
    assert read["embed"].equal(embed) and read["head"].equal(head) and not embed.equal(head)


def test_T01_equal_bytes_in_two_storages_are_stored_once_and_stay_two(shell: Shell) -> None:
    embed = torch.randn(64, 8)
    done = shell.commit({**CONFIG, "model.pt": torch_file({"embed": embed, "head": embed.clone()})})
    assert done["chunks_reused"] == 1, "the same bytes, once"
    assert [row["tied_to"] for row in shell.tensors().values()] == [None, None]
    read = loaded(shell.back() / "model.pt")
    assert read["head"].data_ptr() != read["embed"].data_ptr() and read["head"].equal(embed)


PAIRS: dict[str, Callable[[torch.nn.Parameter], dict[str, Any]]] = {
    "one parameter under two names": lambda w: {"embed": w, "head": w},
    "a view of the same area": lambda w: {"embed": w, "head": w.data[:]},
    "in another container": lambda w: {"embed": w, "head": [w]},
    "three of them": lambda w: {"embed": w, "head": w, "third": {"deep": w}},
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("size", [(128, 16), (3, 2)], ids=["tiles", "in line"])
def test_T03_a_tied_pair_is_stored_once_and_comes_back_tied(
    shell: Shell, size: tuple[int, int], pair: Callable[[torch.nn.Parameter], dict[str, Any]]
) -> None:
    weight = torch.nn.Parameter(torch.randn(size))
    file = torch_file(pair(weight))
    done = shell.commit({"model.pt": file})
    rows = shell.tensors()
    assert rows.pop("embed")["tied_to"] is None
    assert rows and all(row["tied_to"] == "embed" for row in rows.values())
    entries = list(shell.entries().values())
    assert len({content(entry) for entry in entries}) == 1
    assert done["bytes_new"] <= len(file), "once, though it has two names"
    back = shell.back() / "model.pt"
    assert back.read_bytes() == file
    read = loaded(back)
    head = read["head"][0] if isinstance(read["head"], list) else read["head"]
    assert head.data_ptr() == read["embed"].data_ptr() and head.equal(weight)


def test_T03_a_tied_pair_meets_its_export_that_holds_one_copy(shell: Shell) -> None:
    weight = torch.randn(128, 16)
    both = {"model.pt": torch_file({"embed": weight, "head": weight}), "model.safetensors": save({"embed": weight})}
    assert set(shell.tensors(shell.commit(both) and "m")) == {"embed", "head"}
    assert shell.tensors()["head"]["tied_to"] == "embed"
    assert data_new(shell, {"x.safetensors": save({"embed": weight, "head": weight.clone()})}, "apart") < 200


# --- Strides ------------------------------------------------------------------------------------

STRIDED: dict[str, Make] = {
    "channels_last": lambda: torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.randn(4, 4, 2, 3, 3).to(memory_format=torch.channels_last_3d),
    "transposed": lambda: torch.randn(7, 50).t(),
    "expanded": lambda: torch.randn(1, 50).expand(40, 50),
    "every second": lambda: torch.randn(100)[::2],
    "window": lambda: torch.randn(20, 30)[3:17, 5:29],
    "diagonal": lambda: torch.randn(60, 60).diagonal(),
    "overlapping": lambda: torch.randn(100).unfold(0, 10, 3),
    "in line": lambda: torch.randn(5, 4).t(),
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_T05_any_stride_is_the_same_content_as_its_dense_copy(shell: Shell, make: Make) -> None:
    tensor = make()
    dense = tensor.clone(memory_format=torch.contiguous_format)
    assert not tensor.is_contiguous()
    file = torch_file({"w": tensor})
    done = shell.commit({"s.pt": file}, "strided")
    assert done["tensors"] == 1 and done["warnings"] == []
    assert data_new(shell, {"dense.safetensors": save({"w": dense})}, "dense") == 0, "nothing of it is new"
    shell.commit({"d.pt": torch_file({"w": dense})}, "dense pt")
    (strided,), (one,), (other,) = (shell.entries(model).values() for model in ("strided", "dense", "dense pt"))
    assert content(strided) == content(one) == content(other)
    back = shell.back("strided") / "s.pt"
    assert back.read_bytes() == file
    assert loaded(back)["w"].stride() == tensor.stride(), "the memory format is kept"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_T05_random_strides(shell: Shell, seed: int) -> None:
    draw = random.Random(seed)
    dims = draw.randrange(1, 5)
    base = torch.randint(0, 256, [draw.randrange(1, 9) for _ in range(dims)], dtype=torch.uint8).to(
        draw.choice([torch.uint8, torch.int16, torch.bfloat16, torch.float64, torch.complex64])
    )
    tensor = base.permute(draw.sample(range(dims), dims))
    tensor = tensor[tuple(slice(draw.randrange(0, n), None, draw.randrange(1, 3)) for n in tensor.shape)]
    model = f"m{seed}"
    shell.commit({"w.pt": torch_file({"w": tensor})}, model)
    assert data_new(shell, {"w.safetensors": save({"w": tensor.contiguous()})}, f"{model} dense") == 0
    assert content(shell.entries(model)[Key("", ("w",))]) == content(shell.entries(f"{model} dense")[Key("", ("w",))])


# --- Element types ------------------------------------------------------------------------------

TORCH_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


def samples() -> dict[str, torch.Tensor]:
    """A small and a larger tensor of each dtype that torch can save."""
    found = {}
    for dtype in TORCH_DTYPES:
        if "q" in str(dtype):
            continue  # quantized: more than elements
        for size, shape in ((64, (2, -1)), (1024, (8, -1))):
            data = torch.arange(size).to(torch.uint8)
            try:
                tensor = (data % 2).bool() if dtype is torch.bool else data.view(dtype)
                torch_file(tensor)
            except (KeyError, RuntimeError):
                continue  # torch itself neither makes nor saves these
            found[f"{str(dtype).removeprefix('torch.')} {size}"] = tensor.reshape(shape)
    return found


def test_T08_every_dtype_of_torch_goes_through_the_store(shell: Shell) -> None:
    tensors = samples()
    assert len(tensors) > 40
    file = torch_file(tensors)
    done = shell.commit({"all.pt": file})
    rows = shell.tensors()
    assert rows.keys() == tensors.keys() and done["warnings"] == []
    for name, tensor in tensors.items():
        row = rows[name]
        assert (row["dtype"], row["shape"]) == (name.split()[0], list(tensor.shape))
        assert row["bytes"] == tensor.numel() * tensor.element_size()
    back = shell.back() / "all.pt"
    assert back.read_bytes() == file
    read = loaded(back)
    assert all(raw_bytes(read[name]) == raw_bytes(tensor) for name, tensor in tensors.items())


def test_T08_every_dtype_of_safetensors_meets_torchs(shell: Shell) -> None:
    shared = {}
    for name, tensor in samples().items():
        try:
            save({name: tensor})
        except (KeyError, ValueError, RuntimeError):
            continue  # safetensors has no name for it
        shared[name] = tensor
    assert len(shared) > 30
    shell.commit({"all.pt": torch_file(shared)}, "torch")
    file = save(shared)
    shell.commit({"all.safetensors": file}, "safetensors")
    packed = {key for key in shell.entries("torch") if "float4" in str(key)}  # two elements in a byte, or one each
    one, other = shell.entries("torch"), shell.entries("safetensors")
    assert one.keys() == other.keys()
    assert all(content(one[key]) == content(other[key]) for key in one.keys() - packed)
    assert all(content(one[key])[2:] == content(other[key])[2:] for key in packed)
    assert (shell.back("safetensors") / "all.safetensors").read_bytes() == file


@pytest.mark.parametrize("name", ["Q9", "F128", "f32", "", "F32 ", "torch.float32", "\u0416"])
def test_T08_an_unknown_dtype_is_refused_by_the_tensors_name(shell: Shell, name: str) -> None:
    good = save({"layer.7.weight": torch.ones(4)})
    file = good.replace(b'"F32"', f'"{name}"'.encode())
    length = int.from_bytes(good[:8], "little") + len(file) - len(good)
    error = shell.refused({"ok.safetensors": good, "x.safetensors": length.to_bytes(8, "little") + file[8:]})
    assert "layer.7.weight" in error and "dtype" in error and "x.safetensors" in error


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_T09_complex_buffers_are_native(shell: Shell, dtype: torch.dtype) -> None:
    freqs = torch.randn(16, 4, 2).to(torch.float64).view(torch.complex128).squeeze(-1).to(dtype)
    files = {"m.pt": torch_file({"freqs": freqs})}
    if dtype is torch.complex64:
        files["m.safetensors"] = save({"freqs": freqs})
    shell.commit(files)
    (row,) = shell.tensors().values()
    assert (row["dtype"], row["shape"]) == (str(dtype).removeprefix("torch."), [16, 4])
    back = shell.back()
    assert all((back / name).read_bytes() == data for name, data in files.items())
    shell.commit({"m.pt": torch_file({"freqs": torch.view_as_real(freqs)})}, "real")
    assert shell.tensors("real")["freqs"]["shape"] == [16, 4, 2], "another type, and another tensor"


# --- Byte order ---------------------------------------------------------------------------------

GOLDEN = {  # little-endian ones, by element
    torch.bfloat16: "803f", torch.float16: "003c", torch.int16: "0100", torch.float32: "0000803f",
    torch.int64: "0100000000000000", torch.float64: "000000000000f03f", torch.complex64: "0000803f00000000",
    torch.complex128: "000000000000f03f0000000000000000", torch.bool: "01", torch.int8: "01",
}  # fmt: skip


def as_big_endian(file: bytes, dtypes: list[str]) -> bytes:
    """The archive that a big-endian machine would write: storage number i holds elements of dtype i."""
    change: dict[str, bytes | None] = {"byteorder": b"big"}
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        for number, dtype in enumerate(dtypes):
            data, width = archive.read(f"archive/data/{number}"), SWAP_BYTES[dtype]
            change[f"data/{number}"] = b"".join(data[i : i + width][::-1] for i in range(0, len(data), width))
    return rezipped(file, change)


@pytest.mark.parametrize("count", [3, 200], ids=["in line", "tiles"])
def test_T17_the_store_is_little_endian_whatever_the_file_is(shell: Shell, count: int) -> None:
    names = [str(dtype).removeprefix("torch.") for dtype in GOLDEN]
    state = {name: torch.ones(count, dtype=dtype) for name, dtype in zip(names, GOLDEN, strict=True)}
    file = torch_file(state)
    big = as_big_endian(file, names)
    shell.commit({"m.pt": file}, "little")
    shell.commit({"m.pt": big}, "big")
    little, swapped = shell.entries("little"), shell.entries("big")
    assert {key: content(entry) for key, entry in little.items()} == {k: content(e) for k, e in swapped.items()}
    if count * 16 <= 128:
        for dtype, golden in GOLDEN.items():
            inline = little[Key("", (str(dtype).removeprefix("torch."),))].inline
            assert inline == bytes.fromhex(golden) * count
    assert (shell.back("big") / "m.pt").read_bytes() == big, "the file itself comes back as it was"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dtype=st.sampled_from(sorted(GOLDEN, key=str)), seed=st.integers(0, 1 << 32), transposed=st.booleans())
def test_T18_a_big_endian_archive_holds_the_same_tensor(
    shell: Shell, dtype: torch.dtype, seed: int, transposed: bool
) -> None:
    torch.manual_seed(seed)
    value = torch.randint(-100, 100, (17, 9)).to(dtype)
    tensor = value.t() if transposed else value
    name, model = str(dtype).removeprefix("torch."), f"{seed} {dtype} {transposed}"
    shell.commit({"m.pt": as_big_endian(torch_file({"w": tensor}), [name])}, model)
    shell.commit({"m.pt": torch_file({"w": tensor.contiguous()})}, f"{model} little")
    big, little = (shell.entries(one)[Key("", ("w",))] for one in (model, f"{model} little"))
    assert big.dtype == name and content(big) == content(little)


@pytest.mark.parametrize("order", [None, b"little", b"big", b"", b"middle", b"BIG"])
def test_T18_the_byte_order_is_stated_assumed_or_the_file_stays_bytes(shell: Shell, order: bytes | None) -> None:
    file = torch_file({"w": torch.arange(100)})
    if order != b"little":
        file = rezipped(file, {"byteorder": order})
    done = shell.commit({"m.pt": file})
    if order is None:
        assert any("little-endian was assumed" in line for line in done["warnings"])
    elif order in (b"little", b"big"):
        assert done["warnings"] == [] and done["tensors"] == 1
    else:
        assert done["tensors"] == 0 and "kept as plain bytes" in done["warnings"][0]
        assert done["warnings"][0].startswith("m.pt: "), "the file is named"
    assert (shell.back() / "m.pt").read_bytes() == file
