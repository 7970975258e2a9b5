"""`cairn pull`: bring a checkpoint from a remote."""

from typing import Any

import click

from cairn.cli.requiring import requiring_options
from cairn.cli.sending import run, sending_options


@click.command()
@sending_options
@requiring_options
def command(**options: Any) -> None:
    """Bring a checkpoint of REMOTE (default: origin) here and move the branch or tag.

    Only what this store lacks is fetched. With --only or --tensors the checkpoint is here in part; a later pull brings
    the rest. The branch only moves forward. With --require-signed nothing is changed unless a trusted signer says that
    the branch or tag means this checkpoint (exit code 3).
    """
    run(False, **options)
