"""What the ranks of the cases' jobs do."""

import random
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import cairn
from cairn.core.errors import CairnError
from tests.cases.training import Net, bits
from tests.support.ranks import group


def random_states(rank: int, ranks: int, store: str) -> dict[str, Any]:
    """Save and load random states on four ranks, on a mesh, and on more ranks than saved; returns what was seen."""
    seen: dict[str, Any] = {}
    with group(0, rank, 4):
        seen["dp4"] = _restored(store, "dp4", cairn.RngState(), rank + 1)
        for what, state in {"as a tensor": torch.get_rng_state(), "as a value": {"rng": random.random()}}.items():
            with cairn.Checkpointer(store, "claims") as checkpointer:
                try:
                    checkpointer.save(1, {"rng": state}, blocking=True)
                except CairnError as error:
                    seen[what] = error.message
                seen["latest after"] = str(checkpointer.latest())
    with group(1, rank, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        seen["dp2 x tp2"] = _restored(store, "mesh", cairn.RngState(mesh=mesh), rank + 11)
    if rank == 0:
        state: dict[str, Any] = {"rng": _Peek()}
        with cairn.Checkpointer(store, "mesh") as checkpointer:
            checkpointer.load(state, resume=False)
        seen["saved keys"] = sorted(state["rng"].states)
    with group(2, rank, 2) as here:
        if here:
            seen["dp2"] = _restored(store, "dp2", cairn.RngState(), rank + 21, Net(seed=1))[0]
    with group(3, rank, 4), cairn.Checkpointer(store, "dp2") as checkpointer:
        net = Net(seed=2)
        before = bits(dict(net.state_dict())), bits(torch.get_rng_state())
        error = ""
        try:
            checkpointer.load({"model": net, "rng": cairn.RngState()})
        except CairnError as caught:
            error = caught.message
        after = bits(dict(net.state_dict())), bits(torch.get_rng_state())
        seen["grown"] = {"error": error, "unchanged": before == after}
        derived: list[Any] = []
        notes: tuple[str, ...] = ()
        for _ in range(2):
            report = checkpointer.load({"model": net, "rng": cairn.RngState(missing="derive")})
            assert report is not None
            notes = report.notes
            derived.append(_draw())
        seen["derived"] = [*derived, notes]
    return seen


class _Peek:
    """Looks at the random states of all ranks."""

    rank_key = "none"
    states: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_rank_states(self, states: dict[str, Any]) -> list[str]:
        self.states = dict(states)
        return []


def _draw() -> list[Any]:
    return [torch.rand(2).tolist(), random.random()]


def _restored(store: str, model: str, rng: Any, seed: int, net: Any = None) -> tuple[Any, Any]:
    """What comes after a save, and after a load of it."""
    torch.manual_seed(seed), random.seed(seed)
    torch.rand(10), random.random()
    state = {"rng": rng, "model": net if net is not None else Net()}
    with cairn.Checkpointer(store, model) as checkpointer:
        checkpointer.save(1, state, blocking=True)
        expected = _draw()
        torch.manual_seed(0), random.seed(0)
        checkpointer.load(state)
    return expected, _draw()


def train_while_saving(rank: int, ranks: int, store: str) -> dict[str, Any]:
    """Two ranks save in the background while their main threads run collectives, in an order of their own."""
    begun = time.monotonic()
    seen: dict[str, Any] = {"during a save": 0, "sums": []}
    with group(0, rank, ranks), cairn.Checkpointer(store, "together") as checkpointer:
        handles = []
        bulk = torch.arange(12 << 20, dtype=torch.float32) + rank
        for step in range(4):
            handle = checkpointer.save(step, {"model": Net(seed=step), f"of rank {rank}": bulk + step})
            handles.append(handle)
            if rank:  # the ranks' main threads do not keep step with each other's saves
                time.sleep(0.05)
            for number in range(30):
                total = torch.full((8,), float(rank + number))
                dist.all_reduce(total)
                dist.barrier()
                seen["during a save"] += not handle.committed.done()
                seen["sums"].append(total[0].item())
        checkpointer.wait()
        seen["steps"] = []
        for step in reversed(range(4)):
            state = {"model": Net(seed=9), f"of rank {rank}": torch.zeros_like(bulk)}
            report = checkpointer.load(state, f"step:{step}")
            assert report is not None
            assert torch.equal(state[f"of rank {rank}"], bulk + step)
            seen["steps"].append(report.step)
    seen["seconds"] = time.monotonic() - begun
    return seen
