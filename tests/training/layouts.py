"""One small model in every layout, filled with values that tell their place."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LAYERS = 4
# Tiles begin at 1 MiB: with 600 a projection of 5 MiB has several.
DIM = 600


class Block(nn.Module):
    """Two projections, a norm, a buffer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = dim * 7 // 2
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.register_buffer("seen", torch.zeros(3))


class Net(nn.Module):
    """A stack of blocks; a pipeline stage keeps the global numbers of its layers."""

    def __init__(self, layers: list[int], dim: int) -> None:
        super().__init__()
        # One layer is large, the others stay small, so that both ways of cutting are taken.
        self.layers = nn.ModuleDict({str(n): Block(dim if n == 1 else 24) for n in layers})


@dataclass(frozen=True)
class Layout:
    """A number of ranks and how the model lies on them."""

    name: str
    ranks: int
    stages: int = 1
    tp: int = 1
    fsdp: bool = False
    dim: int = DIM


LAYOUTS = [
    Layout("single", 1),
    Layout("fsdp4", 4, fsdp=True),
    Layout("tp2_fsdp2", 4, tp=2, fsdp=True),
    Layout("tp4", 4, tp=4),
    Layout("uneven3", 3, fsdp=True),
    Layout("pp2", 2, stages=2),
]


def build(layout: Layout, rank: int) -> tuple[Net, torch.optim.AdamW]:
    """Model and optimizer of this rank, with state, everything zero."""
    numbers = range(LAYERS)
    layers = [n for n in numbers if layout.stages == 1 or n % layout.stages == rank]
    net = Net(layers, layout.dim)
    if layout.tp > 1 or layout.fsdp:
        dp = layout.ranks // layout.tp
        mesh = init_device_mesh("cpu", (dp, layout.tp), mesh_dim_names=("dp", "tp"))
        if layout.tp > 1:
            for block in net.layers.values():
                parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if layout.fsdp:
            fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for parameter in net.parameters():
        with torch.no_grad():
            parameter.zero_()
        optimizer.state[parameter] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return net, optimizer


def full_values(dim: int, seed: int) -> dict[str, torch.Tensor]:
    """Every tensor of the whole state, by name, of random values."""
    generator = torch.Generator().manual_seed(seed)
    reference = Net(list(range(LAYERS)), dim)
    values: dict[str, torch.Tensor] = {}
    for name, tensor in reference.state_dict().items():
        values[name] = torch.randn(tensor.shape, generator=generator)
    for name, parameter in reference.named_parameters():
        values[f"{name}.step"] = torch.tensor(float(seed))
        values[f"{name}.exp_avg"] = torch.randn(parameter.shape, generator=generator)
        values[f"{name}.exp_avg_sq"] = torch.randn(parameter.shape, generator=generator).square()
    return values


def tensors_of(net: Net, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """The live tensors of this rank by the same names."""
    found = dict(net.state_dict())
    for name, parameter in net.named_parameters():
        found[name] = parameter
        for kind, value in optimizer.state[parameter].items():
            found[f"{name}.{kind}"] = value
    return found


def fill(net: Net, optimizer: torch.optim.AdamW, values: dict[str, torch.Tensor]) -> None:
    """Put values in place, each rank its part."""
    for name, tensor in tensors_of(net, optimizer).items():
        with torch.no_grad():
            _local(tensor).copy_(_part(tensor, values[name]))


def differing(net: Net, optimizer: torch.optim.AdamW, values: dict[str, torch.Tensor]) -> list[str]:
    """Names of tensors whose local part is not exactly the values'."""
    return [
        name
        for name, tensor in tensors_of(net, optimizer).items()
        if not torch.equal(_local(tensor), _part(tensor, values[name]))
    ]


def _local(tensor: Any) -> torch.Tensor:
    return tensor.detach()._local_tensor if hasattr(tensor, "_local_tensor") else tensor.detach()


def _part(tensor: Any, value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a full value, cut by torch itself: first by the inner, then by the outer dimension."""
    if not hasattr(tensor, "_local_tensor"):
        return value
    mesh, place = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    # FSDP over TP cuts the inner mesh dimension first; without a strided placement the order makes no difference here.
    for at in reversed(range(mesh.ndim)):
        placement = tensor.placements[at]
        if placement.is_replicate():
            continue
        chunks = list(value.chunk(mesh.size(at), placement.dim)) if value.numel() else [value]
        empty = value.narrow(placement.dim, 0, 0)
        value = chunks[place[at]] if place[at] < len(chunks) else empty
    return value
