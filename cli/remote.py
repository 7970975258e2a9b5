"""`cairn remote`: other stores of the tenant, by name."""

from pathlib import Path

import click

from cairn.cli.opening import ask_passphrase, open_registry, store_options
from cairn.cli.output import emit, emit_json, note, safe, table


@click.group()
@store_options
def command() -> None:
    """Name other stores of this tenant, to push to and pull from."""


@command.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--create", is_flag=True, help="Make an empty store of this tenant there.")
@click.option("--remote-key-file", metavar="FILE", help="Key file of the remote, if it is not in its usual place.")
@click.option("--require-signed", is_flag=True, help="Pull nothing from it that no trusted signer vouches for.")
@store_options
def add(name: str, url: str, create: bool, remote_key_file: str | None, require_signed: bool) -> None:
    """Remember the store at URL as NAME; `origin` is the one that push and pull use by default."""
    from cairn.registry.policy import carry_policy
    from cairn.registry.remotes import Remote, Remotes
    from cairn.registry.stores import create_twin, open_remote
    from cairn.registry.sync import check_same_tenant

    with open_registry() as registry:
        remotes = Remotes(registry.opened)
        remotes.check_free(name)
        key_file = Path(remote_key_file) if remote_key_file else None
        if create:
            opened, written = create_twin(url, registry.opened)
            note(f"created store {opened.store.hex()} in {safe(opened.backend.url)}")
            if written is not None:
                note(f"Its key lies in {safe(str(written))}: copy it to a safe place, and to whoever is to pull.")
        other = open_remote(url, key_file=key_file, ask=ask_passphrase)
        try:
            check_same_tenant(registry, other)
            if create:
                carry_policy(registry, other)
        finally:
            other.close()
        remote = Remote.at(url, key_file, require_signed)
        remotes.add(name, remote)
    emit(f"remote {name} is {safe(remote.url)}")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the names only.")
@store_options
def show(as_json: bool, quiet: bool) -> None:
    """List the remotes of this store."""
    from cairn.registry.remotes import Remotes

    with open_registry() as registry:
        known = Remotes(registry.opened).all()
    if as_json:
        emit_json(
            {
                name: {"url": one.url, "key_file": one.key_file or None, "require_signed": one.require_signed}
                for name, one in known.items()
            }
        )
        return
    if quiet:
        for name in known:
            emit(name)
        return
    rows = [(name, one.url, "signed only" if one.require_signed else "") for name, one in known.items()]
    table(("NAME", "URL", "TAKES"), rows)
    if not known:
        note("no remotes: 'cairn remote add NAME URL' names one, with --create it makes the store too")


@command.command("remove")
@click.argument("name")
@store_options
def remove(name: str) -> None:
    """Forget a remote; its store stays."""
    from cairn.registry.remotes import Remotes

    with open_registry() as registry:
        Remotes(registry.opened).remove(name)
    emit(f"forgot remote {safe(name)}")
