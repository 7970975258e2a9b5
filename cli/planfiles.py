"""Plans that delete, for `cairn retain` and `cairn delete`: their options, and reading and writing their files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.newfiles import write_new
from cairn.cli.opening import Command, PlainPath, store_options
from cairn.cli.output import note, safe
from cairn.core.errors import NotFoundError
from cairn.core.limits import PLAN_BYTES_MAX

if TYPE_CHECKING:
    import msgspec


def plan_options(command: Command) -> Command:
    """Add the options of `plan`."""
    output = PlainPath(path_type=Path)
    command = store_options(command)
    command = click.option("-q", "--quiet", is_flag=True, help="Print the ids of those that would go.")(command)
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
    return click.option("-o", "--output", type=output, metavar="FILE", help="Write the plan, to be applied.")(command)


def apply_options(command: Command) -> Command:
    """Add the options of `apply`."""
    seconds: dict[str, Any] = {"type": click.FloatRange(min=0), "metavar": "SECONDS"}
    command = store_options(command)
    command = click.option("-q", "--quiet", is_flag=True, help="Print the ids of those that went.")(command)
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
    command = click.option("--grace", **seconds, help="Surely restorable so long.")(command)
    return click.option("--yes", is_flag=True, help="Do it.")(command)


def read_plan(target: str, hint: str) -> bytes:
    """Bytes of a plan's file, at most one more than a plan may have.

    Raises:
        NotFoundError: it cannot be read; `hint` says what else could be meant.
    """
    try:
        with Path(target).open("rb") as file:
            return file.read(PLAN_BYTES_MAX + 1)
    except OSError as error:
        raise NotFoundError(f"no plan can be read from {target!r}: {error.strerror}", hint=hint) from None


def write_plan(made: "msgspec.Struct", output: Path, command: str) -> None:
    """Write a plan to a new file, and say which command applies it; raises as `write_new` does."""
    from cairn.registry.planfiles import encode_plan

    write_new(output, encode_plan(made))
    note(f"next: 'cairn {command} apply {safe(str(output))} --yes' deletes what would go")


def say_what_is_next(grace: float) -> None:
    """How long what was deleted can be restored."""
    until = f"the first 'cairn gc apply' after {grace:.0f} seconds" if grace else "the next 'cairn gc apply'"
    note(f"'cairn delete restore MODEL@ID' brings one back until {until}, which frees their space")
