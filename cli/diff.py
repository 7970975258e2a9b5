"""`cairn diff`: what changed between two checkpoints."""

from typing import TYPE_CHECKING

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import count, emit_json, note
from cairn.cli.progress import ProgressBar

if TYPE_CHECKING:
    from cairn.registry.compare import Comparison
    from cairn.workspace.norms import Measured


@click.command()
@click.argument("old", metavar="MODEL[@REF]")
@click.argument("new", metavar="MODEL[@REF]")
@click.option("--norms", is_flag=True, help="Read the tensors that differ, and tell how far.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def command(old: str, new: str, norms: bool, as_json: bool) -> None:
    """Compare two checkpoints: what they were made from, tensors, values, files and stored bytes."""
    from cairn.cli import diff_json, diff_text
    from cairn.registry.compare import compare
    from cairn.registry.selectors import resolve

    measured: Measured | None = None
    with open_registry() as registry, ProgressBar(as_json) as progress:
        places = resolve(registry, old), resolve(registry, new)
        if norms:
            from cairn.workspace.norms import compare_with_norms

            measured = compare_with_norms(registry, *places, progress)
        found = measured.comparison if measured else compare(registry, *places)
    if as_json:
        emit_json(diff_json.rendered(found, measured))
    else:
        diff_text.render(found, measured)
    _tell_what_is_missing(found, measured)


def _tell_what_is_missing(found: "Comparison", measured: "Measured | None") -> None:
    sides: dict[tuple[str, bool], list[str]] = {}
    for one in found.omissions:
        sides.setdefault((one.component, one.granted), []).append(one.side)
    for (component, granted), some in sides.items():
        what = f"{component} of the {' and the '.join(some)} checkpoint"
        if granted:
            note(f"note: not compared: {what} is not here; 'cairn pull MODEL@REF' brings it")
        else:
            note(
                f"note: not compared: no right to read {what}; "
                f"ask an owner to run: cairn grant MODEL IDENTITY --read {component}"
            )
    if found.chunks_lost:
        lost = count(found.chunks_lost, "chunk")
        note(f"warning: {lost} cannot be found, since packs or their index are damaged: no size counts it")
        note("next: run 'cairn verify'")
    if measured and measured.unread:
        note(f"note: not measured, since their content is not here: {count(len(measured.unread), 'tensor')}")
