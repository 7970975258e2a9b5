"""Modules: parameters, persistent buffers and extra state, by canonical names.

Names are those of the bare module. Wrappers that only add a prefix (torch.compile, DistributedDataParallel, activation
checkpointing) are looked through, so that a checkpoint does not depend on how a model was wrapped.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from cairn.core.errors import RefusedError
from cairn.manifests.schema import Key
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import Binding, Leaves, MetaTensor, Path, StoredScope, TensorLeaf, ValueLeaf, memory_marks
from cairn.training.subclasses import flat_leaves, forget_lengths, is_wrapper, misfit
from cairn.training.trees import bind_tree, tree_leaves

# Attribute under which a wrapper keeps the module that it wraps, by class name: importing them all would be slow.
_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
}


class ModuleState:
    """One or more modules (the stages of a pipeline, say) that share one space of names."""

    def __init__(self, scope: str, prefix: Path, modules: Sequence[nn.Module]) -> None:
        self._scope, self._prefix, self._modules = scope, prefix, modules

    def fingerprint(self) -> list[int] | None:
        """Every parameter and buffer, wherever it is by now."""
        found: list[int] = []
        for _, tensor in self._unique(module_tensors):
            if is_wrapper(tensor):
                return None
            found += memory_marks(tensor)
        return found

    def lasting(self, into: Leaves) -> None:
        """Parameters and buffers.

        Raises:
            RefusedError: two modules hold different things under one name, or tensors have no bytes.
        """
        tied = _Ties()
        for leaf in self._own_leaves():
            into.add(tied.mark(leaf) if isinstance(leaf, TensorLeaf) else leaf)

    def passing(self, into: Leaves) -> None:
        """Extra state; and tensors made of others, whose parts may be new each time."""
        if self.fingerprint() is None:
            self.lasting(into)
        for name, value in self._extra().items():
            into.extend(tree_leaves(self._key((name,)), ComponentClass.WEIGHTS, value))

    def bind(self, stored: StoredScope) -> Binding:
        """Match stored entries with the modules' own tensors, which are filled in place."""
        binding, extra = Binding(), self._extra()
        own = {path: entry for path, entry in stored.tensors.items() if path[0] not in extra}
        leaves = list(self._own_leaves())
        at = len(self._prefix)
        binding.match({leaf.key.path[at:]: leaf for leaf in leaves if isinstance(leaf, TensorLeaf)}, own)
        parts = {leaf.key.path[at:] for leaf in leaves if isinstance(leaf, ValueLeaf)}
        for name, tensor in self._unique(module_tensors):
            if is_wrapper(tensor):
                fault = misfit(self._key((name,)), stored.below((name,)), tensor)
                binding.problems.extend([fault] if fault else [])
                binding.finish.append(partial(_forget, tensor))
        known = {path for path in stored.values if path[0] in extra or path in parts}
        binding.extra.extend(str(self._key(path)) for path in stored.values.keys() - known)
        check_ties(binding)
        for name, value in extra.items():
            below = stored.below((name,))
            if below.tensors or below.values:
                inner, build = bind_tree(self._key((name,)), ComponentClass.WEIGHTS, below, value)
                binding.add(inner)
                binding.finish.append(partial(self._set_extra, name, build))
            else:
                binding.missing.append(str(self._key((name,))))
        return binding

    def _key(self, path: Path) -> Key:
        return Key(self._scope, self._prefix + path)

    def _own_leaves(self) -> Iterator[TensorLeaf | ValueLeaf]:
        """Leaves of parameters and buffers, by parts where they are subclasses of tensors."""
        return MetaTensor.gather(
            flat_leaves(self._key((name,)), ComponentClass.WEIGHTS, value, value.requires_grad)
            for name, value in self._unique(module_tensors)
        )

    def _extra(self) -> dict[str, Any]:
        return {name: part.get_extra_state() for name, part in self._unique(extra_parts)}

    def _unique(self, named: Callable[[nn.Module], Iterator[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
        seen: dict[str, Any] = {}
        for module in self._modules:
            for name, value in named(module):
                if seen.setdefault(name, value) is not value:
                    raise RefusedError(
                        f"two modules under {self._scope!r} have a {name!r} of their own",
                        hint="give the stages of a pipeline names that are unique in the whole model",
                    )
        yield from seen.items()

    def _set_extra(self, name: str, build: Callable[[], Any]) -> list[str]:
        dict(self._unique(extra_parts))[name].set_extra_state(build())
        return []


def _forget(tensor: torch.Tensor) -> list[str]:
    forget_lengths(tensor)
    return []


def module_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers by canonical name, tied ones under each of theirs."""
    for prefix, part in named_parts(module):
        for name, parameter in part._parameters.items():
            if parameter is not None:
                yield prefix + name, parameter
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield prefix + name, buffer


def extra_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that have extra state, by its canonical name."""
    for prefix, part in named_parts(module):
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            yield prefix + "_extra_state", part


def named_parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """All modules below and including one, each with what its own names begin with; shared ones under each name."""
    inner = unwrapped(module)
    yield prefix, inner
    for name, child in inner._modules.items():
        if child is not None:
            yield from named_parts(child, f"{prefix}{name}.")


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside wrappers that add nothing but a prefix."""
    while (attribute := _WRAPPERS.get(type(module).__name__)) and isinstance(
        inner := getattr(module, attribute, None), nn.Module
    ):
        module = inner
    return module


def parameter_names(modules: Sequence[nn.Module]) -> dict[int, str]:
    """Canonical name of each parameter by its identity; of a tied one the first name."""
    names: dict[int, str] = {}
    for module in modules:
        for prefix, part in named_parts(module):
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    names.setdefault(id(parameter), prefix + name)
    return names


class _Ties:
    """Finds leaves that share memory: same storage, place, form. Never decided by a flag."""

    def __init__(self) -> None:
        self._first: dict[tuple[object, ...], Key] = {}

    def mark(self, leaf: TensorLeaf) -> TensorLeaf:
        """Set `tied_to` if an earlier leaf has the same memory."""
        identity = memory_of(leaf)
        if identity is not None:
            first = self._first.setdefault(identity, leaf.key)
            leaf.tied_to = first if first != leaf.key else None
        return leaf


def memory_of(leaf: TensorLeaf) -> tuple[object, ...] | None:
    """What tells a leaf's memory; None where it has none, since empty tensors share no bytes."""
    local = leaf.holdings[0].local
    if not local.numel():
        return None
    return local.device, local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), leaf.shape


def check_ties(binding: Binding) -> None:
    """Targets that share memory must be filled from equal content."""
    first: dict[tuple[object, ...], Any] = {}
    for read in binding.reads:
        identity = memory_of(read.leaf)
        if identity is None:
            continue
        other = first.setdefault(identity, read.entry)
        if other is not read.entry and not _same_content(other, read.entry):
            binding.problems.append(
                f"{other.key} and {read.entry.key} are tied in the model, but differ in the checkpoint"
            )


def _same_content(a: Any, b: Any) -> bool:
    return (a.dtype, a.shape, a.inline, a.tiles, a.tile_pages, a.regions, a.region_pages) == (
        b.dtype, b.shape, b.inline, b.tiles, b.tile_pages, b.regions, b.region_pages
    )  # fmt: skip
