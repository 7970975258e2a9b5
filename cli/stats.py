"""`cairn stats`: what the store holds and costs."""

from typing import TYPE_CHECKING

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, size

if TYPE_CHECKING:
    from cairn.gc.usage import Usage


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def command(as_json: bool) -> None:
    """Show counts, bytes, deduplication, open sessions, and what interrupted writers left."""
    from cairn.gc.usage import usage

    with open_registry() as registry:
        used = usage(registry)
    if as_json:
        emit_json(_as_json(used))
    else:
        _render(used)


def _as_json(used: "Usage") -> dict[str, object]:
    return {
        "models": used.models,
        "checkpoints": used.checkpoints,
        "log_entries": used.log_entries,
        "packs": used.packs,
        "bytes_packs": used.bytes_packs,
        "bytes_other": used.bytes_other,
        "chunks": used.chunks,
        "bytes_logical": used.bytes_logical,
        "bytes_reachable": used.bytes_reachable,
        "bytes_restorable": used.bytes_restorable,
        "bytes_unreferenced": used.bytes_unreferenced,
        "bytes_reclaimable": used.bytes_reclaimable,
        "bytes_pending": used.bytes_pending,
        "leftover_objects": used.leftover_objects,
        "leftover_bytes": used.leftover_bytes,
        "dedup_ratio": round(used.dedup_ratio, 4),
        "sessions": [{"session": one.id, "epoch": one.epoch} for one in used.sessions],
        "unreadable": list(used.unreadable),
    }


def _render(used: "Usage") -> None:
    rows = [
        ("models", str(used.models)),
        ("checkpoints", f"{used.checkpoints}, {size(used.bytes_logical)} if each stood alone"),
        ("log", count(used.log_entries, "entry", "entries")),
        ("packs", f"{used.packs}, {size(used.bytes_packs)}"),
        ("  reachable", f"{size(used.bytes_reachable)} in {count(used.chunks, 'chunk or page', 'chunks and pages')}"),
        ("  restorable", f"{size(used.bytes_restorable)} of deleted checkpoints"),
        ("  unreferenced", size(used.bytes_unreferenced)),
        ("other objects", size(used.bytes_other)),
        ("leftovers", f"{count(used.leftover_objects, 'object')}, {size(used.leftover_bytes)}"),
        ("reclaimable", _reclaimable(used)),
        ("pending", f"{size(used.bytes_pending)}, condemned and not deleted yet"),
        ("dedup ratio", f"{used.dedup_ratio:.2f}"),
        ("open sessions", str(len(used.sessions))),
    ]
    for name, value in rows:
        emit(f"{name:<15} {value}")
    for session in used.sessions:
        emit(f"  {session.id}  epoch {'unreadable' if session.epoch is None else session.epoch}")
    if used.bytes_pending or (used.bytes_reclaimable and not used.unreadable):
        note("next: 'cairn gc plan' tells what a collection frees, 'cairn gc apply --yes' frees it")
        if used.bytes_unreferenced:
            note("      (a little stays in packs that are mostly needed, unless --max-unused 0 is added)")
    for text in used.unreadable:
        note(f"not counted: {safe(text)}")
    if used.unreadable:
        note("next: run 'cairn verify' to see what is damaged")


def _reclaimable(used: "Usage") -> str:
    if used.unreadable:
        return "unknown: what the checkpoints need that could not be counted is among the unreferenced"
    return f"{size(used.bytes_reclaimable)}: unreferenced and leftovers"
