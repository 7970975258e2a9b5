"""Space: what a store takes after a collection, and a collection on a full disk."""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cairn.core.buffers import Buffer
from cairn.core.errors import StorageFull
from cairn.core.ids import CheckpointId, ModelId
from cairn.gc.collect import Collector
from cairn.gc.scrub import verify
from cairn.gc.usage import usage
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve
from cairn.registry.stores import open_store
from cairn.store.backends.memory import MemoryBackend
from tests.cases.conftest import shell
from tests.cases.shell import Shell, stored
from tests.support.stores import checkout_to, commit_tree, new_site
from tests.support.trees import snapshot, write_files

__all__ = ["shell"]

MIB = 1 << 20
FILES, STEPS = 300, 8


def delete(registry: Registry, *selectors: str) -> None:
    """Delete checkpoints for good."""
    model = resolve(registry, selectors[0])[0]
    ids: tuple[CheckpointId, ...] = tuple(resolve(registry, one)[1] for one in selectors)
    registry.append(lambda state: Tombstone(ModelId(model), ids, 0, "test"))
    registry.append(lambda state: Drop(ModelId(model), ids))


# --- What a store takes ------------------------------------------------------------------------------


def grow(tree: Path, step: int, dice: random.Random) -> None:
    """Change a fifth of a tree, remove a few files, add a few; some are copies of others."""
    tree.mkdir(exist_ok=True)
    here = sorted(tree.iterdir())
    for path in dice.sample(here, len(here) // 50):
        path.unlink()
    changed = dice.sample(sorted(tree.iterdir()), len(here) // 5)
    added = [tree / f"file-{step}-{number}" for number in range(FILES if step == 0 else FILES // 50)]
    for path in (*changed, *added):
        path.write_bytes(dice.randbytes(min(int(dice.lognormvariate(9, 1.6)), 2 * MIB)))
    for path in dice.sample(added, len(added) // 20):
        shutil.copyfile(path, tree / f"copy-of-{path.name}")


def size_of(store: Path) -> int:
    """Bytes of all objects."""
    return sum(map(len, stored(store).values()))


@pytest.mark.parametrize("kept", ["every second", "newest half", "oldest half"])
def test_after_half_was_deleted_a_store_takes_what_a_fresh_one_does(shell: Shell, kept: str) -> None:
    dice, tree = random.Random(kept), shell.fresh("tree")
    trees: dict[int, Path] = {}
    ids: dict[int, str] = {}
    for step in range(STEPS):
        grow(tree, step, dice)
        trees[step] = shell.fresh("step")
        shutil.copytree(tree, trees[step])
        ids[step] = shell.commit(trees[step], "m", "--step", str(step))["checkpoint"]
    remaining = {
        "every second": range(1, STEPS, 2), "newest half": range(STEPS // 2, STEPS), "oldest half": range(STEPS // 2),
    }[kept]  # fmt: skip
    if kept == "oldest half":
        shell("branch", f"m@{ids[remaining[-1]]}", "main", "--force")
    before = size_of(shell.store)
    registry = open_store(shell.work)
    delete(registry, *(f"m@{ids[step]}" for step in trees if step not in remaining))
    registry.close()
    shell("gc", "apply", "--yes")
    after = size_of(shell.store)
    fresh = shell.fresh("fresh")
    shell("init", fresh)
    for step in remaining:
        shell("--store", fresh, "commit", trees[step], "m", "--step", str(step))
    print(f"{before} bytes, {after} when half was deleted, {size_of(fresh)} in a fresh store")
    assert after <= 1.10 * size_of(fresh) < before
    for step in remaining:
        assert snapshot(shell.back(f"m@{ids[step]}")) == snapshot(trees[step])
    shell("verify", "--full")


# --- A full disk -------------------------------------------------------------------------------------


class Bounded(MemoryBackend):
    """Storage that holds so many bytes."""

    capacity = 1 << 60

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        size = sum(memoryview(part).nbytes for part in parts)
        if self.held() + size > self.capacity:
            raise StorageFull(f"cannot create {name}: no room; nothing was changed", hint="free space")
        super().create(name, parts)

    def held(self) -> int:
        """Bytes of all objects."""
        return sum(one.size for one in self.list())


# From no room for an entry of the log over none for a pack to none for its index piece.
@pytest.mark.parametrize("room", [0, 500, 1500, MIB, 2 * MIB + 200, 2 * MIB + 800])
def test_a_collection_without_room_loses_nothing_and_finishes_later(tmp_path: Path, room: int) -> None:
    backend, shared = Bounded(), random.Random(0).randbytes(2 * MIB)
    site = new_site(tmp_path / "home", backend)
    trees = [
        write_files(tmp_path / f"tree-{step}", {"own": random.Random(step + 1).randbytes(MIB), "shared": shared})
        for step in range(3)
    ]
    registry = site.registry()
    for step, tree in enumerate(trees):
        commit_tree(registry, tree, step=step)
    # Half of its one pack is needed by the others, so nothing can go before something was copied.
    delete(registry, "m@step:0")
    before = backend.held()
    backend.capacity = before + room
    with pytest.raises(StorageFull) as caught:
        Collector(site.registry()).run()
    assert "nothing was changed" in str(caught.value) and caught.value.hint
    for step in (1, 2):
        checkout_to(site.registry(cold=True), f"m@step:{step}", tmp_path / f"out-{step}")
        assert snapshot(tmp_path / f"out-{step}") == snapshot(trees[step])
    backend.capacity = Bounded.capacity
    collected = Collector(site.registry()).run()
    assert collected.objects_deleted > 0 and before - backend.held() > 0.95 * MIB
    cold = site.registry(cold=True)
    assert usage(cold).leftover_objects == 0 and verify(cold, full=True).ok


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", place]).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_collection_on_a_full_disk_says_so_and_frees_it_once_there_is_room(shell: Shell, small_disk: Path) -> None:
    store, shared = small_disk / "store", random.Random(0).randbytes(2 * MIB)
    shell("init", store)
    trees = [
        shell.tree({"own": random.Random(step + 1).randbytes(3 * MIB // 2), "shared": shared}) for step in range(3)
    ]
    for step, tree in enumerate(trees):
        shell("--store", store, "commit", tree, "m", "--step", str(step))
    registry = open_store(store)
    delete(registry, "m@step:0")
    registry.close()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    os.truncate(filler, filler.stat().st_size - MIB)
    told = shell("--store", store, "gc", "apply", "--yes", code=1).err
    assert "No space left" in told and "free space" in told and "Traceback" not in told
    for step in (1, 2):
        out = shell.fresh("out")
        shell("--store", store, "checkout", f"m@step:{step}", out)
        assert snapshot(out) == snapshot(trees[step])
    filler.unlink()
    full = size_of(store)
    shell("--store", store, "gc", "apply", "--yes")
    assert full - size_of(store) > 1.4 * MIB, "what half a collection left is gone too"
    assert shell("--store", store, "stats", "--json").json["leftover_objects"] == 0
    shell("--store", store, "verify", "--full")
