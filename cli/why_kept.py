"""`cairn why-kept`: why is this still here?"""

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, emit_json, safe


@click.command()
@click.argument("subject", metavar="MODEL[@REF]|OBJECT|ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the ids of what keeps it only.")
@store_options
def command(subject: str, as_json: bool, quiet: bool) -> None:
    """Say what keeps a pack, another object, a chunk or a checkpoint, or what its collection waits for."""
    from cairn.gc.subject import subject_of
    from cairn.gc.why_kept import why_kept

    with open_registry() as registry:
        registry.refresh()
        what = subject_of(registry, subject)
        reasons = why_kept(registry, what)
    if as_json:
        rows = [{"kind": one.kind, "holder": one.holder, "text": one.text} for one in reasons]
        emit_json({"subject": what.name, "reasons": rows})
    elif quiet:
        for holder in dict.fromkeys(one.holder for one in reasons if one.holder):
            emit(holder)
    else:
        emit(what.name)
        for one in reasons:
            emit(f"  {safe(one.text)}")
