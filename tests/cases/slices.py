"""Global tensors and what ranks hold of them, as `ShardedSlice`."""

from collections.abc import Sequence
from math import prod

import torch

from cairn.training.sharded import ShardedSlice

Box = tuple[tuple[int, ...], tuple[int, ...]]
# Fits into a fragment and a manifest; has tiles of its own, some of which most cuts go through.
SHAPES = {"in line": (16, 4), "in tiles": (16, 1 << 15)}


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Each element tells its place."""
    return torch.arange(prod(shape)).to(dtype).reshape(shape)


def at(full: torch.Tensor, box: Box, filled: bool = True) -> ShardedSlice:
    """One box (offsets, lengths) of a tensor, with its content or with zeros."""
    offsets, lengths = box
    part = full[tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True))].clone()
    return ShardedSlice(part if filled else torch.zeros_like(part), tuple(full.shape), offsets)


def along(full: torch.Tensor, lengths: Sequence[int], axis: int = 0, filled: bool = True) -> list[ShardedSlice]:
    """Neighbouring stretches of one axis, one a rank."""
    found, start = [], 0
    for length in lengths:
        offsets = tuple(start if n == axis else 0 for n in range(full.ndim))
        sizes = tuple(length if n == axis else size for n, size in enumerate(full.shape))
        found.append(at(full, (offsets, sizes), filled))
        start += length
    return found


def chunked(size: int, ranks: int) -> list[int]:
    """Lengths as `torch.chunk` deals them out; those who get none get 0."""
    step = -(-size // ranks)
    return [max(min(step, size - rank * step), 0) for rank in range(ranks)]


def wrong(targets: Sequence[ShardedSlice], full: torch.Tensor) -> list[int]:
    """Numbers of the slices that do not hold what the global tensor has there."""
    return [
        number
        for number, one in enumerate(targets)
        if not torch.equal(one.tensor, at(full, (one.offsets, tuple(one.tensor.shape))).tensor)
    ]
