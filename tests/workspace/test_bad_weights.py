"""Folders of weights that are not what they should be: each fault is named, with the next step."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save

from cairn.core.errors import BadInput, InputChanged
from cairn.registry.selectors import resolve
from cairn.workspace.export import ExportOptions, export
from cairn.workspace.ingest import FileIngest
from tests.formats.support import torch_file
from tests.support.stores import Site, checkout_to, commit_tree
from tests.support.trees import snapshot, write_files

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 4711\n"
A, B = {"a": torch.ones(40), "b": torch.zeros(40)}, {"c": torch.full((40,), 2.0)}


def index(**weight_map: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": weight_map}).encode()


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "pytorch_model.bin",
        "m.pt",
        "m.pth",
        "m.ckpt",
        "model.safetensors.index.json",
    ],
)
def test_a_pointer_of_git_lfs_is_no_weights(site: Site, tmp_path: Path, name: str) -> None:
    tree = write_files(tmp_path / "tree", {name: POINTER, "config.json": b"{}"})
    with pytest.raises(BadInput, match="Git LFS pointer") as caught:
        commit_tree(site.registry(), tree)
    assert "git lfs pull" in caught.value.hint and name in caught.value.message
    assert commit_tree(site.registry(), tree, opaque=True).files == 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_pointer_among_the_files_of_dcp(site: Site, tmp_path: Path) -> None:
    dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "in", no_dist=True)
    (tmp_path / "in/__0_0.distcp").write_bytes(POINTER)
    with pytest.raises(BadInput, match=r"__0_0\.distcp: this is a Git LFS pointer") as caught:
        commit_tree(site.registry(), tmp_path / "in")
    assert "git lfs pull" in caught.value.hint


def test_a_pointer_that_stands_for_no_weights_is_told_and_kept(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"photo.png": POINTER})
    (warning,) = commit_tree(site.registry(), tree).warnings
    assert "photo.png" in warning and "Git LFS pointer" in warning
    checkout_to(site.registry(), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)


SHARDS = {"x.safetensors": save(A), "y.safetensors": save(B)}
INDICES = {
    "complete": (index(a="x.safetensors", b="x.safetensors", c="y.safetensors"), ""),
    "of another save": (index(a="x.safetensors", d="y.safetensors"), "tensor 'd' is not in y.safetensors"),
    "in another shard": (index(a="y.safetensors"), "tensor 'a' is not in y.safetensors"),
    "missing shard": (index(a="z.safetensors"), "names 1 shards that are not there, first 'z.safetensors'"),
    "outside": (index(a="../x.safetensors"), "is a path"),
    "absolute": (index(a="/etc/passwd"), "is a path"),
    "twice": (b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "duplicate tensor name 'a'"),
}


@pytest.mark.parametrize(("content", "match"), INDICES.values(), ids=INDICES)
def test_an_index_says_what_is_there(site: Site, tmp_path: Path, content: bytes, match: str) -> None:
    tree = write_files(tmp_path / "tree", SHARDS | {"model.safetensors.index.json": content})
    if not match:
        assert commit_tree(site.registry(), tree).tensors == 3
        return
    with pytest.raises(BadInput, match=match) as caught:
        commit_tree(site.registry(), tree)
    assert "--opaque" in caught.value.hint


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_D11_shards_of_two_saves_are_not_one_model(site: Site, tmp_path: Path, suffix: str) -> None:
    write = save if suffix == "safetensors" else torch_file
    files = {f"x.{suffix}": write(A), f"y.{suffix}": write(B | {"a": torch.rand(40)})}
    files[f"model.{suffix}.index.json"] = index(a=f"x.{suffix}", b=f"x.{suffix}", c=f"y.{suffix}")
    tree = write_files(tmp_path / "tree", files)
    with pytest.raises(BadInput, match=r"'a' is in .* and, with other values, in"):
        commit_tree(site.registry(), tree)
    (tree / f"y.{suffix}").write_bytes(write(B | {"a": A["a"]}))  # the same tensor in two shards harms nobody
    assert commit_tree(site.registry(), tree).tensors == 3


def test_D25_variants_beside_each_other_are_told_and_keep_apart(site: Site, tmp_path: Path) -> None:
    half = {name: tensor.half() for name, tensor in A.items()}
    tree = write_files(tmp_path / "tree", {"model.safetensors": save(A), "model.fp16.safetensors": save(half)})
    registry = site.registry()
    done = commit_tree(registry, tree)
    (warning,) = done.warnings
    assert "variants (float16, float32)" in warning and done.tensors == 4
    checkout_to(registry, "m", tmp_path / "files")
    assert snapshot(tmp_path / "files") == snapshot(tree)
    export(registry, *resolve(registry, "m"), tmp_path / "out", ExportOptions("safetensors"))
    found = {name: load_file(tmp_path / "out" / name / "model.safetensors") for name in os.listdir(tmp_path / "out")}
    assert found["model.safetensors"]["a"].dtype is torch.float32 and found["model.fp16.safetensors"]["a"].sum() == 40


def test_files_that_were_cut_off(site: Site, tmp_path: Path) -> None:
    for cut in (1, 7, 100):
        tree = write_files(tmp_path / f"{cut}", {"m.safetensors": save(A)[:-cut]})
        with pytest.raises(BadInput, match=r"ends at byte|header claims"):
            commit_tree(site.registry(), tree)
        tree = write_files(tmp_path / f"{cut}-torch", {"m.pt": torch_file(A)[:-cut]})
        done = commit_tree(site.registry(), tree)
        assert "kept as plain bytes" in done.warnings[0] and "cut off" in done.warnings[0]


def test_D03_a_save_to_dcp_that_was_not_finished_is_no_checkpoint(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"__0_0.distcp": torch_file(A), "config.json": b"{}"})
    with pytest.raises(BadInput, match=r"\.metadata is missing: .* never finished"):
        commit_tree(site.registry(), tree)
    tree = write_files(tmp_path / "other", {".metadata": b"version: stable"})  # other tools have a file of that name
    assert commit_tree(site.registry(), tree).files == 1


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_files_of_dcp_that_change_meanwhile(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save({"w": torch.ones(3000)}, checkpoint_id=tmp_path / "in", no_dist=True)
    read, file = FileIngest.jobs, tmp_path / "in/__0_0.distcp"

    def late(self: FileIngest) -> object:
        file.write_bytes(file.read_bytes())
        return read(self)

    monkeypatch.setattr(FileIngest, "jobs", late)
    with pytest.raises(InputChanged, match="__0_0"):
        commit_tree(site.registry(), tmp_path / "in")
