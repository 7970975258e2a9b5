"""What the fold keeps: live checkpoints, packs in force, and the objects that they name. Pure."""

from dataclasses import dataclass

from cairn.core.ids import CheckpointId, ModelId
from cairn.registry.state import Checkpoint, State


@dataclass(frozen=True, slots=True)
class Root:
    """A live checkpoint: nothing that it needs may be collected."""

    model: ModelId
    checkpoint: CheckpointId
    state: Checkpoint


def live_checkpoints(state: State) -> list[Root]:
    """Every checkpoint that the fold holds, in the order of their commits."""
    roots = [
        Root(ModelId(model), CheckpointId(checkpoint), committed)
        for model, held in state.models.items()
        for checkpoint, committed in held.checkpoints.items()
    ]
    return sorted(roots, key=lambda root: root.state.n)


def packs_in_force(state: State) -> list[int]:
    """Numbers of the packs that the index offers."""
    return [number for number in range(state.pack_count) if number not in state.condemned]


def named_objects(state: State) -> set[str]:
    """Names of all collectable objects that entries in effect name; any other is a leftover."""
    names = {state.pack(number).name for number in range(state.pack_count)}
    names.update(piece.object.object_name("index") for piece in state.pieces)
    for root in live_checkpoints(state):
        names.add(root.state.body.object_name("body"))
        names.add(root.state.reachability.object_name("reach"))
        names.update(component.object.object_name("root") for component in root.state.roots)
        if root.state.envelope is not None:
            names.add(root.state.envelope.object_name("envelope"))
    return names
