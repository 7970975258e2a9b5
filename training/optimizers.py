"""Optimizers: state by the names of their parameters, written back in place.

Nothing here runs a step, casts, or replaces a group: `torch`'s own `load_state_dict` casts moments to the dtype of the
parameter and replaces the groups that schedulers hold, and its sharded helpers run a hidden step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Container as Container_
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from cairn.core.errors import RefusedError
from cairn.manifests.schema import Key
from cairn.manifests.values import NAMES, Container
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import Binding, Leaves, Path, StoredScope, TensorLeaf, ValueLeaf, memory_marks
from cairn.training.optimizer_kinds import is_foreign, not_taken
from cairn.training.plaindata import torch_dtype
from cairn.training.subclasses import is_wrapper
from cairn.training.trees import bind_tree, tree_leaves

_STATE, _GROUPS, _MEMBERS, _UNLIKE = "state", "groups", "members", "unlike"
_LISTED_MAX = 8
# Torch keeps names there if it was given them; ours come from the module.
_OWN_KEYS = ("params", "param_names")
_CLASS = ComponentClass.OPTIMIZER


class OptimizerState:
    """One or more optimizers (of the stages of a pipeline, say) that share one space of parameter names."""

    def __init__(self, scope: str, prefix: Path, optimizers: Sequence[Optimizer], names: Mapping[int, str]) -> None:
        """Name every parameter of every group.

        Args:
            names: of parameters by identity, from the modules of the same state.

        Raises:
            RefusedError: a parameter has no name.
        """
        self._scope, self._prefix, self._optimizers = scope, prefix, optimizers
        self._names = [_named_groups(str(self._key(())), optimizer, names) for optimizer in optimizers]

    def fingerprint(self) -> list[int] | None:
        """Every tensor of every parameter's state, wherever it is by now; None if there is state of another kind."""
        found: list[int] = []
        for optimizer in self._optimizers:
            for parameter, held in optimizer.state.items():
                found.append(id(parameter))
                for kind, value in held.items():
                    if not isinstance(value, torch.Tensor) or is_wrapper(value):
                        return None
                    found += (hash(kind), *memory_marks(value))
        return found

    def lasting(self, into: Leaves) -> None:
        """The state of each parameter."""
        for optimizer, names in zip(self._optimizers, self._names, strict=True):
            for group, members in zip(optimizer.param_groups, names, strict=True):
                for name, parameter in zip(members, group["params"], strict=True):
                    for kind, value in (optimizer.state.get(parameter) or {}).items():
                        for leaf in tree_leaves(self._key((_STATE, name, kind)), _CLASS, value):
                            if isinstance(leaf, TensorLeaf):
                                leaf.owner = id(parameter)
                            into.add(leaf)

    def passing(self, into: Leaves) -> None:
        """The groups; and state that is not tensors alone."""
        if self.fingerprint() is None:
            self.lasting(into)
        groups: dict[int, Any] = {}
        for optimizer, names in zip(self._optimizers, self._names, strict=True):
            for number, (group, members) in enumerate(zip(optimizer.param_groups, names, strict=True)):
                hyper = _hyper(group)
                if number in groups and not _alike(groups[number], hyper):
                    raise RefusedError(
                        f"two optimizers under {self._key(())} differ in group {number}",
                        hint="give each optimizer a key of its own in the state",
                    )
                if number not in groups:
                    groups[number] = hyper
                    into.extend(tree_leaves(self._key((_GROUPS, number)), _CLASS, hyper))
                names_of = Container(NAMES, tuple(sorted(members)))
                into.add(ValueLeaf(self._key((_MEMBERS, number)), _CLASS, names_of, union=True))
            unlike = _unlike_parameters(optimizer)
            if unlike:
                into.add(ValueLeaf(self._key((_UNLIKE,)), _CLASS, Container(NAMES, unlike), union=True))
            if not optimizer.state:
                into.notes.append(f"{self._key(())} holds no state yet")

    def bind(self, stored: StoredScope) -> Binding:
        """Match stored state with parameters by name. State that a parameter lacks here is made in its layout."""
        binding, parts = Binding(), stored.children()
        states = parts.get(_STATE, StoredScope()).children()
        groups = parts.get(_GROUPS, StoredScope()).children()
        members = parts.get(_MEMBERS, StoredScope()).children()
        told = parts.get(_UNLIKE, StoredScope()).values.get(())
        unlike = set(told().keys) if told is not None else set()
        group_of = {name: number for number, one in members.items() for name in one.values[()]().keys}
        present: set[str] = set()
        for optimizer, names in zip(self._optimizers, self._names, strict=True):
            for number, (group, own) in enumerate(zip(optimizer.param_groups, names, strict=True)):
                self._bind_group(binding, number, group, groups.get(number))
                refused = set[str | int]()
                if is_foreign(group, groups.get(number)):
                    of_group = [name for name, at in group_of.items() if at == number]
                    refused = self._refused(optimizer, group, [states[name] for name in of_group if name in states])
                    # A name for all parameters, so that ranks which hold different ones agree on it.
                    names_of = (str(self._key((_STATE, "*", kind))) for kind in sorted(refused, key=str))
                    binding.extra.extend(name for name in names_of if name not in binding.extra)
                for name, parameter in zip(own, group["params"], strict=True):
                    present.add(name)
                    if name not in group_of:
                        binding.missing.append(str(self._key((_STATE, name))))
                    elif group_of[name] != number:
                        binding.problems.append(
                            f"{self._key((_STATE, name))} is in group {group_of[name]} of the checkpoint, "
                            f"in group {number} here"
                        )
                    else:
                        own_state = states.get(name, StoredScope())
                        self._bind_state(binding, optimizer, parameter, name, own_state, unlike, refused)
        binding.extra.extend(str(self._key((_STATE, str(name)))) for name in group_of.keys() - present)
        for group_name, one in members.items():
            kinds = {n: set(states[n].children()) for n in one.values[()]().keys if n in states}
            for kind in sorted(set().union(*kinds.values()), key=str):
                if lacking := sorted(str(self._key((_STATE, n))) for n, has in kinds.items() if kind not in has):
                    shown = ", ".join(lacking[:_LISTED_MAX]) + (", ..." if len(lacking) > _LISTED_MAX else "")
                    binding.notes.append(
                        f"the checkpoint has no {kind} of {shown}; others of group {group_name} have it"
                    )
        return binding

    def _refused(self, optimizer: Optimizer, group: Mapping[str, Any], stored: Sequence[StoredScope]) -> set[str | int]:
        """Kinds of state, of all parameters of a foreign group, that an optimizer has no use for."""
        held = set().union(*(optimizer.state.get(parameter) or () for parameter in group["params"]))
        return not_taken(optimizer, held, set().union(*(one.children() for one in stored)))

    def _key(self, path: Path) -> Key:
        return Key(self._scope, self._prefix + path)

    def _bind_group(self, binding: Binding, number: int, group: dict[str, Any], stored: StoredScope | None) -> None:
        key = self._key((_GROUPS, number))
        if stored is None:
            binding.missing.append(str(key))
            return
        inner, build = bind_tree(key, _CLASS, stored, _hyper(group))
        # Tensors among the hyperparameters that only one side has are settled below.
        inner.missing.clear()
        binding.add(inner)
        binding.finish.append(partial(_fill_group, str(key), group, build))

    def _bind_state(
        self,
        binding: Binding,
        optimizer: Optimizer,
        parameter: torch.Tensor,
        name: str,
        stored: StoredScope,
        unlike: Container_[str | int],
        refused: Container_[str | int],
    ) -> None:
        """Match one parameter's state, but for kinds that are refused."""
        key = self._key((_STATE, name))
        held = optimizer.state.get(parameter) or {}
        if not stored.tensors and not stored.values:
            if held:
                binding.notes.append(f"{key}: the checkpoint has none, so what was held here is dropped")
                binding.finish.append(partial(_drop_state, optimizer, parameter))
            return
        kinds = {kind: below for kind, below in stored.children().items() if kind not in refused}
        template = dict(_templates(optimizer, parameter, held, kinds, unlike))
        builds: dict[str | int, Callable[[], Any]] = {}
        binding.missing.extend(str(self._key((_STATE, name, kind))) for kind in held if kind not in kinds)
        for kind, below in kinds.items():
            inner, builds[kind] = bind_tree(self._key((_STATE, name, kind)), _CLASS, below, template.get(kind))
            binding.add(inner)
        binding.finish.append(partial(_fill_state, optimizer, parameter, builds))


def _named_groups(what: str, optimizer: Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    """Names of the parameters of each group."""
    found = []
    for number, group in enumerate(optimizer.param_groups):
        given = group.get("param_names") or [None] * len(group["params"])
        members = [names.get(id(p)) or other for p, other in zip(group["params"], given, strict=True)]
        lacking = [at for at, name in enumerate(members) if name is None]
        if lacking:
            raise RefusedError(
                f"parameters {lacking[:8]} of group {number} of {what} belong to no module in the state",
                hint="put the module that it trains into the same state, or give it named parameters",
            )
        found.append(members)
    return found


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in _OWN_KEYS}


def _alike(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) and isinstance(b[k], torch.Tensor) else a[k] == b[k]
        for k in a
    )


def _templates(
    optimizer: Optimizer,
    parameter: torch.Tensor,
    held: Mapping[str, Any],
    kinds: Mapping[str | int, StoredScope],
    unlike: Container_[str | int],
) -> Iterator[tuple[str | int, Any]]:
    """What to read each kind of state into: what is held already, else a tensor in the parameter's own layout.

    Args:
        unlike: kinds that are not laid out as their parameters, whatever their shapes.
    """
    yield from held.items()
    for kind, below in kinds.items():
        entry = below.tensors.get(())
        if kind in held or entry is None:
            continue
        dtype = torch_dtype(entry.dtype, f"tensor {entry.key}")
        if entry.shape == tuple(parameter.shape) and entry.shape and kind not in unlike:
            yield kind, torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        else:
            device = _device_of(optimizer, parameter, str(kind))
            yield kind, torch.zeros(entry.shape, dtype=dtype, device=device)


def _unlike_parameters(optimizer: Optimizer) -> tuple[str, ...]:
    """Kinds of state, such as codebooks, that some parameter's shows not to be laid out as its parameter is.

    Shapes alone do not tell: a codebook of 256 numbers may stand beside a parameter of as many.
    """
    found = {
        kind
        for parameter, held in optimizer.state.items()
        for kind, value in held.items()
        if isinstance(value, torch.Tensor)
        and (value.shape != parameter.shape or isinstance(value, DTensor) != isinstance(parameter, DTensor))
    }
    return tuple(sorted(map(str, found)))


def _device_of(optimizer: Optimizer, parameter: torch.Tensor, kind: str) -> torch.device:
    """Where state that has not the parameter's shape lives: torch keeps `step` on the host unless a group says else."""
    if kind != "step":
        return parameter.device
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    return parameter.device if group.get("capturable") or group.get("fused") else torch.device("cpu")


def _drop_state(optimizer: Optimizer, parameter: torch.Tensor) -> list[str]:
    optimizer.state.pop(parameter, None)
    return []


def _fill_state(
    optimizer: Optimizer, parameter: torch.Tensor, builds: Mapping[str | int, Callable[[], Any]]
) -> list[str]:
    # What only this side has was refused, or is to be skipped: it stays.
    if builds:
        optimizer.state[parameter].update({kind: build() for kind, build in builds.items()})
    return []


def _fill_group(what: str, group: dict[str, Any], build: Callable[[], Any]) -> list[str]:
    """Put the recorded hyperparameters into the very same dict: schedulers hold it."""
    stored, notes, known = build(), list[str](), set(group)
    for name, value in stored.items():
        mine = group.get(name)
        if isinstance(mine, torch.Tensor) and not isinstance(value, torch.Tensor):
            mine.fill_(value)
        elif isinstance(value, torch.Tensor) and name in group and not isinstance(mine, torch.Tensor):
            group[name] = value.item()
        else:
            group[name] = value
    unknown = sorted(stored.keys() - known)
    if unknown:
        notes.append(f"{what}: {', '.join(unknown)} are not known here and were taken over as recorded")
    kept = sorted(group.keys() - stored.keys() - set(_OWN_KEYS))
    if kept:
        notes.append(f"{what}: {', '.join(kept)} are not in the checkpoint and keep their present values")
    return notes
