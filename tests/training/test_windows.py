"""Filling tensors by way of slabs: every kind of target, in bounded memory, while earlier slabs are still copied on."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cairn.core.errors import IntegrityError
from cairn.core.limits import MEMORY_BUDGET_BYTES
from cairn.loader.boxes import StoredTensor
from cairn.manifests.pieces import cut_at_edges
from cairn.manifests.tiling import Box
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.selectors import resolve
from cairn.training import filling, windows
from cairn.training.filling import stored_tensor
from cairn.training.windows import Windows
from tests.cases.training import MODEL, Runs, bits
from tests.support.lanes import LazyLane, lazy_host

KIB, MIB = 1 << 10, 1 << 20
SHAPE = (300, 700)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Training runs at a new store in memory."""
    return Runs(tmp_path / "home")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[Windows]:
    """Loads use three slabs of 64 KiB; returns what they made."""
    return use_slabs(monkeypatch, 64 * KIB, 3)


def use_slabs(monkeypatch: pytest.MonkeyPatch, slab_bytes: int, slabs: int) -> list[Windows]:
    made: list[Windows] = []

    def make() -> Windows:
        made.append(Windows(slab_bytes, slabs))
        return made[-1]

    monkeypatch.setattr(filling, "Windows", make)
    return made


def by_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no tensor take content as it is."""
    monkeypatch.setattr(filling, "_takes_bytes", lambda local, dtype: False)


def values(shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def transposed() -> torch.Tensor:
    return torch.zeros(SHAPE[::-1], dtype=torch.bfloat16).t()


def every_second() -> torch.Tensor:
    return torch.zeros(SHAPE[0] * 2, SHAPE[1] * 2, dtype=torch.bfloat16)[::2, ::2]


def plain() -> torch.Tensor:
    return torch.zeros(SHAPE, dtype=torch.bfloat16)


@pytest.mark.parametrize("make", [plain, transposed, every_second])
def test_casts_of_tensors_larger_than_a_slab(runs: Runs, small: list[Windows], make: Callable[[], Any]) -> None:
    state = {"t": values(), "wide": values((1, 3, 40000)), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    runs.save({"weights": state})
    fresh = {"t": make(), **{name: torch.zeros_like(state[name]).double() for name in ("wide", "scalar", "empty")}}
    report = runs.load({"weights": fresh}, casts=True)
    assert bits(fresh) == bits({name: state[name].to(fresh[name].dtype) for name in fresh})
    assert len(report.casts) == 4
    assert report.bytes_wanted == sum(tensor.nbytes for tensor in state.values())
    assert report.requests and report.bytes_read >= report.bytes_wanted
    assert len(small[-1].reads) > 3 and small[-1].bytes_held <= 3 * 64 * KIB


def test_what_fits_is_read_in_place_without_any_slab(runs: Runs, small: list[Windows]) -> None:
    state = {"t": values()}
    runs.save({"weights": state})
    fresh = {"t": torch.zeros(SHAPE[::-1]).t()}
    runs.load({"weights": fresh})
    assert bits(fresh) == bits(state)
    assert not small[-1].reads and not small[-1].bytes_held


# Integers of 1 to 7 bits lie one to a byte; torch can view them and little else.
KINDS = [
    *(torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64),
    *(torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint4, torch.int3),
]


def test_every_dtype_comes_through_slabs_bit_for_bit(
    runs: Runs, small: list[Windows], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = torch.randint(0, 2, (70, 1600), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    state = {str(kind): source.view(kind) for kind in KINDS}
    runs.save({"weights": state})
    by_slabs(monkeypatch)
    fresh = {name: torch.zeros_like(source).view(tensor.dtype) for name, tensor in state.items()}
    runs.load({"weights": fresh})
    for name, tensor in fresh.items():
        assert torch.equal(tensor.view(torch.uint8), source), name


def test_copies_run_behind_reads_and_no_slab_is_read_into_too_early(
    runs: Runs, small: list[Windows], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"t{i}": values((40 + i, 300)) for i in range(20)}
    runs.save({"weights": state})
    by_slabs(monkeypatch)
    lane = lazy_host(monkeypatch)
    fresh = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    runs.load({"weights": fresh})
    assert bits(fresh) == bits(state), "a slab was overwritten before it was copied"
    assert lane.followed == 1 and not lane.waiting and lane.begun > 20
    assert lane.longest >= 3, "no copy was in flight while another slab was read"


def test_a_read_that_fails_leaves_no_copy_in_flight(
    runs: Runs, small: list[Windows], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"t{i}": values((40 + i, 300)) for i in range(20)}
    runs.save({"weights": state})
    by_slabs(monkeypatch)
    lane = lazy_host(monkeypatch)
    real, calls = windows.execute, [0]

    def fail(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 6:
            raise IntegrityError("damaged")
        real(*arguments)

    monkeypatch.setattr(windows, "execute", fail)
    with pytest.raises(IntegrityError, match=r"the state is now unusable.*damaged"):
        runs.load({"weights": {name: torch.zeros_like(tensor) for name, tensor in state.items()}})
    assert lane.begun and not lane.waiting


def test_several_boxes_of_one_local_tensor(runs: Runs) -> None:
    """As of a strided shard: rows 20 to 60 and 200 to 250 of columns 100 to 600, in one local tensor."""
    whole = values((256, 700))
    runs.save({"weights": {"t": whole}})
    boxes = [Box((20, 100), (40, 500)), Box((200, 100), (50, 500))]
    local = torch.zeros((90, 500), dtype=torch.float64)
    registry = runs.site.registry()
    try:
        manifest = CheckpointManifest(registry, *resolve(registry, MODEL))
        (entry,) = manifest.tensors()
        ring = Windows(slab_bytes=32 * KIB, slabs=2)
        for box, rows in zip(boxes, (slice(0, 40), slice(40, 90)), strict=True):
            ring.add(stored_tensor(manifest, entry, [box]), torch.float32, box, local[rows])
        ring.plan(manifest.chunks.index, registry.opened.keys.chunk)
        assert len(ring.reads) > 4 and ring.bytes_wanted == 4 * 90 * 500
        ring.fill(registry.chunks(), 2, True)
    finally:
        registry.close()
    assert torch.equal(local, torch.cat([whole[20:60, 100:600], whole[200:250, 100:600]]).double())


def test_memory_stays_bounded_however_large_the_state(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, count = (1024, 1024), 12
    state = {f"t{i}": values(shape) + i for i in range(count)}
    total = count * 4 * MIB
    runs.save({"weights": state})
    fresh = {name: torch.zeros(shape, dtype=torch.bfloat16) for name in state}
    made = use_slabs(monkeypatch, MIB, 4)
    taken, empty = [0], torch.empty

    def counted(*arguments: Any, **named: Any) -> torch.Tensor:
        tensor = empty(*arguments, **named)
        taken[0] += tensor.nbytes
        return tensor

    monkeypatch.setattr(torch, "empty", counted)
    tracemalloc.start()
    try:
        runs.load({"weights": fresh}, casts=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made[-1].bytes_held == taken[0] == 4 * MIB
    assert taken[0] + peak < total / 2
    assert all(torch.equal(fresh[name], state[name].bfloat16()) for name in state)


def test_slabs_of_a_default_load_fit_the_budget() -> None:
    stored = StoredTensor("t", "float32", (1 << 20, 1 << 10))
    ring = Windows()
    ring.add(stored, torch.float32, Box((0, 0), stored.shape), torch.empty(1, 1).expand(stored.shape))
    assert len(ring._windows) == 64
    assert max(window.nbytes for window in ring._windows) * windows.SLABS <= MEMORY_BUDGET_BYTES


@pytest.mark.parametrize("most", [1, 7, 64, 1000, 5000])
def test_cuts_cover_a_box_once_and_end_at_edges_of_tiles(most: int) -> None:
    box, edges = Box((3, 10, 0), (5, 90, 16)), [(0, 8), (0, 32, 64, 96, 128), (0, 16)]
    count = torch.zeros(8, 128, 16, dtype=torch.int64)
    for part in cut_at_edges(box, edges, most):
        assert 0 < part.volume <= most
        count[tuple(slice(o, o + n) for o, n in zip(part.offsets, part.lengths, strict=True))] += 1
        if most == 1000:
            assert part.offsets[1] in (10, 64), "62 rows fit; the edge at 64 was in reach"
    assert int(count.sum()) == box.volume and int(count.max()) == 1
    assert bool(count[3:8, 10:100].all())


def test_a_lazy_lane_is_lazy() -> None:
    lane = LazyLane()
    target, source = torch.zeros(3), torch.ones(3)
    lane.copy(target, source)
    mark = lane.mark()
    assert not target.any() and not mark.reached
    mark.wait()
    assert target.all() and mark.reached
