"""Group T, what stands in files: odd leaves, wrappers, tensors without bytes, large and empty headers, duplicates."""

import io
import json
import random
import warnings
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from cairn.core.limits import PAGE_BYTES_MAX
from cairn.manifests.schema import Key
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.selectors import resolve
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType
from tests.cases.shell import Shell
from tests.formats.support import rezipped, safetensors_file, torch_file

# --- Leaves that are no plain tensors -------------------------------------------------------------

LEAVES: dict[str, Any] = {
    "BytesIO": io.BytesIO(b"x" * 100), "empty BytesIO": io.BytesIO(), "None": None, "bytes": b"",
    "bytearray": bytearray(b"ab"),
    "float": 1e-300, "large int": 1 << 70, "complex": 1j, "set": {1, 2}, "size": torch.Size([2, 3]),
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"), "text": "\u00e4", "class": torch.nn.Linear(2, 2),
}  # fmt: skip


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES)
def test_T12_extra_state_of_any_type_comes_back(shell: Shell, leaf: Any) -> None:
    state = {"weight": torch.randn(100), "_extra_state": leaf, "list": [leaf, leaf]}
    file = torch_file(state)
    done = shell.commit({"m.pt": file})
    assert (shell.back() / "m.pt").read_bytes() == file
    if isinstance(leaf, (io.BytesIO, torch.nn.Module)):
        (warning,) = done["warnings"]
        assert "kept as plain bytes" in warning and type(leaf).__name__ in warning and done["tensors"] == 0
    else:
        assert done["tensors"] == 1 and done["warnings"] == []


class Packed(torch.Tensor):
    """A wrapper tensor: int4 weights in two parts, no bytes of its own."""

    @staticmethod
    def __new__(cls, packed: torch.Tensor, scale: torch.Tensor) -> "Packed":
        made = torch.Tensor._make_wrapper_subclass(cls, (16, 16), dtype=torch.float32)  # type: ignore[attr-defined]  # a private function of torch
        made.packed, made.scale = packed, scale
        return made  # type: ignore[no-any-return]  # as above

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Packed, (self.packed, self.scale)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        raise NotImplementedError(function)


def parts_of_int4() -> dict[str, torch.Tensor]:
    return {"w.packed": torch.randint(0, 255, (16, 8), dtype=torch.uint8), "w.scale_zero": torch.randn(4, 2)}


def parts_of_nf4() -> dict[str, torch.Tensor]:
    """As bitsandbytes writes them: absmax, code book, and JSON as bytes."""
    facts = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [2, 3]}).encode()
    return {
        "w": torch.randint(0, 255, (3, 1), dtype=torch.uint8), "w.absmax": torch.rand(1),
        "w.quant_map": torch.rand(16),
        "w.quant_state.bitsandbytes__nf4": torch.frombuffer(bytearray(facts), dtype=torch.uint8),
    }  # fmt: skip


@pytest.mark.parametrize("parts", [parts_of_int4, parts_of_nf4])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_T14_T32_the_parts_of_a_quantized_tensor_are_plain_tensors_of_one_checkpoint(
    shell: Shell, parts: Callable[[], dict[str, torch.Tensor]], suffix: str
) -> None:
    state = parts()
    shell.commit({f"m.{suffix}": torch_file(state) if suffix == "pt" else save(state)})
    rows = shell.tensors()
    assert rows.keys() == state.keys()
    back = shell.back() / f"m.{suffix}"
    read = torch.load(back, weights_only=True) if suffix == "pt" else load_file(back)
    assert all(read[name].equal(tensor) and read[name].dtype is tensor.dtype for name, tensor in state.items())


def test_T14_a_wrapper_that_is_no_plain_tensor_is_named_and_loses_nothing(shell: Shell) -> None:
    file = torch_file({"w": Packed(*parts_of_int4().values()), "bias": torch.ones(3)})
    done = shell.commit({"m.pt": file})
    assert done["tensors"] == 0 and "Packed" in done["warnings"][0] and "plain bytes" in done["warnings"][0]
    assert (shell.back() / "m.pt").read_bytes() == file


def test_T28_a_jagged_tensor_is_named_and_loses_nothing(shell: Shell) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls these a prototype
        rows = [torch.ones(1, 3), torch.ones(2, 3)]
        for number, layout in enumerate((torch.jagged, torch.strided)):
            nested = torch.nested.nested_tensor(rows, layout=layout)
            for traced in (False, True):
                if traced and layout is torch.jagged:
                    torch.nn.functional.relu(nested)
                file = torch_file({"ragged": nested, "plain": torch.ones(50)})
                done = shell.commit({"m.pt": file}, f"{number} {traced}")
                assert any("nested" in line.lower() or "ragged" in line for line in done["warnings"]), done["warnings"]
                assert (shell.back(f"{number} {traced}") / "m.pt").read_bytes() == file


METAS: dict[str, Any] = {
    "one of two": {"real": torch.ones(50), "offloaded": torch.empty(4, device="meta")},
    "parameter": {"real": torch.ones(50), "offloaded": torch.nn.Parameter(torch.empty(4, 4, device="meta"))},
    "deep": {"real": torch.ones(50), "x": [{"offloaded": torch.empty(0, device="meta")}]},
    "all": {"offloaded": torch.empty(4, device="meta")},
    "many": {"real": torch.ones(50), **{f"offloaded {i}": torch.empty(i, device="meta") for i in range(40)}},
}


@pytest.mark.parametrize("state", METAS.values(), ids=METAS)
def test_T29_a_tensor_without_bytes_is_never_passed_over(shell: Shell, state: Mapping[str, Any]) -> None:
    file = torch_file(state)
    done = shell.commit({"m.pt": file})
    named = [line for line in done["warnings"] if "offloaded" in line and "meta tensor" in line]
    assert len(named) == (40 if "offloaded 1" in state else 1), "each by its name"
    assert done["tensors"] == ("real" in state)
    if "real" in state:
        assert set(shell.tensors()) == {"real"}, "a meta tensor is not shown as if it had bytes"
    assert (shell.back() / "m.pt").read_bytes() == file


# --- Headers ------------------------------------------------------------------------------------

SCALE = 130  # T16 has 1.3 million tensors; here it is a 130th of them, in a header of a 130th of the size


def test_T16_many_tensors_make_many_small_pages(shell: Shell) -> None:
    count = 1_300_000 // SCALE
    names = [f"{i:06d}".ljust(90, "x") for i in range(count)]
    header = {name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, name in enumerate(names)}
    data = random.Random(0).randbytes(count)
    first = shell.commit({"m.safetensors": safetensors_file(header, data)})
    assert first["tensors"] == count
    registry = shell.registry()
    manifest = CheckpointManifest(registry, *resolve(registry, "m"))
    pages = [manifest.chunks.read(ContentType.PAGE, page) for page in manifest.page_digests(ComponentClass.WEIGHTS)]
    assert len(pages) > 10 and max(map(len, pages)) <= PAGE_BYTES_MAX
    changed = safetensors_file(header, data[:-1] + bytes([data[-1] ^ 1]))
    second = shell.commit({"m.safetensors": changed})
    assert second["bytes_new"] == 0, "it lies in a page"
    assert second["bytes_stored"] < first["bytes_stored"] / 8, "one changed tensor is one changed page"
    assert len(shell("diff", "--json", "m@latest", f"m@{first['checkpoint']}").json["tensors"]) == 1
    assert (shell.back() / "m.safetensors").read_bytes() == changed


EMPTY: dict[str, bytes] = {
    "x.safetensors": save({}), "meta.safetensors": save({}, {"k": "v"}),
    "blank.safetensors": safetensors_file({"__metadata__": {}}),
    "none.safetensors": safetensors_file("{}"), "x.pt": torch_file({}), "list.pt": torch_file([]),
    "none.pt": torch_file(None),
    "x.safetensors.index.json": b'{"weight_map": {}}', "zero.safetensors": save({"z": torch.empty(0, 4)}),
}  # fmt: skip


@pytest.mark.parametrize(
    "names", [[name] for name in EMPTY] + [sorted(EMPTY)], ids=lambda n: n[0] if len(n) == 1 else "all"
)
def test_T20_an_empty_set_of_tensors_is_legal_everywhere(shell: Shell, names: list[str]) -> None:
    files = {name: EMPTY[name] for name in names}
    first = shell.commit(files)
    assert first["tensors"] == ("zero.safetensors" in files) and first["warnings"] == []
    shell.commit({"m.safetensors": save({"w": torch.ones(9)})})
    for command in ("ls", "show", "log", "verify"):
        shell(command, *([] if command == "verify" else [f"m@{first['checkpoint']}"]))
    assert len(shell.tensors(f"m@{first['checkpoint']}")) == first["tensors"]
    for pair in (
        (f"m@{first['checkpoint']}", "m"),
        ("m", f"m@{first['checkpoint']}"),
        (f"m@{first['checkpoint']}",) * 2,
    ):
        shell("diff", *pair)
        shell("diff", "--json", *pair)
    back = shell.back(f"m@{first['checkpoint']}")
    assert {path.name: path.read_bytes() for path in back.iterdir()} == files


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"": ""}, {f"k{i}": "v" * 100 for i in range(50)}])
def test_T21_metadata_is_known_by_its_key(shell: Shell, metadata: dict[str, str] | None) -> None:
    header: dict[str, Any] = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    for at_the_end in (False, True):
        both = [header, {"__metadata__": metadata} if metadata is not None else {}]
        first, second = both if at_the_end else both[::-1]
        file = safetensors_file({**first, **second}, bytes(range(8)))
        shell.commit({"m.safetensors": file}, str(at_the_end))
        assert list(shell.tensors(str(at_the_end))) == ["w"]
        assert shell.entries(str(at_the_end))[Key("", ("w",))].inline == bytes(range(8))
        assert (shell.back(str(at_the_end)) / "m.safetensors").read_bytes() == file


def test_T23_the_same_content_has_the_same_ids_in_every_process(shell: Shell) -> None:
    state = {f"layer.{i}": torch.randn(40, i + 1) for i in range(40)}
    metadata = {f"key{i}": str(i) for i in range(16)}
    files = {f"{i}/m.safetensors": save(state, metadata) for i in range(3)} | {"m.pt": torch_file({"a": {"b": state}})}
    first = shell.spawn("commit", "--json", shell.tree(files), "m", env={"PYTHONHASHSEED": "1"}).json
    reversed_files = dict(reversed(files.items()))
    for seed, again in (("2", "--json"), ("3", "--always"), ("4", "--opaque")):
        env = {"PYTHONHASHSEED": seed, "XDG_CACHE_HOME": str(shell.fresh("cache"))}
        done = shell.spawn("commit", "--json", again, shell.tree(reversed_files), "m", env=env).json
        if again == "--json":
            assert not done["created"] and done["checkpoint"] == first["checkpoint"]
        if again != "--opaque":
            assert done["chunks_new"] == done["bytes_new"] == 0
            assert done["bytes_stored"] == 0, "not even a page"


# --- Duplicates, single elements ------------------------------------------------------------------

ONE = '{"dtype": "F32", "shape": [1], "data_offsets": [%d, %d]}'


@pytest.mark.parametrize("second", [(0, 4), (4, 8), (0, 8)])
@pytest.mark.parametrize("name", ["key00", "k\\u0065y00", "__metadata__", "\u00e4"])
def test_T24_a_duplicate_name_in_a_header_is_refused(shell: Shell, second: tuple[int, int], name: str) -> None:
    value, again = (ONE % (0, 4), ONE % second) if name != "__metadata__" else ("{}", '{"a": "b"}')
    plain = name.replace("\\u0065", "e")
    text = f'{{"{plain}": {value}, "other": {ONE % (0, 4)}, "{name}": {again}}}'
    error = shell.refused({"m.safetensors": safetensors_file(text, bytes(8))})
    assert (
        "duplicate tensor name" if plain != "__metadata__" else "duplicate key"
    ) in error and "m.safetensors" in error


def test_T24_a_duplicate_name_in_an_index_or_archive_is_refused_or_named(shell: Shell) -> None:
    index = b'{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}'
    files = {"a.safetensors": save({"w": torch.ones(1)}), "b.safetensors": save({"w": torch.zeros(1)})}
    assert "duplicate tensor name 'w'" in shell.refused({**files, "m.safetensors.index.json": index})
    buffer = io.BytesIO(torch_file({"w": torch.ones(100)}))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("archive/data/0", bytes(400))
    done = shell.commit({"m.pt": buffer.getvalue()})
    assert done["tensors"] == 0 and "duplicate archive member" in done["warnings"][0]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1,) * 8, (1,) * 60], ids=len)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.bfloat16], ids=str)
def test_T26_a_single_element_is_a_tensor(shell: Shell, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    state = {"one": torch.ones(shape, dtype=dtype), "bias": torch.nn.Linear(1, 1).state_dict()["bias"]}
    files = {"m.pt": torch_file(state), "m.safetensors": save(state)}
    shell.commit(files)
    row = shell.tensors()["one"]
    assert row["shape"] == list(shape) and row["bytes"] == state["one"].element_size()
    back = shell.back()
    assert {path.name: path.read_bytes() for path in back.iterdir()} == files


def test_T18_an_assumed_byte_order_is_told_again_when_nothing_changed(shell: Shell) -> None:
    file = rezipped(torch_file({"w": torch.arange(100)}), {"byteorder": None})
    tree = shell.tree({"m.pt": file})
    first, second = shell.commit(tree), shell.commit(tree)
    assert not second["created"] and first["warnings"] == second["warnings"] != []
