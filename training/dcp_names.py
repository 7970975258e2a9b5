"""Names in torch's distributed checkpoints and in manifests.

A planner flattens a state dict: a *flat name* (`fqn`) is the path of a value, its segments joined by dots, and the
planner's mapping tells the path. In a manifest the first segment is the scope and the others are the path below it, as
`Checkpointer` has it. A name without a path stands alone, without a scope, as the tensors of a safetensors file do.
"""

import os
import re
from collections.abc import Mapping

from cairn.manifests.schema import Key
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import Path
from cairn.training.tree import component_of

# How frameworks name the folder of a step. A step is below 2^63, hence the digits.
_STEP = re.compile(r"(?:(?:global_?)?step|iter(?:ation)?|checkpoint|ckpt)?[-_:=]?([0-9]{1,18})", re.IGNORECASE)


def key_of(name: str, mapping: object) -> Key:
    """The key of a flat name; `mapping` is a planner's own, if it has one."""
    path = mapping.get(name) if isinstance(mapping, Mapping) else None
    return Key(str(path[0]), tuple(path[1:])) if path else Key("", (name,))


def path_of(key: Key) -> Path:
    """The path of a key in a state dict."""
    return (key.scope, *key.path) if key.scope else key.path


def flat_name(path: Path) -> str:
    """The flat name of a path."""
    return ".".join(map(str, path))


def component_by_name(key: Key, default: ComponentClass) -> ComponentClass:
    """The component of what stands under a key, by the name that the field gives such a scope."""
    return component_of(key.scope or flat_name(key.path), default)


def step_of(checkpoint_id: str | os.PathLike[str] | None) -> int | None:
    """The step that the last segment of a checkpoint id names (`4000`, `step-4000`, `out/global_step4000`), if any."""
    if checkpoint_id is None:
        return None
    found = _STEP.fullmatch(os.path.basename(os.fspath(checkpoint_id).rstrip("/")))
    return int(found[1]) if found else None
