"""`cairn commit`: store a file or folder as a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, emit_json, note, safe, size
from cairn.cli.progress import ProgressBar
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.workspace.commit import CommitResult


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("model", metavar="MODEL[@BRANCH]")
@click.option("--step", type=click.IntRange(min=0), help="Training step of the checkpoint.")
@click.option("-m", "--message", default="", help="What is in it.")
@click.option("--opaque", is_flag=True, help="Keep all files as plain bytes; parse none.")
@click.option("--always", is_flag=True, help="Make a checkpoint even if nothing changed since the last one.")
@click.option(
    "--codec", type=click.Choice(["raw", "zstd"]), default="raw", show_default=True, help="How chunks are encoded."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the checkpoint id only.")
@store_options
def command(
    path: Path,
    model: str,
    step: int | None,
    message: str,
    opaque: bool,
    always: bool,
    codec: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Store PATH, a file or folder, as a checkpoint on a branch of MODEL (default: main).

    Tensors in safetensors and PyTorch files are stored by content, once, whatever file they come in; every
    file comes back byte for byte. A commit of unchanged content makes no new checkpoint.
    """
    from cairn.registry.selectors import parse_selector
    from cairn.store.codec import CodecPolicy
    from cairn.workspace.commit import CommitOptions, commit

    selector = parse_selector(model)
    options = CommitOptions(selector.revision, step, message, opaque, always, CodecPolicy(codec))
    with open_registry() as registry, ProgressBar(quiet or as_json) as progress:
        result = commit(registry, path, selector.model, options, progress)
    for warning in result.warnings:
        note(f"warning: {safe(warning)}")
    if as_json:
        emit_json(_as_json(result))
    elif quiet:
        emit(result.checkpoint.hex())
    else:
        _render(result, model)


def _as_json(result: "CommitResult") -> dict[str, object]:
    counts = result.counts
    return {
        "checkpoint": result.checkpoint.hex(),
        "model": result.model.hex(),
        "created": result.created,
        "files": result.files,
        "tensors": result.tensors,
        "bytes_logical": result.bytes_logical,
        "bytes_new": counts.bytes_new,
        "bytes_reused": counts.bytes_reused,
        "chunks_new": counts.chunks_new,
        "chunks_reused": counts.chunks_reused,
        "bytes_stored": counts.bytes_stored + result.manifest.bytes_stored,
        "warnings": list(result.warnings),
    }


def _render(result: "CommitResult", model: str) -> None:
    counts = result.counts
    if not result.created:
        emit(f"{safe(model)} is unchanged: still {short(result.checkpoint)}")
        return
    emit(f"{safe(model)} is now {short(result.checkpoint)}")
    emit(
        f"  {result.files} files, {result.tensors} tensors, {size(result.bytes_logical)}: "
        f"{size(counts.bytes_new)} new in {counts.chunks_new} chunks, "
        f"{size(counts.bytes_reused)} reused in {counts.chunks_reused}"
    )
