"""What kinds of state an optimizer takes, as far as that can be told without a step."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from cairn.manifests.values import Container
from cairn.training.leaves import StoredScope

_ADAM = ("step", "exp_avg", "exp_avg_sq")
# Of torch's own; what stems from them may keep more.
_KINDS: Mapping[type[Optimizer], Collection[str]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adam: (*_ADAM, "max_exp_avg_sq"),
    torch.optim.AdamW: (*_ADAM, "max_exp_avg_sq"),
    torch.optim.NAdam: (*_ADAM, "mu_product"),
    torch.optim.RAdam: _ADAM,
    torch.optim.Adamax: ("step", "exp_avg", "exp_inf"),
    torch.optim.Adagrad: ("step", "sum"),
    torch.optim.Adadelta: ("step", "square_avg", "acc_delta"),
    torch.optim.RMSprop: ("step", "square_avg", "momentum_buffer", "grad_avg"),
}


def is_foreign(group: Mapping[str, Any], stored: StoredScope | None) -> bool:
    """Whether a recorded group has hyperparameters that the group here does not know: perhaps another optimizer's."""
    read = stored.values.get(()) if stored is not None else None
    if read is None:
        return False
    recorded = read()
    return not set(recorded.keys if isinstance(recorded, Container) else recorded) <= set(group)


def not_taken(optimizer: Optimizer, held: set[str | int], kinds: set[str | int]) -> set[str | int]:
    """Of kinds of state that another optimizer may have left, those that this one has no use for.

    Args:
        held: kinds that it keeps already; where neither these nor its type tell anything, all is taken.
    """
    known = held | {*_KINDS.get(type(optimizer), ())}
    return kinds - known if known else set()
