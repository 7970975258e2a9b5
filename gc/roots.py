"""What the fold keeps: checkpoints that may be needed, packs in force, and the objects that they name. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from cairn.core.ids import CheckpointId, ModelId
from cairn.registry.fold import BRANCH
from cairn.registry.state import Checkpoint, Model, State, name_of_key, named_keys


@dataclass(frozen=True, slots=True)
class Root:
    """A checkpoint of which nothing that it needs may be collected."""

    model: ModelId
    checkpoint: CheckpointId
    state: Checkpoint


def live_checkpoints(state: State) -> list[Root]:
    """Every checkpoint that people can read, in the order of their commits."""
    roots = [
        _root(model, held, checkpoint, committed)
        for model, held in state.models.items()
        for checkpoint, committed in held.checkpoints.items()
    ]
    return sorted(roots, key=lambda root: root.state.n)


def _root(model: bytes, held: Model, checkpoint: bytes, committed: Checkpoint) -> Root:
    """A root. The list of what is held counts, whatever an operator had given up before."""
    if committed.quarantined and held.held_by(checkpoint):
        committed = msgspec.structs.replace(committed, quarantined=False)
    return Root(ModelId(model), CheckpointId(checkpoint), committed)


def roots_by_value(state: State) -> list[tuple[str, Root]]:
    """Live checkpoints and what they are called, what matters most first: tips, tagged, others; newest first."""
    tips, tagged = set[tuple[bytes, bytes]](), set[tuple[bytes, bytes]]()
    for model, held in state.models.items():
        for ref in held.refs.values():
            (tips if ref.kind == BRANCH else tagged).add((model, ref.checkpoint))
    groups: dict[str, list[Root]] = {"branch tips": [], "tags": [], "older checkpoints": []}
    for root in reversed(live_checkpoints(state)):
        key = root.model, root.checkpoint
        groups["branch tips" if key in tips else "tags" if key in tagged else "older checkpoints"].append(root)
    return [(name, root) for name, found in groups.items() for root in found]


def all_roots(state: State, but: Collection[tuple[bytes, bytes]] = ()) -> list[Root]:
    """Live checkpoints, and deleted ones that can be restored. `but` as in `deleted_checkpoints`."""
    return sorted([*live_checkpoints(state), *deleted_checkpoints(state, but)], key=lambda root: root.state.n)


def deleted_checkpoints(state: State, but: Collection[tuple[bytes, bytes]] = ()) -> list[Root]:
    """Every deleted checkpoint that can be restored, those of deleted models too.

    Args:
        but: model and checkpoint of those that are to be dropped.
    """
    of_deleted_models = [
        _root(model, deleted.model, checkpoint, committed)
        for model, deleted in state.deleted.items()
        if deleted.model is not None
        for checkpoint, committed in deleted.model.checkpoints.items()
    ]
    return of_deleted_models + [
        _root(model, held, checkpoint, gone.checkpoint)
        for model, held in state.kept_models().items()
        for checkpoint, gone in held.gone.items()
        if gone.checkpoint is not None and (model, checkpoint) not in but
    ]


def packs_in_force(state: State) -> list[int]:
    """Numbers of the packs that the index offers."""
    return [number for number in range(state.pack_count) if state.in_force(number)]


def named_objects(state: State) -> set[str]:
    """Names of all collectable objects that entries in effect name, condemned ones included: others are leftovers."""
    return {name_of_key(key) for key in named_keys(state) | set(state.condemned_objects)}
