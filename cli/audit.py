"""`cairn audit`: who did what, whether the log is the one that was written, and proofs of it for others."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli import exits
from cairn.cli.audit_out import export, gather, key, policy
from cairn.cli.auditing import OpenLog, log_key_option, open_log, parse_head, read_small
from cairn.cli.opening import store_options
from cairn.cli.output import count, emit, emit_json, note, safe, when
from cairn.core.errors import NotFoundError, UsageError
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.registry.audit import Audit, KnownHead
    from cairn.registry.auditlines import AuditLine, Trail
    from cairn.registry.registry import Registry


@click.group()
@store_options
def command() -> None:
    """Show and verify the log of all changes and reads, and export it with proofs."""


for _outgoing in (export, gather, key, policy):
    command.add_command(_outgoing)


@command.command("log")
@click.argument("model", required=False)
@click.option("--since", metavar="TIME", help="Leave out what is older: 2026-11-30 or 2026-11-30T15:00, local time.")
@click.option("--type", "kinds", multiple=True, metavar="TYPE", help="Entries of this type only, as commit or gc.")
@log_key_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("-q", "--quiet", is_flag=True, help="Print the numbers of the log entries only.")
@store_options
def show(
    model: str | None, since: str | None, kinds: tuple[str, ...], log_key: Path | None, as_json: bool, quiet: bool
) -> None:
    """List who changed or read what, and when; of MODEL only, by its name or id."""
    from cairn.registry.audit import judge
    from cairn.registry.auditlines import Trail, Wanted, facts_of
    from cairn.registry.people import known_people

    log = open_log(log_key)
    with log.registry() as registry:
        wanted = Wanted(_model_id(registry, model) if model else None, kinds, _nanoseconds(since) if since else 0)
        keys = registry.model_keys if registry is not None else None
        heads = log.remembered()
        trail = Trail(log.view, wanted, keys, {one.head.length for one in heads})
        people = known_people(registry) if registry is not None else {}
    for found in judge(trail.whole, heads).findings[:1]:
        note(f"warning: {found.where}{found.what}: 'cairn audit verify' tells more")
    if as_json:
        emit_json([facts_of(line) for line in trail.lines])
        return
    if not trail.lines and not quiet:
        note("no entry fits: 'cairn audit log' lists all")
    for line in trail.lines:
        if quiet:
            emit(str(line.n))
        else:
            _render_line(line, trail, people)


@command.command("verify")
@click.option("--head", "heads", multiple=True, metavar="HEAD", help="LENGTH:ROOT, or a file that 'audit head' wrote.")
@click.option("--accept", multiple=True, type=int, metavar="ENTRY", help="A foreign entry that was looked into before.")
@log_key_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code tells.")
@store_options
def verify(heads: tuple[str, ...], accept: tuple[int, ...], log_key: Path | None, as_json: bool, quiet: bool) -> int:
    """Replay the whole log, without cache or shortcuts, and compare it with heads that were seen before.

    Exit code 6 names what was altered, removed, reordered or is of a foreign hand, and a log that was rolled back or
    went another way.
    """
    from cairn.registry.audit import verify_log

    log = open_log(log_key)
    known, notes = _known_heads(log, heads)
    audit = verify_log(log.view, known, accept)
    _check_signatures(log, notes, audit)
    if audit.ok:
        _compare_with_fold(log, audit)
    if audit.ok:
        log.home.remember_head(log.view.store, audit.head)
    if as_json:
        emit_json(_audit_facts(audit))
    elif not quiet:
        _render_audit(audit)
    return exits.OK if audit.ok else exits.INTEGRITY


@command.command("head")
@log_key_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_options
def head(log_key: Path | None, as_json: bool) -> None:
    """Print the signed head of the log, to be kept elsewhere: 'audit verify --head FILE' compares with it."""
    from cairn.registry.audit import verify_log
    from cairn.registry.signedhead import key_name, sign_head, verifier_key

    log = open_log(log_key)
    audit = verify_log(log.view, log.remembered())
    audit.require_whole()
    signer, owners = log.signer(audit.state.owners), audit.state.owners
    signed = sign_head(log.view.store, audit.head, signer, owners)
    if not as_json:
        emit(signed.removesuffix("\n"))
        return
    emit_json(
        {
            "length": audit.head.length,
            "root": audit.head.root.hex(),
            "actor": signer.actor.hex(),
            "owner": signer.actor in owners,
            "key": verifier_key(key_name(log.view.store, signer.actor, owners), signer.actor),
            "note": signed,
        }
    )


@command.command("prove")
@click.argument("entry", type=click.IntRange(0))
@click.option("--head", "length", type=click.IntRange(1), metavar="LENGTH", help="In the log of that length; and that "
              "it is the beginning of the present one.")  # fmt: skip
@log_key_option
@store_options
def prove(entry: int, length: int | None, log_key: Path | None) -> None:
    """Prove that entry number ENTRY is in the log: hashes after RFC 6962, as one JSON object."""
    from cairn.registry.audit import judge
    from cairn.registry.logview import WholeLog
    from cairn.registry.proofs import consistency_path, inclusion_path, tree_root
    from cairn.registry.signedhead import origin_of

    log = open_log(log_key)
    known = log.remembered()
    whole = WholeLog(log.view, {one.head.length for one in known})
    judge(whole, known).require_whole()
    size = length if length is not None else whole.head.length
    if not entry < size <= whole.head.length:
        raise NotFoundError(
            f"the log has {whole.head.length} entries: no entry {entry} in the first {size}",
            hint="they count from 0; 'cairn audit log' lists them",
        )
    leaves = whole.leaves[:size]
    proof: dict[str, Any] = {
        "origin": origin_of(log.view.store),
        "entry": entry,
        "leaf": leaves[entry].hex(),
        "length": size,
        "root": tree_root(leaves).hex(),
        "path": [one.hex() for one in inclusion_path(leaves, entry)],
    }
    if length is not None:
        proof["consistency"] = {
            "length": whole.head.length,
            "root": whole.head.root.hex(),
            "path": [one.hex() for one in consistency_path(whole.leaves, size)],
        }
    emit_json(proof)


def _model_id(registry: "Registry | None", text: str) -> bytes:
    if len(text) == 32 and set(text) <= set("0123456789abcdef"):
        return bytes.fromhex(text)
    if registry is None:
        raise UsageError("with the log's key alone, models have no names", hint="name a model by its id")
    from cairn.registry.models import find_model

    return find_model(registry, text)


def _nanoseconds(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1e9)
    except ValueError:
        raise UsageError(f"{text[:80]!r} is no time", hint="write 2026-11-30 or 2026-11-30T15:00") from None


def _known_heads(log: OpenLog, heads: tuple[str, ...]) -> "tuple[list[KnownHead], dict[str, str]]":
    """The heads to compare with, and the signed notes among them by their files."""
    from cairn.registry.audit import KnownHead
    from cairn.registry.signedhead import claimed_head

    known, notes = log.remembered(), dict[str, str]()
    for text in heads:
        given = parse_head(text)
        if given is None:
            notes[text] = read_small(Path(text)).decode(errors="replace")
            given = claimed_head(notes[text], log.view.store, text)
        known.append(KnownHead(given, text))
    return known, notes


def _check_signatures(log: OpenLog, notes: dict[str, str], audit: "Audit") -> None:
    from cairn.registry.signedhead import open_head

    for name, text in notes.items():
        open_head(text, log.view.store, audit.state.owners, name)


def _compare_with_fold(log: OpenLog, audit: "Audit") -> None:
    from cairn.registry.audit import compare_fold

    with log.registry() as registry:
        if registry is not None:
            compare_fold(audit, registry.state, str(log.home.cache_folder(log.view.store)))


def _audit_facts(audit: "Audit") -> dict[str, Any]:
    return {
        "ok": audit.ok,
        "length": audit.head.length,
        "root": audit.head.root.hex(),
        "refs": audit.refs,
        "heads": [
            {"length": one.head.length, "root": one.head.root.hex(), "source": one.source} for one in audit.heads
        ],
        "findings": [{"kind": one.kind, "entry": one.entry, "what": one.what} for one in audit.findings],
        "accepted": audit.accepted,
        "voids": [{"entry": one.n, "reason": one.reason} for one in audit.voids],
    }


def _render_audit(audit: "Audit") -> None:
    compared = f", compared with {count(len(audit.heads), 'head')}" if audit.heads else ""
    extent = f"{count(audit.head.length, 'entry', 'entries')} lead to {count(audit.refs, 'ref')}{compared}"
    if audit.ok:
        emit(f"intact: {extent}")
        emit(f"root {audit.head.root.hex()}")
    else:
        emit(f"NOT INTACT: {count(len(audit.findings), 'finding')} ({extent})")
    for one in audit.findings:
        place = f"entry {one.entry}: " if one.entry is not None else ""
        emit(f"  {one.kind}: {place}{safe(one.what)}")
    if audit.voids:
        first = f"the first is entry {audit.voids[0].n}: {audit.voids[0].reason}"
        note(f"note: {count(len(audit.voids), 'entry has', 'entries have')} no effect by the rules; {safe(first)}")
    if not audit.heads:
        note("note: there was no head to compare with: a log that was cut shows only to whoever has seen more of it")
    if audit.findings:
        note("next: compare with a copy of the store; docs/operations.md, 'The log is not the one seen before'")


def _render_line(line: "AuditLine", trail: "Trail", people: dict[bytes, str]) -> None:
    who = short(line.actor) if line.actor else "?"
    person = people.get(line.actor or b"")
    who += f" ({safe(person)})" if person is not None else ""
    at = when(line.claimed_at) if line.claimed_at is not None else "?"
    model = safe(line.model_name) if line.model_name is not None else line.model.hex() if line.model else ""
    where = f"{model}@{safe(line.ref)}" if line.ref is not None else model
    moved = f"{_end(line.before)} -> {_end(line.after)}" if line.before or line.after else ""
    settings = " ".join(f"{name}={value}" for name, value in line.facts.get("settings", {}).items())
    step = f"step {line.step}" if line.step is not None else ""
    void = f"[no effect: {safe(line.void)}]" if line.void else ""
    said = safe(settings or _signed(line.facts) or _right(line.facts) or line.message or "")
    emit("  ".join(filter(None, (str(line.n), at, who, line.type, where, moved, step, said, void))))
    for read in line.reads:
        whose = safe(trail.name_of(read.model) or read.model.hex())
        emit(f"    {when(read.at)}  {short(read.actor)}  read  {whose}@{short(read.checkpoint)}")


def _signed(facts: dict[str, Any]) -> str:
    """What a statement is about, and by whom it is said to be."""
    return f"{facts['checkpoint'][:12]} signed by {facts['signer'][:12]}" if "signer" in facts else ""


def _right(facts: dict[str, Any]) -> str:
    """Who may do what from an entry on, if it is about that."""
    from cairn.store.crypto.components import ComponentClass

    who = str(facts.get("member", ""))[:12]
    if "role" in facts:
        return f"{who} is {facts['role'] or 'no member any more'}"
    if not who or "write" not in facts:
        return ""
    known = {int(one): one.name.lower() for one in ComponentClass}
    verbs = [f"read {known.get(number, number)}" for number in facts.get("reads", ())]
    verbs += ["write"] if facts["write"] else []
    return f"{who} may {', '.join(verbs) or 'do nothing'}"


def _end(checkpoint: bytes | None) -> str:
    return short(checkpoint) if checkpoint else "nothing"
