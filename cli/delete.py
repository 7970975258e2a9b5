"""`cairn delete`: what is to be deleted, what was, and bringing it back."""

from typing import TYPE_CHECKING

import click

from cairn.cli.delete_models import approve
from cairn.cli.delete_plan import apply, plan
from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, table, when
from cairn.core.errors import NotFoundError, UsageError
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.core.ids import CheckpointId, ModelId
    from cairn.registry.gone import Deleted
    from cairn.registry.modeldeletion import GoneModel


@click.group()
@store_options
def command() -> None:
    """Delete checkpoints, branches, tags and models by name, look at what was deleted, and bring it back."""


for _part in (plan, apply, approve):
    command.add_command(_part)


@command.command("restore")
@click.argument("selectors", metavar="MODEL|MODEL@ID...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("-q", "--quiet", is_flag=True, help="Print the ids only.")
@store_options
def restore(selectors: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Bring back deleted models and checkpoints, which is possible until 'cairn gc apply' has destroyed them."""
    from cairn.registry.deletion import restore as bring_back
    from cairn.registry.modeldeletion import find_restorable, restore_model
    from cairn.registry.selectors import resolve_deleted

    wanted: dict[ModelId, list[CheckpointId]] = {}
    with open_registry() as registry:
        models = [(text, find_restorable(registry, text)) for text in selectors if "@" not in text]
        back = [(text, model) for text, model in models if restore_model(registry, model)]
        for text in (text for text in selectors if "@" in text):
            model, checkpoint = resolve_deleted(registry, text)
            if checkpoint not in wanted.setdefault(model, []):
                wanted[model].append(checkpoint)
        done = [(model, one) for model, some in wanted.items() for one in bring_back(registry, model, some)]
    if as_json:
        whole: list[dict[str, str | None]] = [{"model": model.hex(), "checkpoint": None} for _, model in back]
        emit_json([*whole, *({"model": model.hex(), "checkpoint": one.hex()} for model, one in done)])
        return
    for text, model in back:
        emit(model.hex() if quiet else f"restored model {safe(text)}")
    for _, one in done:
        emit(one.hex() if quiet else f"restored {short(one)}")
    if not done and not back and not quiet:
        emit("nothing to restore: what was named is there")


@command.command("status")
@click.argument("model", metavar="[MODEL|ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("-q", "--quiet", is_flag=True, help="Print the ids of checkpoints that can be restored.")
@store_options
def status(model: str | None, as_json: bool, quiet: bool) -> None:
    """List the models and checkpoints that were deleted: when, why, and until when they can be restored."""
    from cairn.core.ids import ModelId
    from cairn.registry.gone import deleted_of
    from cairn.registry.modeldeletion import deleted_models, find_deleted
    from cairn.registry.models import find_model, model_name

    with open_registry() as registry:
        whole = deleted_models(registry)
        models = [ModelId(one) for one in registry.state.models]
        if model is not None:
            try:
                models, whole = [find_model(registry, model)], []
            except NotFoundError:
                wanted = find_deleted(registry, model)
                models, whole = [], [one for one in whole if one.id == wanted]
        listed = [(model_name(registry, one), deleted) for one in models for deleted in deleted_of(registry, one)]
    if as_json:
        emit_json([*map(_model_as_json, whole), *(_as_json(name, one) for name, one in listed)])
    elif quiet:
        for _, one in listed:
            if one.restorable:
                emit(one.id.hex())
    else:
        now = registry.opened.clock.wall_ns()
        rows = [*(_model_row(one, now) for one in whole), *(_row(name, one, now) for name, one in listed)]
        table(("DELETED", "WHEN", "BY", "WHY", "RESTORABLE"), rows)
        if not rows:
            note("nothing was deleted: 'cairn delete plan MODEL' or MODEL@REF tells what would go")


def _model_row(one: "GoneModel", now: int) -> tuple[str, ...]:
    name, gone = one.name if one.name is not None else f"model {one.id.hex()}", one.gone
    at = when(one.deleted_at) if one.deleted_at is not None else f"by entry {gone.n}"
    if gone.model is None:
        restorable = "no: its keys are destroyed" if gone.destroyed_n is not None else "no: gc apply destroys its keys"
    elif gone.model.holds:
        restorable = f"yes, as long as it is held ({count(len(gone.model.holds), 'hold')})"
    else:
        restorable = _until(gone.due_at, now)
    return name, at, short(gone.actor), gone.cause, restorable


def _until(due_at: int, now: int) -> str:
    return "until the next gc apply" if due_at <= now else f"until a gc apply after {when(due_at)}"


def _model_as_json(one: "GoneModel") -> dict[str, object]:
    gone = one.gone
    return {
        "model": one.name,
        "model_id": one.id.hex(),
        "checkpoint": None,
        "deleted_at_ns": one.deleted_at,
        "actor": gone.actor.hex(),
        "cause": gone.cause,
        "restorable": gone.model is not None,
        "due_at_ns": gone.due_at,
        "entry": gone.n,
        "shredded_entry": gone.shredded_n,
        "destroyed_entry": gone.destroyed_n,
    }


def _row(name: str, one: "Deleted", now: int) -> tuple[str, ...]:
    deleted_at = when(one.deleted_at) if one.deleted_at is not None else f"by entry {one.gone.n}"
    restorable = _until(one.gone.due_at, now) if one.restorable else "no"
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


@command.command("confirm")
@click.argument("model", metavar="MODEL|ID")
@click.argument("of", metavar="WHAT")
@click.option("--yes", is_flag=True, help="Do it.")
@store_options
def confirm(model: str, of: str, yes: bool) -> None:
    """Put into the log that something which could still open a destroyed model is gone, as its receipt names it."""
    from cairn.registry.modeldeletion import find_deleted
    from cairn.registry.receipts import confirm as put

    if not yes:
        raise UsageError(
            f"this says in the log, signed and for good, that nothing opens {model!r} through {of!r} any more",
            hint="repeat the command with --yes",
        )
    with open_registry() as registry:
        registry.refresh()
        put(registry, find_deleted(registry, model), of)
    emit(f"confirmed {safe(of)}")
