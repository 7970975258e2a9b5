"""`cairn show`: what a checkpoint holds."""

from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import count, emit, emit_json, json_numbers, safe, size, table, when

if TYPE_CHECKING:
    from cairn.registry.checkpoint import CheckpointManifest
    from cairn.registry.registry import Registry


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.option("--tensors", is_flag=True, help="List the tensors too.")
@click.option("--plan", metavar="SHARE", help="What rank R of N would read, as R/N or R/N:AXIS.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the checkpoint id only.")
@store_options
def command(selector: str, tensors: bool, plan: str | None, as_json: bool, quiet: bool) -> None:
    """Show the facts of a checkpoint, and its tensors."""
    from cairn.manifests.dtypes import nbytes
    from cairn.manifests.schema import TensorEntry
    from cairn.registry.checkpoint import CheckpointManifest
    from cairn.registry.models import open_meta, saved_at
    from cairn.registry.selectors import resolve

    with open_registry() as registry:
        model, checkpoint = resolve(registry, selector)
        if quiet:
            emit(checkpoint.hex())
            return
        manifest = CheckpointManifest(registry, model, checkpoint, readable_only=True)
        meta = open_meta(registry, model, manifest.state)
        roots = {component: manifest.root(component) for component in manifest.components}
        absent = [component.name.lower() for component in manifest.absent()]
        entries = [entry for entry in manifest.entries() if isinstance(entry, TensorEntry)] if tensors else []
        reading = _plan(registry, manifest, plan) if plan else None
    facts: dict[str, Any] = {
        "checkpoint": checkpoint.hex(),
        "model": model.hex(),
        "step": meta.step,
        "message": meta.message,
        "metrics": json_numbers(meta.metrics),
        "saved_at_ns": saved_at(manifest.state, meta),
        "claimed_at_ns": manifest.state.claimed_at,
        "actor": manifest.state.actor.hex(),
        "entry": manifest.state.n,
        "partial": manifest.state.partial,
        "absent": absent,
        "not_granted": [component.name.lower() for component in manifest.hidden],
        "parents": [{"relation": p.relation, "checkpoint": p.checkpoint.hex()} for p in manifest.body.parents],
        "exactness": manifest.body.exactness,
        "components": {
            component.name.lower(): {"entries": root.entries, "bytes_logical": root.bytes_logical}
            for component, root in roots.items()
        },
    }
    rows = [
        {
            "name": str(entry.key),
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "bytes": nbytes(entry.dtype, entry.shape),
            "tied_to": str(entry.tied_to) if entry.tied_to else None,
        }
        for entry in entries
    ]
    if as_json:
        facts |= {"tensors": rows} if tensors else {}
        emit_json(facts | ({"plan": reading} if reading else {}))
        return
    emit(f"checkpoint {checkpoint.hex()}")
    emit(f"model      {model.hex()}")
    emit(f"saved      {when(facts['saved_at_ns'])}")
    emit(f"logged     {when(manifest.state.claimed_at)} by {manifest.state.actor.hex()[:12]}, entry {manifest.state.n}")
    if manifest.state.partial:
        without = f", without {', '.join(absent)}" if absent else ""
        emit(f"partial    here in part{without}: 'cairn pull MODEL@REF' brings the rest")
    if meta.step is not None:
        emit(f"step       {meta.step}")
    if meta.message:
        emit(f"message    {safe(meta.message)}")
    for name, value in meta.metrics.items():
        emit(f"metric     {safe(name)} = {value:g}")
    for parent in manifest.body.parents:
        emit(f"parent     {parent.checkpoint.hex()[:12]} ({safe(parent.relation)})")
    if manifest.body.exactness:
        emit(f"exactness  {safe(manifest.body.exactness)}")
    for component, root in roots.items():
        emit(f"{component.name.lower():<10} {count(root.entries, 'entry', 'entries')}, {size(root.bytes_logical)}")
    for component in manifest.hidden:
        emit(f"{component.name.lower():<10} not granted to you")
    if rows:
        emit("")
        table(
            ("TENSOR", "DTYPE", "SHAPE", "BYTES"),
            [(str(r["name"]), str(r["dtype"]), str(r["shape"]), str(r["bytes"])) for r in rows],
        )
    if reading:
        emit("")
        emit(
            f"rank {plan} wants {size(reading['bytes_wanted'])}: {count(reading['requests'], 'read')}, "
            f"{size(reading['bytes_read'])}, {reading['amplification']:.3f} times what it wants"
        )


def _plan(registry: "Registry", manifest: "CheckpointManifest", text: str) -> dict[str, Any]:
    from cairn.workspace.readplan import Share, plan_share

    reads, wanted = plan_share(registry, manifest, Share.parse(text))
    return {
        "bytes_wanted": wanted,
        "bytes_read": reads.bytes_fetched,
        "requests": reads.requests,
        "amplification": reads.bytes_fetched / wanted if wanted else 1.0,
    }
