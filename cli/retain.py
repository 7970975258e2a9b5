"""`cairn retain`: keep the checkpoints of a branch that rules name, delete the others."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import Command, open_registry, store_options
from cairn.cli.output import emit, emit_json, note, safe, table, when
from cairn.cli.planfiles import apply_options, plan_options, read_plan, say_what_is_next, write_plan
from cairn.core.errors import UsageError
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.registry.registry import Registry
    from cairn.registry.retaining import RetentionPlan
    from cairn.registry.retention import Retention

_PERIODS = ("hourly", "daily", "weekly", "monthly", "yearly")
_NO_FILE = "'cairn retain plan MODEL -o FILE' makes one; for a MODEL, name rules such as --last 5"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,9})([smhdw])", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no age: write 90m, 12h, 7d or 4w", context, parameter)
    return float(int(match[1]) * _SECONDS[match[2]])


def _rules(command: Command) -> Command:
    """Add the options that name rules; see `_rules_of`."""
    count = click.IntRange(min=1)
    made = [
        click.option("--last", type=count, metavar="K", help="Keep the newest K."),
        click.option("--every", type=count, metavar="N", help="Keep those whose step is a multiple of N."),
    ]
    for period in _PERIODS:
        text = f"Keep the newest of each of K {'days' if period == 'daily' else period[:-2] + 's'}."
        made.append(click.option(f"--{period}", type=count, metavar="K", help=text))
    best = "Keep the K with the lowest (min) or highest (max) value; repeatable."
    made.append(click.option("--best", multiple=True, metavar="METRIC:min|max:K", help=best))
    made.append(click.option("--min-age", callback=_age, metavar="AGE", help="Keep those younger: 90m, 12h, 7d, 4w."))
    for decorate in reversed(made):
        command = decorate(command)
    return command


@click.group()
@store_options
def command() -> None:
    """Keep the checkpoints of a branch that rules name, delete the others; a plan says which."""


@command.command("plan")
@click.argument("selector", metavar="MODEL[@BRANCH]")
@_rules
@plan_options
def plan(selector: str, output: Path | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Say of each checkpoint of a branch whether it stays and by which rules. Changes nothing."""
    rules = _rules_of(options)
    if rules is None:
        raise UsageError("no rule says what is to stay", hint="name one, such as --last 5")
    with open_registry() as registry:
        made = _plan(registry, selector, rules)
    _warn_of_metrics(made, rules)
    _show(made, as_json, quiet)
    if output is not None:
        write_plan(made, output, "retain")


@command.command("apply")
@click.argument("target", metavar="FILE|MODEL[@BRANCH]")
@_rules
@apply_options
def apply(target: str, yes: bool, grace: float | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Delete what a plan's FILE says, or what the rules leave of MODEL. They can be restored at first."""
    from cairn.registry.retaining import apply_plan, decode_plan, retain

    rules = _rules_of(options)
    with open_registry() as registry:
        made = decode_plan(read_plan(target, _NO_FILE)) if rules is None else _plan(registry, target, rules)
        if rules is not None:
            _warn_of_metrics(made, rules)
        if not yes:
            _show(made, as_json, quiet)
            raise UsageError("this deletes checkpoints; nothing was changed", hint="repeat the command with --yes")
        if rules is None:
            apply_plan(registry, made, grace or 0.0)
        else:
            made = retain(registry, _model(made), made.branch, rules, grace or 0.0)
    _show(made, as_json, quiet)
    if made.removed and not quiet:
        say_what_is_next(grace or 0.0)


def _rules_of(options: dict[str, Any]) -> "Retention | None":
    """The rules that options name; None if they name none."""
    from cairn.registry.retention import Retention

    named = {name: value for name, value in options.items() if value}
    if "min_age" in named:
        named["min_age_seconds"] = named.pop("min_age")
    return Retention(**named) if named else None


def _plan(registry: "Registry", text: str, rules: "Retention") -> "RetentionPlan":
    from cairn.registry.models import find_model
    from cairn.registry.names import LATEST, MAIN
    from cairn.registry.retaining import plan_retention
    from cairn.registry.selectors import parse_selector

    selector = parse_selector(text)
    branch = MAIN if selector.revision == LATEST else selector.revision
    return plan_retention(registry, find_model(registry, selector.model), branch, rules)


def _model(made: "RetentionPlan") -> Any:
    from cairn.core.ids import ModelId

    return ModelId(bytes.fromhex(made.model))


def _show(made: "RetentionPlan", as_json: bool, quiet: bool) -> None:
    if quiet:
        for identifier in made.removed:
            emit(identifier.hex())
    elif as_json:
        emit_json(_as_json(made))
    else:
        table(
            ("", "CHECKPOINT", "SAVED", "STEP", "KEPT BY"),
            [
                (
                    "keep" if one.kept_by else "remove",
                    short(bytes.fromhex(one.checkpoint)),
                    when(one.saved_at),
                    "" if one.step is None else str(one.step),
                    ", ".join(one.kept_by),
                )
                for one in made.verdicts
            ],
        )
        emit(f"{len(made.verdicts) - len(made.removed)} stay, {len(made.removed)} go")


def _warn_of_metrics(made: "RetentionPlan", rules: "Retention") -> None:
    for text in rules.best:
        if not any(f"best {text}" in one.kept_by for one in made.verdicts):
            note(f"warning: no checkpoint has the metric of --best {safe(text)}, so it keeps none")


def _as_json(made: "RetentionPlan") -> dict[str, Any]:
    return {
        "store": made.store,
        "model": made.model,
        "branch": made.branch,
        "position": made.length,
        "checkpoints": [
            {
                "checkpoint": one.checkpoint,
                "step": one.step,
                "saved_at_ns": one.saved_at,
                "keep": bool(one.kept_by),
                "rules": list(one.kept_by),
            }
            for one in made.verdicts
        ],
        "removed": len(made.removed),
    }
