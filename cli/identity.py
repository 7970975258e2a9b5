"""`cairn identity`: the line that an owner needs to make somebody a member."""

import click

from cairn.cli.opening import store_options
from cairn.cli.output import emit, emit_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def command(as_json: bool) -> None:
    """Print your public identity: one line to give to an owner of a store. It is made on first use."""
    from cairn.registry.stores import own_identity

    identity = own_identity()
    if as_json:
        emit_json({"identity": identity.line(), "actor": identity.actor.hex()})
    else:
        emit(identity.line())
