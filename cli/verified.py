"""What `cairn verify` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cairn.cli.output import count, emit, note, safe, size

if TYPE_CHECKING:
    from cairn.gc.repair import Mended
    from cairn.gc.report import Problem, VerifyReport

# Affected checkpoints that are listed under one object; the rest is counted.
_AFFECTED_SHOWN = 10


def as_json(report: "VerifyReport", mended: "Sequence[Mended]", recorded: int) -> dict[str, object]:
    """A report as plain values."""
    return {
        "ok": report.ok,
        "full": report.full,
        "depth": report.depth,
        "seed": report.seed,
        "checkpoints": report.checkpoints,
        "chunks": report.chunks,
        "objects": report.objects,
        "errors": [_problem(one) for one in report.errors],
        "superseded": [_problem(one) for one in report.superseded],
        "mended": [{"object": one.object, "what": one.what, "source": one.source} for one in mended],
        "recorded": recorded,
        "notes": list(report.notes),
        "chunks_opened": report.chunks_opened,
        "chunks_unnamed": report.chunks_unnamed,
        "bytes_read": report.bytes_read,
        "packs_remembered": report.packs_remembered,
        "leftover_objects": report.leftover_objects,
        "leftover_bytes": report.leftover_bytes,
    }


def _problem(one: "Problem") -> dict[str, str]:
    return {"object": one.object, "model": one.model, "checkpoint": one.checkpoint, "what": one.what}


def render(report: "VerifyReport", mended: "Sequence[Mended]", repair: bool) -> None:
    """Print a report for people."""
    emit(_verdict(report))
    for one in mended:
        emit(f"mended {one.object or 'what was in no pack'}: {safe(one.what)}, from {safe(one.source)}")
    groups: dict[str, list[Problem]] = {}
    for problem in report.errors:
        groups.setdefault(problem.object, []).append(problem)
    for name, problems in groups.items():
        emit("")
        emit(safe(name) or "(no stored object)")
        _render_group(problems, report)
    _render_notes(report)
    if not report.ok:
        _render_next(report, repair)
    elif report.superseded:
        note("next: 'cairn gc apply --yes' removes damaged packs that nobody needs")
    elif report.depth == "quick":
        note("next: 'cairn verify --full' reads every stored byte as well")


def _verdict(report: "VerifyReport") -> str:
    checked = ", ".join(
        (
            count(report.checkpoints, "checkpoint"),
            count(report.chunks, "chunk or page", "chunks and pages"),
            count(report.objects, "object"),
        )
    )
    read = f", {size(report.bytes_read)} of chunks read" if report.depth != "quick" else ""
    if report.depth == "sampled":
        read += f", a sample of seed {report.seed}"
    if report.ok:
        return f"intact: {checked}{read}"
    objects = len({problem.object for problem in report.errors})
    affected = len({problem.checkpoint for problem in report.errors if problem.checkpoint})
    hit = f"{count(objects, 'object')}, {count(affected, 'affected checkpoint')}"
    return f"DAMAGED: {hit} (checked: {checked}{read})"


def _render_notes(report: "VerifyReport") -> None:
    for name in dict.fromkeys(problem.object for problem in report.superseded):
        what = next(problem.what for problem in report.superseded if problem.object == name)
        note(f"note: {name} is damaged, and nobody needs it: {safe(what)}")
    for text in report.notes:
        note(f"note: {safe(text)}")
    if report.packs_remembered:
        read = count(report.packs_remembered, "pack")
        note(f"note: the interrupted run that this one went on with had read {read}")
    if report.leftover_objects:
        left = f"{count(report.leftover_objects, 'object')} ({size(report.leftover_bytes)})"
        verb = "belongs" if report.leftover_objects == 1 else "belong"
        note(f"note: {left} {verb} to no checkpoint: interrupted writers left them, or a writer is at work")
    if report.chunks_unnamed:
        unnamed = count(report.chunks_unnamed, "chunk")
        note(f"note: only the headers were checked of {unnamed} that no readable manifest names")


def _render_next(report: "VerifyReport", repair: bool) -> None:
    emit("")
    if repair:
        emit("next: what is named above is in no store that was asked. Name another one with --from, or put a copy of")
        emit("      the object in its place, or commit the affected checkpoints again from their files.")
    else:
        emit("next: 'cairn verify --repair' mends what this store or one of its remotes still has.")
        emit("      Stored objects never change, so any intact copy of a named one can be put back in its place too;")
        emit("      without a copy, commit the affected checkpoints again from their files.")
    if report.deleted:
        emit("      What is deleted is mended once 'cairn delete restore' has brought it back; 'gc apply' drops it.")
    emit("      Then run 'cairn verify --full' again.")
    if report.checkpoints:
        emit("      All other checkpoints can be checked out as before.")


def _render_group(problems: "list[Problem]", report: "VerifyReport") -> None:
    """The problems of one object: what is wrong, and under it whom that affects."""
    by_what: dict[str, list[Problem]] = {}
    for problem in problems:
        by_what.setdefault(problem.what, []).append(problem)
    for what, same in by_what.items():
        emit(f"  {safe(what)}")
        affected = [problem for problem in same if problem.model]
        for problem in affected[:_AFFECTED_SHOWN]:
            model = safe(report.names.get(problem.model, "")) or f"model {problem.model}"
            which = f"@{problem.checkpoint[:12]}" if problem.checkpoint else ""
            emit(f"    affects {model}{which}" + (" (deleted)" if problem.checkpoint in report.deleted else ""))
        if len(affected) > _AFFECTED_SHOWN:
            emit(f"    and {len(affected) - _AFFECTED_SHOWN} more")
