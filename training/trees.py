"""Plain trees: dicts, lists and tuples of tensors and plain data, and how they are put together again.

A container without tensors is one value, whatever is in it. One with tensors is a `Container` entry and its items
stand under paths of their own, so that names never meet: integers, strings and dots stay what they are.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from cairn.core.errors import RefusedError
from cairn.manifests.schema import Key
from cairn.manifests.values import NAMES, Container
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import Binding, MetaTensor, Path, Read, StoredScope, TensorLeaf, ValueLeaf, tensor_leaf
from cairn.training.plaindata import plain, torch_dtype, unplain
from cairn.training.sharded import is_sharded
from cairn.training.subclasses import SUBCLASS, flat_leaves, forget_lengths, is_wrapper, misfit, part_names

_KINDS: dict[type, str] = {dict: "dict", list: "list", tuple: "tuple"}


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of any kind."""
    if isinstance(value, torch.Tensor):
        return True
    kind = type(value)
    if kind.__module__ in ("builtins", "collections", "numpy"):
        return False
    return is_sharded(value)


def holds_tensors(value: object) -> bool:
    """Whether a value is a tensor or a container that has one somewhere below."""
    if isinstance(value, dict):
        return any(map(holds_tensors, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_tensors, value))
    return is_tensor(value)


def tree_leaves(key: Key, component: ComponentClass, value: Any) -> Iterator[TensorLeaf | ValueLeaf]:
    """Leaves of a tree.

    Raises:
        RefusedError: something in it is neither a tensor nor plain data, or a dict that holds tensors has a key which
            is neither a string nor an integer; names the place.
    """
    if is_tensor(value):
        yield from flat_leaves(key, component, value, getattr(value, "requires_grad", False))
    elif not isinstance(value, dict | list | tuple) or not holds_tensors(value):
        yield ValueLeaf(key, component, plain(value))
    else:
        items = child_items(key, value)
        yield ValueLeaf(
            key,
            component,
            Container(_kind(key, value), tuple(name for name, _ in items)),
            union=isinstance(value, dict),
        )
        yield from MetaTensor.gather(
            tree_leaves(Key(key.scope, (*key.path, name)), component, item) for name, item in items
        )


def _kind(key: Key, value: Any) -> str:
    kind = _KINDS.get(type(value)) or ("dict" if isinstance(value, dict) else None)
    if kind is None:
        raise RefusedError(
            f"{key} is a {type(value).__qualname__} that holds tensors, which cannot be told from a plain sequence",
            hint="make it a dict, list or tuple",
        )
    return kind


def child_items(key: Key, value: Any) -> list[tuple[str | int, Any]]:
    """Items of a container that holds tensors, by name or position."""
    if not isinstance(value, dict):
        return list(enumerate(value))
    for name in value:
        if type(name) not in (str, int):
            raise RefusedError(
                f"{key} has the key {name!r}, a {type(name).__qualname__}, beside tensors",
                hint="use strings or integers as keys of dicts that hold tensors",
            )
    return list(value.items())


def bind_tree(
    key: Key, component: ComponentClass, stored: StoredScope, template: Any
) -> tuple[Binding, Callable[[], Any]]:
    """Match a stored tree with a template, and return what builds the value once all tensors are read.

    Tensors of the template are filled in place; what the template lacks is made anew, on the CPU, in full. Values and
    the containers' kinds are the checkpoint's.
    """
    binding = Binding()
    targets = dict(_template_tensors(template))
    reads: dict[Path, torch.Tensor] = {}
    for path, entry in stored.tensors.items():
        target = targets.pop(path, None)
        if target is None:
            target = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype, f"tensor {entry.key}"))
        reads[path] = target
        binding.reads.append(Read(entry, tensor_leaf(Key(key.scope, key.path + path), component, target)))
    binding.missing.extend(str(Key(key.scope, key.path + path)) for path in targets)
    for place, wrapper in _wrappers(template):
        fault = misfit(Key(key.scope, key.path + place), stored.below(place), wrapper)
        binding.problems.extend([fault] if fault else [])
    binding.problems.extend(
        f"{Key(key.scope, key.path + path)} is named in the checkpoint, and is not in it" for path in _absent(stored)
    )

    def build() -> Any:
        return _assemble(stored, reads, template)

    return binding, build


def _wrappers(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Tensors made of tensors in a template, outermost ones."""
    if is_wrapper(value):
        yield path, value
    elif isinstance(value, dict | list | tuple) and holds_tensors(value):
        for name, item in child_items(Key("", path), value):
            yield from _wrappers(item, (*path, name))


def _template_tensors(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if is_wrapper(value):
        for part in part_names(value):
            yield from _template_tensors(getattr(value, part), (*path, part))
    elif is_tensor(value):
        yield path, value
    elif isinstance(value, dict | list | tuple) and holds_tensors(value):
        for name, item in child_items(Key("", path), value):
            yield from _template_tensors(item, (*path, name))


def _assemble(stored: StoredScope, reads: Mapping[Path, Any], template: Any, path: Path = ()) -> Any:
    if path in reads:
        return reads[path]
    read = stored.values.get(path)
    value = _implied(stored, path) if read is None else unplain(read())
    if not isinstance(value, Container):
        return value
    if value.kind == NAMES:
        return list(value.keys)
    if value.kind.startswith(SUBCLASS):
        if is_wrapper(template):
            forget_lengths(template)
            return template
        raise RefusedError(
            f"{list(path)} is a {value.kind.removeprefix(SUBCLASS)}, which only a state that has one can receive"
        )
    items = [_assemble(stored, reads, _child(template, name), (*path, name)) for name in value.keys]
    if value.kind == "dict":
        return dict(zip(value.keys, items, strict=True))
    if value.kind not in ("list", "tuple"):
        raise RefusedError(f"{list(path)} is a container of kind {value.kind[:40]!r}, which this version does not know")
    return tuple(items) if value.kind == "tuple" else items


def _implied(stored: StoredScope, path: Path) -> Container:
    """The container that entries below a path imply: other writers record none.

    Raises:
        RefusedError: there are none.
    """
    at = len(path)
    names = dict.fromkeys(p[at] for p in (*stored.tensors, *stored.values) if len(p) > at and p[:at] == path)
    if not names:
        raise RefusedError(f"the checkpoint has no value at {list(path)}")
    if all(isinstance(name, int) for name in names):
        return Container("list", tuple(sorted(names)))
    return Container("dict", tuple(names))


def _absent(stored: StoredScope, path: Path = ()) -> Iterator[Path]:
    """Items that a stored container names and that are not there."""
    if path in stored.tensors:
        return
    read = stored.values.get(path)
    if read is None:
        at = len(path)
        if not any(len(p) > at and p[:at] == path for p in (*stored.tensors, *stored.values)):
            yield path
        return
    value = read()
    if isinstance(value, Container) and value.kind != NAMES:
        for name in value.keys:
            yield from _absent(stored, (*path, name))


def _child(template: Any, name: str | int) -> Any:
    try:
        return template[name]
    except (TypeError, LookupError):
        return None
