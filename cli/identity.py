"""`cairn identity`: the line that an owner needs to make somebody a member."""

from pathlib import Path

import click

from cairn.cli.opening import PlainPath, store_options
from cairn.cli.output import emit, emit_json


@click.command()
@click.option("--file", "file", type=PlainPath(path_type=Path), help="An identity of its own in this file.")
@click.option("--pem", is_flag=True, help="Print the key that it signs with as PEM, for other tools.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the actor id only.")
@store_options
def command(file: Path | None, pem: bool, as_json: bool, quiet: bool) -> None:
    """Print your public identity: one line to give to an owner of a store. It is made on first use."""
    from cairn.registry.stores import own_identity

    identity = own_identity(file)
    if as_json:
        emit_json({"identity": identity.line(), "actor": identity.actor.hex(), "pem": identity.public.pem()})
    elif quiet:
        emit(identity.actor.hex())
    else:
        emit(identity.public.pem().rstrip() if pem else identity.line())
