"""Faults of memory and speed that a trainer meets: what saves and loads hold, read, and say to each other."""

import ctypes
import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cairn
from cairn.core.buffers import Buffer
from cairn.core.errors import RefusedError, StorageError
from cairn.store.backends import mapped
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Fail, FaultyBackend
from cairn.store.backends.memory import MemoryBackend
from cairn.store.backends.posix import PosixBackend
from cairn.training.windows import Windows
from tests.cases.training import Net, Runs, cairn_threads

MIB = 1 << 20
# What the interpreter and its allocators keep or give back as they like.
NOISE_BYTES = 12 * MIB


class Sink(MemoryBackend):
    """Takes packs and forgets their content."""

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        super().create(name, [b""] if name.endswith(".pack") else parts)


def memory(what: str = "VmRSS") -> int:
    """Bytes of memory that this process has now (`VmRSS`) or had at most (`VmHWM`), without what only malloc keeps."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


def peak(call: Callable[[], Any]) -> int:
    """Bytes that a call takes at most, beyond what was there before it."""
    before = memory()
    Path("/proc/self/clear_refs").write_text("5")
    call()
    return memory("VmHWM") - before


def tensors(count: int, mib: int, step: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of some MiB, each different."""
    numbers = torch.arange(mib * MIB // 4, dtype=torch.int32)
    return {str(n): numbers + ((step * count + n) << 24) for n in range(count)}


@pytest.fixture
def disk(tmp_path: Path) -> Runs:
    """Runs at a store on disk, which this process's memory does not hold."""
    return Runs(tmp_path, PosixBackend(tmp_path / "store"))


# --- Loading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("casts", [False, True], ids=["in place", "converted"])
def test_M01_M09_M10_a_load_takes_a_few_chunks_beyond_its_targets(
    disk: Runs, casts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes for another device go the way of those that are converted: through host memory, tensor by tensor."""
    # A batch of up to 8 MiB and a chunk for each thread.
    monkeypatch.setattr("cairn.training.filling.reading_threads", lambda chunks, size: 1)
    monkeypatch.setattr(Windows.__init__, "__defaults__", (4 * MIB, 4))
    disk.save({"w": tensors(16, 4)})
    targets = {name: torch.zeros_like(tensor) for name, tensor in tensors(16, 4).items()}
    if casts:
        targets = {name: tensor.to(torch.int64) for name, tensor in targets.items()}
    for tensor in targets.values():
        tensor.fill_(-1)
    extra = peak(lambda: disk.load({"w": targets}, casts=casts))
    print(f"{extra >> 20} MiB to load 64 MiB")
    assert extra < 36 * MIB
    expected = tensors(16, 4)
    assert all(torch.equal(tensor, expected[name].to(tensor.dtype)) for name, tensor in targets.items())


class Reads(FaultyBackend):
    """Remembers how much each read of a pack asked for, and where."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.sizes: list[int] = []

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        if name.endswith(".pack"):
            self.sizes.append(memoryview(target).nbytes)
        return super().read_into(name, offset, target)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        if name.endswith(".pack"):
            self.sizes.append(len(data))
        return data


def test_M06_M16_a_load_reads_in_large_pieces(runs: Runs) -> None:
    """Nothing is ever mapped, on whatever kind of mount: a backend can only read."""
    runs.save({"w": tensors(16, 4)})
    reads = Reads(runs.site.backend)
    with runs.checkpointer(reads, cold=True) as checkpointer:
        begun = len(reads.sizes)
        report = checkpointer.load({"w": {n: torch.zeros_like(t) for n, t in tensors(16, 4).items()}}, resume=False)
    sizes = [size for size in reads.sizes[begun:] if size > MIB // 4]
    assert report.bytes_read == sum(sizes) < 1.05 * 64 * MIB
    assert sum(sizes) / len(sizes) > 5 * MIB and report.requests == len(sizes) <= 13


MAPS = re.compile(r"mmap\.mmap\((?!-1,)|memmap\(|from_file\(|mmap=True")


def test_M08_M16_no_content_of_a_store_is_mapped(disk: Runs, tmp_path: Path) -> None:
    root = Path(cairn.__file__).parents[2]
    for folder in ("core", "store", "manifests", "registry", "loader", "training"):
        for path in (root / folder).rglob("*.py"):
            # One lends pages of local files for the moment of a load, and of no others; one maps what is no file.
            assert path.name in ("mapped.py", "memfd.py") or not MAPS.search(path.read_text()), path
    assert not {one for one in mapped._LOCAL if "nfs" in one or "fuse" in one}
    before = tensors(4, 2)
    disk.save({"w": before}, 1)
    names = disk.site.names(".pack")
    found = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    disk.load({"w": found})
    disk.save({"w": tensors(4, 2, step=1)}, 2)
    for name in names:  # as if the store were written in place
        (lies,) = [path for path in tmp_path.rglob("*.pack") if path.name == Path(name).name]
        lies.chmod(0o600)
        lies.write_bytes(b"")
    assert all(torch.equal(found[name], before[name]) for name in before)


def test_M08_a_save_writes_new_objects_only(disk: Runs) -> None:
    stored: dict[str, bytes] = {}
    for step in range(3):
        disk.save({"w": tensors(4, 2, step)}, step)
        now = {name: disk.site.backend.read(name) for name in disk.site.names()}
        assert {name: now.get(name) for name in stored} == stored
        stored = now


SMALL = """
import resource, sys, torch, cairn
with cairn.Checkpointer(sys.argv[1], "m") as checkpointer:
    state = {"one": torch.zeros(1 << 20, dtype=torch.int32)}
    checkpointer.load({"one": torch.zeros(1 << 20, dtype=torch.int32)}, resume=False)  # warm: threads, maps
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    limit = size + (24 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    report = checkpointer.load(state, resume=False)
    assert torch.equal(state["one"], torch.arange(1 << 20, dtype=torch.int32))
    print(report.bytes_read)
"""


def test_M17_one_tensor_is_read_in_less_address_space_than_the_checkpoint_has_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    cairn.create_store(tmp_path / "store")
    with cairn.Checkpointer(tmp_path / "store", "m") as checkpointer:
        state = {"one": torch.arange(MIB, dtype=torch.int32), "bulk": tensors(16, 4, step=1)}
        checkpointer.save(1, state, blocking=True)
    command = [sys.executable, "-c", SMALL, str(tmp_path / "store")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert 4 * MIB <= int(done.stdout) < 5 * MIB


# --- Saving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("capture", ["eager", "overlap"])
def test_M03_memory_is_flat_over_thirty_saves_and_given_back_in_the_end(tmp_path: Path, capture: Any) -> None:
    runs = Runs(tmp_path / "home", Sink())
    net = nn.Linear(1536, 1536, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[net.weight]["momentum_buffer"] = torch.rand_like(net.weight)

    before, found = memory(), []
    with runs.checkpointer(capture=capture) as checkpointer:
        for step in range(30):
            with torch.no_grad():
                net.weight += 1
            checkpointer.save(step, {"model": net, "optimizer": optimizer}).captured.result()
            if step % 10 == 9:
                checkpointer.wait()
                found.append(memory())
    assert max(found) - min(found) < NOISE_BYTES
    assert memory() < found[-1] - 14 * MIB and memory() < before + NOISE_BYTES, "the captured 18 MiB are given back"
    assert cairn_threads() == []


@pytest.mark.parametrize("name", ["*.pack", "*.body"])
def test_M12_memory_is_flat_and_given_back_where_uploads_fail(tmp_path: Path, name: str) -> None:
    runs = Runs(tmp_path / "home", Sink())
    backend = FaultyBackend(runs.site.backend, [Fail(op="create", name=name)])
    bulk = torch.arange(3 * MIB, dtype=torch.int32)
    before, found = memory(), []
    with runs.checkpointer(backend) as checkpointer:
        for step in range(16):
            bulk += 1
            with pytest.raises(StorageError):
                checkpointer.save(step, {"bulk": bulk, "model": Net()}, blocking=True)
            if step % 8 == 7:
                found.append(memory())
    assert abs(found[1] - found[0]) < NOISE_BYTES
    assert memory() < before + NOISE_BYTES and cairn_threads() == []


def test_M23_memory_is_flat_over_blocking_saves_of_slices(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "home", Sink())
    local = torch.arange(2048 * 1024, dtype=torch.float32).reshape(2048, 1024)
    found = []
    with runs.checkpointer() as checkpointer:
        for step in range(20):
            local += 1
            pieces = {f"w{n}": cairn.ShardedSlice(local[n * 512 :][:512], (512, 1024), (0, 0)) for n in range(4)}
            checkpointer.save(step, {"model": pieces}, blocking=True)
            if step % 10 == 9:
                found.append(memory())
    assert abs(found[1] - found[0]) < NOISE_BYTES


@pytest.mark.parametrize("capture", ["eager", "overlap"])
def test_M20_the_cap_on_host_memory_holds_and_tells_both_numbers(runs: Runs, capture: Any) -> None:
    net = nn.Linear(1024, 1024, bias=False)
    state = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}
    with runs.checkpointer(capture=capture, host_bytes_max=4 * MIB) as checkpointer:
        checkpointer.save(1, state, blocking=True)
        with pytest.raises(RefusedError, match=rf"needs {8 * MIB} bytes .* budget is {4 * MIB}"):
            checkpointer.save(2, {**state, "more": torch.zeros(MIB)})
        assert checkpointer.latest()[1] == 1, "nothing was begun"
        handle = checkpointer.save(3, state, blocking=True)
        assert handle.stages.bytes_captured == 4 * MIB <= checkpointer._snapshots._arena.nbytes
        assert checkpointer._snapshots._arena.nbytes == 4 * MIB


def test_M19_ties_change_nothing_of_the_memory_plan(runs: Runs) -> None:
    class Tied(nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.embed = nn.Embedding(2048, 512)
            self.head = nn.Linear(512, 2048, bias=False)
            if tied:
                self.head.weight = self.embed.weight

    captured, extra = [], []
    for number, tied in enumerate((False, True)):
        net = Tied(tied)
        captured.append(runs.save({"model": net}, number).stages.bytes_captured)
        fresh = Tied(tied)
        extra.append(peak(lambda net=fresh: runs.load({"model": net})))
        assert torch.equal(fresh.head.weight, net.head.weight)
        assert (fresh.head.weight is fresh.embed.weight) is tied
    assert captured == [8 * MIB, 4 * MIB] and extra[1] < extra[0] + NOISE_BYTES


# --- Speed: measured and printed, never judged --------------------------------------------------


@pytest.mark.parametrize("kind", ["chunks", "planning"])
def test_M05_M14_training_beside_a_save_is_measured(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runs = Runs(tmp_path / "home", Sink())
    state: Any = {"w": tensors(16, 4)} if kind == "chunks" else {"w": [torch.full((40,), n) for n in range(1000)]}

    def speed(until: Callable[[int], bool]) -> float:
        """Small operations a second."""
        x, done, begun = torch.ones(64, 64), 0, time.perf_counter()
        while not until(done):
            for _ in range(50):
                x = (x @ x).tanh() + 1.0
            done += 50
        return done / (time.perf_counter() - begun)

    alone = [speed(lambda done: done >= 3000)]
    with runs.checkpointer() as checkpointer:
        handle = checkpointer.save(1, state)
        beside = speed(lambda done: handle.committed.done())
        assert handle.wait()
    alone.append(speed(lambda done: done >= 3000))
    torch.set_num_threads(threads)
    with capsys.disabled():
        ratio = beside / (sum(alone) / 2)
        print(f"\n{kind}: small operations at {ratio:.0%} of their speed during a save of {handle.stages.total:.2f} s")
