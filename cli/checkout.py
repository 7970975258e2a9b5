"""`cairn checkout`: write a checkpoint's files, or its tensors in another format."""

from pathlib import Path
from typing import Any

import click

from cairn.cli.opening import PlainPath, open_registry, store_options
from cairn.cli.output import count, emit, emit_json, safe, size
from cairn.cli.progress import ProgressBar
from cairn.core.errors import UsageError
from cairn.core.ids import short

_FILES = "files"


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.argument("destination", type=PlainPath(path_type=Path), metavar="DEST")
@click.option(
    "--format",
    "form",
    type=click.Choice([_FILES, "safetensors", "torch", "dcp"]),
    default=_FILES,
    help="What to write: the files as they were committed, or the tensors in this format.",
)
@click.option(
    "--component",
    "components",
    type=click.Choice(["weights", "optimizer", "training"]),
    multiple=True,
    help="Parts to write in another format; weights for safetensors, else all.",
)
@click.option("--shard-bytes", type=click.IntRange(1), help="About the largest file of safetensors and dcp; 5 GB.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the checkpoint id only.")
@store_options
def command(
    selector: str,
    destination: Path,
    form: str,
    components: tuple[str, ...],
    shard_bytes: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a checkpoint to DEST, which must not exist or be an empty folder."""
    from msgspec import structs

    from cairn.registry.selectors import resolve
    from cairn.workspace.checkout import checkout

    if form == _FILES and (components or shard_bytes):
        raise UsageError("files are written as they were committed", hint="name another --format too")
    with open_registry() as registry, ProgressBar(quiet or as_json) as progress:
        model, checkpoint = resolve(registry, selector)
        if form == _FILES:
            plain = checkout(registry, model, checkpoint, destination, progress)
            facts: dict[str, Any] = structs.asdict(plain)
            text = count(plain.files, "file")
        else:
            from cairn.workspace.export import SHARD_BYTES, ExportOptions, export

            options = ExportOptions(form, components, shard_bytes or SHARD_BYTES)
            made = export(registry, model, checkpoint, destination, options, progress)
            text = f"{count(made.tensors, 'tensor')} and {count(made.values, 'value')} in {count(made.files, 'file')}"
            facts = structs.asdict(made)
    del facts["requests"]
    if as_json:
        emit_json({"checkpoint": checkpoint.hex(), "destination": str(destination), **facts})
    elif quiet:
        emit(checkpoint.hex())
    else:
        emit(f"wrote {short(checkpoint)} to {safe(str(destination))}: {text}, {size(facts['bytes_logical'])}")
