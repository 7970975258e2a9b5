"""`cairn delete`: what is to be deleted, what was, and bringing it back."""

from typing import TYPE_CHECKING

import click

from cairn.cli.delete_plan import apply, plan
from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, emit_json, table, when
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.core.ids import CheckpointId, ModelId
    from cairn.registry.gone import Deleted


@click.group()
@store_options
def command() -> None:
    """Delete checkpoints, branches and tags by name, look at what was deleted, and bring it back."""


command.add_command(plan)
command.add_command(apply)


@command.command("restore")
@click.argument("selectors", metavar="MODEL@ID...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("-q", "--quiet", is_flag=True, help="Print the ids only.")
@store_options
def restore(selectors: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Bring back deleted checkpoints, which is possible until 'cairn gc apply' has dropped them."""
    from cairn.registry.deletion import restore as bring_back
    from cairn.registry.selectors import resolve_deleted

    wanted: dict[ModelId, list[CheckpointId]] = {}
    with open_registry() as registry:
        for text in selectors:
            model, checkpoint = resolve_deleted(registry, text)
            if checkpoint not in wanted.setdefault(model, []):
                wanted[model].append(checkpoint)
        done = [(model, one) for model, some in wanted.items() for one in bring_back(registry, model, some)]
    if as_json:
        emit_json([{"model": model.hex(), "checkpoint": one.hex()} for model, one in done])
        return
    for _, one in done:
        emit(one.hex() if quiet else f"restored {short(one)}")
    if not done and not quiet:
        emit("nothing to restore: what was named is there")


@command.command("status")
@click.argument("model", metavar="[MODEL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("-q", "--quiet", is_flag=True, help="Print the ids of those that can be restored.")
@store_options
def status(model: str | None, as_json: bool, quiet: bool) -> None:
    """List the checkpoints that were deleted: when, why, and until when they can be restored."""
    from cairn.core.ids import ModelId
    from cairn.registry.gone import deleted_of
    from cairn.registry.models import find_model, model_name

    with open_registry() as registry:
        models = [find_model(registry, model)] if model else [ModelId(one) for one in registry.state.models]
        listed = [(model_name(registry, one), deleted) for one in models for deleted in deleted_of(registry, one)]
    if as_json:
        emit_json([_as_json(name, one) for name, one in listed])
    elif quiet:
        for _, one in listed:
            if one.restorable:
                emit(one.id.hex())
    else:
        rows = [_row(name, one, registry.opened.clock.wall_ns()) for name, one in listed]
        table(("CHECKPOINT", "DELETED", "BY", "WHY", "RESTORABLE"), rows)


def _row(name: str, one: "Deleted", now: int) -> tuple[str, ...]:
    deleted_at = when(one.deleted_at) if one.deleted_at is not None else f"by entry {one.gone.n}"
    until = "the next gc apply" if one.gone.due_at <= now else f"a gc apply after {when(one.gone.due_at)}"
    restorable = f"until {until}" if one.restorable else "no"
    return f"{name}@{short(one.id)}", deleted_at, short(one.gone.actor), one.gone.cause, restorable


def _as_json(name: str, one: "Deleted") -> dict[str, object]:
    return {
        "model": name,
        "checkpoint": one.id.hex(),
        "deleted_at_ns": one.deleted_at,
        "actor": one.gone.actor.hex(),
        "cause": one.gone.cause,
        "restorable": one.restorable,
        "due_at_ns": one.gone.due_at,
        "entry": one.gone.n,
    }
