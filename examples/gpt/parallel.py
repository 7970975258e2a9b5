"""Ways to split a model and its batches over ranks.

A layout does three things: `place` splits a fresh model, `backward` turns this rank's share of a batch into gradients,
`total` adds a number up over all ranks. The mesh says which rank is which: its `data` dimension shares out a batch.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gpt.model import Gpt, loss_of


class Alone:
    """One process, no process group."""

    model: nn.Module
    mesh: DeviceMesh | None = None
    rank = 0
    ranks = 1
    # Ranks with equal `data_rank` see equal samples, ranks with equal `dropout_rank` draw equal dropout masks.
    data_rank = 0
    data_ranks = 1
    dropout_rank = 0
    # So many ranks hold a loss, and every parameter or a shard of it.
    holders = 1

    def place(self, model: Gpt) -> None:
        """Split `model` in place; before, its parameters are equal on all ranks."""
        self.model = model

    def backward(self, batch: Tensor) -> Tensor:
        """Add the gradients of the global batch's mean loss; return the part of that mean which `total` adds up."""
        loss = loss_of(self.model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        return loss.detach() / self.holders

    def total(self, part: Tensor) -> Tensor:
        """The sum over all ranks, equal on each of them."""
        return part

    def clip(self, norm_max: float) -> None:
        """Scale gradients so that the norm of all of them together, on all ranks, is at most `norm_max`."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        # A shard counts once for each rank that holds a copy; dividing by all holders leaves every element once.
        squares = [_local(gradient).square().sum() * _shards(gradient) / self.holders for gradient in gradients]
        norm = self.total(torch.stack(squares).sum()).sqrt()
        scale = (norm_max / (norm + 1e-6)).clamp(max=1)
        for gradient in gradients:
            _local(gradient).mul_(scale)


class DataParallel(Alone):
    """Every rank holds the whole model (DDP)."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        sizes = self.dimensions(self.ranks)
        self.mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        self.data_rank = self.dropout_rank = self.mesh.get_local_rank("data")
        self.data_ranks = sizes["data"]
        self.holders = self.ranks

    def dimensions(self, ranks: int) -> dict[str, int]:
        """Names and sizes of the mesh's dimensions."""
        return {"data": ranks}

    def place(self, model: Gpt) -> None:
        self.model = nn.parallel.DistributedDataParallel(model)

    def total(self, part: Tensor) -> Tensor:
        whole = part.clone()
        dist.all_reduce(whole)
        return whole


class FullyShard(DataParallel):
    """Every parameter is cut along its first dimension (FSDP2)."""

    def place(self, model: Gpt) -> None:
        from torch.distributed.fsdp import fully_shard

        for part in (*model.layers.values(), model):
            fully_shard(part, mesh=self.mesh["data"], reshard_after_forward=False)
        self.model = model


class TensorFullyShard(FullyShard):
    """Heads and hidden units are cut over pairs of ranks; then everything is cut as in `FullyShard`."""

    def dimensions(self, ranks: int) -> dict[str, int]:
        tensor = 2 if ranks % 2 == 0 else 1
        return {"data": ranks // tensor, "tensor": tensor}

    def place(self, model: Gpt) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        heads, tensor = model.shape.dim // model.shape.head_dim, self.mesh["tensor"].size()
        if heads % tensor:
            raise ValueError(f"{tensor} ranks cannot share {heads} heads: raise --dim")
        plan = {
            "layers.*.attention.qkv": ColwiseParallel(),
            "layers.*.attention.out": RowwiseParallel(),
            "layers.*.feedforward.up": ColwiseParallel(),
            "layers.*.feedforward.down": RowwiseParallel(),
        }
        parallelize_module(model, self.mesh["tensor"], plan)
        super().place(model)


class Pipeline(DataParallel):
    """Every rank holds some layers. A batch's parts pass all stages forward, then all stages backward (GPipe)."""

    PARTS = 4

    def __init__(self) -> None:
        super().__init__()
        self.dropout_rank = self.rank
        self.holders = 1

    def dimensions(self, ranks: int) -> dict[str, int]:
        return {"data": 1, "stage": ranks}

    def place(self, model: Gpt) -> None:
        model.keep_stage(self.rank, self.ranks)
        self.model = model

    def backward(self, batch: Tensor) -> Tensor:
        first, last = self.rank == 0, self.rank == self.ranks - 1
        mean, passes = torch.zeros(()), []
        for part in batch.chunk(self.PARTS):
            tokens, targets = part[:, :-1], part[:, 1:]
            x = tokens if first else self._receive(tokens, self.rank - 1).requires_grad_()
            y = self.model(x)
            if last:
                y = loss_of(y, targets) * len(part) / len(batch)
                mean += y.detach()
            else:
                dist.send(y.detach(), self.rank + 1)
            passes.append((tokens, x, y))
        for tokens, x, y in passes:
            y.backward(None if last else self._receive(tokens, self.rank + 1))
            if not first:
                dist.send(x.grad, self.rank - 1)
        return mean

    def _receive(self, tokens: Tensor, stage: int) -> Tensor:
        """What `stage` sends for `tokens`: activations or their gradient."""
        vectors = torch.empty(*tokens.shape, self.model.shape.dim)
        dist.recv(vectors, stage)
        return vectors


LAYOUTS = {
    "alone": Alone,
    "ddp": DataParallel,
    "fsdp": FullyShard,
    "tp-fsdp": TensorFullyShard,
    "pp": Pipeline,
}


def _local(tensor: Tensor) -> Tensor:
    """The part of a possibly distributed tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _shards(tensor: Tensor) -> int:
    """Into how many parts a possibly distributed tensor is cut."""
    if not hasattr(tensor, "to_local"):
        return 1
    cut = [not placement.is_replicate() for placement in tensor.placements]
    sizes = [tensor.device_mesh.size(dimension) for dimension, is_cut in enumerate(cut) if is_cut]
    return math.prod(sizes)
