"""What was committed comes out again: every byte, mode, link and empty folder."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from cairn.core.limits import FILE_BLOCK_BYTES
from cairn.store.codec import CodecPolicy
from tests.support.stores import Site, checkout_to, commit_tree
from tests.support.tensors import safetensors, weights
from tests.support.trees import random_tree, snapshot, write_files


def returned(site: Site, tree: Path, out: Path, **options: object) -> Path:
    """Commit in one process, check out in another that has no cache; returns where."""
    commit_tree(site.registry(), tree, **options)
    checkout_to(site.registry(cold=True), "m", out)
    return out


@pytest.mark.parametrize("seed", range(25))
def test_random_trees(site: Site, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    tree = tmp_path / "tree"
    random_tree(draw, tree)
    options = {"opaque": draw.random() < 0.5, "codec": draw.choice(list(CodecPolicy))}
    out = returned(site, tree, tmp_path / "out", **options)
    assert snapshot(out) == snapshot(tree)


def test_the_random_trees_have_one_of_everything(tmp_path: Path) -> None:
    kinds: set[object] = set()
    for seed in range(25):
        random_tree(random.Random(seed), tmp_path / str(seed))
        for path, (kind, *facts) in snapshot(tmp_path / str(seed)).items():
            kinds.update([kind, path.count(b"/"), facts[-1] == b"", path.isascii()])
            if kind == "file":
                kinds.add(("mode", facts[0]))
    assert {"file", "folder", "link", 0, 3, True, ("mode", 0o400), ("mode", 0o777)} <= kinds


NAMES = [
    b"plain",
    b"sp ace",
    b"\xff\xfe",
    "ä".encode(),
    "e\u0301".encode(),
    "é".encode(),
    b"new\nline",
    b"\\x41",
    b"*?[]",
]
NAMES += [b"-n", b"...", b"..x", b"x" * 255, b"\x01\x7f", "🧗".encode(), b"con", b".hidden", b"a:b", b'"', b"%2F", b"~"]


def test_odd_names_of_files_folders_and_links(site: Site, tmp_path: Path) -> None:
    tree = os.fsencode(tmp_path / "tree")
    for name in NAMES:
        os.makedirs(tree + b"/folder-" + name[:240])
        with open(os.path.join(tree, b"folder-" + name[:240], name), "wb") as file:
            file.write(name)
        os.symlink(name, os.path.join(tree, b"folder-" + name[:240], b"link"))
    out = returned(site, tmp_path / "tree", tmp_path / "out")
    assert len(snapshot(out)) == 3 * len(NAMES)
    assert snapshot(out) == snapshot(tmp_path / "tree")


SIZES = [0, 1, 127, 128, 129, FILE_BLOCK_BYTES - 1, FILE_BLOCK_BYTES, FILE_BLOCK_BYTES + 1, 9 * FILE_BLOCK_BYTES + 5]


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_files(site: Site, tmp_path: Path, size: int) -> None:
    draw = random.Random(size)
    files = {"noise": draw.randbytes(size), "zeros": bytes(size), "ones": b"\xff" * size}
    files["end"] = bytes(size) + b"x"
    tree = write_files(tmp_path / "tree", files)
    assert snapshot(returned(site, tree, tmp_path / "out")) == snapshot(tree)


def test_modes_even_of_folders_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    tree = write_files(
        tmp_path / "tree", {f"d{mode:o}/f{mode:o}": b"x" for mode in (0o500, 0o555, 0o700, 0o755, 0o777)}
    )
    (tree / "d500" / "inner").mkdir()
    for mode in (0o500, 0o555, 0o700, 0o755, 0o777):
        (tree / f"d{mode:o}" / f"f{mode:o}").chmod(mode)
        (tree / f"d{mode:o}").chmod(mode)
    out = returned(site, tree, tmp_path / "out")
    assert snapshot(out) == snapshot(tree)
    assert out.stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def test_bits_beyond_permissions_are_not_kept(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"tool": b"x", "folder/a": b"y"})
    (tree / "tool").chmod(0o6755)
    (tree / "folder").chmod(0o3775)
    out = returned(site, tree, tmp_path / "out")
    assert (out / "tool").lstat().st_mode & 0o7777 == 0o755
    assert (out / "folder").lstat().st_mode & 0o7000 & ~0o2000 == 0  # a group may be inherited from above


@pytest.mark.parametrize("name", ["file.bin", "model.safetensors"])
@pytest.mark.parametrize("through_link", [False, True])
def test_a_single_file_is_a_tree_of_one(site: Site, tmp_path: Path, name: str, through_link: bool) -> None:
    data = safetensors({"w": weights(1, 300, 300)}) if "safetensors" in name else b"bytes"
    tree = write_files(tmp_path / "blobs", {name if not through_link else "0123abcd": data})
    path = tree / name
    if through_link:  # as the cache of the Hugging Face hub keeps its files
        path = tmp_path / "snapshots" / name
        path.parent.mkdir()
        path.symlink_to("../blobs/0123abcd")
    registry = site.registry()
    result = commit_tree(registry, path)
    assert (result.files, result.tensors) == (1, int("safetensors" in name))
    checkout_to(registry, "m", tmp_path / "out")
    assert {at: facts[-1] for at, facts in snapshot(tmp_path / "out").items()} == {name.encode(): data}


def test_an_empty_folder_is_a_tree_of_none(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    assert snapshot(returned(site, tmp_path / "tree", tmp_path / "out")) == {}


def test_tensors_of_many_tiles_and_of_none(site: Site, tmp_path: Path) -> None:
    tensors = {
        "columns": weights(1, 2048, 2304),  # 18 MiB: cut in rows and columns
        "odd": weights(2, 1031, 517),
        "vector": weights(3, 600_001),
        "scalar": weights(4),
        "empty": weights(5, 0, 7),
        "zeros": 0 * weights(6, 700, 700),
        "wide": weights(7, 2, 600_000),
        "inline": weights(8, 32),
    }
    tree = write_files(tmp_path / "tree", {"m.safetensors": safetensors(tensors, {"format": "pt"})})
    out = returned(site, tree, tmp_path / "out", codec=CodecPolicy.ZSTD)
    assert snapshot(out) == snapshot(tree)


def test_many_tensors_make_a_recipe_of_several_parts(site: Site, tmp_path: Path) -> None:
    tensors = {f"layers.{number}.weight": weights(number, 40) for number in range(3000)}
    tree = write_files(tmp_path / "tree", {"m.safetensors": safetensors(tensors)})
    registry = site.registry()
    assert commit_tree(registry, tree).tensors == 3000
    checkout_to(registry, "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)


def test_a_deep_tree(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    folder = os.open(tmp_path / "tree", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    try:
        out = returned(site, tmp_path / "tree", tmp_path / "out")
        assert (out / "/".join(["d"] * 1200)).is_dir()
    finally:  # deeper than pytest's own cleaning goes
        subprocess.run(["rm", "-rf", tmp_path / "tree", tmp_path / "out"], check=True)
