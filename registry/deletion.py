"""Deleting checkpoints, and bringing them back.

tombstone -> (restore) -> drop -> collection, the last two by `gc`. A tombstoned checkpoint reads as gone and is kept
whole, so that `restore` brings back all of it; after `drop` nothing keeps what it alone needs.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite

from cairn.core.errors import NotAllowed, NotFoundError, RefusedError, UsageError
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.core.limits import GRACE_SECONDS_MAX
from cairn.registry.entries_deletion import Restore, Tombstone
from cairn.registry.gone import gone_error
from cairn.registry.holding import told
from cairn.registry.models import list_refs, model_name
from cairn.registry.registry import NothingToDo, Registry
from cairn.registry.state import State


def check_grace(seconds: float) -> None:
    """Raise `UsageError` unless deleted checkpoints can be kept restorable for so long."""
    if not (isfinite(seconds) and 0 <= seconds <= GRACE_SECONDS_MAX):
        raise UsageError(f"a grace of {seconds} seconds", hint=f"name a number from 0 to {GRACE_SECONDS_MAX}")


def tombstone(
    registry: Registry,
    model: ModelId,
    checkpoints: Sequence[CheckpointId],
    cause: str,
    grace_seconds: float,
    check: Callable[[State], None] | None = None,
    plan: bytes = b"",
    descendants: bool = False,
) -> int:
    """Delete checkpoints; returns the position of the entry. They can be restored until a collection drops them.

    Args:
        cause: why, in a word or two.
        grace_seconds: for how long, by this machine's clock, no collection may drop them.
        check: raises if the state is not the one that the choice was made by.
        plan, descendants: as of `modeldeletion.delete_model`.

    Raises:
        RefusedError: a branch or tag names one of them, or a hold keeps it; nothing was changed.
        GoneError, NotFoundError: one is deleted already, or is none of this model.
    """
    check_grace(grace_seconds)

    def build(state: State) -> Tombstone:
        if check is not None:
            check(state)
        for checkpoint in checkpoints:
            _check_deletable(registry, model, checkpoint)
        due_at = registry.opened.clock.wall_ns() + int(grace_seconds * 1e9)
        return Tombstone(model, tuple(checkpoints), due_at, cause, plan, descendants)

    return registry.append(build)


def restore(registry: Registry, model: ModelId, checkpoints: Sequence[CheckpointId]) -> list[CheckpointId]:
    """Bring back tombstoned checkpoints; returns those that were not there already.

    Raises:
        GoneError: one was dropped, and cannot be restored; nothing was changed.
        NotFoundError: one is none of this model.
    """
    restored: list[CheckpointId] = []

    def build(state: State) -> Restore:
        held = state.live_model(model)
        restored[:] = [one for one in checkpoints if one not in held.checkpoints]
        for checkpoint in restored:
            if checkpoint not in held.gone:
                raise _unknown(registry, model, checkpoint)
            if held.gone[checkpoint].checkpoint is None:
                raise gone_error(registry, model, checkpoint)
        if not restored:
            raise NothingToDo
        return Restore(model, tuple(restored))

    with suppress(NothingToDo):
        registry.append(build)
    return restored


def _check_deletable(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> None:
    held = registry.state.live_model(model)
    if checkpoint in held.gone:
        raise gone_error(registry, model, checkpoint)
    if checkpoint not in held.checkpoints:
        raise _unknown(registry, model, checkpoint)
    check_free(registry, model, checkpoint)
    if any(ref.checkpoint == checkpoint for ref in held.refs.values()):
        named = next(ref for ref in list_refs(registry, model) if ref.checkpoint == checkpoint)
        name = model_name(registry, model)
        raise RefusedError(
            f"{named.kind} {named.name!r} of {name!r} names checkpoint {short(checkpoint)}: it stays",
            hint=f"'cairn {named.kind} {name} {named.name} --delete' removes the name first",
        )


def check_free(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> None:
    """Raise if a hold keeps a checkpoint.

    Raises:
        RefusedError: names the holds.
    """
    holds = told(registry.state.live_model(model), checkpoint)
    if holds:
        raise RefusedError(
            f"checkpoint {short(checkpoint)} of {model_name(registry, model)!r} stays: {holds}",
            hint="'cairn hold list' tells why, 'cairn hold lift' ends one",
        )


def check_is_owner(registry: Registry) -> None:
    """Raise unless this user is an owner: whoever may do no more than the first part is to begin nothing.

    Raises:
        NotAllowed: it may not.
    """
    signer = registry.signer()
    if signer.actor not in registry.state.owners:
        raise NotAllowed(
            f"{short(signer.actor)} is no owner, and only owners may do this; nothing was changed",
            hint="ask an owner to run the command",
        )


def _unknown(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> NotFoundError:
    name = model_name(registry, model)
    return NotFoundError(
        f"model {name!r} has no checkpoint {short(checkpoint)}", hint=f"'cairn log {name}' lists what is there"
    )
