"""A decoder-only transformer. Its parts can be taken away, and those that stay keep their names."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a model is."""

    vocabulary: int
    context: int
    dim: int
    layers: int
    head_dim: int = 16
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.dim % self.head_dim:
            raise ValueError(f"dim {self.dim} is not a multiple of {self.head_dim}, the size of a head")


class Attention(nn.Module):
    """Causal self-attention. Query, key and value of one head lie together, so that rows of `qkv` split by heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim, bias=False)
        self.out = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, 3 * self.head_dim)).transpose(1, 2)
        query, key, value = heads.split(self.head_dim, dim=-1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Feedforward(nn.Module):
    """Two linear maps with a bend between them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.dim, 4 * shape.dim, bias=False)
        self.down = nn.Linear(4 * shape.dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    """One layer. Dropout acts only on the residual stream, which ranks of a tensor-parallel group share."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim)
        self.attention = Attention(shape)
        self.feedforward_norm = nn.RMSNorm(shape.dim)
        self.feedforward = Feedforward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class Embedding(nn.Module):
    """Characters and their places, as vectors."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.character = nn.Embedding(shape.vocabulary, shape.dim)
        self.place = nn.Embedding(shape.context, shape.dim)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.character(tokens) + self.place(places))


class Gpt(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary).

    The parameters depend on the global random seed only, whatever `keep_stage` takes away afterwards.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding: Embedding | None = Embedding(shape)
        self.layers = nn.ModuleDict({str(index): Block(shape) for index in range(shape.layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(shape.dim)
        self.head: nn.Linear | None = nn.Linear(shape.dim, shape.vocabulary, bias=False)
        self.apply(_initialize)

    def keep_stage(self, stage: int, stages: int) -> None:
        """Keep what stage `stage` of a pipeline computes; its layers keep their global index as their name."""
        if self.shape.layers < stages:
            raise ValueError(f"{stages} stages cannot share {self.shape.layers} layers: raise --layers")
        for index in range(self.shape.layers):
            if index * stages // self.shape.layers != stage:
                del self.layers[str(index)]
        if stage > 0:
            self.embedding = None
        if stage < stages - 1:
            self.norm = self.head = None

    def forward(self, x: Tensor) -> Tensor:
        """From tokens, or from what the stage before gave; to logits, or to what the next stage takes."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats per character."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
