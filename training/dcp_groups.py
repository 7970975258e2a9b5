"""Optimizers' parameter groups: torch's spelling in a state dict, and `Checkpointer`'s in a manifest.

torch: ("param_groups", n, name) for each hyperparameter, and ("param_groups", n, "params") for the members' names.
Here:  ("groups", n) for all hyperparameters, and ("members", n) for the names, sorted.

What torch says is kept as it is, and the other spelling is stored beside it, so that either can load what the other
has saved. State needs nothing: both call it ("state", parameter, kind).
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from cairn.manifests.schema import Key, TensorEntry
from cairn.manifests.values import Container, decode_value, encode_value
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import Path
from cairn.training.merge import Merged

_TORCH, _GROUPS, _MEMBERS, _PARAMS = "param_groups", "groups", "members", "params"
_NAMES = "names"
_OPTIMIZER = ComponentClass.OPTIMIZER


def add_groups(merged: Merged) -> None:
    """Add `Checkpointer`'s spelling of every group whose members are named."""
    values = merged.values.get(_OPTIMIZER, [])
    tensors = merged.tensors.get(_OPTIMIZER, [])
    groups: dict[Key, dict[str, Any]] = {}
    whole = True
    for key, content in (*values, *((entry.key, entry) for entry in tensors)):
        place = _place(key.path, _TORCH)
        if place is None:
            continue
        prefix, number, rest = place
        whole = whole and len(rest) == 1
        groups.setdefault(Key(key.scope, (*prefix, _GROUPS, number)), {})[str(rest[0]) if rest else ""] = content
    for key, group in groups.items() if whole else ():
        _add_group(merged, key, group)


def _add_group(merged: Merged, key: Key, group: dict[str, Any]) -> None:
    members = group.pop(_PARAMS, None)
    names = decode_value(members, str(key)) if isinstance(members, bytes) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return  # numbers name no parameter
    values, tensors = merged.values[_OPTIMIZER], merged.tensors.setdefault(_OPTIMIZER, [])
    group.pop("param_names", None)
    *prefix, _, number = key.path
    values.append((Key(key.scope, (*prefix, _MEMBERS, number)), _encoded(Container(_NAMES, tuple(sorted(names))))))
    if not any(isinstance(content, TensorEntry) for content in group.values()):
        values.append((key, _encoded({name: decode_value(data, str(key)) for name, data in group.items()})))
        return
    values.append((key, _encoded(Container("dict", tuple(group)))))
    for name, content in group.items():
        own = Key(key.scope, (*key.path, name))
        if isinstance(content, TensorEntry):
            tensors.append(msgspec.structs.replace(content, key=own, tied_to=content.tied_to or content.key))
        else:
            values.append((own, content))


def _encoded(value: object) -> bytes:
    return encode_value(value, "a parameter group")


def spells_as_torch(paths: Iterable[Path]) -> bool:
    """Whether torch's spelling is among the paths of an optimizer's entries."""
    return any(_place(path, _TORCH) is not None for path in paths)


def torch_path(path: Path) -> Path | None:
    """Torch's path for `Checkpointer`'s; None for what belongs to no group."""
    for name, below in ((_GROUPS, ()), (_MEMBERS, (_PARAMS,))):
        if (place := _place(path, name)) is not None:
            prefix, number, rest = place
            return (*prefix, _TORCH, number, *below, *rest)
    return None


def member_names(value: object) -> list[str | int] | None:
    """The members that a value lists, if it is such a list."""
    return list(value.keys) if isinstance(value, Container) and value.kind == _NAMES else None


def _place(path: Path, name: str) -> tuple[Path, int, Path] | None:
    """What stands before, the number, and what stands after, in (..., `name`, number, ...)."""
    for at, segment in enumerate(path[:-1]):
        number = path[at + 1]
        if segment == name and isinstance(number, int):
            return path[:at], number, path[at + 2 :]
    return None
