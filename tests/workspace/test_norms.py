"""How far two checkpoints are from each other: against torch on the originals; what is read for it, and held."""

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cairn
from cairn.core.errors import IntegrityError
from cairn.core.limits import MIB
from cairn.core.progress import Silent
from cairn.manifests.delta import Delta
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.compare import compare
from cairn.registry.delivery import Selection
from cairn.registry.sync import SendOptions, send
from cairn.workspace import norms
from cairn.workspace.norms import Measured, compare_with_norms
from tests.cases.training import MODEL, Runs
from tests.support.counting import CountingBackend
from tests.support.stores import tip
from tests.support.tensors import safetensors
from tests.support.trees import write_files
from tests.support.twins import twin_of

State = dict[str, Any]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "home")


def measured(runs: Runs, through: Any = None, old: str = f"{MODEL}@step:1") -> Measured:
    registry = runs.site.registry(through)
    try:
        return compare_with_norms(registry, tip(registry, old), tip(registry, MODEL))
    finally:
        registry.close()


def deltas(found: Measured) -> dict[str, Delta]:
    return {str(change.key): change.delta for change in found.comparison.tensors if change.delta is not None}


def check(delta: Delta, old: torch.Tensor, new: torch.Tensor) -> None:
    """As torch says of both, in float64."""
    a, b = (one.to(torch.complex128 if one.is_complex() else torch.float64) for one in (old, new))
    assert delta.norms is not None
    one = delta.norms
    wanted = a.norm(), b.norm(), (b - a).norm(), (b - a).abs().max()
    assert (one.old, one.new, one.difference, one.largest) == pytest.approx([x.item() for x in wanted], rel=1e-12)
    assert (delta.elements, delta.changed) == (old.numel(), int((old != new).sum()))


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_norms_of_every_kind_of_tensor(runs: Runs) -> None:
    old = {
        "tiled": random(1, 1500, 1100),
        "columns": random(2, 1024, 8192, dtype=torch.bfloat16),
        "small": random(3, 40),
        "inline": random(4, 3),
        "scalar": torch.tensor(2.5),
        "fp8": random(5, 300, 70).to(torch.float8_e4m3fn),
        "ints": torch.arange(500_000),
        "flags": random(6, 1000) > 0,
        "complex": torch.complex(random(7, 90), random(8, 90)),
        "equal": random(9, 1200, 1200),
        "empty": torch.empty(0, 4),
    }
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["tiled"][700:] += 0.25
    new["columns"] *= 1.5
    new["small"][7] = -3.0
    new["inline"] = -old["inline"]
    new["scalar"] = torch.tensor(3.5)
    new["fp8"] = random(5, 300, 70).mul(1.3).to(torch.float8_e4m3fn)
    new["ints"][::1000] += 1
    new["flags"][:10] = ~new["flags"][:10]
    new["complex"][3] += 2j
    runs.save({"w": old}, 1)
    runs.save({"w": new}, 2)
    found = measured(runs)
    told = deltas(found)
    assert set(told) == {f"w:{name}" for name in old if name not in ("equal", "empty")}
    for name in old:
        if f"w:{name}" in told:
            check(told[f"w:{name}"], old[name].float() if name == "fp8" else old[name],
                  new[name].float() if name == "fp8" else new[name])  # fmt: skip
    assert found.comparison.tensors_equal == 2 and found.unread == []
    assert measured(runs) == found, "the same sums, whatever order threads end in"


def test_windows_of_any_size_add_up_to_the_same(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = random(1, 1500, 1100), random(2, 1500, 1100)
    runs.save({"w": {"a": old, "b": old[:900].contiguous()}}, 1)
    runs.save({"w": {"a": new, "b": new[:900].contiguous()}}, 2)
    for window, slab, job in ((norms.WINDOW_BYTES, norms._SLAB_BYTES, 1 << 20), (900_000, 500_000, 10_000)):
        monkeypatch.setattr(norms, "WINDOW_BYTES", window)
        monkeypatch.setattr(norms, "_SLAB_BYTES", slab)
        monkeypatch.setattr(norms, "_JOB_ELEMENTS", job)
        check(deltas(measured(runs))["w:a"], old, new)
    tiny = random(1, 2, 30), random(2, 2, 30)
    runs.save({"w": tiny[0]}, 3)
    runs.save({"w": tiny[1]}, 4)
    monkeypatch.setattr(norms, "_SLAB_BYTES", 4)
    monkeypatch.setattr(norms, "_JOB_ELEMENTS", 1)
    check(deltas(measured(runs, old=f"{MODEL}@step:3"))["w:~"], *tiny)


def test_what_is_not_finite_is_told(runs: Runs) -> None:
    old = random(1, 600, 600)
    new = old.clone()
    new[0, :5], new[1, :3], new[2, 0] = math.nan, math.inf, 7.0
    runs.save({"w": old}, 1)
    runs.save({"w": new}, 2)
    (delta,) = deltas(measured(runs)).values()
    assert (delta.nan_old, delta.inf_old, delta.nan_new, delta.inf_new, delta.changed) == (0, 0, 5, 3, 9)
    assert delta.norms is not None and delta.norms.largest == pytest.approx(abs(7.0 - old[2, 0].item()))


def test_numbers_that_share_a_byte_are_counted_and_measured_one_by_one(runs: Runs) -> None:
    registry = runs.site.registry()
    for number in (0x21, 0x27):
        header = b'{"f4":{"dtype":"F4","shape":[400],"data_offsets":[0,200]}}'
        data = len(header).to_bytes(8, "little") + header + bytes([number] * 200)
        tree = write_files(runs.site.home.data.parent / f"tree-{number}", {"m.safetensors": data})
        cairn.commit(registry, tree, MODEL, cairn.CommitOptions(step=number))
    found = measured(runs, old=f"{MODEL}@step:{0x21}")
    (delta,) = deltas(found).values()
    # 0.5 and 1.0 in each byte, then 6.0 and 1.0.
    assert (delta.elements, delta.changed) == (400, 200)
    assert delta.norms is not None
    assert delta.norms.difference == pytest.approx(5.5 * math.sqrt(200))


# --- Layouts -------------------------------------------------------------------------------------


def halves(tensor: torch.Tensor, at: int) -> cairn.ShardedSlices:
    """A tensor cut across its tiles."""
    shape = tuple(tensor.shape)
    parts = (cairn.ShardedSlice(tensor[:at].contiguous(), shape, (0, 0)),
             cairn.ShardedSlice(tensor[at:].contiguous(), shape, (at, 0)))  # fmt: skip
    return cairn.ShardedSlices(parts)


def test_what_was_only_cut_otherwise_is_equal_once_it_is_read(runs: Runs) -> None:
    same, other = random(1, 1500, 1100), random(2, 1500, 1100)
    changed = other.clone()
    changed[600, 3] += 1
    runs.save({"w": {"same": halves(same, 501), "other": halves(other, 501)}}, 1)
    runs.save({"w": {"same": halves(same, 702), "other": halves(changed, 702)}}, 2)
    registry = runs.site.registry()
    plain = compare(registry, tip(registry, f"{MODEL}@step:1"), tip(registry))
    assert {str(one.key): one.kind for one in plain.tensors} == {"w:same": "recut", "w:other": "recut"}
    found = measured(runs)
    assert [(str(one.key), one.kind) for one in found.comparison.tensors] == [("w:other", "changed")]
    assert found.comparison.tensors_equal == plain.tensors_equal + 1
    check(deltas(found)["w:other"], other, changed)


# --- Reading -------------------------------------------------------------------------------------


def test_a_tile_that_both_have_is_read_once_and_equal_tensors_are_not(runs: Runs) -> None:
    old = {"equal": random(1, 1024, 2048), "one": random(2, 2048, 1024)}
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["one"][0, 0] += 1
    runs.save({"w": old}, 1)
    runs.save({"w": new}, 2)
    counting = CountingBackend(runs.site.backend)
    found = measured(runs, counting)
    (change,) = found.comparison.tensors
    assert change.tiles_changed == 1 and change.tiles is not None and change.tiles > 4
    tile = old["one"].nbytes // change.tiles
    assert old["one"].nbytes + tile <= counting.bytes_read < old["one"].nbytes + 1.5 * tile


def test_a_comparison_with_norms_is_a_recorded_read_and_one_without_reads_no_tensor(runs: Runs) -> None:
    runs.save({"w": random(1, 1000, 1000)}, 1)
    runs.save({"w": random(2, 1000, 1000)}, 2)
    counting = CountingBackend(runs.site.backend)
    registry = runs.site.registry(counting)
    before = len(runs.site.names(".ended"))
    counting.forget()
    compare(registry, tip(registry, f"{MODEL}@step:1"), tip(registry))
    assert counting.bytes_read < 50_000 and len(runs.site.names(".ended")) == before
    compare_with_norms(registry, tip(registry, f"{MODEL}@step:1"), tip(registry))
    assert len(runs.site.names(".ended")) == before + 2 and runs.site.names(".pin") == []


def test_memory_does_not_grow_with_the_tensors(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (4096, 4096)
    for step in (1, 2):
        runs.save({"w": {name: random(step + n, *shape) for n, name in enumerate(("a", "b"))}}, step)
    monkeypatch.setattr(norms, "WINDOW_BYTES", 8 * MIB)
    monkeypatch.setattr(norms, "_SLAB_BYTES", 2 * MIB)
    monkeypatch.setattr("cairn.workspace.boxreads.reading_threads", lambda chunks, size: 1)
    monkeypatch.setattr(norms, "threads_within_budget", lambda size: 2)
    tracemalloc.start()
    try:
        found = measured(runs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(deltas(found)) == 2
    # A window, a batch and a chunk of the reader, and blocks of two workers; of 256 MiB that are read.
    assert peak < 32 * MIB


class Told(Silent):
    def __init__(self) -> None:
        self.total, self.done = 0, 0

    def stage(self, name: str, bytes_total: int | None = None) -> None:
        self.total = bytes_total or 0

    def advance(self, bytes_done: int) -> None:
        self.done += bytes_done


def test_progress_counts_both_sides(runs: Runs) -> None:
    runs.save({"w": random(1, 100, 100)}, 1)
    runs.save({"w": random(2, 100, 100)}, 2)
    registry, told = runs.site.registry(), Told()
    compare_with_norms(registry, tip(registry, f"{MODEL}@step:1"), tip(registry), told)
    assert told.total == told.done == 2 * 40_000


# --- What is not here ----------------------------------------------------------------------------


def test_tensors_that_were_not_brought_are_named(runs: Runs, tmp_path: Path) -> None:
    registry, there = runs.site.registry(), twin_of(runs.site)
    for step in (1, 2):
        tensors = {name: np.full(2000, step + 10 * n, np.float32) for n, name in enumerate(("here", "left"))}
        tensors["fills"] = np.zeros(2000, np.float32) + (step > 1) * np.arange(2000, dtype=np.float32)
        tree = write_files(tmp_path / str(step), {"m.safetensors": safetensors(tensors)})
        cairn.commit(registry, tree, MODEL, cairn.CommitOptions(step=step))
        send(registry, there.registry(), MODEL, SendOptions(selection=Selection(tensors=("here",))))
    registry = there.registry()
    found = compare_with_norms(registry, tip(registry, f"{MODEL}@step:1"), tip(registry))
    assert [str(key) for key in found.unread] == ["fills", "left"]
    assert list(deltas(found)) == ["here"] and len(found.comparison.tensors) == 3


# --- Totals --------------------------------------------------------------------------------------


def test_totals_are_those_of_components_and_parameter_groups(runs: Runs) -> None:
    net = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10))
    matrices, vectors = [p for p in net.parameters() if p.ndim == 2], [p for p in net.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}], lr=0.01)
    taken: list[tuple[State, State]] = []
    for step in (1, 2):
        net(random(step, 16, 30)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        moments = {p: optimizer.state[p]["exp_avg"].clone() for p in net.parameters()}
        taken.append(({name: p.detach().clone() for name, p in net.named_parameters()}, moments))
        runs.save({"net": net, "optim": optimizer, "ema": {"n": random(step, 4)}}, step)
    found = measured(runs)
    rows = {(one.component, one.scope, one.group, one.kind): one for one in found.totals}
    assert [(one.component, one.scope, one.group, one.kind) for one in found.totals] == [
        ("weights", None, None, None), ("weights", "ema", None, None), ("weights", "net", None, None),
        ("optimizer", None, None, None),
        *(("optimizer", "optim", group, kind) for group in (0, 1) for kind in ("exp_avg", "exp_avg_sq", "step")),
    ]  # fmt: skip
    (old, old_moments), (new, new_moments) = taken
    flat = [torch.cat([one[name].reshape(-1) for name in old]) for one in (old, new)]
    check(rows["weights", "net", None, None].delta, *flat)
    for group, members in enumerate((matrices, vectors)):
        flat = [torch.cat([one[p].reshape(-1) for p in members]) for one in (old_moments, new_moments)]
        check(rows["optimizer", "optim", group, "exp_avg"].delta, *flat)
        assert rows["optimizer", "optim", group, "step"].tensors == 2
    whole = rows["optimizer", None, None, None]
    assert whole.delta.norms is None and whole.tensors == 12
    assert rows["weights", None, None, None].tensors == 5


def test_damaged_content_is_an_error_of_the_measurement_alone(runs: Runs) -> None:
    for step in (1, 2):
        runs.save({"w": random(step, 50_000)}, step)
    registry = runs.site.registry()
    manifest = CheckpointManifest(registry, *tip(registry))
    (entry,) = manifest.tensors()
    identifier = registry.opened.keys.chunk.content_id(manifest.chunk_digests(entry)[0])
    (place,) = registry.index().locations(identifier)
    name = registry.index().pack(place.pack).name
    stored = bytearray(runs.site.backend.read(name))
    stored[place.offset + place.length // 2] ^= 1
    runs.site.backend.delete(name)
    runs.site.backend.create(name, [bytes(stored)])
    assert len(compare(registry, tip(registry, f"{MODEL}@step:1"), tip(registry)).tensors) == 1
    with pytest.raises(IntegrityError):
        measured(runs)
    assert runs.site.names(".pin") == []
