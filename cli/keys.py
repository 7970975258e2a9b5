"""`cairn keys`: generations of keys, and what to keep for a bad day."""

from pathlib import Path
from typing import Any

import click

from cairn.cli.opening import PlainPath, new_passphrase, open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, table
from cairn.core.errors import UsageError


@click.group()
@store_options
def command() -> None:
    """Show and rotate keys."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the ids of the models only.")
@store_options
def show(as_json: bool, quiet: bool) -> None:
    """List the generations of the root key and of all models' keys, and where rotation is due."""
    from cairn.core.ids import ModelId
    from cairn.registry.models import name_or_id
    from cairn.store.crypto.components import ComponentClass

    rows: list[dict[str, Any]] = []
    with open_registry() as registry:
        state = registry.state
        for identifier, model in state.models.items():
            name = name_or_id(registry, ModelId(identifier))
            keys = {ComponentClass(one).name.lower(): key.generation for one, key in model.newest_keys().items()}
            due = [ComponentClass(component).name.lower() for component in model.exposed]
            rows.append({"model": name, "generations": keys, "due": due, "readers": len(model.readers)})
    if as_json:
        emit_json({"root": state.root_generation, "root_due": state.root_exposed, "models": rows})
        return
    if quiet:
        for identifier in state.models:
            emit(identifier.hex())
        return
    emit(f"root key: generation {state.root_generation}" + (", known to a former owner" if state.root_exposed else ""))
    table(
        ("MODEL", "GENERATIONS", "READERS", "DUE"),
        (
            (
                str(row["model"]),
                " ".join(f"{name}={number}" for name, number in row["generations"].items()),
                str(row["readers"]),
                ",".join(row["due"]) or "-",
            )
            for row in rows
        ),
    )


@command.command("rotate")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--due", is_flag=True, help="Those keys whose rotation is due.")
@store_options
def rotate(models: tuple[str, ...], due: bool) -> None:
    """Give models new keys: what is committed from here on is sealed to them. Saves that run are not disturbed."""
    from cairn.registry.models import find_model
    from cairn.registry.rotation import rotate_exposed, rotate_model

    if bool(models) == due:
        raise UsageError("which keys?", hint="name models, or --due")
    with open_registry() as registry:
        for model in [find_model(registry, name) for name in models]:
            rotate_model(registry, model)
        number = len(rotate_exposed(registry)) if due else len(models)
    emit(f"rotated the keys of {count(number, 'model')}" if number else "no rotation is due")


@command.command("rewrap")
@click.option("--passphrase", "by_passphrase", is_flag=True, help="Protect by CAIRN_NEW_PASSPHRASE, or one asked for.")
@click.option("--service", metavar="KIND:KEY", help="Protect by a key service: aws-kms:ID, vault-transit:MOUNT/KEY.")
@store_options
def rewrap(by_passphrase: bool, service: str | None) -> None:
    """Make a new root key, which wraps everything anew. Old key files, passphrases and recovery files are then void."""
    from cairn.core.settings import Settings
    from cairn.registry.rotation import needs_passphrase, rotate_root

    if service is not None and by_passphrase:
        raise UsageError("two protections are named", hint="write either --passphrase or --service")

    with open_registry() as registry:
        passphrase = None
        if by_passphrase or (service is None and needs_passphrase(registry)):
            passphrase = Settings.from_environment().new_passphrase or new_passphrase("CAIRN_NEW_PASSPHRASE")
        key_file = rotate_root(registry, passphrase, service)
        generation = registry.state.root_generation
    emit(f"the root key is of generation {generation}")
    if key_file is None and passphrase is None:
        note("It is sealed by the key service, and lies in the store.")
    elif key_file is None:
        note("It is sealed by the new passphrase. Nobody can restore a lost passphrase.")
    else:
        note(f"It lies in {safe(str(key_file))}: copy it to a safe place, and to every owner who is no member.")


@command.command("export-recovery")
@click.argument("file", type=PlainPath(path_type=Path))
@store_options
def export_recovery(file: Path) -> None:
    """Write a file that opens everything (as --key-file) until the root key changes: for a safe, not this machine."""
    from cairn.registry.rotation import export_recovery as export

    with open_registry() as registry:
        export(registry, file)
    emit(f"wrote {safe(str(file))}")
    note("Whoever holds it can read and write everything in the store: take it away from this machine.")
