"""Tensors of a checkpoint in other formats, read by the libraries of those formats."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import cairn
from cairn import ExportOptions, ExportResult, export, resolve
from cairn.core.errors import DestinationExists, IntegrityError, RefusedError, UsageError
from cairn.core.limits import MIB
from cairn.formats.safetensors_write import Named, plan_shards
from cairn.formats.torch_write import DTYPES
from cairn.registry.registry import Registry
from cairn.workspace import fill
from tests.support.stores import Site, commit_tree
from tests.support.trees import write_files

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
Export = Callable[..., tuple[Path, ExportResult]]


@pytest.fixture
def exported(site: Site, tmp_path: Path) -> Export:
    """Export the tip of `m` into a folder of its own."""

    def run(form: str, *components: str, **options: Any) -> tuple[Path, ExportResult]:
        out = tmp_path / f"out-{form}-{len(list(tmp_path.iterdir()))}"
        registry = site.registry(cold=True)
        return out, export(registry, *resolve(registry, "m"), out, ExportOptions(form, components, **options))

    return run


def trained() -> dict[str, Any]:
    """A training state: tied weights, a moved optimizer, several dtypes, odd shapes, plain values in lists."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(900, 700), torch.nn.Linear(700, 900, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("wide", torch.randn(3, 2, 5).bfloat16())
    model.register_buffer("scalar", torch.tensor(3.5, dtype=torch.float64))
    model.register_buffer("empty", torch.empty(0, 4))
    model.register_buffer("flags", torch.tensor([True, False]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "step": 7, "misc": {"list": [1, {"x": "y"}], "none": None}}


def save_trained(site: Site) -> dict[str, Any]:
    """Save the state; returns what torch would call it."""
    state = trained()
    registry = site.registry()
    with cairn.Checkpointer(registry, "m") as checkpointer:
        checkpointer.save(7, state, blocking=True)
    registry.close()
    return state


def test_a_training_state_as_one_torch_file(site: Site, exported: Export) -> None:
    state = save_trained(site)
    out, result = exported("torch")
    read = torch.load(out / "model.pt", weights_only=True)
    model, moments = state["model"].state_dict(), next(iter(state["optimizer"].state.values()))
    assert {name: tensor.dtype for name, tensor in read["model"].items()} == {n: t.dtype for n, t in model.items()}
    assert all(read["model"][name].equal(tensor) for name, tensor in model.items())
    assert read["model"]["0.weight"].data_ptr() == read["model"]["1.weight"].data_ptr(), "tied, in one storage"
    (name,) = read["optimizer"]["param_groups"][0]["param_names"]
    with pytest.raises(KeyError):  # it would go by an order that nobody knows, and mix up moments
        state["optimizer"].load_state_dict(read["optimizer"])
    assert all(torch.equal(read["optimizer"]["state"][name][kind], moments[kind]) for kind in ("exp_avg", "exp_avg_sq"))
    assert read["optimizer"]["param_groups"][0]["lr"] == 0.25
    assert read["step"] == 7 and read["misc"] == {"list": [1, {"x": "y"}], "none": None}
    assert result.files == 1 and result.tensors == 9
    torch.nn.Module.load_state_dict(trained()["model"], read["model"])


@pytest.mark.parametrize("file_bytes", [300_000, 10 * MIB])
def test_a_training_state_as_a_folder_of_dcp(site: Site, exported: Export, file_bytes: int) -> None:
    state = save_trained(site)
    out, result = exported("dcp", shard_bytes=file_bytes)
    model = state["model"].state_dict()
    target = {
        "model": {name: torch.zeros_like(tensor) for name, tensor in model.items()},
        "step": 0,
        "misc": {"list": [0, {"x": ""}], "none": 1},
    }
    dcp.load(target, checkpoint_id=out, no_dist=True)
    assert all(target["model"][name].equal(tensor) for name, tensor in model.items())
    assert target["step"] == 7 and target["misc"] == {"list": [1, {"x": "y"}], "none": None}
    sizes = [path.stat().st_size for path in out.glob("*.distcp")]
    assert max(sizes) < file_bytes + 100_000 and result.files == len(sizes) + 1
    assert (len(sizes) == 1) == (file_bytes > MIB)


def test_a_training_state_as_safetensors_has_the_names_of_the_module(site: Site, exported: Export) -> None:
    model = save_trained(site)["model"].state_dict()
    out, _ = exported("safetensors")
    read = load_file(out / "model.safetensors")
    assert read.keys() == model.keys() and all(read[name].equal(tensor) for name, tensor in model.items())
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "cairn.tied:1.weight": "0.weight"}
    out, result = exported("safetensors", "optimizer")
    assert os.listdir(out) == ["optimizer.safetensors"] and result.tensors == 3


def test_T03_T01_ties_are_written_twice_noted_and_found_again(site: Site, exported: Export, tmp_path: Path) -> None:
    head = torch.randn(128, 16)
    twin = head.clone()
    tree = tmp_path / "tree"
    tree.mkdir()
    torch.save({"embed": head, "head": head, "twin": twin}, tree / "m.pt")
    commit_tree(site.registry(), tree)
    out, _ = exported("safetensors")
    assert load_file(out / "model.safetensors").keys() == {"embed", "head", "twin"}
    (tree / "m.pt").unlink()
    (out / "model.safetensors").rename(tree / "m.safetensors")
    commit_tree(site.registry(), tree)
    back, _ = exported("torch")
    read = torch.load(back / "model.pt", weights_only=True)
    assert read["embed"].data_ptr() == read["head"].data_ptr() != read["twin"].data_ptr()
    assert all(tensor.equal(head) for tensor in read.values())


def test_a_note_of_a_tie_that_the_bytes_belie_is_no_tie(site: Site, exported: Export, tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(99), "b": torch.ones(99)}
    (tmp_path / "tree").mkdir()
    save_file(tensors, tmp_path / "tree" / "m.safetensors", {"cairn.tied:b": "a", "cairn.tied:x": "a"})
    commit_tree(site.registry(), tmp_path / "tree")
    read = torch.load(exported("torch")[0] / "model.pt", weights_only=True)
    assert all(read[name].equal(tensor) for name, tensor in tensors.items())


def test_T08_T09_every_dtype_or_an_error_that_names_it(site: Site, exported: Export, tmp_path: Path) -> None:
    names = ["float32", "float64", "float16", "bfloat16", "bool", "complex64", "complex128", "float4_e2m1fn_x2"]
    names += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    names += [f"float8_{form}" for form in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")]
    tensors = {name: (torch.arange(48) % 2).to(torch.uint8).view(DTYPES[name]).clone() for name in names}
    (tmp_path / "tree").mkdir()
    torch.save(tensors, tmp_path / "tree" / "m.pt")
    commit_tree(site.registry(), tmp_path / "tree")
    read = torch.load(exported("torch")[0] / "model.pt", weights_only=True)
    for name, tensor in tensors.items():
        assert read[name].dtype is tensor.dtype and read[name].view(torch.uint8).equal(tensor.view(torch.uint8)), name
    with pytest.raises(RefusedError, match="complex128") as caught:
        exported("safetensors")
    assert "complex64" not in caught.value.message and "float4_e2m1fn_x2" in caught.value.message
    known = {name: tensor for name, tensor in tensors.items() if f"({name})" not in caught.value.message}
    torch.save(known, tmp_path / "tree" / "m.pt")
    commit_tree(site.registry(), tmp_path / "tree")
    flat = load_file(exported("safetensors")[0] / "model.safetensors")
    assert "complex64" in flat and all(flat[n].view(torch.uint8).equal(t.view(torch.uint8)) for n, t in known.items())


def test_values_that_safe_loading_refuses_are_named(site: Site, exported: Export) -> None:
    import numpy as np

    with cairn.Checkpointer(site.registry(), "m") as checkpointer:
        checkpointer.save(1, {"model": torch.nn.Linear(2, 2), "seen": {"rng": np.arange(3)}}, blocking=True)
    with pytest.raises(RefusedError, match=r"seen\.rng"):
        exported("torch")
    assert torch.load(exported("torch", "weights")[0] / "model.pt", weights_only=True)
    seen = {"seen": {"rng": np.zeros(3)}}
    dcp.load(seen, checkpoint_id=exported("dcp")[0], no_dist=True)
    assert seen["seen"]["rng"].tolist() == [0, 1, 2]


def test_files_without_tensors_come_along_and_folders_stay(site: Site, exported: Export, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"config.json": b"{}", "sub/vocab.txt": b"a", "x.safetensors.index.json": (
        b'{"weight_map": {"a": "part_x.safetensors"}}')})  # fmt: skip
    save_file({"a": torch.ones(5)}, tree / "part_x.safetensors")
    save_file({"a": torch.zeros(5)}, tree / "sub" / "m.safetensors")
    commit_tree(site.registry(), tree)
    out, result = exported("safetensors")
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        "config.json", "sub/vocab.txt", "model.safetensors", "sub/model.safetensors",
    }  # fmt: skip
    assert load_file(out / "sub" / "model.safetensors")["a"].sum() == 0 and result.files == 4
    read = torch.load(exported("torch")[0] / "model.pt", weights_only=True)
    assert read["a"].sum() == 5 and read["sub"]["a"].sum() == 0


@pytest.mark.parametrize("form", ["safetensors", "torch", "dcp"])
def test_packed_and_large_tensors_in_small_windows(
    site: Site, exported: Export, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "WINDOW_BYTES", 3 * MIB)
    tensors = {"columns": torch.randn(700, 6144), "rows": torch.randn(9000, 257), "one": torch.randn(2 * MIB)}
    (tmp_path / "tree").mkdir()
    save_file(tensors, tmp_path / "tree" / "m.safetensors")
    commit_tree(site.registry(), tmp_path / "tree")
    out, result = exported(form)
    if form == "dcp":
        read = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        dcp.load(read, checkpoint_id=out, no_dist=True)
    else:
        name = {"safetensors": "model.safetensors", "torch": "model.pt"}[form]
        read = load_file(out / name) if form == "safetensors" else torch.load(out / name, weights_only=True)
    assert all(read[name].equal(tensor) for name, tensor in tensors.items())
    assert result.bytes_fetched < 1.5 * sum(tensor.nbytes for tensor in tensors.values())


# --- Shards ---------------------------------------------------------------------------------------


def test_T36_a_tensor_over_the_limit_has_a_file_to_itself(site: Site, exported: Export, tmp_path: Path) -> None:
    tensors = {"a.big": torch.randn(3 * MIB // 4), "b.small": torch.randn(50_000), "c.small": torch.randn(100)}
    (tmp_path / "tree").mkdir()
    save_file(tensors, tmp_path / "tree" / "m.safetensors")
    commit_tree(site.registry(), tmp_path / "tree")
    out, _ = exported("safetensors", shard_bytes=MIB)
    index = json.loads((out / "model.safetensors.index.json").read_bytes())
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert files == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    held = {name: load_file(out / name) for name in files}
    assert {tensor: name for name, some in held.items() for tensor in some} == index["weight_map"] and all(
        held.values()
    )
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert all(held[index["weight_map"][name]][name].equal(tensor) for name, tensor in tensors.items())


def test_T16_no_header_is_longer_than_its_reader_takes() -> None:
    names = [f"{number:07d}".ljust(90, "x") for number in range(160_000)]
    shards = plan_shards((Named(name, "uint8", (1,)) for name in names), "m", 1 << 40)
    assert len(shards) == 2 and all(len(shard.head) < 100_000_000 for shard in shards)
    assert sorted(name for shard in shards for name in shard.offsets) == names


def test_T20_no_tensor_at_all_is_a_file_too(tmp_path: Path) -> None:
    (shard,) = plan_shards([], "m", 1)
    (tmp_path / "m.safetensors").write_bytes(shard.head)
    assert load_file(tmp_path / "m.safetensors") == {}


def test_a_reserved_name_is_refused() -> None:
    with pytest.raises(RefusedError, match="__metadata__"):
        plan_shards([Named("__metadata__", "uint8", (1,))], "m", 1)


# --- Refusals -------------------------------------------------------------------------------------


def test_names_that_meet_are_refused(site: Site, exported: Export, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    torch.save({"a": {"b": torch.ones(50)}, "a.b": torch.zeros(50)}, tmp_path / "tree" / "m.pt")
    commit_tree(site.registry(), tmp_path / "tree")
    for form in ("safetensors", "dcp"):
        with pytest.raises(RefusedError, match=r"a\.b"):
            exported(form)


def test_D30_scopes_that_fold_into_one_folder(
    site: Site, exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Part", "part"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        save_file({"a": torch.ones(3)}, tmp_path / "tree" / name / "m.safetensors")
    commit_tree(site.registry(), tmp_path / "tree")
    assert exported("safetensors")[1].files == 2
    monkeypatch.setattr("cairn.workspace.casefold._folds_case", lambda folder: True)
    with pytest.raises(RefusedError, match=r"Part.*part"):
        exported("safetensors")


def test_nothing_is_overwritten_and_nothing_is_left_behind(site: Site, exported: Export, tmp_path: Path) -> None:
    save_trained(site)
    registry = site.registry()
    out = tmp_path / "out"
    write_files(out, {"mine": b"x"})
    with pytest.raises(DestinationExists):
        export(registry, *resolve(registry, "m"), out, ExportOptions("torch"))
    assert os.listdir(out) == ["mine"]
    packs = site.names(".pack")
    for name in packs:
        site.backend.delete(name)
    before = set(tmp_path.iterdir())
    for form in ("torch", "dcp", "safetensors"):
        with pytest.raises(IntegrityError):
            damaged: Registry = site.registry(cold=True)
            export(damaged, *resolve(damaged, "m"), tmp_path / "lost", ExportOptions(form))
    assert set(tmp_path.iterdir()) - before <= {path for path in tmp_path.iterdir() if path.name.startswith("home")}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (ExportOptions("pickle"), UsageError, "pickle"),
        (ExportOptions("dcp", shard_bytes=0), UsageError, "limit"),
        (ExportOptions("dcp", ("optimizer",)), RefusedError, "has no optimizer"),
        (ExportOptions("dcp", ("files",)), UsageError, "no component of state"),
        (ExportOptions("safetensors"), RefusedError, "no state"),
    ],
)
def test_what_cannot_be_exported(
    site: Site, tmp_path: Path, options: ExportOptions, error: type[Exception], match: str
) -> None:
    tree = write_files(tmp_path / "tree", {"a.txt": b"x"})
    registry = site.registry()
    if "no state" not in match:
        save_file({"a": torch.ones(3)}, tree / "m.safetensors")
    commit_tree(registry, tree)
    with pytest.raises(error, match=match):
        export(registry, *resolve(registry, "m"), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()
