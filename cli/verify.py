"""`cairn verify`: is everything that was committed still there, byte for byte?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cairn.cli import exits
from cairn.cli.opening import StoreChoice, ask_passphrase, store_location, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, size
from cairn.cli.progress import ProgressBar

if TYPE_CHECKING:
    from cairn.gc.report import Problem, VerifyReport
    from cairn.registry.localfiles import KeyHome
    from cairn.registry.opened import KeySource
    from cairn.store.backends.contract import Backend

# Affected checkpoints that are listed under one object; the rest is counted.
_AFFECTED_SHOWN = 10


@click.command()
@click.option("--full", is_flag=True, help="Read and open every stored chunk too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the names of damaged objects only.")
@store_options
def command(full: bool, as_json: bool, quiet: bool) -> int:
    """Check the store: log, keys, manifests, and that all they need is there; with --full, every stored byte.

    Changes nothing. Exit code 6 says that something is damaged or missing.
    """
    with ProgressBar(quiet or as_json) as progress:
        report = _verify(full, progress)
    if as_json:
        emit_json(_as_json(report))
    elif quiet:
        for name in dict.fromkeys(problem.object for problem in report.errors):
            emit(name)
    else:
        _render(report)
    return exits.OK if report.ok else exits.INTEGRITY


def _verify(full: bool, progress: ProgressBar) -> "VerifyReport":
    """Check the chosen store, also one that is too damaged to open."""
    from cairn.gc.scrub_open import verify_store

    return verify_store(*_place(), full, progress)


def _place() -> "tuple[Backend, KeyHome, KeySource]":
    """Where the chosen store lies, and what opens it."""
    from cairn.core.settings import Settings
    from cairn.registry.localfiles import KeyHome
    from cairn.registry.location import backend_at
    from cairn.registry.opened import KeySource

    settings = Settings.from_environment()
    named = click.get_current_context().ensure_object(StoreChoice).key_file
    source = KeySource(Path(named) if named else settings.key_file, settings.passphrase, ask_passphrase)
    return backend_at(store_location()), KeyHome(settings.data, settings.state, settings.cache), source


def _as_json(report: "VerifyReport") -> dict[str, object]:
    return {
        "ok": report.ok,
        "full": report.full,
        "checkpoints": report.checkpoints,
        "chunks": report.chunks,
        "objects": report.objects,
        "errors": [
            {"object": one.object, "model": one.model, "checkpoint": one.checkpoint, "what": one.what}
            for one in report.errors
        ],
        "notes": list(report.notes),
        "chunks_opened": report.chunks_opened,
        "chunks_unnamed": report.chunks_unnamed,
        "bytes_read": report.bytes_read,
        "leftover_objects": report.leftover_objects,
        "leftover_bytes": report.leftover_bytes,
    }


def _render(report: "VerifyReport") -> None:
    emit(_verdict(report))
    groups: dict[str, list[Problem]] = {}
    for problem in report.errors:
        groups.setdefault(problem.object, []).append(problem)
    for name, problems in groups.items():
        emit("")
        emit(safe(name) or "(no stored object)")
        _render_group(problems, report)
    for text in report.notes:
        note(f"note: {safe(text)}")
    if report.leftover_objects:
        left = f"{count(report.leftover_objects, 'object')} ({size(report.leftover_bytes)})"
        verb = "belongs" if report.leftover_objects == 1 else "belong"
        note(f"note: {left} {verb} to no checkpoint: interrupted writers left them, or a writer is at work")
    if report.chunks_unnamed:
        unnamed = count(report.chunks_unnamed, "chunk")
        note(f"note: only the headers were checked of {unnamed} that no readable manifest names")
    if not report.ok:
        emit("")
        _render_next(report)
    elif not report.full:
        note("next: 'cairn verify --full' reads every stored byte as well")


def _render_next(report: "VerifyReport") -> None:
    remote = _remote()
    models = sorted({report.names[one.model] for one in report.errors if one.checkpoint and one.model in report.names})
    if remote and models:
        emit(f"next: fetch again what remote {safe(remote)} has of the affected checkpoints:")
        for model in models[:_AFFECTED_SHOWN]:
            emit(f"        cairn pull {safe(model)} {safe(remote)} --repair --history")
        emit("      (and MODEL@REF for other branches and tags). For what is not there:")
        emit("      stored objects never change, so any intact copy of a named one can be put back in its place;")
    else:
        emit("next: stored objects never change, so any intact copy of a named one can be put back in its place;")
        emit("      a store that has the affected checkpoints mends them here by 'cairn push MODEL URL --repair';")
    emit("      without a copy, commit the affected checkpoints again from their files.")
    emit("      Then run 'cairn verify --full' again.")
    if report.checkpoints:
        emit("      All other checkpoints can be checked out as before.")


def _remote() -> str | None:
    """The remote to fetch from, if one is noted; a store that cannot say which it is has none."""
    from cairn.core.errors import CairnError
    from cairn.registry.formatfile import read_format
    from cairn.registry.remotes import ORIGIN, noted_remotes

    backend, home, _ = _place()
    try:
        names = sorted(noted_remotes(home, read_format(backend)[0]))
    except CairnError:
        return None
    return ORIGIN if ORIGIN in names else next(iter(names), None)


def _verdict(report: "VerifyReport") -> str:
    checked = ", ".join(
        (
            count(report.checkpoints, "checkpoint"),
            count(report.chunks, "chunk or page", "chunks and pages"),
            count(report.objects, "object"),
        )
    )
    read = f", {size(report.bytes_read)} of chunks read" if report.full else ""
    if report.ok:
        return f"intact: {checked}{read}"
    objects = len({problem.object for problem in report.errors})
    affected = len({problem.checkpoint for problem in report.errors if problem.checkpoint})
    hit = f"{count(objects, 'object')}, {count(affected, 'affected checkpoint')}"
    return f"DAMAGED: {hit} (checked: {checked}{read})"


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
            emit(f"    affects {model}@{problem.checkpoint[:12]}" if problem.checkpoint else f"    affects {model}")
        if len(affected) > _AFFECTED_SHOWN:
            emit(f"    and {len(affected) - _AFFECTED_SHOWN} more")
