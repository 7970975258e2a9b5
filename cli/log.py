"""`cairn log`: the history of a branch."""

from typing import TYPE_CHECKING

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import PARTIAL, emit, emit_json, json_numbers, safe, when
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.registry.models import LogLine


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.option("-n", "--number", type=click.IntRange(min=1), help="Show so many at most.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, newest first.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
@store_options
def command(selector: str, number: int | None, as_json: bool, quiet: bool) -> None:
    """List the checkpoints of a branch, newest first."""
    from cairn.registry.models import history, list_refs
    from cairn.registry.selectors import resolve

    with open_registry() as registry:
        model, tip = resolve(registry, selector)
        lines = history(registry, model, tip, number)
        names: dict[bytes, list[str]] = {}
        for ref in list_refs(registry, model):
            names.setdefault(ref.checkpoint, []).append(ref.name)
    if as_json:
        emit_json([_as_json(line, names.get(line.id, [])) for line in lines])
        return
    for line in lines:
        if quiet:
            emit(line.id.hex())
            continue
        step = f"step {line.meta.step}" if line.meta.step is not None else ""
        refs = f"({', '.join(map(safe, names[line.id]))})" if line.id in names else ""
        partial = PARTIAL if line.state.partial else ""
        cells = (short(line.id), when(line.saved_at), step, refs, partial, safe(line.meta.message))
        emit("  ".join(filter(None, cells)))
        if line.deleted_behind:
            emit(click.style(f"  ({line.deleted_behind} deleted)", dim=True))


def _as_json(line: "LogLine", names: list[str]) -> dict[str, object]:
    return {
        "checkpoint": line.id.hex(),
        "parent": line.parent.hex() if line.parent else None,
        "step": line.meta.step,
        "message": line.meta.message,
        "metrics": json_numbers(line.meta.metrics),
        "refs": names,
        "partial": line.state.partial,
        "saved_at_ns": line.saved_at,
        "claimed_at_ns": line.state.claimed_at,
        "actor": line.state.actor.hex(),
        "entry": line.state.n,
        "deleted_behind": line.deleted_behind,
    }
