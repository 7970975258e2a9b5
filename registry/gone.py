"""Deleted checkpoints, as those meet them who ask for one."""

from collections.abc import Callable

import msgspec

from cairn.core.errors import GoneError
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.registry.gonemodels import claimed_at, was_deleted
from cairn.registry.models import CommitMeta, model_name, open_meta, walk
from cairn.registry.registry import Registry
from cairn.registry.state import Gone


class Deleted(msgspec.Struct, frozen=True):
    """A deleted checkpoint; `deleted_at` is the claim (ns) of whoever deleted it, None if its entry cannot be read."""

    id: CheckpointId
    gone: Gone
    deleted_at: int | None

    @property
    def restorable(self) -> bool:
        """Whether it can be brought back."""
        return self.gone.checkpoint is not None


def deleted_of(registry: Registry, model: ModelId) -> list[Deleted]:
    """What was deleted of a model, in the order of deletion."""
    held = registry.state.live_model(model).gone
    times = {n: claimed_at(registry, n) for n in {gone.n for gone in held.values()}}
    listed = [Deleted(CheckpointId(one), gone, times[gone.n]) for one, gone in held.items()]
    return sorted(listed, key=lambda one: (one.gone.n, one.id))


def gone_error(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> GoneError:
    """What to raise where a deleted checkpoint is asked for: when, by whom and why it was deleted, what to do."""
    name, gone = model_name(registry, model), registry.state.live_model(model).gone[checkpoint]
    deleted = was_deleted(registry, gone.n, gone.actor, gone.cause)
    text = f"checkpoint {short(checkpoint)} of {name!r} {deleted}"
    if gone.checkpoint is None:
        return GoneError(f"{text}; it cannot be restored", hint=f"'cairn log {name}' lists what is there")
    return GoneError(text, hint=f"'cairn delete restore {name}@{short(checkpoint)}' brings it back")


def check_may_return(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> None:
    """Raise if a commit cannot bring a checkpoint back, since it is deleted and can be restored.

    Raises:
        GoneError: names the store.
    """
    gone = registry.state.live_model(model).gone.get(checkpoint)
    if gone is not None and gone.checkpoint is not None:
        error = gone_error(registry, model, checkpoint)
        raise GoneError(
            f"in {registry.opened.backend.url}, {error.message}",
            hint=f"{error.hint}, run there; or send it again once 'cairn gc apply' there has dropped it",
        )


def check_none_gone(
    registry: Registry, model: ModelId, tip: CheckpointId | None, fits: Callable[[CommitMeta], bool]
) -> None:
    """Raise if a checkpoint of a history was deleted that fits; what it was is known as long as it can be restored.

    Raises:
        GoneError: of the newest such.
    """
    held = registry.state.live_model(model)
    for past in walk(registry, model, tip):
        gone = held.gone.get(past.id)
        if gone is not None and gone.checkpoint is not None and fits(open_meta(registry, model, gone.checkpoint)):
            raise gone_error(registry, model, past.id)
