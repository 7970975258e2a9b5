"""`cairn grant`: what a member may do with a model."""

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, safe
from cairn.core.errors import UsageError
from cairn.core.ids import short

COMPONENTS = ("weights", "optimizer", "training", "files", "provenance")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="MODEL IDENTITY | --all IDENTITY")
@click.option("--all", "everything", is_flag=True, help="For all models, those to come included.")
@click.option("--read", "reads", metavar="COMPONENTS", default="", help="What to read, separated by commas; or 'all'.")
@click.option("--write", is_flag=True, help="Commit, and move and remove refs.")
@click.option("--create", is_flag=True, help="Make the model if there is none.")
@store_options
def command(names: tuple[str, ...], everything: bool, reads: str, write: bool, create: bool) -> None:
    """Say what a member may do with MODEL; takes the place of what was granted for it before.

    IDENTITY is the line of a member's identity, or the first digits of its actor id.
    """
    from cairn.cli.members import rotate_and_tell
    from cairn.registry.members import find_member, grant
    from cairn.registry.models import ensure_model, find_model
    from cairn.store.crypto.components import ComponentClass

    model_name, identity = split_names(names, everything)
    wanted = COMPONENTS if reads == "all" else tuple(part for part in reads.split(",") if part)
    if unknown := [name for name in wanted if name not in COMPONENTS]:
        raise UsageError(f"no component {unknown[0]!r}", hint=f"name some of {', '.join(COMPONENTS)}")
    if not wanted and not write:
        raise UsageError("nothing is granted", hint="name --read COMPONENTS, --write, or both")
    with open_registry() as registry:
        actor, model = find_member(registry, identity), None
        if model_name:
            model = ensure_model(registry, model_name) if create else find_model(registry, model_name)
        grant(registry, actor, model, [ComponentClass[name.upper()] for name in wanted], write)
        verbs = [f"read {', '.join(wanted)}"] if wanted else []
        said = " and ".join([*verbs, *(["write"] if write else [])])
        emit(f"{short(actor)} may {said}: {safe(model_name) or 'all models'}")
        rotate_and_tell(registry)


def split_names(names: tuple[str, ...], everything: bool) -> tuple[str, str]:
    """Name of the model (empty for all) and who is meant."""
    if len(names) != (1 if everything else 2):
        raise UsageError("name a model and a member, or --all and a member")
    return ("", names[0]) if everything else (names[0], names[1])
