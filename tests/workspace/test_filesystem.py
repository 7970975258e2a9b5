"""`cairn://`: what libraries that read through fsspec get, and what they are told where there is nothing to get."""

import errno
import io
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors

import cairn
from cairn.core.errors import NotAStore
from cairn.manifests.schema import FileEntry, Inline
from cairn.registry.registry import Registry
from cairn.workspace.filesystem import CairnFileSystem
from cairn.workspace.virtual import PieceCache
from tests.support.counting import CountingBackend
from tests.support.hostile import publish_entries
from tests.support.stores import Site, checkout_to, commit_tree
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

LARGE = weights(1, 2048, 2048)  # 16 MiB, in bands of several tiles
NOISE = random.Random(2).randbytes(2_500_000)
FILES = {
    "model.safetensors": safetensors({"large": LARGE, "small": weights(2, 10, 10)}),
    "config.json": b'{"layers": 2}',
    "data/noise.bin": NOISE,
    "data/zeros.bin": bytes(1_200_000),
    "data/deep/empty.txt": b"",
    "odd @ name%2F": b"odd",
}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """As the installed package registers it; instances of one test are not handed to the next."""
    fsspec.register_implementation("cairn", CairnFileSystem, clobber=True)
    yield
    CairnFileSystem.clear_instance_cache()


@pytest.fixture
def registry(site: Site, tmp_path: Path) -> Registry:
    """A store with a tree of files and links."""
    tree = write_files(tmp_path / "tree", FILES)
    os.symlink("data/noise.bin", tree / "link.bin")
    os.symlink("data", tree / "folder-link")
    os.symlink("nowhere", tree / "dangling")
    os.symlink("loop", tree / "loop")
    registry = site.registry()
    commit_tree(registry, tree, step=3)
    return registry


@pytest.fixture
def system(registry: Registry) -> CairnFileSystem:
    return CairnFileSystem(store=registry)


def test_folders_are_listed(system: CairnFileSystem) -> None:
    assert system.ls("cairn://m@main", detail=False) == [
        f"m@main/{name}"
        for name in sorted([*{name.split("/")[0] for name in FILES}, "link.bin", "folder-link", "dangling", "loop"])
    ]
    assert system.ls("m/data/", detail=False) == ["m/data/deep", "m/data/noise.bin", "m/data/zeros.bin"]
    assert system.ls("m/config.json", detail=False) == ["m/config.json"]
    links = ["link.bin", "folder-link", "dangling", "loop"]
    assert sorted(system.find("m@main")) == sorted(f"m@main/{name}" for name in [*FILES, *links])
    assert system.glob("cairn://m@main/*.json") == ["m@main/config.json"]
    assert system.isdir("m/folder-link") and system.isdir("m") and system.isfile("m/link.bin")
    assert system.du("m@main/data") == len(NOISE) + 1_200_000


def test_facts_of_paths(system: CairnFileSystem, registry: Registry) -> None:
    _, checkpoint = cairn.resolve(registry, "m")
    assert system.info("cairn://m@step:3/data/noise.bin") == {
        "name": "m@step:3/data/noise.bin", "size": len(NOISE), "type": "file", "mode": 0o644, "islink": False,
        "checkpoint": checkpoint.hex(),
    }  # fmt: skip
    assert system.info("m/link.bin")["size"] == len(NOISE) and system.info("m/link.bin")["islink"]
    assert system.info("m")["type"] == "directory"
    assert {one["name"]: one["type"] for one in system.ls("m")}["m/folder-link"] == "other"


@pytest.mark.parametrize("name", [*FILES, "link.bin", "folder-link/deep/empty.txt"])
def test_files_are_read_whole(system: CairnFileSystem, tmp_path: Path, name: str) -> None:
    assert system.cat_file(f"cairn://m@main/{name}") == (tmp_path / "tree" / name).read_bytes()


@pytest.mark.parametrize("cache_bytes", [0, 3 << 20, 64 << 20])
def test_files_are_read_anywhere(registry: Registry, cache_bytes: int) -> None:
    draw, system = random.Random(4), CairnFileSystem(store=registry, cache_bytes=cache_bytes)
    for name in ("model.safetensors", "data/noise.bin", "data/zeros.bin"):
        whole = FILES[name]
        with system.open(f"m/{name}") as file:
            for _ in range(30):
                start, length = draw.randrange(len(whole)), draw.choice([0, 1, 500, 70_000, 3_000_000])
                assert file.seek(start) == start
                assert file.read(length) == whole[start : start + length]
                assert file.tell() == min(start + length, len(whole))
            memory = bytearray(5000)
            assert file.seek(-3000, 2) and file.readinto(memory) == 3000 and memory[:3000] == whole[-3000:]
            assert file.read() == b"" and file.readinto(memory) == 0
        with pytest.raises(ValueError, match="closed"):
            file.readinto(memory)
    assert system.cat_file("m/data/noise.bin", 10, -10) == NOISE[10:-10]
    assert system.cat_file("m/data/noise.bin", -10) == NOISE[-10:]
    assert system.cat_ranges(["m/data/noise.bin"] * 2, [0, 2_000_000], [5, 2_000_009]) == [
        NOISE[:5],
        NOISE[2_000_000:2_000_009],
    ]


def test_a_read_fetches_what_it_touches_and_once(registry: Registry, site: Site) -> None:
    backend = CountingBackend(site.backend)
    system = CairnFileSystem(store=site.registry(backend))
    with system.open("m/model.safetensors") as file:
        backend.forget()
        for _ in range(3):
            file.seek(9_000_000)
            assert file.read(100) == FILES["model.safetensors"][9_000_000:9_000_100]
        # A band is a piece: what its tiles' rows interleave.
        assert 0 < backend.requests <= 2 and backend.bytes_read < 10 << 20
        backend.forget()
        for _ in range(3):
            file.seek(0)
            file.read(8)
        assert backend.requests == 1 and backend.bytes_read < 1 << 10


def test_H32_the_cache_keeps_its_limit(registry: Registry, site: Site) -> None:
    system = CairnFileSystem(store=registry, cache_bytes=2 << 20)
    held, draw = system._pieces, random.Random(5)
    for _ in range(60):
        start = draw.randrange(len(NOISE))
        assert system.cat_file("m/data/noise.bin", start, start + 10) == NOISE[start : start + 10]
        assert held.bytes_held == sum(map(len, held._held.values())) <= 2 << 20
    assert held.bytes_held >= 1 << 20


def test_the_piece_cache_drops_what_was_used_longest_ago() -> None:
    cache = PieceCache(10)
    for name, length in (("a", 4), ("b", 4), ("a", 4)):
        cache.put((name,), bytes(length))  # type: ignore[arg-type]  # any key will do
    assert cache.get(("a",)) and cache.bytes_held == 8  # type: ignore[arg-type]  # likewise
    cache.put(("c",), bytes(5))  # type: ignore[arg-type]  # likewise
    cache.put(("d",), bytes(11))  # type: ignore[arg-type]  # likewise
    assert [key for (key,) in cache._held] == ["a", "c"] and cache.bytes_held == 9


def test_threads_share_a_file(system: CairnFileSystem) -> None:
    with system.open("m/model.safetensors") as file:
        shared, whole = file._file, FILES["model.safetensors"]
        wrong: list[int] = []

        def read(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(20):
                start = draw.randrange(len(whole))
                if shared.read(start, start + 200_000) != whole[start : start + 200_000]:
                    wrong.append(start)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


# --- Libraries --------------------------------------------------------------------------------


@pytest.fixture
def at(store: Path, tmp_path: Path) -> Callable[[str], Any]:
    """Opens a path through fsspec, by URL, as libraries do."""
    registry = cairn.open_store(store)
    tree = write_files(tmp_path / "tree", FILES)
    torch.save({"w": torch.arange(10), "deep": {"b": torch.ones(300, 300)}}, tree / "state.pt")
    np.save(tree / "array.npy", LARGE)
    commit_tree(registry, tree)
    registry.close()
    return lambda name: fsspec.open(f"cairn://m@main/{name}", store=str(store))


def test_libraries_read_through_it(at: Callable[[str], Any]) -> None:
    with at("config.json") as file:
        assert json.load(file) == {"layers": 2}
    with at("model.safetensors") as file:
        assert np.array_equal(load_tensors(file.read())["large"].numpy(), LARGE)
    with at("state.pt") as file:
        state = torch.load(file, weights_only=True)
    assert torch.equal(state["w"], torch.arange(10)) and torch.equal(state["deep"]["b"], torch.ones(300, 300))
    with at("array.npy") as file:
        np.testing.assert_array_equal(np.load(file), LARGE)
    with at("config.json") as file, io.TextIOWrapper(file) as text:
        assert text.read() == '{"layers": 2}'


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_a_distributed_checkpoint_through_it(store: Path, tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    state = {"w": torch.arange(40_000.0).reshape(200, 200), "step": torch.tensor(3)}
    dcp.save(state, checkpoint_id=tmp_path / "tree" / "run", no_dist=True)
    registry = cairn.open_store(store)
    commit_tree(registry, tmp_path / "tree", opaque=True)  # as files; else it is taken up by tensor
    found = {"w": torch.zeros(200, 200), "step": torch.tensor(0)}
    dcp.load(found, storage_reader=FsspecReader("cairn://m@main/run", store=registry), no_dist=True)
    assert torch.equal(found["w"], state["w"]) and found["step"] == 3
    registry.close()


def test_the_store_comes_from_the_environment(
    at: Callable[[str], Any], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAIRN_STORE", str(store))
    with fsspec.open("cairn://m@main/config.json") as file:
        assert file.read() == FILES["config.json"]
    monkeypatch.delenv("CAIRN_STORE")
    monkeypatch.chdir("/")
    with pytest.raises(NotAStore):
        fsspec.filesystem("cairn", skip_instance_cache=True)


def test_a_closed_file_system_is_not_handed_out_again(at: Callable[[str], Any], store: Path) -> None:
    first = fsspec.filesystem("cairn", store=str(store))
    assert fsspec.filesystem("cairn", store=str(store)) is first
    first.close()
    assert fsspec.filesystem("cairn", store=str(store)).cat_file("m/config.json") == FILES["config.json"]


# --- What is not there, and what may not be ----------------------------------------------------

ABSENT = [
    "", "m@main/nothing", "m@main/data/nothing", "m@main/config.json/x", "other/config.json", "m@nothing/config.json",
    "m@step:9/config.json", "m@main/../m@main/config.json", "m@main/data/../config.json", "m@main/./config.json",
    "m@main//config.json", "m@main/dangling", "m@main/loop", "m@main/loop/x", "@main/x", "m@main/nul\0",
]  # fmt: skip


@pytest.mark.parametrize("path", ABSENT)
def test_what_is_absent_is_not_found(system: CairnFileSystem, path: str) -> None:
    for call in (system.info, system.ls, system.open, system.cat_file):
        with pytest.raises(FileNotFoundError) as caught:
            call(f"cairn://{path}")
        assert caught.value.errno == errno.ENOENT and len(str(caught.value)) > 30
    assert not system.exists(path)


def test_a_folder_is_no_file(system: CairnFileSystem) -> None:
    for path in ("m", "m/data", "m/folder-link"):
        with pytest.raises(IsADirectoryError):
            system.open(path)


def test_nothing_is_written(system: CairnFileSystem, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: system.open("m/config.json", "wb"), lambda: system.open("m/new", "ab"), lambda: system.rm("m/data"),
        lambda: system.mkdir("m/new"), lambda: system.makedirs("m/new/er"), lambda: system.rmdir("m/data"),
        lambda: system.touch("m/new"), lambda: system.pipe_file("m/new", b"x"), lambda: system.pipe("m/new", b"x"),
        lambda: system.mv("m/config.json", "m/c"), lambda: system.cp_file("m/config.json", "m/c"),
        lambda: system.put_file(str(tmp_path / "tree" / "config.json"), "m/c"), lambda: system.rm_file("m/config.json"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(OSError, match="does not change") as caught:
            call()
        assert caught.value.errno == errno.EROFS
    assert system.cat_file("m/config.json") == FILES["config.json"]


def test_a_ref_means_one_checkpoint_until_it_is_asked_anew(
    system: CairnFileSystem, registry: Registry, tmp_path: Path
) -> None:
    assert system.cat_file("m@main/config.json") == FILES["config.json"]
    key = system.ukey("m@main/config.json")
    commit_tree(registry, write_files(tmp_path / "tree", {"config.json": b'{"layers": 3}'}))
    assert system.cat_file("m@main/config.json") == FILES["config.json"]
    system.invalidate_cache("cairn://m@main/config.json")
    assert system.cat_file("m@main/config.json") == b'{"layers": 3}'
    assert system.cat_file("m@step:3/config.json") == FILES["config.json"]
    assert system.ukey("m@main/config.json") != key
    system.invalidate_cache()


def test_models_with_slashes_are_quoted(registry: Registry, tmp_path: Path) -> None:
    commit_tree(registry, tmp_path / "tree", model="org/net@v2 %")
    system = CairnFileSystem(store=registry)
    assert system.cat_file("cairn://org%2Fnet@v2 %25@main/config.json") == FILES["config.json"]


def test_a_training_checkpoint_has_no_files(store: Path) -> None:
    with cairn.Checkpointer(store, "net") as checkpointer:
        checkpointer.save(1, {"w": torch.ones(3)}).wait()
    with pytest.raises(FileNotFoundError, match=r"cairn\.open"):
        CairnFileSystem(store=store).ls("net@main")


HOSTILE = {
    "a path that leads out": [FileEntry(b"../x", "file", size=1, segments=(Inline(b"x"),))],
    "a link that leads out": [FileEntry(b"l", "link", target=b"/etc/passwd")],
    "a size that lies": [FileEntry(b"f", "file", size=9, segments=(Inline(b"x"),))],
    "two files of one path": [FileEntry(b"f", "file", size=1, segments=(Inline(b"x"),))] * 2,
    "a part without a beginning": [FileEntry(b"f", "file", size=1, segments=(Inline(b"x"),), part=1)],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_that_lies_is_an_input_output_error(site: Site, entries: list[FileEntry]) -> None:
    registry = site.registry()
    publish_entries(registry, entries)
    with pytest.raises(OSError) as caught:
        CairnFileSystem(store=registry).cat_file("m/f")
    assert caught.value.errno == errno.EIO


def test_damage_is_an_input_output_error(registry: Registry, site: Site) -> None:
    for name in site.names(".pack"):
        data = bytearray(site.backend.read(name))
        data[1000 :: 1 << 18] = bytes(byte ^ 1 for byte in data[1000 :: 1 << 18])
        site.backend.delete(name)
        site.backend.create(name, [data])
    with pytest.raises(OSError) as caught:
        CairnFileSystem(store=registry).cat_file("m/model.safetensors")
    assert caught.value.errno == errno.EIO


def test_a_virtual_file_is_what_a_checkout_writes(registry: Registry, system: CairnFileSystem, tmp_path: Path) -> None:
    checkout_to(registry, "m", tmp_path / "out")
    for name in filter(system.isfile, system.find("m")):
        assert system.cat_file(name) == (tmp_path / "out" / name.partition("/")[2]).read_bytes()
