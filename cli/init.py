"""`cairn init`: create a store."""

from pathlib import Path

import click

from cairn.cli.opening import new_passphrase, store_choice, store_options
from cairn.cli.output import emit, emit_json, note, safe
from cairn.core.errors import UsageError


@click.command()
@click.argument("location", required=False, metavar="[DIR|URL]")
@click.option("--passphrase", "by_passphrase", is_flag=True, help="Protect by CAIRN_PASSPHRASE, or one asked for.")
@click.option("--service", metavar="KIND:KEY", help="Protect by a key service: aws-kms:ID, vault-transit:MOUNT/KEY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the id of the store only.")
@store_options
def command(location: str | None, by_passphrase: bool, service: str | None, as_json: bool, quiet: bool) -> None:
    """Create a store in DIR/.cairn (default: here), or at a URL as it is; the key file goes to FILE if one is named."""
    from cairn.core.settings import Settings
    from cairn.registry.stores import create_store

    choice = store_choice()
    if location is not None and choice.store is not None:
        raise UsageError("two places are named", hint="write either --store or DIR")
    if service is not None and by_passphrase:
        raise UsageError("two protections are named", hint="write either --passphrase or --service")
    location = location or choice.store or "."
    key_file = Path(choice.key_file) if choice.key_file else None
    passphrase = None
    if by_passphrase:
        passphrase = Settings.from_environment().passphrase or new_passphrase("CAIRN_PASSPHRASE")
    opened, written = create_store(location, key_file=key_file, passphrase=passphrase, service=service)
    if as_json:
        ids = {"store": opened.store.hex(), "tenant": opened.tenant.hex()}
        emit_json({**ids, "location": opened.backend.url, "key_file": str(written) if written else None})
        return
    emit(opened.store.hex() if quiet else f"created store {opened.store.hex()} in {safe(opened.backend.url)}")
    if service is not None:
        note(f"Its key is sealed by {safe(service)} and lies in the store. Without that service nobody can read it.")
    elif written is None:
        note("Its key is sealed by the passphrase and lies in the store. Nobody can restore a lost passphrase.")
    else:
        note(f"Its key lies in {safe(str(written))}: copy it to a safe place.")
        note("Without that file nobody can read the store; with it, anybody who has the store can.")
