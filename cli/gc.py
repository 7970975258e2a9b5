"""`cairn gc`: find and remove what no checkpoint needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import PlainPath, open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, size
from cairn.cli.progress import ProgressBar
from cairn.cli.shredding import say_what_was_shredded, shred
from cairn.core.errors import UsageError

if TYPE_CHECKING:
    from cairn.gc.collect import Collected
    from cairn.gc.plan import Plan
    from cairn.gc.shred import Shredded
    from cairn.registry.registry import Registry


@click.group()
@store_options
def command() -> None:
    """Remove what no checkpoint needs: plan shows it, apply does it, beside writers and readers."""


@command.command("plan")
@click.option("-o", "--output", type=PlainPath(path_type=Path), help="Write the plan to a file, for 'apply FILE'.")
@click.option("--max-unused", default=5.0, metavar="PERCENT", show_default=True, help="See 'cairn gc apply'.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def plan(output: Path | None, max_unused: float, as_json: bool) -> None:
    """Show what a collection would remove; changes nothing."""
    from cairn.gc.collect import Collector, Options
    from cairn.gc.due import doomed
    from cairn.gc.planfile import plan_facts, write_plan

    with open_registry() as registry, ProgressBar(as_json) as progress:
        made = Collector(registry, Options(unused=_fraction(max_unused)), progress).plan()
        models = len(doomed(registry))
        if output is not None:
            write_plan(made, registry.opened.store, output)
        if as_json:
            emit_json({**plan_facts(made, registry.opened.store), "shred_models": models})
            return
    _render_plan(made)
    if models:
        note(f"note: 'cairn gc apply --yes' of an owner first destroys the keys of {count(models, 'deleted model')}")
    if output is not None:
        note(f"next: cairn gc apply {safe(str(output))} --yes")
    elif not made.empty or made.drops or models:
        note("next: cairn gc apply --yes")


@command.command("apply")
@click.argument("file", required=False, type=PlainPath(path_type=Path))
@click.option("--yes", is_flag=True, help="Do it; without, nothing happens.")
@click.option("--wait", default=1800.0, metavar="SECONDS", show_default=True, help="For writers that began earlier.")
@click.option("--give-up", multiple=True, metavar="SESSION", help="A session (see 'cairn stats') whose writer is dead.")
@click.option(
    "--max-unused", default=5.0, metavar="PERCENT", show_default=True,
    help="Of what packs hold, how much may be unneeded; beyond that the emptiest are written anew.",
)  # fmt: skip
@click.option("--condemn-only", is_flag=True, help="Drop and delete nothing: 'cairn gc cancel' can take it all back.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def apply(
    file: Path | None, yes: bool, wait: float, give_up: tuple[str, ...], max_unused: float, condemn_only: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Collect: what FILE says, or all that can go. May be stopped at any time and run again."""
    from cairn.gc.collect import Collector, Options
    from cairn.gc.planfile import read_plan
    from cairn.registry.session import open_sessions

    if not yes:
        raise UsageError("a collection deletes objects", hint="look at 'cairn gc plan', then add --yes")
    if not wait >= 0:
        raise UsageError(f"{wait} is no time to wait", hint="name seconds, from 0")
    options = Options(
        wait_seconds=wait, unused=_fraction(max_unused), dead=[_session(one) for one in give_up],
        condemn_only=condemn_only,
    )  # fmt: skip
    with open_registry() as registry, ProgressBar(as_json) as progress:
        for one in sorted(set(options.dead) - set(open_sessions(registry.opened))):
            note(f"note: there is no session {one.hex()}: its writer has ended, or the id is another one's")
        collector, shredded = Collector(registry, options, progress), None
        if file is not None:
            done = collector.apply(read_plan(file, registry.opened.store, registry.state))
        else:
            if not condemn_only:
                shredded = _shred_if_owner(registry)
            done = collector.run()
    if as_json:
        emit_json({**_facts(done), "models_shredded": [one.hex() for one in shredded.models] if shredded else []})
    else:
        _render(done, condemn_only)
    say_what_was_shredded(shredded)


def _shred_if_owner(registry: "Registry") -> "Shredded | None":
    """Destroy the keys of deleted models that are due, which only owners can."""
    from cairn.gc.due import doomed

    due = doomed(registry)
    if due and registry.signer().actor not in registry.state.owners:
        note(f"note: the keys of {count(len(due), 'deleted model')} are to be destroyed: an owner's 'gc apply' does it")
        return None
    return shred(registry) if due else None


@command.command("cancel")
@click.option("--yes", is_flag=True, help="Do it.")
@store_options
def cancel(yes: bool) -> None:
    """Take back what is condemned, as long as the floor has not passed it."""
    from cairn.gc.operator import uncondemn_all

    if not yes:
        raise UsageError("this changes the store", hint="add --yes")
    with open_registry() as registry:
        packs, objects = uncondemn_all(registry)
    emit(f"took back {packs} packs and {objects} other objects")


@command.command("quarantine")
@click.argument("selector")
@click.option("--yes", is_flag=True, help="Do it.")
@store_options
def quarantine(selector: str, yes: bool) -> None:
    """Collect without a checkpoint's damaged list: what that checkpoint alone needs may then be deleted."""
    from cairn.gc.operator import quarantine
    from cairn.registry.selectors import resolve

    if not yes:
        raise UsageError(
            f"what only {selector} needs may be deleted by later collections",
            hint="try 'cairn verify --repair' first, which makes the list anew; else add --yes",
        )
    with open_registry() as registry:
        registry.refresh()
        model, checkpoint = resolve(registry, selector)
        quarantine(registry, model, checkpoint)
    emit(f"quarantined {checkpoint.hex()}")


def _session(text: str) -> Any:
    from cairn.core.ids import RANDOM_ID_BYTES, SessionId

    try:
        session = SessionId(bytes.fromhex(text))
    except ValueError:
        session = SessionId(b"")
    if len(session) != RANDOM_ID_BYTES:
        raise UsageError(f"{text[:80]!r} is no session", hint="'cairn stats' lists them: 32 hexadecimal digits")
    return session


def _fraction(percent: float) -> float:
    if not 0 <= percent <= 100:
        raise UsageError(f"{percent} is no percentage", hint="name one from 0 to 100")
    return percent / 100


def _render_plan(made: "Plan") -> None:
    from cairn.gc.plan import kinds_of

    kinds = kinds_of(made.objects)
    others = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    for name, value in (
        ("checkpoints that can no longer be restored", str(len(made.drops))),
        ("packs that nobody needs", str(len(made.dead))),
        ("packs to write anew", f"{len(made.repacked)}, {size(made.bytes_copied)} of them needed"),
        ("other objects", others or "0"),
        ("frees", size(made.bytes_freed)),
        ("stays", f"{size(made.bytes_live)} needed, {size(made.bytes_unused)} unused beside it"),
    ):
        emit(f"{name:<44} {value}")
    if made.damaged:
        note(f"warning: {len(made.damaged)} packs are missing or short: run 'cairn verify'")


def _facts(done: "Collected") -> dict[str, Any]:
    return {
        "rounds": done.rounds,
        "checkpoints_dropped": done.checkpoints_dropped,
        "objects_deleted": done.objects_deleted,
        "bytes_deleted": done.bytes_deleted,
        "bytes_copied": done.bytes_copied,
        "objects_deferred": done.objects_deferred,
        "sessions_ended": done.sessions_ended,
        "pieces_merged": done.pieces_merged,
        "reads_recorded": done.reads_recorded,
        "unreadable": done.unreadable,
    }


def _render(done: "Collected", condemn_only: bool) -> None:
    if condemn_only:
        emit(f"condemned in {done.rounds} rounds; nothing was deleted")
        note("next: 'cairn gc apply --yes' deletes it, 'cairn gc cancel --yes' takes it back")
    else:
        emit(f"deleted {done.objects_deleted} objects, {size(done.bytes_deleted)}")
    if done.checkpoints_dropped:
        emit(f"{done.checkpoints_dropped} deleted checkpoints can no longer be restored")
    if done.bytes_copied:
        emit(f"wrote {size(done.bytes_copied)} anew")
    if done.sessions_ended:
        emit(f"ended {done.sessions_ended} sessions of dead writers")
    if done.reads_recorded:
        emit(f"recorded {done.reads_recorded} reads")
    if done.objects_deferred:
        note(f"note: {done.objects_deferred} objects wait for readers; run 'cairn gc apply --yes' later")
    for name, why in done.unreadable.items():
        note(f"warning: {name} was left alone: {safe(why)}")
    if done.unreadable:
        note("next: run 'cairn verify --full'")
