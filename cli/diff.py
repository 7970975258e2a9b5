"""`cairn diff`: what changed between two checkpoints."""

import os
from typing import TYPE_CHECKING

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import count, emit, emit_json, safe

if TYPE_CHECKING:
    from cairn.manifests.diff import TensorChange
    from cairn.manifests.schema import TensorEntry


@click.command()
@click.argument("old", metavar="MODEL[@REF]")
@click.argument("new", metavar="MODEL[@REF]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def command(old: str, new: str, as_json: bool) -> None:
    """Compare two checkpoints by tensors and files."""
    from cairn.registry.compare import compare
    from cairn.registry.selectors import resolve

    with open_registry() as registry:
        result = compare(registry, resolve(registry, old), resolve(registry, new))
    if as_json:
        emit_json(
            {
                "old": result.old.hex(),
                "new": result.new.hex(),
                "tensors": [_tensor_json(change) for change in result.tensors],
                "tensors_equal": result.tensors_equal,
                "values": [{"name": str(c.key), "kind": c.kind} for c in result.values],
                "files": [{"path": os.fsdecode(c.path), "kind": c.kind} for c in result.files],
                "bytes_shared": result.bytes_shared,
            }
        )
        return
    for change in result.tensors:
        emit(f"{change.kind:<9} tensor {safe(str(change.key))}{_detail(change)}")
    for value in result.values:
        emit(f"{value.kind:<9} value  {safe(str(value.key))}")
    for file in result.files:
        emit(f"{file.kind:<9} file   {safe(os.fsdecode(file.path))}")
    others = f"; {_differing(len(result.values), 'value')}" if result.values else ""
    equal = f"{result.tensors_equal} {'is' if result.tensors_equal == 1 else 'are'} equal"
    emit(f"{_differing(len(result.tensors), 'tensor')}, {equal}{others}; {_differing(len(result.files), 'file')}")


def _differing(number: int, noun: str) -> str:
    return f"{count(number, noun)} {'differs' if number == 1 else 'differ'}"


def _detail(change: "TensorChange") -> str:
    if change.kind == "reshaped" and change.old and change.new:
        before, after = change.old, change.new
        return f": {before.dtype}{list(before.shape)} -> {after.dtype}{list(after.shape)}"
    return f": {change.tiles_changed} of {change.tiles} tiles" if change.tiles_changed is not None else ""


def _tensor_json(change: "TensorChange") -> dict[str, object]:
    def form(entry: "TensorEntry | None") -> dict[str, object] | None:
        return {"dtype": entry.dtype, "shape": list(entry.shape)} if entry else None

    tiles = {"tiles_changed": change.tiles_changed, "tiles": change.tiles}
    return {"name": str(change.key), "kind": change.kind, "old": form(change.old), "new": form(change.new), **tiles}
