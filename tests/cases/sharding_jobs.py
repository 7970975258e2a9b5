"""What the ranks of the test job of group S do: a real process group, and layouts made by torch itself.

A *twin* is a model of the same layout that was filled before torch cut it: whatever torch does, a loaded model must
hold the same local tensors as its twin.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from cairn.core.errors import CairnError
from cairn.training.checkpointer import Checkpointer
from cairn.training.rendezvous import JobStore
from cairn.training.rng import RngState
from tests.support.ranks import group

Built = tuple[nn.Module, torch.optim.Optimizer]
# Input and output axis of a projection, by case: S01's [16, 4], and remainders of every kind over 2 x 2 and 4.
SIZES = {"S01": [(4, 16), (8, 8)], "S09": [(17, n) for n in range(1, 8)] + [(6, 6), (3, 9)], "T26": [(1, 1)]}


class Lin(nn.Module):
    """One projection whose output axis, and one whose input axis tensor parallelism cuts."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inner, outer), nn.Linear(outer, inner, bias=False)


class Net(nn.Module):
    """Projections of all sizes, each under the id of its case."""

    def __init__(self) -> None:
        super().__init__()
        for case, sizes in SIZES.items():
            self.add_module(case, nn.ModuleDict({f"{a}x{b}": Lin(a, b) for a, b in sizes}))
        self.T26.register_parameter("scale", nn.Parameter(torch.zeros(1)))


def cut_single(net: Net) -> None:
    """Nothing is cut: a full state on every rank."""


def cut_fsdp(net: Net) -> None:
    fully_shard(net, mesh=init_device_mesh("cpu", (4,)))


def cut_tp(net: Net) -> None:
    _parallelize(net, init_device_mesh("cpu", (4,)))


def cut_both(net: Net) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    _parallelize(net, mesh["tp"])
    fully_shard(net, mesh=mesh["dp"])


def _parallelize(net: Net, mesh: DeviceMesh) -> None:
    for module in net.modules():
        if isinstance(module, Lin):
            parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


CUTS: dict[str, Callable[[Net], None]] = {
    "full": cut_single, "fsdp4": cut_fsdp, "tp4": cut_tp, "dp2 x tp2": cut_both,
}  # fmt: skip

# What is loaded from each: from the whole and from the most intricate into all.
PAIRS = {"full": list(CUTS), "fsdp4": ["dp2 x tp2"], "tp4": ["fsdp4"], "dp2 x tp2": list(CUTS)}


def build(cut: str, filled: bool) -> Built:
    """A model and its optimizer, cut by torch: filled with the place of each element, or empty."""
    net, at = Net(), 1
    for parameter in net.parameters():
        with torch.no_grad():
            parameter.copy_(torch.arange(at, at + parameter.numel()).reshape(parameter.shape) * float(filled))
        at += parameter.numel()
    CUTS[cut](net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.5 if filled else 0.25)
    for parameter in net.parameters():
        value = parameter.detach()
        optimizer.state[parameter] = {
            "step": torch.tensor(7.0 * filled), "exp_avg": value * 2.0, "exp_avg_sq": value * 3.0,
        }  # fmt: skip
    return net, optimizer


def local_tensors(built: Built) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a rank by name, as plain ones."""
    net, optimizer = built
    for name, parameter in net.named_parameters():
        yield name, _local(parameter)
        for kind, value in optimizer.state[parameter].items():
            yield f"{name}.{kind}", _local(value)


def _local(tensor: Any) -> torch.Tensor:
    return tensor.detach()._local_tensor if hasattr(tensor, "_local_tensor") else tensor.detach()


def reshard(store: str) -> dict[str, list[str]]:
    """Save from each layout and load into each; names of what differs from the twin, by layouts."""
    wrong: dict[str, list[str]] = {}
    twins = {cut: build(cut, True) for cut in CUTS}
    for source, (net, optimizer) in twins.items():
        with Checkpointer(store, source, check_replicas_every=1) as checkpointer:
            checkpointer.save(1, {"model": net, "optimizer": optimizer}, blocking=True)
        for target in PAIRS[source]:
            twin = twins[target]
            into = build(target, False)
            with Checkpointer(store, source) as checkpointer:
                checkpointer.load({"model": into[0], "optimizer": into[1]}, resume=False)
            pairs = zip(local_tensors(into), local_tensors(twin), strict=True)
            wrong[f"{source} -> {target}"] = [name for (name, a), (_, b) in pairs if not torch.equal(a, b)]
    return wrong


def refused_sizes(store: str) -> dict[str, str]:
    """Load S13's embedding of 8 rows, as saved whole, into DTensors of other global shapes."""
    mesh, found = init_device_mesh("cpu", (4,)), {}
    with Checkpointer(store, "embedding") as checkpointer:
        checkpointer.save(1, {"embed": torch.arange(32.0).reshape(8, 4)}, blocking=True)
        for rows in (8, 16, 32, 4):
            local = torch.full((rows // 4, 4), -1.0)
            target = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
            try:
                checkpointer.load({"embed": target}, resume=False)
                at = 2 * dist.get_rank()
                found[str(rows)] = "loaded" if local.equal(torch.arange(32.0).reshape(8, 4)[at : at + 2]) else "wrong"
            except CairnError as error:
                found[str(rows)] = error.message if (local == -1).all() else "changed"
    return found


GROUPS = [[[0, 1], [2, 3]], [[0, 3], [1, 2]], [[3, 2], [1, 0]], [[0], [1, 2, 3]]]


def groups(rank: int, store: str) -> dict[str, str]:
    """Independent groups of ranks at once, each with a model, a coordinator and a mesh of its own; what went wrong."""
    found = {}
    for split in GROUPS:
        meshes = [DeviceMesh("cpu", members) for members in split]
        (number,) = (n for n, members in enumerate(split) if rank in members)
        members, name = split[number], f"group {split[number]}"
        own = members.index(rank)
        default = dist.distributed_c10d._get_default_store()
        meeting = JobStore(default, own, len(members), name)
        full = torch.arange(12.0).reshape(12, 1) + 100 * number
        part = full.chunk(len(members))[own]

        def state(local: torch.Tensor, mesh: DeviceMesh = meshes[number], place: int = own) -> dict[str, Any]:
            cut = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
            return {"w": cut, "same": torch.ones(2), "rng": RngState(coordinates={"dp": place})}

        torch.manual_seed(rank)
        with Checkpointer(store, name, rendezvous=meeting, check_replicas_every=1, silence_seconds=60) as checkpointer:
            checkpointer.save(1, state(part.clone()), blocking=True)
            expected, into = torch.rand(3), state(torch.zeros_like(part))
            checkpointer.load(into)
        if not torch.equal(into["w"]._local_tensor, part):
            found[name] = "its part differs"
        if not torch.equal(torch.rand(3), expected):
            found[name] = "its random numbers differ"
    return found


def sharding(rank: int, ranks: int, store: str) -> dict[str, Any]:
    """All scenarios of one job of four ranks."""
    with group(0, rank, ranks):
        return {"reshard": reshard(store), "sizes": refused_sizes(store), "groups": groups(rank, store)}
