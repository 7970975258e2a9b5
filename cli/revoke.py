"""`cairn revoke`: takes back what was granted."""

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, safe
from cairn.core.ids import short


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="MODEL IDENTITY | --all IDENTITY")
@click.option("--all", "everything", is_flag=True, help="What was granted for all models at once.")
@store_options
def command(names: tuple[str, ...], everything: bool) -> None:
    """Take back what was granted for MODEL, and rotate the keys concerned.

    What was readable before stays readable to who kept the old keys; what is committed from here on is not.
    """
    from cairn.cli.grant import split_names
    from cairn.cli.members import rotate_and_tell
    from cairn.registry.members import find_member, revoke
    from cairn.registry.models import find_model

    model_name, identity = split_names(names, everything)
    with open_registry() as registry:
        actor = find_member(registry, identity)
        revoke(registry, actor, find_model(registry, model_name) if model_name else None)
        emit(f"{short(actor)} has no grant any more: {safe(model_name) or 'all models at once'}")
        rotate_and_tell(registry)
