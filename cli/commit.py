"""`cairn commit`: store a file or folder as a checkpoint."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cairn.cli import memo
from cairn.cli.opening import PlainPath, open_registry, store_options
from cairn.cli.output import count, emit, json_text, note, safe, size
from cairn.cli.progress import ProgressBar
from cairn.core.errors import StorageError, UsageError
from cairn.core.ids import short
from cairn.manifests.relations import DECLARED

if TYPE_CHECKING:
    from cairn.registry.lineage import DeclaredParent
    from cairn.registry.registry import Registry
    from cairn.workspace.commit import CommitResult


@click.command()
@click.argument("path", type=PlainPath(path_type=Path))
@click.argument("model", metavar="MODEL[@BRANCH]")
@click.option("--step", type=click.IntRange(min=0), help="Training step of the checkpoint.")
@click.option("-m", "--message", default="", help="What is in it.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME=VALUE", help="A number that it is told by; repeatable."
)
@click.option("--parent", "parents", multiple=True, metavar="MODEL[@REF]", help="What it was made from; repeatable.")
@click.option(
    "--relation", "relations", multiple=True, type=click.Choice(DECLARED),
    help="How it was made from the parent: one for each --parent in order, or one for all.",
)  # fmt: skip
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
    metrics: tuple[str, ...],
    parents: tuple[str, ...],
    relations: tuple[str, ...],
    opaque: bool,
    always: bool,
    codec: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Store PATH, a file or folder, as a checkpoint on a branch of MODEL (default: main).

    Tensors in safetensors and PyTorch files are stored by content, once, whatever file they come in; every
    file comes back byte for byte. Folders of distributed checkpoints (DCP, DeepSpeed) are stored as logical state,
    without their files. A commit of unchanged content makes no new checkpoint.
    """
    from cairn.registry.metrics import parse_metric
    from cairn.registry.selectors import parse_selector
    from cairn.store.codec import CodecPolicy
    from cairn.workspace.commit import CommitOptions, commit

    selector = parse_selector(model)
    named, made_from = dict(map(parse_metric, metrics)), _declared(parents, relations)
    options = CommitOptions(selector.revision, step, message, opaque, always, CodecPolicy(codec), named, made_from)
    form = "json" if as_json else "id" if quiet else "text"
    with open_registry() as registry, ProgressBar(quiet or as_json) as progress:
        result = commit(registry, path, selector.model, options, progress)
    for warning in result.warnings:
        note(f"warning: {safe(warning)}")
    try:
        emit(_text(result, model, form))
    except OSError as error:
        done = f"committed as {result.checkpoint.hex()}"
        raise StorageError(f"{done}, but that cannot be printed: {error.strerror}") from None
    # What a parent's selector means may change by this very commit.
    if not always and not result.warnings and not parents:
        _remember(registry, path, result, _text(result.unchanged(), model, form) + "\n")


def _declared(parents: tuple[str, ...], relations: tuple[str, ...]) -> "tuple[DeclaredParent, ...]":
    from cairn.registry.lineage import DeclaredParent

    if len(relations) == 1 and parents:
        relations *= len(parents)
    if len(parents) != len(relations):
        raise UsageError(
            f"{count(len(parents), '--parent')} and {count(len(relations), '--relation')} do not fit together",
            hint="give one --relation for each --parent, in order, or one for all",
        )
    return tuple(map(DeclaredParent, parents, relations))


def _remember(registry: "Registry", path: Path, result: "CommitResult", out: str) -> None:
    """Keep the answer that the same command would give next, if stamps can prove that nothing changed."""
    from msgspec import structs

    from cairn.registry.formatfile import NAME as FORMAT_NAME
    from cairn.registry.location import FOLDER, nearer_places
    from cairn.registry.names import entry_name
    from cairn.store.backends.posix import PosixBackend
    from cairn.workspace.commit import objects_behind

    backend, key_file, tree = registry.opened.backend, registry.opened.key_file, result.tree
    arguments = sys.argv[1:]
    named = [number for number, argument in enumerate(arguments) if Path(argument) == path]
    odd_stores = any(os.path.basename(store) != os.fsencode(FOLDER) for store in tree.stores)
    if not isinstance(backend, PosixBackend) or key_file is None or not named or odd_stores or not result.settled:
        return
    seen = [(node.path.hex(), list(structs.astuple(node.stamp))) for node in (() if tree.single else tree.nodes)]
    real = os.fsdecode(tree.root)
    print_of_tree = memo.fingerprint(real, [("", list(structs.astuple(tree.root_stamp))), *seen])
    stamps = []
    length = registry.state.length
    behind = objects_behind(registry, result.model, result.checkpoint)
    names = [FORMAT_NAME, entry_name(length - 1), *behind, *result.packs]
    for relied in (key_file, *(backend.root / name for name in names)):
        now = memo.stamp(os.fspath(relied.absolute()))
        if now is None:
            return
        stamps.append((os.fspath(relied.absolute()), now))
    entries = os.fspath(backend.root / entry_name(length - 1)), os.fspath(backend.root / entry_name(length))
    nearer = [os.fspath(folder) for folder in nearer_places(Path.cwd(), backend.root)]
    memo.remember(arguments, named[0], print_of_tree, entries, nearer, stamps, out)


def _text(result: "CommitResult", model: str, form: str) -> str:
    if form == "json":
        return json_text(_as_json(result))
    if form == "id":
        return result.checkpoint.hex()
    counts = result.counts
    if not result.created:
        return f"unchanged: still {short(result.checkpoint)}"
    return (
        f"{safe(model)} is now {short(result.checkpoint)}\n"
        f"  {count(result.files, 'file')}, {count(result.tensors, 'tensor')}, {size(result.bytes_logical)}: "
        f"{size(counts.bytes_new)} new in {count(counts.chunks_new, 'chunk')}, "
        f"{size(counts.bytes_reused)} reused in {counts.chunks_reused}"
    )


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
