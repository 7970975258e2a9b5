"""`cairn receipt`: proof of what was deleted, for others."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.newfiles import write_new
from cairn.cli.opening import PlainPath, open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, size, table, when
from cairn.core.errors import BadInput, NotFoundError

if TYPE_CHECKING:
    from cairn.core.ids import ModelId
    from cairn.registry.receiptform import Statement
    from cairn.registry.registry import Registry


@click.group()
@store_options
def command() -> None:
    """Make and verify receipts of deleted models."""


@command.command("create")
@click.argument("model", metavar="MODEL|ID")
@click.option("-o", "--output", type=PlainPath(path_type=Path), required=True, metavar="FILE", help="A new file.")
@store_options
def create(model: str, output: Path) -> None:
    """Write the receipt of a deleted model, by its name or id, as things stand now."""
    from cairn.registry.modeldeletion import find_deleted

    check_new(output)
    with open_registry() as registry:
        registry.refresh()
        told = write_receipt(registry, find_deleted(registry, model), output)
    render(told)
    note(f"next: give {safe(str(output))} to whoever asks, with the key that 'cairn audit head --json' prints")


@command.command("verify")
@click.argument("file", type=PlainPath(path_type=Path))
@click.option("--key", required=True, metavar="KEY", help="The log's public key, from 'cairn audit head --json', or an "
              "owner's id; from a source that you trust, not from who sent the receipt.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code tells.")
@store_options
def verify(file: Path, key: str, as_json: bool, quiet: bool) -> None:
    """Check a receipt with nothing but its file and the log's public key; needs no store.

    Exit code 6 means that it is not what the log's owner signed, or that its entries do not say what it says.
    """
    from cairn.core.limits import RECEIPT_BYTES_MAX
    from cairn.registry.receiptform import check_receipt

    try:
        with file.open("rb") as opened:
            data = opened.read(RECEIPT_BYTES_MAX + 1)
    except OSError as error:
        raise NotFoundError(f"{file} cannot be read: {error.strerror}") from None
    told = check_receipt(data, key)
    if as_json:
        emit_json(as_facts(told))
    elif not quiet:
        emit(f"verified: signed by {told.signer}, and its entries are in the log of store {told.store}")
        render(told)
        note("note: a receipt is a signed claim with evidence: that bytes are gone, nobody can prove to others")


def check_new(output: Path) -> None:
    """Raise unless a receipt can be written there, which is tried."""
    if not output.absolute().parent.is_dir():
        raise BadInput(f"there is no folder {str(output.parent)!r}", hint="make it, or name another file")
    write_new(output, b"")
    output.unlink()


def write_receipt(registry: "Registry", model: "ModelId", output: Path) -> "Statement":
    """Make a receipt and write it to a new file; returns what it says."""
    from cairn.registry.receiptform import encode_receipt
    from cairn.registry.receipts import make_receipt

    made = make_receipt(registry, model)
    write_new(output, encode_receipt(made))
    return made.statement


def as_facts(told: "Statement") -> dict[str, Any]:
    """A statement as plain values."""
    import msgspec

    facts: dict[str, Any] = msgspec.to_builtins(told)
    return facts


def render(told: "Statement") -> None:
    """Print what a receipt says."""
    packs = sum(high - low + 1 for low, high in told.packs)
    swept = f"{len(told.objects) - len(told.objects_left)} of {count(len(told.objects), 'object')}"
    swept += f" and {packs - len(told.packs_left)} of {count(packs, 'pack')} swept"
    emit(f"model {told.model} of store {told.store}: {count(told.checkpoints, 'checkpoint')}")
    emit(f"deleted       {when(told.deleted.claimed_at_ns)} by {told.deleted.actor[:12]} ({safe(told.cause)})")
    since = told.inaccessible_since_ns
    emit(f"inaccessible  {when(since) if since is not None else 'not yet'}")
    final = told.irrecoverable_since_ns
    emit(f"irrecoverable {when(final) if final is not None else 'not claimed: see what is open'}")
    emit(f"destroyed     {count(told.alone.chunks, 'chunk')}, {size(told.alone.stored_bytes)}; {swept}")
    for one in told.shared:
        emit(f"kept          {count(one.chunks, 'chunk')}, {size(one.stored_bytes)}: model {one.model} needs them too")
    if told.readers:
        rows = []
        for reader in told.readers:
            last = when(reader.last_ns) if reader.last_ns is not None else ""
            rows.append((reader.actor[:12], reader.as_ or "former", str(reader.reads), last))
        table(("WHO COULD READ", "AS", "READS", "LAST"), rows)
    for confirmed in told.confirmed:
        emit(f"confirmed     {safe(confirmed.of)}, {when(confirmed.event.claimed_at_ns)}")
    for left in told.open:
        emit(f"open          {safe(left.of)}: {safe(left.why)}")
    if any(left.confirmable for left in told.open):
        note(f"note: 'cairn delete confirm {told.model[:12]} WHAT --yes' tells the log what is gone there, too")
