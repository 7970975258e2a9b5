"""`cairn why-gone`: what became of this?"""

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, emit_json, safe, when
from cairn.core.ids import short


@click.command()
@click.argument("subject", metavar="MODEL[@REF]|CHECKPOINT|OBJECT")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the numbers of the log entries only.")
@store_options
def command(subject: str, as_json: bool, quiet: bool) -> None:
    """Say which log entries made, deleted, condemned and removed something: who, when, why."""
    from cairn.gc.subject import subject_of
    from cairn.gc.why_gone import why_gone

    with open_registry() as registry:
        registry.refresh()
        what = subject_of(registry, subject)
        gone = why_gone(registry, what)
    if as_json:
        rows = [
            {
                "entry": one.n,
                "type": one.type,
                "actor": one.actor.hex(),
                "claimed_at_ns": one.claimed_at,
                "text": one.text,
            }
            for one in gone.events
        ]
        emit_json({"subject": what.name, "here": gone.here, "text": gone.text, "entries": rows})
    elif quiet:
        for one in gone.events:
            emit(str(one.n))
    else:
        emit(safe(what.name))
        emit(f"  {safe(gone.text)}")
        for one in gone.events:
            who = f"{when(one.claimed_at)}  by {short(one.actor)}"
            emit(f"  entry {one.n:>6}  {who}  {one.type:<13} {safe(one.text)}")
