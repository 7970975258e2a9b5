"""What of a state is taken at the moment of `save`, beside its tensors' bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from cairn.manifests.schema import Key
from cairn.manifests.values import encode_value
from cairn.store.crypto.components import ComponentClass
from cairn.training.capture import Capture
from cairn.training.fragment import ContributedValue
from cairn.training.leaves import Leaves, TensorLeaf

PROVENANCE = Key("provenance", ())


def encoded_values(leaves: Leaves, provenance: Mapping[str, Any]) -> list[ContributedValue]:
    """All plain values, encoded now, since they may change as soon as `save` returns.

    Raises:
        RefusedError: one is not plain data.
    """
    values = [
        ContributedValue(leaf.key, int(leaf.component), encode_value(leaf.value, f"value {leaf.key}"), leaf.union)
        for leaf in leaves.values
    ]
    if provenance:
        data = encode_value(dict(provenance), "the provenance")
        values.append(ContributedValue(PROVENANCE, int(ComponentClass.PROVENANCE), data))
    return values


def deferrable(leaves: Sequence[TensorLeaf], capture: Capture, optimizers: Sequence[Optimizer]) -> list[int]:
    """Slots of what these optimizers alone change: their parameters and their state."""
    owned = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return [number for number, slot in enumerate(capture.plan.slots) if leaves[slot.leaf].owner in owned]
