"""`cairn ls`: models, or the files of a checkpoint."""

import os

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import PARTIAL, emit, emit_json, note, safe, size, table
from cairn.core.ids import short


@click.command()
@click.argument("selector", metavar="[MODEL[@REF]]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("-q", "--quiet", is_flag=True, help="Print model ids, or paths, only.")
@store_options
def command(selector: str | None, as_json: bool, quiet: bool) -> None:
    """List the models of the store, or the files of a checkpoint."""
    if selector is None:
        _models(as_json, quiet)
    else:
        _files(selector, as_json, quiet)


def _models(as_json: bool, quiet: bool) -> None:
    from cairn.core.errors import CairnError
    from cairn.core.ids import ModelId
    from cairn.registry.models import model_name, ref_value
    from cairn.registry.names import MAIN

    rows = []
    with open_registry() as registry:
        for identifier, state in registry.state.models.items():
            model = ModelId(identifier)
            try:
                name = model_name(registry, model)
            except CairnError as error:  # one damaged model must not hide the others
                name = f"<unreadable: {error.message}>"
            tip = ref_value(registry, model, MAIN)
            main = tip.hex() if tip else None
            partial = tip in state.checkpoints and state.checkpoints[tip].partial
            rows.append(
                {
                    "name": name,
                    "model": model.hex(),
                    "checkpoints": len(state.checkpoints),
                    "main": main,
                    "partial": partial,
                }
            )
    rows.sort(key=lambda row: str(row["name"]))
    if as_json:
        emit_json(rows)
    elif quiet:
        for row in rows:
            emit(str(row["model"]))
    else:
        table(("MODEL", "MAIN", "CHECKPOINTS", "ID"), map(_cells, rows))
        if not rows:
            note("no models: 'cairn commit PATH MODEL' or 'cairn pull MODEL' brings the first")


def _cells(row: dict[str, object]) -> list[str]:
    main = str(row["main"] or "-")[:12] + (f" {PARTIAL}" if row["partial"] else "")
    return [str(row["name"]), main, str(row["checkpoints"]), str(row["model"])]


def _files(selector: str, as_json: bool, quiet: bool) -> None:
    from cairn.registry.checkpoint import CheckpointManifest
    from cairn.registry.selectors import resolve

    with open_registry() as registry:
        model, checkpoint = resolve(registry, selector)
        manifest = CheckpointManifest(registry, model, checkpoint)
        entries, partial = [entry for entry in manifest.files() if entry.part == 0], manifest.state.partial
    if as_json:
        emit_json(
            [
                {
                    "path": os.fsdecode(e.path),
                    "kind": e.kind,
                    "size": e.size,
                    "mode": e.mode,
                    "container": e.container,
                    "partial": partial,
                }
                for e in entries
            ]
        )
        return
    if not quiet:
        emit(f"checkpoint {short(checkpoint)}" + (f" {PARTIAL}" if partial else ""))
        if not entries:
            note("no files: 'cairn show --tensors' lists the tensors")
    for entry in entries:
        name = safe(os.fsdecode(entry.path)) + ("/" if entry.kind == "folder" else "")
        link = f" -> {safe(os.fsdecode(entry.target))}" if entry.kind == "link" else ""
        emit(
            name
            if quiet
            else f"{entry.mode:04o}  {size(entry.size) if entry.kind == 'file' else '-':>10}  {name}{link}"
        )
