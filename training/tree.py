"""Walking a training state: which object is saved in which way.

A state is a dict with string keys. Each top-level key is a scope of its own; below it stand

* modules, and lists of them          -> `ModuleState`, component `weights`
* optimizers, and lists of them       -> `OptimizerState`, component `optimizer`
* objects with state of their rank    -> `RankState`, component `training`
* objects with `state_dict` and `load_state_dict` -> `ObjectState`
* dicts                               -> walked
* everything else                     -> `PlainState`: tensors and plain data
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from cairn.core.errors import RefusedError, UsageError
from cairn.manifests.schema import Key
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import Binding, Leaves, MetaTensor, Path, StoredScope
from cairn.training.modules import ModuleState, parameter_names
from cairn.training.objects import ObjectState, PlainState, RankState
from cairn.training.optimizers import OptimizerState


class Part(Protocol):
    """One object of a state."""

    def fingerprint(self) -> list[int] | None:
        """What changes whenever a tensor of `lasting` is another, or elsewhere; None if it has none that last."""
        ...

    def lasting(self, into: Leaves) -> None:
        """Add the tensors that are the same from save to save, and the containers that they make."""
        ...

    def passing(self, into: Leaves) -> None:
        """Add everything else."""
        ...

    def bind(self, stored: StoredScope) -> Binding:
        """Match what a checkpoint holds at its place with itself."""
        ...


def parts_of(state: dict[str, Any]) -> dict[tuple[str, Path], Part]:
    """All objects of a state by scope and path.

    Raises:
        UsageError: the state is no dict with string keys.
        RefusedError: an object cannot be saved; names its place.
    """
    if not all(isinstance(key, str) for key in _keys(state)):
        raise UsageError(
            "a training state is a dict with string keys", hint='write {"model": model, "optimizer": optimizer, ...}'
        )
    found = [(scope, path, value, owner, key) for scope, path, value, owner, key in _walk(state)]
    names = parameter_names([module for *_, value, _, _ in found for module in _all_of(value, nn.Module)])
    return {(scope, path): _part(scope, path, value, owner, key, names) for scope, path, value, owner, key in found}


def _keys(state: Any) -> Sequence[Any]:
    return list(state) if isinstance(state, dict) else [None]


def optimizers_in(state: dict[str, Any]) -> list[Optimizer]:
    """All optimizers of a state."""
    return [one for _, _, value, _, _ in _walk(state) for one in _all_of(value, Optimizer)]


class Collector:
    """Gathers the leaves of a state, save after save; what has not moved since is not looked at again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Path], tuple[list[int], Leaves]] = {}

    def collect(self, state: dict[str, Any]) -> Leaves:
        """All leaves, those that last first.

        Raises:
            UsageError, RefusedError: see `parts_of` and the parts.
        """
        parts, known = parts_of(state), self._known
        leaves, without_bytes = Leaves(), list[str]()
        self._known = {}
        for place, part in parts.items():
            fingerprint = part.fingerprint()
            if fingerprint is None:
                continue
            before = known.get(place)
            if before is None or before[0] != fingerprint:
                before = fingerprint, Leaves()
                try:
                    part.lasting(before[1])
                except MetaTensor as error:
                    without_bytes += error.names
            self._known[place] = before
            leaves.tensors += before[1].tensors
            leaves.values += before[1].values
        leaves.lasting = len(leaves.tensors)
        for part in parts.values():
            try:
                part.passing(leaves)
            except MetaTensor as error:
                without_bytes += error.names
        if without_bytes:
            self._known = {}
            raise MetaTensor(*without_bytes)
        return leaves


def _walk(state: dict[str, Any]) -> Iterator[tuple[str, Path, Any, dict[Any, Any], str | int]]:
    for scope, value in state.items():
        yield from _walk_value(scope, (), value, state, scope)


def _walk_value(
    scope: str, path: Path, value: Any, owner: dict[Any, Any], key: Any
) -> Iterator[tuple[str, Path, Any, dict[Any, Any], str | int]]:
    if isinstance(value, dict) and _holds_objects(value):
        for name, item in value.items():
            if type(name) not in (str, int):
                raise RefusedError(
                    f"{Key(scope, path)} has the key {name!r} beside objects with state", hint="use strings as keys"
                )
            yield from _walk_value(scope, (*path, name), item, value, name)
    else:
        yield scope, path, value, owner, key


def _holds_objects(value: Any) -> bool:
    """Whether a module, optimizer or other object with state is somewhere in a tree of containers."""
    if isinstance(value, dict):
        return any(map(_holds_objects, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_objects, value))
    return _is_object(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, nn.Module | Optimizer) or _is_rank_state(value) or _is_stateful(value)


def _is_rank_state(value: Any) -> bool:
    return hasattr(value, "rank_key") and hasattr(value, "load_rank_states")


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _all_of(value: Any, kind: type) -> Sequence[Any]:
    """The value itself, or the items of a list of nothing but that kind; else nothing."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, list | tuple) and value and all(isinstance(item, kind) for item in value):
        return list(value)
    return []


def _part(scope: str, path: Path, value: Any, owner: dict[Any, Any], key: Any, names: dict[int, str]) -> Part:
    if modules := _all_of(value, nn.Module):
        return ModuleState(scope, path, modules)
    if optimizers := _all_of(value, Optimizer):
        return OptimizerState(scope, path, optimizers, names)
    if _is_rank_state(value):
        return RankState(scope, path, value)
    if _is_stateful(value):
        return ObjectState(scope, path, value, component_of(scope, ComponentClass.TRAINING))
    if isinstance(value, list | tuple) and _holds_objects(value):
        raise RefusedError(
            f"{Key(scope, path)} is a sequence that mixes objects with state and other things",
            hint="put them into a dict under names of their own",
        )
    return PlainState(scope, path, value, owner, key, component_of(scope, ComponentClass.WEIGHTS))


def component_of(scope: str, default: ComponentClass) -> ComponentClass:
    """The component of tensors that no module or optimizer holds, by the name that the field gives such a scope."""
    lowered = scope.lower()
    if lowered.startswith("optim"):
        return ComponentClass.OPTIMIZER
    if lowered.startswith(("model", "weights", "module", "ema")):
        return ComponentClass.WEIGHTS
    return default
