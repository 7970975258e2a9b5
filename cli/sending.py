"""What `push` and `pull` share: they are one operation in two directions."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cairn.cli.opening import Command, ask_passphrase, open_registry, store_options, tell_unrecorded
from cairn.cli.output import count, emit, emit_json, note, safe, size, when
from cairn.cli.progress import ProgressBar
from cairn.cli.requiring import required_signers
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.registry.delivery import Selection
    from cairn.registry.registry import Registry
    from cairn.registry.requirement import Vouched
    from cairn.registry.sync import Sent

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
            click.option("--history", is_flag=True, help="Bring the checkpoints behind it too, oldest first."),
            click.option("--rebase", is_flag=True, help="Append to a branch that has something unknown to the sender."),
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
    history: bool,
    rebase: bool,
    repair: bool,
    reseal: bool,
    as_json: bool,
    quiet: bool,
    require: bool | None = False,
    signers: tuple[str, ...] = (),
) -> None:
    """Send one way or the other."""
    from msgspec.structs import replace

    from cairn.registry.sync import SendOptions, send
    from cairn.registry.trust import trust_in

    options = SendOptions(to, selection_of(only, tensors), rebase, repair, reseal, history)
    with open_registry() as here, open_other(here, remote) as there, ProgressBar(quiet or as_json) as progress:
        source, target = (here, there) if push else (there, here)
        asked = required_signers(require, signers, not push and _requires(here, remote))
        if asked is not None:
            options = replace(options, trust=trust_in(source.opened, asked))
        sent = send(source, target, selector, options, progress)
        where = target.opened.backend.url
    if quiet:
        emit(sent.checkpoint.hex())
    elif as_json:
        emit_json(_as_json(sent))
    else:
        emit(_text(sent, selector, where, "sent" if push else "fetched"))
    if push and sent.appended_to:
        theirs = f"{selector.rpartition('@')[0] or selector}@{short(sent.appended_to)}"
        note(f"note: it was appended to {short(sent.appended_to)}, which this store does not have")
        note(f"next: {safe(' '.join(filter(None, ('cairn pull', theirs, remote))))} --to BRANCH brings that here")


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
    other = open_remote(remote.url, key_file=remote.key_path, ask=ask_passphrase)
    try:
        yield other
        tell_unrecorded(other)
    finally:
        other.close()


def _requires(registry: "Registry", name: str) -> bool:
    """Whether nothing unsigned is to be taken from a remote."""
    from cairn.registry.remotes import Remotes

    return Remotes(registry.opened).find(name).require_signed


def vouched_for(vouched: "Vouched") -> str:
    """Who vouches, and since when."""
    signers = ", ".join(map(short, vouched.signers))
    return f"signed by {signers}, {when(vouched.signed_at * 1000)}"


def _text(sent: "Sent", selector: str, where: str, done: str) -> str:
    counts, name = sent.counts, f"{selector.rpartition('@')[0] or selector}@{sent.ref}"
    if sent.ahead:
        lines = [f"{safe(name)} in {safe(where)} is ahead of {short(sent.checkpoint)} and stays"]
    elif not sent.created and sent.before == sent.checkpoint and (sent.older_brought or not counts.chunks_new):
        lines = [f"{safe(name)} is {short(sent.checkpoint)} in {safe(where)} already"]
    else:
        lines = [f"{safe(name)} is now {short(sent.checkpoint)} in {safe(where)}"]
    if sent.created or counts.chunks_new:
        lines.append(f"  {size(counts.bytes_stored)} {done} in {count(counts.chunks_new, 'chunk')}")
    if sent.bytes_resumed:
        lines.append(f"  {size(sent.bytes_resumed)} had been {done} by an interrupted run")
    if sent.vouched:
        lines.append(f"  {vouched_for(sent.vouched)}")
    if sent.signatures:
        lines.append(f"  {count(sent.signatures, 'signature')} came along")
    if sent.partial:
        lines.append("  in part: the rest was left out")
    if sent.older_brought:
        lines.append(f"  {count(sent.older_brought, 'older checkpoint')} came along")
    if sent.older_left:
        lines.append(f"  {left_out(sent.older_left)}: --history brings them")
    return "\n".join(lines)


def left_out(number: int) -> str:
    """What a transfer says of checkpoints that lie behind those that it brought."""
    return f"{count(number, 'older checkpoint')} left out"


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
        "appended_to": sent.appended_to.hex() if sent.appended_to else None,
        "older_brought": sent.older_brought,
        "older_left": sent.older_left,
        "signatures": sent.signatures,
        "vouched_by": [actor.hex() for actor in sent.vouched.signers] if sent.vouched else None,
    }
