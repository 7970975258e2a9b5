"""The plug-in for torch's distributed checkpoints: what DCP saves and loads through a store, alone and on ranks."""

import io
import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import cairn
from cairn.cli.app import run
from cairn.core.errors import CairnError
from cairn.manifests.schema import Key
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.compare import compare
from cairn.registry.models import open_meta
from cairn.registry.registry import Registry
from cairn.registry.session import open_sessions
from cairn.training.dcp_names import step_of
from cairn.training.leaves import DTYPE_NAMES
from tests.support.ranks import run_ranks
from tests.support.stores import close_environments
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files
from tests.training import dcp_jobs

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]
State = dict[str, Any]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A new store, and its user's folders, which jobs of several ranks inherit."""
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    cairn.create_store(tmp_path / "store")
    opened = cairn.open_store(tmp_path / "store")
    yield opened
    opened.close()
    close_environments()


def save(registry: Registry, state: State, name: str | None = None, model: str = "m", **options: Any) -> None:
    """Save through the default planner, or another."""
    dcp.save(state, storage_writer=cairn.CairnWriter(registry, model), checkpoint_id=name, **options)


def load(registry: Registry, state: State, name: str | None = None, selector: str = "m", **options: Any) -> State:
    """Load in place; returns the same state."""
    dcp.load(state, storage_reader=cairn.CairnReader(registry, selector), checkpoint_id=name, **options)
    return state


def refusal(error: pytest.ExceptionInfo[CheckpointException]) -> str:
    """What the first rank that failed said."""
    return str(next(iter(error.value.failures.values()))[0])


def bits(tensor: torch.Tensor) -> bytes:
    """All bytes in row-major order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# --- one process ------------------------------------------------------------------------------------


def odd_tensors() -> State:
    """A tensor of every dtype that DCP itself can plan, and every odd form."""
    generator = torch.Generator().manual_seed(1)
    state: State = {}
    for dtype, name in DTYPE_NAMES.items():
        if dtype.is_floating_point or dtype.is_complex or name in ("bool", *INTEGERS):
            raw = torch.randint(0, 2, (16 * 5 * 7,), dtype=torch.uint8, generator=generator)
            state[name] = raw.view(dtype)[:35].reshape(5, 7)
    base = torch.randn(60, 50, generator=generator)
    state |= {
        "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "hollow": torch.empty(3, 0, 2),
        "turned": base.t(), "strided": base[::3, 5:40:7], "same": base[0].expand(4, 50),
        "conjugated": torch.randn(6, dtype=torch.complex64, generator=generator).conj(),
        "large": torch.randn(900, 1300, generator=generator), "zeros": torch.zeros(1000, 1000),
    }  # fmt: skip
    return state


@pytest.mark.parametrize("how", ["save", "thread"])
def test_every_tensor_comes_back_bit_for_bit(registry: Registry, how: str) -> None:
    state = {"model": odd_tensors(), "tied": {}}
    state["tied"] = {"a": state["model"]["large"], "b": state["model"]["large"]}
    if how == "save":
        save(registry, state, "step-40")
    else:
        del state["model"]["conjugated"]  # torch's stager forgets that it is
        future: Any = dcp.async_save(state, storage_writer=cairn.CairnWriter(registry, "m"), checkpoint_id="step-40")
        future.result()
    fresh = {scope: {k: torch.zeros_like(v).contiguous() for k, v in part.items()} for scope, part in state.items()}
    fresh["model"]["turned"] = torch.zeros(60, 50).t()
    fresh["model"]["strided"] = torch.zeros(90, 90)[::4, ::20][:20]
    load(registry, fresh, "40")
    for scope, part in state.items():
        for name, tensor in part.items():
            assert bits(fresh[scope][name]) == bits(tensor.resolve_conj()), name
    manifest = CheckpointManifest(registry, *cairn.resolve(registry, "m@step:40"))
    tiles = {tuple(manifest.chunk_digests(e)) for e in manifest.tensors() if e.key.path[-1] in ("large", "a", "b")}
    assert len(tiles) == 1, "tied tensors are stored once"
    registry.close()
    assert run(["verify", "--full", "--store", registry.opened.backend.url]) == 0


def test_plain_values_come_back_as_they_were(registry: Registry) -> None:
    state = {
        "step": 7,
        "cfg": {
            "lr": 1e-3, "name": "x", "none": None, "list": [1, 2.5, "y"], "pair": (1, (2, b"z")), "set": {1, 2},
            "deep": [{"k": 1}, {"k": [[{"l": 2}]]}], "dtype": torch.bfloat16, "device": torch.device("cpu"),
            "buffer": io.BytesIO(b"abc"), "large": bytes(range(256)) * 8192,
        },
    }  # fmt: skip
    save(registry, state)
    fresh: State = {
        "step": 0, "cfg": {**dict.fromkeys(state["cfg"]), "deep": [{"k": 0}, {"k": [[{"l": 0}]]}]}
    }  # fmt: skip
    load(registry, fresh)
    assert fresh["cfg"].pop("buffer").getvalue() == state["cfg"].pop("buffer").getvalue()
    assert fresh == state


def test_other_objects_are_refused_by_name_and_type(registry: Registry) -> None:
    with pytest.raises(CheckpointException) as error:
        save(registry, {"model": {"w": torch.ones(3)}, "extra": {"thing": dcp_jobs.Thing()}})
    assert "'extra.thing'" in refusal(error) and "Thing" in refusal(error)
    with pytest.raises(CairnError):
        cairn.resolve(registry, "m")
    assert open_sessions(registry.opened) == []


def test_what_a_planner_has_pickled_is_refused(registry: Registry) -> None:
    class Opaque(dcp.DefaultSavePlanner):
        lookup_object = None  # type: ignore[assignment]  # a planner of another family has none

        def resolve_data(self, write_item: Any) -> Any:
            return io.BytesIO(b"pickled")

    with pytest.raises(CheckpointException) as error:
        save(registry, {"step": 3}, planner=Opaque())
    assert "'step' comes pickled" in refusal(error)


def test_ranks_that_do_not_meet_are_refused(registry: Registry) -> None:
    with pytest.raises(cairn.CairnError, match="collectives"):
        save(registry, {"w": torch.ones(3)}, use_collectives=False)


def test_a_state_dict_that_is_not_flattened_has_bare_names(registry: Registry) -> None:
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    save(registry, {"a.b": torch.arange(100.0), "n": 3}, planner=planner)
    manifest = CheckpointManifest(registry, *cairn.resolve(registry, "m"))
    assert [entry.key for entry in manifest.tensors()] == [Key("", ("a.b",))]
    fresh = load(registry, {"a.b": torch.zeros(100), "n": 0})
    assert fresh["a.b"][99] == 99 and fresh["n"] == 3


def test_other_dtypes_are_converted_as_dcp_does(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    save(registry, {"w": torch.arange(1000.0)})
    fresh = load(registry, {"w": torch.zeros(1000, dtype=torch.bfloat16)})
    assert torch.equal(fresh["w"], torch.arange(1000.0).bfloat16()) and "w from float32" in caplog.text


# --- names and histories ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("4000", 4000), ("step-4000", 4000), ("step4000", 4000), ("out/global_step4000/", 4000), ("iter_0000040", 40),
        ("checkpoint-7", 7), (Path("runs/step_9"), 9), (None, None), ("best", None), ("run2", None), ("4000-a", None),
        ("9" * 19, None),
    ],
)  # fmt: skip
def test_a_checkpoint_id_may_name_a_step(name: str | Path | None, step: int | None) -> None:
    assert step_of(name) == step


def test_checkpoint_ids_find_what_they_named(registry: Registry) -> None:
    for name, number in (("step-1", 1.0), ("out/step-2", 2.0), ("best", 3.0)):
        save(registry, {"w": torch.full((4,), number)}, name)
    other = cairn.CairnWriter(registry, "m", "side", step=5)
    dcp.save({"w": torch.full((4,), 4.0)}, storage_writer=other)

    def found(name: str | None, selector: str = "m") -> float:
        return float(load(registry, {"w": torch.zeros(4)}, name, selector)["w"][0])

    assert [found(name) for name in ("1", "step-2", "best", None)] == [1, 2, 3, 3]
    assert [found("step-5", "m@side"), found(None, "m@side"), found(None, "m@step:2")] == [4, 4, 2]
    assert other.checkpoint == cairn.resolve(registry, "m@side")[1]
    with pytest.raises(CheckpointException, match="no checkpoint 'step-5' in the history of m@main"):
        found("step-5")
    model, tip = cairn.resolve(registry, "m")
    state = registry.state.models[model].checkpoints[tip]
    assert (
        open_meta(registry, model, state).message == "best" and state.parent == cairn.resolve(registry, "m@step:2")[1]
    )


def test_two_entries_of_one_flat_name_are_told_apart(registry: Registry) -> None:
    with cairn.Checkpointer(registry, "m") as checkpointer:
        checkpointer.save(1, {"a": {"b": torch.ones(3)}, "a.b": torch.ones(3)}, blocking=True)
    with pytest.raises(CheckpointException, match=r"a:b and a\.b:~ of .* would both be called 'a\.b'|a\.b:~ and a:b"):
        load(registry, {"a": {"b": torch.zeros(3)}})


def test_files_are_read_by_their_own_names(registry: Registry, tmp_path: Path) -> None:
    tensors = {"layers.0.weight": weights(1, 64, 64), "norm": weights(2, 64)}
    tree = write_files(tmp_path / "tree", {"m.safetensors": safetensors(tensors)})
    cairn.commit(registry, tree, "m", cairn.CommitOptions())
    fresh = load(registry, {"layers.0.weight": torch.zeros(64, 64), "norm": torch.zeros(64)})
    nested = load(registry, {"layers": {"0.weight": torch.zeros(64, 64)}, "norm": torch.zeros(64)})
    expected = tensors["layers.0.weight"].tobytes()
    assert bits(fresh["layers.0.weight"]) == expected == bits(nested["layers"]["0.weight"])


def test_ranks_read_what_the_coordinator_has_found(registry: Registry) -> None:
    save(registry, {"w": torch.full((300,), 1.0)})
    first, second = cairn.CairnReader(registry, "m"), cairn.CairnReader(registry, "m")
    first.read_metadata()
    save(registry, {"w": torch.full((300,), 2.0)})
    state, planner = {"w": torch.zeros(300)}, dcp.DefaultLoadPlanner()
    planner.set_up_planner(state, second.read_metadata())
    (plan,) = first.prepare_global_plan([planner.create_local_plan()])
    second.read_data(plan, planner).wait()
    assert state["w"][0] == 1


# --- beside the checkpointer ------------------------------------------------------------------------


def trained(seed: int, steps: int, tensor_rate: bool = False) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 4, bias=False))
    rate: Any = torch.tensor(1e-2) if tensor_rate else 1e-2 * (1 + seed)
    groups = [{"params": net[0].parameters()}, {"params": net[1].parameters(), "weight_decay": 0.3 + seed}]
    optimizer = torch.optim.AdamW(groups, lr=rate, foreach=False if tensor_rate else None)
    for _ in range(steps):
        net(torch.randn(5, 20)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def everything(net: nn.Module, optimizer: torch.optim.AdamW) -> State:
    """All of a state, comparable."""
    groups = [{k: float(v) if isinstance(v, torch.Tensor) else v for k, v in g.items()} for g in optimizer.param_groups]
    return {
        "net": {name: bits(tensor) for name, tensor in net.state_dict().items()},
        "state": [{k: bits(v) for k, v in optimizer.state[p].items()} for p in net.parameters()],
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in groups],
    }


@pytest.mark.parametrize("tensor_rate", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("reads", ["dcp", "checkpointer"])
@pytest.mark.parametrize("writes", ["dcp", "checkpointer"])
def test_each_loads_what_the_other_has_saved(registry: Registry, writes: str, reads: str, tensor_rate: bool) -> None:
    net, optimizer = trained(0, 3, tensor_rate)
    live: State = {"model": net, "optim": optimizer, "step": 3, "cfg": {"name": "x", "sizes": [1, {"a": 2}]}}

    def flat(net: nn.Module, optimizer: torch.optim.AdamW) -> State:
        model, optim = get_state_dict(net, optimizer)
        return {"model": model, "optim": optim}

    if writes == "dcp":
        save(registry, live | flat(net, optimizer))
    else:
        with cairn.Checkpointer(registry, "m") as checkpointer:
            checkpointer.save(3, live, blocking=True)
    other, another = trained(1, 1, tensor_rate)
    if reads == "dcp":
        state = {**flat(other, another), "step": 0, "cfg": {"name": "", "sizes": [0, {"a": 0}]}}
        load(registry, state)
        set_state_dict(other, another, model_state_dict=state["model"], optim_state_dict=state["optim"])
        assert state["step"] == 3 and state["cfg"] == live["cfg"]
    else:
        state = {"model": other, "optim": another, "step": 0}
        with cairn.Checkpointer(registry, "m") as checkpointer:
            checkpointer.load(state)
        assert state["step"] == 3
    assert everything(other, another) == everything(net, optimizer)


def test_both_store_the_same_tensors(registry: Registry) -> None:
    net, optimizer = trained(0, 2)
    model, optim = get_state_dict(net, optimizer)
    save(registry, {"model": model, "optim": optim}, "step-2")
    before = {(entry.key, entry.dtype, entry.shape) for entry in tensors_of(registry, "m")}
    with cairn.Checkpointer(registry, "own") as checkpointer:
        checkpointer.save(2, {"model": net, "optim": optimizer}, blocking=True)
    found = compare(registry, cairn.resolve(registry, "m"), cairn.resolve(registry, "own"))
    assert found.tensors == [] and found.tensors_equal == len(before) == 12
    own = {str(change.key) for change in found.values if change.kind != "removed"}
    assert own == {"optim:unlike"}, "the rest is torch's own spelling of the groups"


def tensors_of(registry: Registry, selector: str) -> Any:
    return CheckpointManifest(registry, *cairn.resolve(registry, selector)).tensors()


def test_a_state_can_be_built_from_a_checkpoint_alone(registry: Registry) -> None:
    net, optimizer = trained(0, 1)
    with cairn.Checkpointer(registry, "m") as checkpointer:
        checkpointer.save(1, {"model": net, "optim": optimizer, "list": [torch.ones(2), {"x": 1}]}, blocking=True)
    state: State = {}
    reader = cairn.CairnReader(registry, "m")
    dcp.state_dict_loader._load_state_dict(state, reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert torch.equal(state["model"]["0.weight"], net[0].weight) and state["list"][1] == {"x": 1}
    assert state["optim"]["param_groups"][1]["params"] == ["1.weight"]


# --- other processes --------------------------------------------------------------------------------


def test_what_is_pickled_says_where_and_no_more(registry: Registry) -> None:
    writer, reader = cairn.CairnWriter(registry, "m"), cairn.CairnReader(registry, "m")
    state = {"w": torch.arange(5000.0)}
    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner(state)
    writer.reset("step-3")
    writer.set_up_storage_writer(False, rank=1)
    plan = planner.create_local_plan()
    (result,) = writer.write_data(plan, planner).value()
    dcp.save(state, storage_writer=cairn.CairnWriter(registry, "m"))
    reader.read_metadata()
    opened = registry.opened
    assert opened.key_file is not None
    root = json.loads(opened.key_file.read_bytes())["root key"]
    secrets = [getattr(opened.secrets, name) for name in opened.secrets.__struct_fields__]
    secrets += [root.encode(), bytes.fromhex(root), result.storage_data.key]
    for pickled in (pickle.dumps(writer), pickle.dumps(reader)):
        assert not any(secret in pickled for secret in secrets) and len(pickled) < 1000
    assert result.storage_data.key.hex() not in repr(result) and str(result.storage_data.key) not in repr(result)
    again, other = pickle.loads(pickle.dumps(writer)), pickle.loads(pickle.dumps(reader))
    dcp.save(state, storage_writer=again)
    fresh = {"w": torch.zeros(5000)}
    dcp.load(fresh, storage_reader=other)
    assert torch.equal(fresh["w"], state["w"])
    again.close()
    other.close()


def test_a_session_ends_with_its_writer(registry: Registry) -> None:
    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner({"w": torch.arange(5000.0)})
    writer = cairn.CairnWriter(registry, "m")
    for _ in range(2):
        writer.set_up_storage_writer(False, rank=1)
        writer.write_data(planner.create_local_plan(), planner)
        assert waited(registry, 1) == 1, "one that is used again has given its earlier attempt up"
    del writer
    assert waited(registry, 0) == 0


def waited(registry: Registry, wanted: int) -> int:
    """The number of open sessions, once it is what is wanted or ought to be."""
    end = time.monotonic() + 20
    while (found := len(open_sessions(registry.opened))) != wanted and time.monotonic() < end:
        time.sleep(0.02)
    return found


def test_any_layout_reads_what_any_layout_has_written(registry: Registry, tmp_path: Path) -> None:
    store = registry.opened.backend.url
    phases = len(dcp_jobs.SOURCES) + len(dcp_jobs.TARGETS)
    assert run_ranks(tmp_path / "job", 4, "tests.training.dcp_jobs:resharding", store, phases=phases) == [{}] * 4


def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_nothing(registry: Registry, tmp_path: Path) -> None:
    found = run_ranks(tmp_path / "job", 2, "tests.training.dcp_jobs:faults", registry.opened.backend.url)
    assert found[0] == found[1]
    said = found[0]
    (refused,) = said["object"].values()
    assert "'extra.thing'" in refused and "Thing" in refused
    assert "fault was injected" in said["broken"][1] and said["left"] == []
    assert all(f"model:{name} differs between ranks" in said["diverged"][0] for name in "cb")
    assert "model:z" not in said["diverged"][0]
    assert "note:~ differs between ranks 0 and 1" in said["unlike"][0]
    assert "rank 1 saves step 1 while the coordinator saves step 0" in said["other steps"][0]
    assert said["kept"] == [("", 3), ("", 2), ("", 1), ("first", None), ("mended", None)]
    assert said["async"] == ("of step 1", True, [("", 2), ("", 1)])
    assert said["sessions"] == 0
