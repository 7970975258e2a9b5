"""Folders of `torch.distributed.checkpoint`, as torch writes them, taken up by logical tensor."""

import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as ShardedProperties
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import cairn
from cairn.core.errors import BadInput, RefusedError
from cairn.manifests.schema import TensorEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.selectors import resolve
from cairn.store.crypto.components import ComponentClass
from cairn.workspace.commit import CommitResult
from cairn.workspace.export import ExportOptions, export
from tests.support.ranks import run_ranks
from tests.support.stores import Site, commit_tree
from tests.support.trees import write_files
from tests.workspace.dcp_jobs import LAYOUTS

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:Detected an existing")

Commit = Callable[..., CommitResult]


def save(state: dict[str, Any], folder: Path) -> Path:
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def entries(site: Site, selector: str = "m", component: ComponentClass | None = None) -> dict[str, TensorEntry]:
    registry = site.registry(cold=True)
    manifest = CheckpointManifest(registry, *resolve(registry, selector))
    return {str(entry.key): entry for entry in manifest.tensors(component)}


def contents(site: Site, out: Path, selector: str = "m") -> Any:
    """The state as one torch file has it."""
    registry = site.registry(cold=True)
    export(registry, *resolve(registry, selector), out, ExportOptions("torch"))
    return torch.load(out / "model.pt", weights_only=True)


# --- What torch writes ----------------------------------------------------------------------------


@pytest.mark.slow
def test_what_four_ranks_saved_is_the_same_state_whatever_its_layout(site: Site, tmp_path: Path) -> None:
    run_ranks(tmp_path / "job", 4, "tests.workspace.dcp_jobs:save_layouts", str(tmp_path), phases=len(LAYOUTS))
    registry = site.registry()
    for layout in LAYOUTS:
        done = commit_tree(registry, tmp_path / layout.name, layout.name)
        assert "PyTorch DCP checkpoint" in done.warnings[0] and len(done.warnings) == 1
    first = entries(site, LAYOUTS[0].name)
    assert first and all(entries(site, layout.name) == first for layout in LAYOUTS[1:]), (
        "tile by tile, digest by digest"
    )
    moments = entries(site, LAYOUTS[0].name, ComponentClass.OPTIMIZER)
    assert any(name.endswith("/exp_avg") for name in moments)
    read = contents(site, tmp_path / "out", LAYOUTS[2].name)
    target = {"model": {name: torch.zeros_like(tensor) for name, tensor in read["model"].items()}, "step": 0}
    dcp.load(target, checkpoint_id=tmp_path / LAYOUTS[1].name, no_dist=True)
    assert target["step"] == read["step"] == 40
    assert all(target["model"][name].equal(tensor) for name, tensor in read["model"].items())


STATE: dict[str, Any] = {
    "model": {
        "rows": torch.randn(300, 1700), "columns": torch.randn(600, 500).t(), "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4), "half": torch.randn(9, 9).bfloat16(), "flag": torch.tensor([True, False]),
    },
    "optim": {
        "state": {"rows": {"exp_avg": torch.randn(300, 1700)}}, "param_groups": [{"lr": 0.5, "params": ["rows"]}],
    },
    "step": 7,
}  # fmt: skip


def test_a_folder_comes_out_as_an_equal_one_and_is_the_same_checkpoint_again(site: Site, tmp_path: Path) -> None:
    registry = site.registry()
    commit_tree(registry, save(STATE, tmp_path / "in"))
    read = contents(site, tmp_path / "torch")
    assert all(read["model"][name].equal(tensor) for name, tensor in STATE["model"].items())
    assert read["optim"]["param_groups"] == STATE["optim"]["param_groups"] and read["step"] == 7
    export(registry, *resolve(registry, "m"), tmp_path / "out", ExportOptions("dcp", shard_bytes=1_000_000))
    assert len(list((tmp_path / "out").glob("*.distcp"))) > 2
    done = commit_tree(registry, tmp_path / "out")
    assert not done.created, "content, step and message are those of the tip"
    target = {"model": {name: torch.zeros_like(tensor) for name, tensor in STATE["model"].items()}}
    dcp.load(target, checkpoint_id=tmp_path / "out", no_dist=True)
    assert all(target["model"][name].equal(tensor) for name, tensor in STATE["model"].items())
    reader: dict[str, Any] = {"step": 0}
    dcp.load(reader, storage_reader=cairn.CairnReader(registry, "m"), no_dist=True)
    assert reader["step"] == 7


def test_S36_names_are_those_that_torch_gave_them(site: Site, tmp_path: Path) -> None:
    commit_tree(site.registry(), save(STATE, tmp_path / "in"))
    assert set(entries(site)) == {*(f"model:{name}" for name in STATE["model"]), "optim:state/rows/exp_avg"}
    export(registry := site.registry(), *resolve(registry, "m"), tmp_path / "out", ExportOptions("dcp"))
    names = pickle.loads((tmp_path / "out/.metadata").read_bytes()).state_dict_metadata.keys()
    assert names == pickle.loads((tmp_path / "in/.metadata").read_bytes()).state_dict_metadata.keys()


def test_T12_values_of_many_types_come_back_and_objects_are_named(site: Site, tmp_path: Path) -> None:
    values = {
        "bytes": io.BytesIO(b"x" * 100), "array": np.arange(6.0).reshape(2, 3), "number": np.float32(0.5),
        "none": None, "empty": b"", "set": {1, 2}, "tuple": (1, (2.5, "a")), "dtype": torch.bfloat16,
        "device": torch.device("cpu"), "big": 1 << 70,
    }  # fmt: skip
    state = {"model": {"w": torch.ones(3)}, "misc": values, "odd": {"object": slice(1, 2)}}
    done = commit_tree(site.registry(), save(state, tmp_path / "in"))
    assert any("1 values" in line and "odd.object" in line and "slice" in line for line in done.warnings)
    target: dict[str, Any] = {"misc": dict.fromkeys(values)}
    registry = site.registry()
    dcp.load(target, storage_reader=cairn.CairnReader(registry, "m"), no_dist=True)
    read = target["misc"]
    assert read.pop("bytes").getvalue() == b"x" * 100 and (read.pop("array") == values["array"]).all()
    assert read == {name: value for name, value in values.items() if name not in ("bytes", "array")}


def test_other_files_stay_files_and_several_folders_keep_apart(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"config.json": b"{}", "model/README": b"x"})
    save({"w": torch.ones(50)}, tree / "model")
    save({"state": {"w": {"exp_avg": torch.zeros(50)}}}, tree / "optimizer_0")
    registry = site.registry()
    commit_tree(registry, tree)
    assert set(entries(site, component=ComponentClass.WEIGHTS)) == {"model:w"}
    assert set(entries(site, component=ComponentClass.OPTIMIZER)) == {"optimizer_0:state/w/exp_avg"}
    cairn.checkout(registry, *resolve(registry, "m"), tmp_path / "out")
    assert {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()} == {
        "config.json", "model/README",
    }  # fmt: skip
    commit_tree(registry, tree, "kept", opaque=True)
    cairn.checkout(registry, *resolve(registry, "kept"), tmp_path / "kept")
    assert (tmp_path / "kept/model/.metadata").read_bytes() == (tree / "model/.metadata").read_bytes()


def test_a_folder_without_other_files_holds_none(site: Site, tmp_path: Path) -> None:
    registry = site.registry()
    commit_tree(registry, save(STATE, tmp_path / "in"))
    with pytest.raises(RefusedError, match="holds no files") as caught:
        cairn.checkout(registry, *resolve(registry, "m"), tmp_path / "out")
    assert "--format" in caught.value.hint


# --- Folders made by hand -------------------------------------------------------------------------


def folder_of(
    place: Path,
    shape: tuple[int, ...],
    parts: list[tuple[tuple[int, ...], torch.Tensor]],
    properties: Any = None,
    **changes: Any,
) -> Path:
    """A folder with one tensor `w` in parts at offsets, each in a file of its own."""
    place.mkdir()
    chunks, stored = [], {}
    for number, (offsets, part) in enumerate(parts):
        torch.save(part, place / f"__{number}_0.distcp")
        size = (place / f"__{number}_0.distcp").stat().st_size
        chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(part.shape)))
        stored[MetadataIndex("w", offsets, number)] = _StorageInfo(f"__{number}_0.distcp", 0, size)
    tensor = TensorStorageMetadata(properties or TensorProperties(torch.float32), torch.Size(shape), chunks)
    metadata = Metadata({"w": tensor}, storage_data=stored)
    for name, value in changes.items():
        setattr(metadata, name, value)
    (place / ".metadata").write_bytes(pickle.dumps(metadata))
    return place


def quarters(tensor: torch.Tensor) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    rows, columns = tensor.shape[0] // 2 + 1, tensor.shape[1] // 2 - 1
    return [
        ((top, left), tensor[top : (rows if not top else None), left : (columns if not left else None)].clone())
        for top in (0, rows)
        for left in (0, columns)
    ]


@pytest.mark.parametrize("shape", [(32, 32), (3, 9), (1300, 1100)])
def test_S37_metadata_of_the_time_of_sharded_tensors(site: Site, tmp_path: Path, shape: tuple[int, int]) -> None:
    """As torch 1.13 to 2.0 wrote it; made here from the same classes, which torch still has."""
    tensor = torch.randn(shape)
    place = folder_of(tmp_path / "in", shape, quarters(tensor), ShardedProperties(torch.float32))
    metadata = pickle.loads((place / ".metadata").read_bytes())
    for name in ("storage_meta", "version"):
        del metadata.__dict__[name]
    (place / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))
    commit_tree(site.registry(), place)
    assert contents(site, tmp_path / "out")["w"].equal(tensor)


def test_blocks_of_many_axes_and_transposed_ones(site: Site, tmp_path: Path) -> None:
    tensor = torch.randn(5, 64, 40, 30)
    parts = []
    for a in (0, 2):
        for b in (0, 50):
            for c in (0, 7):
                part = tensor[
                    a : a + (2 if a == 0 else 3), b : b + (50 if b == 0 else 14), :, c : (7 if c == 0 else 30)
                ]
                parts.append(((a, b, 0, c), part.transpose(1, 2).contiguous().transpose(1, 2)))
    commit_tree(site.registry(), folder_of(tmp_path / "in", (5, 64, 40, 30), parts))
    assert contents(site, tmp_path / "out")["w"].equal(tensor)


TWO = torch.arange(12.0).reshape(4, 3)
HALVES = [((0, 0), TWO[:2].clone()), ((2, 0), TWO[2:].clone())]
INDEX = MetadataIndex("w", (0, 0), 0)
DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "hole": (lambda p: folder_of(p, (4, 3), HALVES[:1]), "6 of its 12 elements are held by no rank"),
    "overlap": (lambda p: folder_of(p, (4, 3), [*HALVES, ((1, 0), TWO[:1].clone())]), "overlap"),
    "outside": (lambda p: folder_of(p, (3, 3), HALVES), "outside its shape"),
    "axes": (lambda p: folder_of(p, (12,), HALVES), "another number of axes"),
    "dtype": (lambda p: folder_of(p, (4, 3), HALVES, TensorProperties(torch.int32)), "float32 .2, 3. .*int32"),
    "no shards": (lambda p: (folder_of(p, (4, 3), HALVES) / "__1_0.distcp").unlink(), "__1_0.distcp is missing"),
    "cut off": (
        lambda p: (f := folder_of(p, (4, 3), HALVES) / "__1_0.distcp").write_bytes(f.read_bytes()[:-100]),
        "cut off",
    ),
    "LFS pointer": (
        lambda p: (folder_of(p, (4, 3), HALVES) / ".metadata").write_bytes(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        ),
        "LFS pointer",
    ),
    "not stored": (lambda p: folder_of(p, (4, 3), HALVES, storage_data={}), "stored nowhere"),
    "outside the folder": (
        lambda p: folder_of(p, (2, 3), HALVES[:1], storage_data={INDEX: _StorageInfo("../x", 0, 9)}),
        "climbs out",
    ),
    "transformed": (
        lambda p: folder_of(p, (2, 3), HALVES[:1], storage_data={INDEX: _StorageInfo("x", 0, 9, ["zstd"])}),
        "transformed",
    ),
    "negative": (
        lambda p: folder_of(p, (2, 3), HALVES[:1], storage_data={INDEX: _StorageInfo("__0_0.distcp", -5, 9)}),
        "bytes -5",
    ),
    "no metadata": (lambda p: (folder_of(p, (4, 3), HALVES) / ".metadata").write_bytes(pickle.dumps({})), "Metadata"),
    "empty": (lambda p: (folder_of(p, (4, 3), HALVES) / ".metadata").write_bytes(b""), "pickle"),
    "no value": (
        lambda p: folder_of(p, (2, 3), HALVES[:1], state_dict_metadata={"v": BytesStorageMetadata()}),
        "stored nowhere",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "match"), DEFECTS.values(), ids=DEFECTS)
def test_one_defect_one_error(site: Site, tmp_path: Path, make: Callable[[Path], object], match: str) -> None:
    make(tmp_path / "in")
    with pytest.raises(BadInput, match=match) as caught:
        commit_tree(site.registry(), tmp_path / "in")
    assert "--opaque" in caught.value.hint or "lfs" in caught.value.hint
    assert caught.value.message.startswith("., a distributed checkpoint")
    commit_tree(site.registry(), tmp_path / "in", opaque=True)


fired: list[str] = []


def marker(where: str) -> None:
    fired.append(where)


class Hostile:
    """Runs a function when it is unpickled the usual way."""

    def __reduce__(self) -> Any:
        return marker, ("ran",)


def test_X01_X36_a_hostile_folder_runs_nothing(site: Site, tmp_path: Path) -> None:
    place = folder_of(tmp_path / "in", (4, 3), HALVES, planner_data=Hostile())
    with pytest.raises(BadInput, match="marker"):
        commit_tree(site.registry(), place)
    shutil.rmtree(place)
    folder_of(place, (4, 3), HALVES)
    torch.save(Hostile(), place / "__1_0.distcp")
    with pytest.raises(BadInput):
        commit_tree(site.registry(), place)
    shutil.rmtree(place)
    save({"w": torch.ones(3), "value": Hostile()}, place)
    fired.clear()
    done = commit_tree(site.registry(), place)
    assert any("value" in line and "marker" in line for line in done.warnings) and done.tensors == 1
    assert fired == []
    pickle.loads(pickle.dumps(Hostile()))
    assert fired == ["ran"], "the marker does fire where a pickle is run"


# --- Megatron -------------------------------------------------------------------------------------


def test_a_torch_dist_folder_of_megatron(site: Site, tmp_path: Path) -> None:
    """Made from its documents (`megatron/core/dist_checkpointing`): DCP without paths, and plain state beside it."""
    place = tmp_path / "iter_0000010"
    tensors = {
        "model.decoder.layers.mlp.linear_fc1.weight": torch.randn(2, 64, 32),
        "optimizer.state.exp_avg.model.decoder.layers.mlp.linear_fc1.weight": torch.randn(2, 64, 32),
        "optimizer.state.fp32_param.model.decoder.layers.mlp.linear_fc1.weight": torch.randn(2, 64, 32),
    }
    extra = "model.decoder.layers.self_attention._extra_state/shard_0_2"
    objects = {extra: io.BytesIO(b"fp8"), "rng_state/shard_0.0.0_1.1.1": [{"np": (1, 2)}]}
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save({**tensors, **objects}, checkpoint_id=place, planner=planner, no_dist=True)
    metadata = pickle.loads((place / ".metadata").read_bytes())
    metadata.planner_data = None
    metadata.mcore_data = {}
    (place / ".metadata").write_bytes(pickle.dumps(metadata))
    (place / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    torch.save({"iteration": 10, "checkpoint_version": 3.0}, place / "common.pt")
    registry = site.registry()
    done = commit_tree(registry, place)
    assert "Megatron torch_dist" in done.warnings[0] and done.files == 2
    assert set(entries(site, component=ComponentClass.WEIGHTS)) == {next(iter(tensors))}
    assert len(entries(site, component=ComponentClass.OPTIMIZER)) == 2
    export(registry, *resolve(registry, "m"), tmp_path / "out", ExportOptions("dcp"))
    target: dict[str, Any] = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    target |= {extra: None, "rng_state/shard_0.0.0_1.1.1": None}
    dcp.load(target, checkpoint_id=tmp_path / "out", no_dist=True)
    assert all(target[name].equal(tensor) for name, tensor in tensors.items())
    assert target["rng_state/shard_0.0.0_1.1.1"] == [{"np": (1, 2)}]
    assert target[extra].getvalue() == b"fp8" and (tmp_path / "out/common.pt").exists()
