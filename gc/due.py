"""Deleted models whose keys a collection destroys (see `shred.py`): asked by commands that load nothing heavy."""

from cairn.core.ids import ModelId
from cairn.registry.registry import Registry
from cairn.registry.state import State


def due_to_shred(registry: Registry) -> list[ModelId]:
    """Deleted models whose keys may be destroyed by now, by this machine's clock; held ones wait."""
    now, state = registry.opened.clock.wall_ns(), registry.refresh()
    return [ModelId(one) for one in state.deleted if is_due(state, one, now)]


def is_due(state: State, model: bytes, now: int) -> bool:
    """Whether a model's keys may be destroyed at a time (ns)."""
    deleted = state.deleted.get(model)
    held = deleted.model if deleted is not None else None
    return deleted is not None and held is not None and not held.holds and deleted.due_at <= now


def to_destroy(state: State) -> list[ModelId]:
    """Shredded models whose keys may still be there."""
    return [
        ModelId(one)
        for one, deleted in state.deleted.items()
        if deleted.shredded_n is not None and deleted.destroyed_n is None
    ]


def doomed(registry: Registry) -> list[ModelId]:
    """Deleted models whose keys an owner's collection destroys now: those that are due, and those that were begun."""
    return [*due_to_shred(registry), *to_destroy(registry.state)]
