"""What the ranks of DCP's test jobs do."""

import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

import cairn
from cairn.registry.compare import compare
from cairn.registry.models import find_model, history, ref_value
from cairn.registry.registry import Registry
from cairn.registry.session import open_sessions
from cairn.store.backends.faults import Fail, FaultyBackend
from tests.support.ranks import group
from tests.training.layouts import Layout, build, differing, fill, full_values

FSDP4, UNEVEN3, FSDP2 = Layout("fsdp4", 4, fsdp=True), Layout("uneven3", 3, fsdp=True), Layout("fsdp2", 2, fsdp=True)
SINGLE, TP4, TP2_FSDP2 = Layout("single", 1), Layout("tp4", 4, tp=4), Layout("tp2_fsdp2", 4, tp=2, fsdp=True)
SOURCES = [FSDP4, UNEVEN3, TP2_FSDP2]
TARGETS = [FSDP2, SINGLE, TP4]


def state_of(net: Any, optimizer: Any) -> dict[str, Any]:
    """As trainers make it for DCP."""
    model, optim = get_state_dict(net, optimizer)
    return {"model": model, "optim": optim, "step": 0}


def resharding(rank: int, ranks: int, store: str) -> dict[str, Any]:
    """Save from some layouts, by DCP and by `Checkpointer`; load each of these in others. Returns what went wrong."""
    wrong: dict[str, Any] = {}
    for phase, layout in enumerate(SOURCES):
        with group(phase, rank, layout.ranks) as here:
            if here:
                net, optimizer = build(layout, rank)
                fill(net, optimizer, full_values(layout.dim, 1))
                state = state_of(net, optimizer) | {"step": 40}
                dcp.save(state, storage_writer=cairn.CairnWriter(store, layout.name), checkpoint_id="step-40")
                with cairn.Checkpointer(store, f"{layout.name}-own", check_replicas_every=0) as checkpointer:
                    checkpointer.save(40, {"model": net, "optim": optimizer, "step": 40}, blocking=True)
                wrong |= {
                    f"{layout.name}: {name}": "differs from Checkpointer's" for name in _unlike(store, layout.name)
                }
    for phase, layout in enumerate(TARGETS, start=len(SOURCES)):
        with group(phase, rank, layout.ranks) as here:
            for source in (*(one.name for one in SOURCES), "tp2_fsdp2-own") if here else ():
                net, optimizer = build(layout, rank)
                state = state_of(net, optimizer)
                dcp.load(state, storage_reader=cairn.CairnReader(store, source))
                set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
                names = differing(net, optimizer, full_values(layout.dim, 1))
                if names or state["step"] != 40:
                    wrong[f"{source} -> {layout.name}"] = names[:5]
                dist.barrier()
    return wrong


def _unlike(store: str, name: str) -> list[str]:
    dist.barrier()
    registry = cairn.open_store(store)
    found = compare(registry, cairn.resolve(registry, name), cairn.resolve(registry, f"{name}-own"))
    registry.close()
    return [str(change.key) for change in found.tensors]


class Thing:
    """An object of a class that nobody knows."""


def faults(rank: int, ranks: int, store: str) -> dict[str, Any]:
    """Saves of two ranks that fail, each followed by one that does not; returns what each said."""
    said: dict[str, Any] = {}
    with group(0, rank, ranks):
        mesh = init_device_mesh("cpu", (ranks,))
        sharded = distribute_tensor(torch.arange(4000.0).reshape(100, 40), mesh, [Shard(0)])
        copies, small, zeros = (
            DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
            for tensor in (torch.arange(4000.0) + 1, torch.arange(8.0), torch.zeros(3000))
        )
        state = {"model": {"w": sharded, "c": copies, "b": small, "z": zeros}, "note": "x"}

        def save(name: str, **more: Any) -> None:
            try:
                dcp.save(more.pop("state", state), checkpoint_id=name, **more)
                said[name] = "saved"
            except CheckpointException as error:
                said[name] = {at: str(one) for at, (one, _) in error.failures.items()}

        writer = cairn.CairnWriter(store, "m")
        save("object", state=state | {"extra": {"thing": Thing()}}, storage_writer=writer)
        broken = cairn.CairnWriter(_breaking(store) if rank == 1 else store, "m")
        save("broken", storage_writer=broken)
        said["left"] = _checkpoints(store, "m")
        save("mended", storage_writer=broken)
        save("first", storage_writer=writer, planner=cairn.CairnSavePlanner())
        if rank == 1:
            copies.to_local()[1234] += 1
            small.to_local()[3] += 1
        save("diverged", storage_writer=writer, planner=cairn.CairnSavePlanner())
        if rank == 1:
            copies.to_local()[1234] -= 1
            small.to_local()[3] -= 1
        unlike = state | {"note": f"of rank {rank}"}
        save("unlike", state=unlike, storage_writer=writer, planner=cairn.CairnSavePlanner())
        # A planner that keeps its plans from save to save: ranks then send none.
        for name in ("step-1", "step-2", "step-3"):
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            save(name, storage_writer=cairn.CairnWriter(store, "m"), planner=planner)
        said["kept"] = _checkpoints(store, "m")
        said["async"] = _saved_by_a_process(store, state)
        writer = cairn.CairnWriter(store, "m", step=rank)
        save("other steps", storage_writer=writer)
        save("step-4", storage_writer=writer)
        said["sessions"] = _open_sessions(store)
    return said


def _breaking(store: str) -> Registry:
    registry = cairn.open_store(store)
    opened = registry.opened
    backend = FaultyBackend(opened.backend, [Fail(op="create", name="objects/*.pack", call=1)])
    return Registry(replace(opened, backend=backend))


def _checkpoints(store: str, model: str) -> list[tuple[str, int | None]]:
    """Messages and steps of main's history, newest first."""
    registry = cairn.open_store(store)
    try:
        found = find_model(registry, model)
    except cairn.CairnError:
        return []
    lines = history(registry, found, ref_value(registry, found, "main"))
    registry.close()
    return [(line.meta.message, line.meta.step) for line in lines]


def _open_sessions(store: str) -> int:
    """How many sessions there are, once those that end by themselves have had time to."""
    registry = cairn.open_store(store)
    end = time.monotonic() + 20
    while found := len(open_sessions(registry.opened)):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    registry.close()
    return found


def _saved_by_a_process(store: str, state: dict[str, Any]) -> Any:
    """Whether a process of its own saves what it was given; twice, since it lives on."""
    writer = cairn.CairnWriter(cairn.open_store(store), "by-process")
    for step in (1, 2):
        state["note"] = f"of step {step}"
        options = {"storage_writer": writer, "checkpoint_id": f"step-{step}"}
        future = dcp.async_save(state, async_checkpointer_type=AsyncCheckpointerType.PROCESS, **options)
        future.result()  # type: ignore[union-attr]  # the default stager gives a plain future
    loaded = {"model": {name: torch.zeros_like(value) for name, value in state["model"].items()}, "note": ""}
    dcp.load(loaded, storage_reader=cairn.CairnReader(store, "by-process"), checkpoint_id="1")
    same = [torch.equal(loaded["model"][n].to_local(), state["model"][n].to_local()) for n in state["model"]]
    return loaded["note"], all(same), _checkpoints(store, "by-process")
