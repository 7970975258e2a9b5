"""Deleted checkpoints whose time to be restored is over."""

from collections.abc import Iterable
from contextlib import suppress

from cairn.core.ids import CheckpointId, ModelId
from cairn.registry.entries_deletion import Drop
from cairn.registry.registry import NothingToDo, Registry
from cairn.registry.state import State

Deleted = tuple[ModelId, CheckpointId]


def due_to_drop(registry: Registry) -> list[Deleted]:
    """Deleted checkpoints that may be dropped by now, by this machine's clock."""
    state, now = registry.refresh(), registry.opened.clock.wall_ns()
    return [(ModelId(model), CheckpointId(one)) for model in state.models for one in _due(state, model, now)]


def drop(registry: Registry, deleted: Iterable[tuple[bytes, bytes]]) -> list[Deleted]:
    """Drop deleted checkpoints, so that collection may take what they need.

    Returns:
        Those that still were deleted and due: one that was restored since, and deleted once more, has its time again.
    """
    by_model: dict[ModelId, list[CheckpointId]] = {}
    for model, checkpoint in deleted:
        by_model.setdefault(ModelId(model), []).append(CheckpointId(checkpoint))
    return [(model, one) for model, chosen in by_model.items() for one in _drop_of(registry, model, chosen)]


def _drop_of(registry: Registry, model: ModelId, chosen: list[CheckpointId]) -> list[CheckpointId]:
    dropped: list[CheckpointId] = []

    def build(state: State) -> Drop:
        due = _due(state, model, registry.opened.clock.wall_ns())
        dropped[:] = [one for one in chosen if one in due]
        if not dropped:
            raise NothingToDo
        return Drop(model, tuple(dropped))

    with suppress(NothingToDo):
        registry.append(build)
    return dropped


def _due(state: State, model: bytes, now: int) -> list[bytes]:
    held = state.models.get(model)
    gone = held.gone.items() if held is not None else ()
    due = [one for one, deleted in gone if deleted.checkpoint is not None and deleted.due_at <= now]
    return [one for one in due if held is not None and not held.held_by(one)]
