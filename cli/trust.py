"""`cairn trust`: whose signatures count for this user."""

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, emit_json, note, safe, table
from cairn.core.ids import short


@click.group()
@store_options
def command() -> None:
    """Name those whose signatures count here, for all stores of this tenant."""


@command.command("add")
@click.argument("identity")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Only for this model; can be repeated.")
@click.option("--name", default="", metavar="TEXT", help="What you call the signer.")
@store_options
def add(identity: str, models: tuple[str, ...], name: str) -> None:
    """Let signatures of IDENTITY count: the line that `cairn identity` prints there, got on a way that you trust."""
    from cairn.registry.names import check_model_name
    from cairn.registry.trust import signer_by, trust

    signer = signer_by(identity, tuple(map(check_model_name, models)), name)
    with open_registry() as registry:
        trust(registry.opened, signer)
    emit(f"signatures of {short(signer.actor)} count for {safe(', '.join(models)) or 'all models'}")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the signers' ids only.")
@store_options
def show(as_json: bool, quiet: bool) -> None:
    """List whose signatures count."""
    from cairn.registry.trust import noted_trust

    with open_registry() as registry:
        known = noted_trust(registry.opened)
    if as_json:
        emit_json(
            [
                {"signer": one.actor.hex(), "identity": one.identity, "models": list(one.models), "name": one.name}
                for one in known.signers
            ]
        )
        return
    if quiet:
        for one in known.signers:
            emit(one.actor.hex())
        return
    rows = [(short(one.actor), one.name, ", ".join(one.models) or "all models") for one in known.signers]
    table(("SIGNER", "NAME", "COUNTS FOR"), rows)
    if not known.signers:
        note("nobody's signature counts: 'cairn trust add IDENTITY' names somebody")


@command.command("remove")
@click.argument("signer", metavar="IDENTITY|DIGITS|NAME")
@store_options
def remove(signer: str) -> None:
    """Let signatures of a signer count no longer, those that were made before included."""
    from cairn.registry.trust import distrust

    with open_registry() as registry:
        gone = distrust(registry.opened, signer)
    emit(f"signatures of {short(gone.actor)} count no longer")
