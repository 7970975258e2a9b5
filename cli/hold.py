"""`cairn hold`: what must not be deleted, whoever asks and whatever rules say."""

from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, emit_json, note, safe, table, when
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.registry.holding import HeldBy


@click.group()
@store_options
def command() -> None:
    """Keep models and checkpoints from deletion, until the hold is lifted."""


@command.command("add")
@click.argument("selector", metavar="MODEL|MODEL@ID")
@click.option("-m", "--reason", required=True, metavar="TEXT", help="Why, such as a reference; sealed like names.")
@click.option("-q", "--quiet", is_flag=True, help="Print the hold's id only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def add(selector: str, reason: str, quiet: bool, as_json: bool) -> None:
    """Hold a model with all that is committed to it, or one checkpoint; also what is deleted and can be restored."""
    from cairn.registry.holding import add_hold
    from cairn.registry.modeldeletion import find_restorable
    from cairn.registry.selectors import resolve_any

    with open_registry() as registry:
        registry.refresh()
        model, checkpoint = resolve_any(registry, selector) if "@" in selector else (None, None)
        model = model or find_restorable(registry, selector)
        identifier = add_hold(registry, model, checkpoint, reason)
    if quiet:
        emit(identifier.hex())
    elif as_json:
        held = checkpoint.hex() if checkpoint is not None else None
        emit_json({"hold": identifier.hex(), "model_id": model.hex(), "checkpoint": held})
    else:
        emit(f"hold {short(identifier)} keeps {safe(selector)}")
        note(f"'cairn hold lift {short(identifier)}' ends it")


@command.command("lift")
@click.argument("hold", metavar="HOLD")
@store_options
def lift(hold: str) -> None:
    """End a hold, by the first digits of its id. What was due to be deleted goes with the next 'cairn gc apply'."""
    from cairn.registry.holding import find_hold, lift_hold

    with open_registry() as registry:
        registry.refresh()
        lifted = lift_hold(registry, find_hold(registry, hold))
    emit(f"lifted hold {short(lifted.id)}")


@command.command("list")
@click.argument("model", metavar="[MODEL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("-q", "--quiet", is_flag=True, help="Print the ids only.")
@store_options
def show(model: str | None, as_json: bool, quiet: bool) -> None:
    """List the holds there are: what they keep, since when, by whom and why."""
    from cairn.registry.gonemodels import claimed_at
    from cairn.registry.holding import list_holds
    from cairn.registry.modeldeletion import find_restorable
    from cairn.registry.models import name_or_id

    with open_registry() as registry:
        registry.refresh()
        chosen = find_restorable(registry, model) if model is not None else None
        holds = list_holds(registry, chosen)
        found = [(one, name_or_id(registry, one.model), claimed_at(registry, one.hold.n)) for one in holds]
    if quiet:
        for one, _, _ in found:
            emit(one.id.hex())
    elif as_json:
        emit_json([_as_json(one, name, at) for one, name, at in found])
    else:
        table(("HOLD", "KEEPS", "SINCE", "BY", "WHY"), (_row(one, name, at) for one, name, at in found))
        if not found:
            note("nothing is held: 'cairn hold add MODEL[@ID] -m TEXT' keeps a model or checkpoint from deletion")


def _row(one: "HeldBy", name: str, at: int | None) -> tuple[str, ...]:
    what = name if one.checkpoint is None else f"{name}@{short(one.checkpoint)}"
    since = when(at) if at is not None else f"entry {one.hold.n}"
    return short(one.id), what, since, short(one.hold.actor), one.reason if one.reason is not None else "?"


def _as_json(one: "HeldBy", name: str, at: int | None) -> dict[str, Any]:
    return {
        "hold": one.id.hex(),
        "model": name,
        "model_id": one.model.hex(),
        "checkpoint": one.checkpoint.hex() if one.checkpoint is not None else None,
        "since_ns": at,
        "entry": one.hold.n,
        "actor": one.hold.actor.hex(),
        "reason": one.reason,
    }
