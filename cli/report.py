"""`cairn report`: where the time of a training run's save went."""

from typing import TYPE_CHECKING

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import count, emit, emit_json, safe, size, table, when

if TYPE_CHECKING:
    from cairn.registry.envelope import Envelope, RankReport

_STAGES = ("plan", "capture", "blocked", "write", "digest", "encode", "seal", "store", "merge", "total")


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def command(selector: str, as_json: bool) -> None:
    """Show the stage times and bytes of every rank that saved a checkpoint."""
    from cairn.core.errors import NotFoundError
    from cairn.registry.envelope import read_envelope
    from cairn.registry.selectors import resolve

    with open_registry() as registry:
        model, checkpoint = resolve(registry, selector)
        envelope = read_envelope(registry, model, registry.state.live_model(model).checkpoints[checkpoint])
    if envelope is None:
        raise NotFoundError(
            f"checkpoint {checkpoint.hex()[:12]} was not saved from a training loop, so it has no report",
            hint="'cairn show' tells what it holds",
        )
    if as_json:
        emit_json({"checkpoint": checkpoint.hex(), **_facts(envelope)})
        return
    emit(f"checkpoint {checkpoint.hex()}")
    emit(f"committed  {when(envelope.committing_at)} by {count(len(envelope.ranks), 'rank')}")
    for note in (*envelope.notes, *(f"rank {one.rank}: {note}" for one in envelope.ranks for note in one.notes)):
        emit(f"note       {safe(note)}")
    emit("")
    table(("RANK", "HOST", *(stage.upper() for stage in _STAGES), "NEW", "REUSED"), [_row(r) for r in envelope.ranks])


def _row(report: "RankReport") -> tuple[str, ...]:
    seconds = (f"{getattr(report.stages, stage):.3f}" for stage in _STAGES)
    return (
        str(report.rank), safe(report.host), *seconds, size(report.counts.bytes_new), size(report.counts.bytes_reused),
    )  # fmt: skip


def _facts(envelope: "Envelope") -> dict[str, object]:
    import msgspec

    facts: dict[str, object] = msgspec.to_builtins(envelope)
    return facts
