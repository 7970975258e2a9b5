"""`cairn push`: send a checkpoint to a remote."""

from typing import Any

import click

from cairn.cli.sending import run, sending_options


@click.command()
@sending_options
def command(**options: Any) -> None:
    """Send a checkpoint to REMOTE (default: origin) and move the branch or tag there.

    Only what the remote lacks is sent, sealed as it is. An interrupted push goes on where it was.
    """
    run(True, **options)
