"""Subcommands of `cairn audit` that write something: exports, keys, entries."""

from pathlib import Path

import click

from cairn.cli.auditing import log_key_option, open_log
from cairn.cli.opening import PlainPath, open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe
from cairn.core.errors import UsageError

_READS = ("required", "best_effort", "off")
_APPROVALS = ("off", "descendants")


@click.command("export")
@click.argument("folder", required=False, type=PlainPath(path_type=Path), metavar="[DIR]")
@click.option("--jsonl", type=PlainPath(path_type=Path), metavar="FILE", help="Write one JSON object for each entry.")
@click.option("--sealed", is_flag=True, help="Open no names and messages, though keys are at hand.")
@log_key_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def export(folder: Path | None, jsonl: Path | None, sealed: bool, log_key: Path | None, as_json: bool) -> None:
    """Write the log to DIR for verifiers of tiled logs (C2SP tlog-tiles), entries as they are stored; sign the head."""
    from cairn.registry.auditexport import Export

    if folder is None and jsonl is None:
        raise UsageError("export to where?", hint="name a folder for tiles, or --jsonl FILE, or both")
    log = open_log(log_key)
    with log.registry() as registry:
        keys = registry.model_keys if registry is not None and not sealed else None
        done = Export(log.view, log.remembered(), keys).write(folder, jsonl, log.signer)
    if as_json:
        emit_json(
            {
                "length": done.head.length,
                "root": done.head.root.hex(),
                "key": done.key,
                "owner": done.owner,
                "long_bundles": done.long_bundles,
            }
        )
        return
    emit(f"exported {count(done.head.length, 'entry', 'entries')}, root {done.head.root.hex()}")
    if folder is not None:
        emit(f"key of the checkpoint: {done.key}")
        if not done.owner:
            note("note: you are no owner of the store, so you signed its head as a witness")
        if done.long_bundles:
            note(f"note: {count(done.long_bundles, 'bundle')} with entries over 64 KiB: see long-entries/")


@click.command("gather")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def gather(as_json: bool) -> None:
    """Let the log tell of the reads that have ended; 'gc apply' does it too."""
    from cairn.registry.reads import gather

    with open_registry() as registry:
        done = gather(registry)
    if as_json:
        emit_json({"reads": done.reads, "entries": done.entries, "unreadable": list(done.unreadable)})
        return
    emit(f"recorded {count(done.reads, 'read')} in {count(done.entries, 'entry', 'entries')}")
    for name in done.unreadable:
        note(f"warning: {safe(name)} holds no read of this store and was left alone")


@click.command("policy")
@click.option("--reads", type=click.Choice(_READS), help="Of a read that cannot be recorded, and of the records.")
@click.option("--delete-approval", type=click.Choice(_APPROVALS), help="Whether a second owner must approve the "
              "deletion of what others were made from.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def policy(reads: str | None, delete_approval: str | None, as_json: bool) -> None:
    """Show the settings of the store, or change them."""
    from cairn.registry.fold_policy import AUDIT_READS, DELETE_APPROVAL, settings_of
    from cairn.registry.policy import set_policy

    with open_registry() as registry:
        for name, value in ((AUDIT_READS, reads), (DELETE_APPROVAL, delete_approval)):
            if value is not None:
                set_policy(registry, name, value)
        settings = settings_of(registry.state)
    if as_json:
        emit_json(settings)
        return
    for name, value in settings.items():
        emit(f"{name} {value}")


@click.command("key")
@click.argument("file", type=PlainPath(path_type=Path))
@store_options
def key(file: Path) -> None:
    """Write the key of the log to FILE, for an auditor: it opens entries, and no name, message or content."""
    from cairn.registry.localfiles import write_private

    write_private(file, open_log(None).view.key_text())
    emit(f"wrote the log's key to {safe(str(file))}")
    note("note: whoever has it can read all entries, and try whether a model or ref has a name that can be guessed")
