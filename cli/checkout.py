"""`cairn checkout`: write a checkpoint's files."""

from pathlib import Path

import click

from cairn.cli.opening import PlainPath, open_registry, store_options
from cairn.cli.output import emit, emit_json, safe, size
from cairn.cli.progress import ProgressBar
from cairn.core.ids import short


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.argument("destination", type=PlainPath(path_type=Path), metavar="DEST")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the checkpoint id only.")
@store_options
def command(selector: str, destination: Path, as_json: bool, quiet: bool) -> None:
    """Write the files of a checkpoint to DEST, which must not exist or be an empty folder."""
    from cairn.registry.selectors import resolve
    from cairn.workspace.checkout import checkout

    with open_registry() as registry, ProgressBar(quiet or as_json) as progress:
        model, checkpoint = resolve(registry, selector)
        result = checkout(registry, model, checkpoint, destination, progress)
    if as_json:
        facts = {"checkpoint": checkpoint.hex(), "destination": str(destination), "files": result.files}
        emit_json({**facts, "bytes_logical": result.bytes_logical, "bytes_fetched": result.bytes_fetched})
    elif quiet:
        emit(checkpoint.hex())
    else:
        where = safe(str(destination))
        emit(f"wrote {short(checkpoint)} to {where}: {result.files} files, {size(result.bytes_logical)}")
