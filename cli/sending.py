"""What `push` and `pull` share: they are one operation in two directions."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cairn.cli.opening import ask_passphrase, open_registry, store_options
from cairn.cli.output import emit, emit_json, safe, size
from cairn.cli.progress import ProgressBar
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.registry.delivery import Selection
    from cairn.registry.registry import Registry
    from cairn.registry.sync import Sent

Command = TypeVar("Command", bound=Callable[..., Any])
COMPONENTS = ("weights", "optimizer", "training", "provenance")


def sending_options(command: Command) -> Command:
    """Add the arguments and options of both commands."""
    for decorate in reversed(
        (
            click.argument("selector", metavar="MODEL[@REF]"),
            click.argument("remote", required=False, default=""),
            click.option("--to", default="", metavar="BRANCH", help="Branch on the other side (default: same name)."),
            click.option("--only", multiple=True, type=click.Choice(COMPONENTS), help="Leave other components out."),
            click.option("--tensors", multiple=True, metavar="GLOB", help="Of tensors, only those of these names."),
            click.option("--rebase", is_flag=True, help="Append to a branch that has moved to something unknown here."),
            click.option("--repair", is_flag=True, help="Read all of it on the other side; send again what fails."),
            click.option("--reseal", is_flag=True, help="Between tenants: write it anew under the other's keys."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
            click.option("-q", "--quiet", is_flag=True, help="Print the checkpoint id only."),
            store_options,
        )
    ):
        command = decorate(command)
    return command


def run(
    push: bool,
    selector: str,
    remote: str,
    to: str,
    only: tuple[str, ...],
    tensors: tuple[str, ...],
    rebase: bool,
    repair: bool,
    reseal: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Send one way or the other."""
    from cairn.registry.sync import SendOptions, send

    options = SendOptions(to, selection_of(only, tensors), rebase, repair, reseal)
    with open_registry() as here, open_other(here, remote) as there, ProgressBar(quiet or as_json) as progress:
        source, target = (here, there) if push else (there, here)
        sent = send(source, target, selector, options, progress)
        where = target.opened.backend.url
    if quiet:
        emit(sent.checkpoint.hex())
    elif as_json:
        emit_json(_as_json(sent))
    else:
        emit(_text(sent, selector, where, "sent" if push else "fetched"))


def selection_of(only: Iterable[str], tensors: tuple[str, ...] = ()) -> "Selection":
    """What the options `--only` and `--tensors` leave of a checkpoint."""
    from cairn.registry.delivery import Selection
    from cairn.store.crypto.components import ComponentClass

    return Selection(frozenset(ComponentClass[name.upper()] for name in only), tensors)


@contextmanager
def open_other(registry: "Registry", name: str) -> "Iterator[Registry]":
    """The registry of a remote of the chosen store."""
    from cairn.registry.remotes import Remotes
    from cairn.registry.stores import open_remote

    remote = Remotes(registry.opened).find(name)
    key_file = Path(remote.key_file) if remote.key_file else None
    other = open_remote(remote.url, key_file=key_file, ask=ask_passphrase)
    try:
        yield other
    finally:
        other.close()


def _text(sent: "Sent", selector: str, where: str, done: str) -> str:
    counts, name = sent.counts, f"{selector.rpartition('@')[0] or selector}@{sent.ref}"
    if not sent.created and sent.before == sent.checkpoint and not counts.chunks_new:
        return f"{safe(name)} is {short(sent.checkpoint)} in {safe(where)} already"
    lines = [
        f"{safe(name)} is now {short(sent.checkpoint)} in {safe(where)}",
        f"  {size(counts.bytes_stored)} {done} in {counts.chunks_new} chunks",
    ]
    if sent.bytes_resumed:
        lines.append(f"  {size(sent.bytes_resumed)} had been {done} by an interrupted run")
    if sent.partial:
        lines.append("  in part: the rest was left out")
    return "\n".join(lines)


def _as_json(sent: "Sent") -> dict[str, object]:
    return {
        "checkpoint": sent.checkpoint.hex(),
        "model": sent.model.hex(),
        "ref": sent.ref,
        "kind": sent.kind,
        "before": sent.before.hex() if sent.before else None,
        "created": sent.created,
        "chunks_sent": sent.counts.chunks_new,
        "bytes_sent": sent.counts.bytes_stored,
        "bytes_resumed": sent.bytes_resumed,
        "partial": sent.partial,
    }
