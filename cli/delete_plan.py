"""`cairn delete plan` and `cairn delete apply`."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import PlainPath, open_registry
from cairn.cli.output import emit, emit_json, safe, size, table
from cairn.cli.planfiles import apply_options, plan_options, read_plan, say_what_is_next, write_plan
from cairn.core.errors import BadInput, RefusedError, UsageError
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.gc.freed import Freed
    from cairn.registry.deleting import DeletionPlan, Fate
    from cairn.registry.modelplan import ModelsPlan
    from cairn.registry.registry import Registry

_TARGET = "MODEL|MODEL@REF|MODEL@ID|MODEL@step:N"
_with_tags = click.option("--with-tags", is_flag=True, help="Of a checkpoint: remove the tags that name it, too.")


@click.command("plan")
@click.argument("selector", metavar=f"[{_TARGET}]", required=False)
@_with_tags
@click.option("--taint", is_flag=True, help="What was made from it goes too, whatever model it is of.")
@click.option("--tenant", is_flag=True, help="All models of the store.")
@plan_options
def plan(
    selector: str | None, with_tags: bool, taint: bool, tenant: bool, output: Path | None, as_json: bool, quiet: bool
) -> None:
    """Say what goes with a checkpoint, branch, tag or model, what stays and why, and who reads it. Changes nothing."""
    with open_registry() as registry:
        registry.refresh()
        made = _planned(registry, selector, with_tags, taint, tenant)
        show_any(registry, made, as_json, quiet)
    if output is not None:
        write_plan(made, output, "delete")


@click.command("apply")
@click.argument("target", metavar=f"FILE|{_TARGET}", required=False)
@_with_tags
@click.option("--taint", is_flag=True, help="As of 'plan'.")
@click.option("--tenant", is_flag=True, help="As of 'plan'.")
@click.option("--receipt", type=PlainPath(path_type=Path), metavar="FILE", help="Destroy the keys and collect at once, "
              "and write the receipt; of several models, into a folder.")  # fmt: skip
@apply_options
def apply(
    target: str | None, with_tags: bool, taint: bool, tenant: bool, receipt: Path | None, yes: bool,
    grace: float | None,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Delete what a plan's FILE says, or what is named. All of it can be restored at first, a model for a day."""
    from cairn.cli.delete_models import apply as apply_models
    from cairn.registry.deleting import apply_deletion
    from cairn.registry.modelplan import ModelsPlan

    # A folder is none: people call models as they call the folders that these came from.
    from_file = bool(target) and Path(target or "").exists() and not Path(target or "").is_dir()
    if from_file and (with_tags or taint or tenant):
        raise UsageError("a plan's file says itself what goes", hint="leave the options out, or plan with them")
    with open_registry() as registry:
        registry.refresh()
        if from_file and target is not None:
            made = _in_file(target)
        else:
            made = _planned(registry, target, with_tags, taint, tenant)
        if not yes:
            show_any(registry, made, as_json, quiet)
            raise UsageError("this deletes; nothing was changed", hint="repeat the command with --yes")
        if isinstance(made, ModelsPlan):
            apply_models(registry, made, grace, receipt, as_json, quiet)
            return
        if receipt is not None:
            raise RefusedError("no model goes as a whole, so no key is destroyed", hint="leave --receipt out")
        apply_deletion(registry, made, grace or 0.0)
    _show(made, as_json, quiet)
    if made.goes and not quiet:
        say_what_is_next(grace or 0.0)


def _in_file(target: str) -> "DeletionPlan | ModelsPlan":
    try:
        return read_any_plan(target)
    except BadInput as error:
        hint = f"{error.hint}; if a model is meant, run the command in another folder"
        raise BadInput(f"file {target!r}: {error.message}", hint=hint) from None


def read_any_plan(path: str) -> "DeletionPlan | ModelsPlan":
    """The plan in a file, of one model's checkpoints or of whole models."""
    from cairn.registry import deleting, modelplan
    from cairn.registry.planfiles import format_of_plan

    data = read_plan(path, "'cairn delete plan ... -o FILE' makes one")
    return modelplan.decode_plan(data) if format_of_plan(data) == modelplan.FORMAT else deleting.decode_plan(data)


def show_any(
    registry: "Registry", made: "DeletionPlan | ModelsPlan", as_json: bool = False, quiet: bool = False
) -> None:
    """Print a plan, and what it is to be judged by."""
    from cairn.cli import delete_models
    from cairn.core.ids import ModelId
    from cairn.gc.freed import freed_by
    from cairn.registry.modelplan import ModelsPlan

    if isinstance(made, ModelsPlan):
        delete_models.show(registry, made, None if quiet else delete_models.facts_about(registry, made), as_json, quiet)
        return
    freed = None if quiet else freed_by(registry, ModelId(bytes.fromhex(made.model)), made.removed)
    _show(made, as_json, quiet, freed)


def _planned(
    registry: "Registry", selector: str | None, with_tags: bool, taint: bool, tenant: bool
) -> "DeletionPlan | ModelsPlan":
    from cairn.registry.deleting import plan_deletion
    from cairn.registry.modelplan import plan_models

    if tenant == (selector is not None):
        raise UsageError("what is to be deleted?", hint=f"name one of {_TARGET}, or --tenant")
    if selector is not None and "@" in selector and not taint:
        return plan_deletion(registry, selector, with_tags)
    if with_tags:
        raise UsageError("--with-tags is for one checkpoint", hint="leave it out")
    return plan_models(registry, selector, taint)


def _show(made: "DeletionPlan", as_json: bool, quiet: bool, freed: "Freed | None" = None) -> None:
    if quiet:
        for identifier in made.removed:
            emit(identifier.hex())
    elif as_json:
        emit_json(_as_json(made, freed))
    else:
        names = "tag" if made.kind == "checkpoint" else made.kind
        for name in made.refs:
            emit(f"{safe(names)} {safe(name)} is removed")
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
            emit(f"being read now: {readers or 'no'}")


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
