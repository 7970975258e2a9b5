"""Names of tensors across the files of a tree: shared where they agree, kept apart or refused where they do not."""

import os
from pathlib import Path

import pytest
import torch

from cairn.core.errors import BadInput
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.registry import Registry
from tests.formats.support import torch_file
from tests.support.stores import Site, checkout_to, commit_tree, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot, write_files


def keys(registry: Registry) -> set[str]:
    return {str(entry.key) for entry in CheckpointManifest(registry, *tip(registry)).tensors()}


def check(registry: Registry, tree: Path) -> None:
    out = tree.with_name("out")
    checkout_to(registry, "m", out)
    assert snapshot(out) == snapshot(tree)


def file_of(**tensors: int) -> bytes:
    return safetensors({name: weights(seed, 60) for name, seed in tensors.items()})


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.safetensors": file_of(w=1), "b.safetensors": file_of(v=2)}, {"w", "v"}),
        ({"a.safetensors": file_of(w=1), "b.safetensors": file_of(w=1)}, {"w"}),
        ({"x/a.safetensors": file_of(w=1), "y/a.safetensors": file_of(w=2)}, {"x:w", "y:w"}),
        (
            {"rank0.safetensors": file_of(w=1, v=5), "rank1.safetensors": file_of(w=2, v=5)},
            {"rank0.safetensors:w", "rank0.safetensors:v", "rank1.safetensors:w", "rank1.safetensors:v"},
        ),
        (
            {"a.safetensors": file_of(w=1), "b.safetensors": file_of(w=2), "c.safetensors": file_of(w=1, u=3)},
            {"a.safetensors:w", "b.safetensors:w", "w", "u"},
        ),
    ],
    ids=["shards", "copies", "folders", "ranks", "two of three"],
)
def test_scopes(site: Site, tmp_path: Path, files: dict[str, bytes], expected: set[str]) -> None:
    tree = write_files(tmp_path / "tree", files)
    registry = site.registry()
    commit_tree(registry, tree)
    assert keys(registry) == expected
    check(registry, tree)


def test_S04_equal_names_with_other_bytes_never_replace_each_other(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {f"rank{n}.safetensors": file_of(rng=n, shared=99) for n in range(5)})
    registry = site.registry()
    result = commit_tree(registry, tree)
    assert result.tensors == 10
    assert result.counts.chunks_reused >= 4
    check(registry, tree)


FOLDERS = {
    "an escape and its text": (b"\xff", b"\\xff"),
    "two bytes that are no text": (b"\xfe", b"\xff"),
    "composed and not": ("é".encode(), "e\u0301".encode()),
    "upper and lower": (b"A", b"a"),
    "a colon": (b"a:b", b"a"),
}


@pytest.mark.parametrize("pair", FOLDERS.values(), ids=FOLDERS)
def test_folders_whose_names_look_alike_are_kept_apart(site: Site, tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for seed, name in enumerate(pair, 1):
        folder = os.path.join(os.fsencode(tree), name)
        os.mkdir(folder)
        with open(os.path.join(folder, b"m.safetensors"), "wb") as file:
            file.write(file_of(w=seed))
    registry = site.registry()
    assert commit_tree(registry, tree).tensors == 2
    check(registry, tree)


@pytest.mark.parametrize("pair", FOLDERS.values(), ids=FOLDERS)
def test_files_whose_names_look_alike_are_kept_apart(site: Site, tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for seed, name in enumerate(pair, 1):
        with open(os.path.join(os.fsencode(tree), name + b".safetensors"), "wb") as file:
            file.write(file_of(w=seed))
    registry = site.registry()
    assert commit_tree(registry, tree).tensors == 2
    check(registry, tree)


def test_D11_two_candidates_for_one_model_are_refused(site: Site, tmp_path: Path) -> None:
    old, new = weights(1, 60), weights(2, 60)
    files = {
        "model.safetensors": safetensors({"w": old}),
        "pytorch_model.bin": torch_file({"w": torch.from_numpy(new)}),
    }
    tree = write_files(tmp_path / "tree", files)
    with pytest.raises(BadInput, match="two candidates"):
        commit_tree(site.registry(), tree)
    assert len(site.log()) == 1
    # In folders of their own, as equals, or as plain bytes they are welcome.
    registry = site.registry()
    commit_tree(registry, tree, opaque=True)
    check(registry, tree)
    (tree / "old").mkdir()
    (tree / "model.safetensors").rename(tree / "old" / "model.safetensors")
    commit_tree(registry, tree)
    assert keys(registry) == {"w", "old:w"}


def test_two_containers_that_agree_are_one_model(site: Site, tmp_path: Path) -> None:
    array = weights(1, 60)
    files = {"m.safetensors": safetensors({"w": array}), "m.bin": torch_file({"w": torch.from_numpy(array)})}
    tree = write_files(tmp_path / "tree", files)
    registry = site.registry()
    assert commit_tree(registry, tree).tensors == 1
    assert keys(registry) == {"w"}
    check(registry, tree)


@pytest.mark.parametrize(
    "other", [weights(1, 6, 10), weights(1, 60).view("int32"), weights(3, 6)], ids=["shape", "dtype", "size"]
)
def test_another_form_of_a_tensor_is_another_tensor(site: Site, tmp_path: Path, other: object) -> None:
    files = {"a.safetensors": file_of(w=1), "b.safetensors": safetensors({"w": other})}  # type: ignore[dict-item]  # arrays
    tree = write_files(tmp_path / "tree", files)
    registry = site.registry()
    assert commit_tree(registry, tree).tensors == 2
    check(registry, tree)
