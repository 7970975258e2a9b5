"""`cairn delete plan` and `cairn delete apply`: one checkpoint, branch or tag by name."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import open_registry
from cairn.cli.output import count, emit, emit_json, safe, size, table
from cairn.cli.planfiles import apply_options, plan_options, read_plan, say_what_is_next, write_plan
from cairn.core.errors import UsageError
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.gc.freed import Freed
    from cairn.registry.deleting import DeletionPlan, Fate

_TARGET = "MODEL@REF|MODEL@ID|MODEL@step:N"
_with_tags = click.option("--with-tags", is_flag=True, help="Of a checkpoint: remove the tags that name it, too.")


@click.command("plan")
@click.argument("selector", metavar=_TARGET)
@_with_tags
@plan_options
def plan(selector: str, with_tags: bool, output: Path | None, as_json: bool, quiet: bool) -> None:
    """Say what goes with a checkpoint, branch or tag, what stays and why, and who reads it. Changes nothing."""
    from cairn.gc.freed import freed_by
    from cairn.registry.deleting import plan_deletion
    from cairn.registry.models import find_model
    from cairn.registry.selectors import parse_selector

    with open_registry() as registry:
        registry.refresh()
        made = plan_deletion(registry, selector, with_tags)
        model = find_model(registry, parse_selector(selector).model)
        freed = None if quiet else freed_by(registry, model, made.removed)
    if output is not None:
        write_plan(made, output, "delete")
    _show(made, as_json, quiet, freed)


@click.command("apply")
@click.argument("target", metavar=f"FILE|{_TARGET}")
@_with_tags
@apply_options
def apply(target: str, with_tags: bool, yes: bool, grace: float, as_json: bool, quiet: bool) -> None:
    """Delete what a plan's FILE says, or what is named. Checkpoints can be restored at first."""
    from cairn.registry.deleting import apply_deletion, decode_plan, plan_deletion

    from_file = Path(target).exists()
    if from_file and with_tags:
        raise UsageError("a plan's file says itself whether tags go", hint="leave --with-tags out, or plan with it")
    with open_registry() as registry:
        registry.refresh()
        if from_file:
            made = decode_plan(read_plan(target, "'cairn delete plan ... -o FILE' makes one"))
        else:
            made = plan_deletion(registry, target, with_tags)
        if not yes:
            _show(made, as_json, quiet)
            raise UsageError("this deletes; nothing was changed", hint="repeat the command with --yes")
        apply_deletion(registry, made, grace)
    _show(made, as_json, quiet)
    if made.goes and not quiet:
        say_what_is_next(grace)


def _show(made: "DeletionPlan", as_json: bool, quiet: bool, freed: "Freed | None" = None) -> None:
    if quiet:
        for identifier in made.removed:
            emit(identifier.hex())
    elif as_json:
        emit_json(_as_json(made, freed))
    else:
        names = "tag" if made.kind == "checkpoint" else made.kind
        for name in made.refs:
            emit(f"{names} {safe(name)} is removed")
        rows = [("remove", *_named(one), "") for one in made.goes]
        for reached_by, some in groupby(made.stays, lambda one: one.reached_by):
            first, *others = some
            why = ", ".join(reached_by) or "nothing: it can be named by its id only"
            rows.append(("keep", *_named(first), f"{why}; so are {len(others)} behind it" if others else why))
        table(("", "CHECKPOINT", "STEP", "KEPT BY"), rows)
        emit(f"{len(made.stays)} stay, {len(made.goes)} go")
        if freed is not None:
            emit(f"needed by nothing else: {size(freed.bytes_alone)}, for a later 'cairn gc apply' to free")
            readers = ", ".join(sorted({short(one) for one in freed.readers}))
            emit(f"being read now: {count(len(freed.readers), 'time')}" + (f", by {readers}" if readers else ""))


def _named(one: "Fate") -> tuple[str, str]:
    return short(bytes.fromhex(one.checkpoint)), "" if one.step is None else str(one.step)


def _as_json(made: "DeletionPlan", freed: "Freed | None") -> dict[str, Any]:
    told: dict[str, Any] = {
        "store": made.store,
        "model": made.model,
        "kind": made.kind,
        "target": made.target,
        "position": made.length,
        "refs": list(made.refs),
        "removed": [{"checkpoint": one.checkpoint, "step": one.step} for one in made.goes],
        "stays": [
            {"checkpoint": one.checkpoint, "step": one.step, "reached_by": list(one.reached_by)} for one in made.stays
        ],
    }
    if freed is not None:
        told |= {"bytes_alone": freed.bytes_alone, "readers": [one.hex() for one in freed.readers]}
    return told
