"""`cairn attest`: signed statements about checkpoints, shown, handed out and checked."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import PlainPath, open_registry, store_options
from cairn.cli.output import emit, emit_json, note, safe, table
from cairn.cli.requiring import required_signers
from cairn.cli.sending import vouched_for
from cairn.core.errors import NotFoundError, RefusedError
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.registry.attestations import Attested, Unfit
    from cairn.registry.registry import Registry


@click.group()
@store_options
def command() -> None:
    """Show, export and check signed statements about checkpoints."""


@command.command("show")
@click.argument("selector", metavar="MODEL[@REF]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the statements.")
@click.option("-q", "--quiet", is_flag=True, help="Print the signers' ids only.")
@store_options
def show(selector: str, as_json: bool, quiet: bool) -> None:
    """List who has signed a checkpoint, as what, when, and whether that counts for you."""
    from cairn.registry.attestations import Attested
    from cairn.registry.statement import rfc3339
    from cairn.registry.trust import noted_trust

    with open_registry() as registry:
        found = _found(registry, selector)
        trusted = noted_trust(registry.opened)
    if as_json:
        emit_json([_as_json(one) for one in found])
        return
    if quiet:
        for actor in dict.fromkeys(one.place.signer for one in found if isinstance(one, Attested)):
            emit(actor.hex())
        return
    rows, unfit = [], []
    for one in found:
        if isinstance(one, Attested):
            counts = one.place.signer in trusted.of(one.subject.model_name)
            signer, time = short(one.place.signer), rfc3339(one.subject.signed_at)
            rows.append((one.subject.name, signer, "yes" if counts else "no", time, str(one.place.n)))
        else:
            unfit.append(one)
    table(("SIGNED AS", "SIGNER", "COUNTS", "AT", "ENTRY"), rows)
    for one in unfit:
        note(f"note: log entry {one.place.n} holds no statement about it: {safe(one.why)}")
    if not rows:
        note(f"nobody has signed it: 'cairn sign {safe(selector)}' does")


@command.command("export")
@click.argument("selector", metavar="MODEL[@REF]")
@click.option("--by", default="", metavar="DIGITS", help="By whom, if several have: first digits of the id.")
@store_options
def export(selector: str, by: str) -> None:
    """Print the newest signed statement about a checkpoint, under the ref that is named, as a DSSE envelope."""
    from cairn.registry.attestations import Attested, names_of
    from cairn.registry.selectors import resolve

    with open_registry() as registry:
        _, ref, _ = names_of(registry, resolve(registry, selector)[0], selector)
        fit = [one for one in _found(registry, selector) if isinstance(one, Attested)]
    meant = [
        one for one in fit if (not ref or one.subject.ref == ref) and one.place.signer.hex().startswith(by.lower())
    ]
    if not meant:
        raise NotFoundError(
            f"no statement about {selector!r} by {by or 'anybody'}",
            hint=f"'cairn attest show {selector}' lists those there are",
        )
    emit(max(meant, key=lambda one: one.subject.signed_at).envelope.encode().decode())


@command.command("check")
@click.argument("selector", metavar="MODEL[@REF]")
@click.option("--signer", "signers", multiple=True, metavar="IDENTITY", help="Who counts, instead of the noted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code tells.")
@store_options
def check(selector: str, signers: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """See that a trusted signer says of a checkpoint of this store that it is what is named; exit code 3 if not."""
    from cairn.registry.requirement import check_signed
    from cairn.registry.selectors import resolve
    from cairn.registry.trust import trust_in

    with open_registry() as registry:
        model, checkpoint = resolve(registry, selector)
        trust = trust_in(registry.opened, required_signers(True, signers) or ())
        vouched = check_signed(registry, model, checkpoint, selector, trust)
    if as_json:
        emit_json({"checkpoint": checkpoint.hex(), "vouched_by": [actor.hex() for actor in vouched.signers]})
    elif not quiet:
        emit(f"{safe(selector)} is {short(checkpoint)}, {vouched_for(vouched)}")


@command.command("verify")
@click.argument("file", type=PlainPath(path_type=Path))
@click.option("--signer", "signers", multiple=True, required=True, metavar="IDENTITY", help="Whose signature counts.")
@click.option("--json", "as_json", is_flag=True, help="Print the statement.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code tells.")
@store_options
def verify(file: Path, signers: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Check the DSSE envelope in FILE by public keys alone, without a store; exit code 3 if no named signer signed."""
    import json

    from cairn.registry.attestations import statement_in
    from cairn.registry.statement import rfc3339
    from cairn.store.crypto.dsse import parse_envelope
    from cairn.store.crypto.signing import PublicIdentity

    wanted = {PublicIdentity.parse(line).actor for line in signers}
    envelope = parse_envelope(_read(file), str(file))
    good = envelope.signers(wanted)
    if not good:
        claimed = ", ".join(sorted(map(short, envelope.claimed()))) or "nobody whose key it names"
        raise RefusedError(
            f"{file} is not signed by a signer that was named, but by {claimed}",
            hint="take it for nothing, or name its signer with --signer if you trust that one",
        )
    statement = statement_in(envelope, str(file))
    if as_json:
        emit_json(json.loads(envelope.payload))
    if as_json or quiet:
        return
    subject = statement.subject
    emit(f"{safe(subject.name)} is checkpoint {subject.checkpoint.hex()}")
    emit(f"  of model {subject.model.hex()} of tenant {subject.tenant.hex()}")
    emit(f"  signed by {', '.join(sorted(map(short, good)))}, {rfc3339(subject.signed_at)}")


def _read(file: Path) -> bytes:
    """Bytes of an envelope's file, at most one more than one may have."""
    from cairn.core.limits import ATTESTATION_BYTES_MAX

    try:
        with file.open("rb") as opened:
            return opened.read(ATTESTATION_BYTES_MAX + 1)
    except OSError as error:
        raise NotFoundError(
            f"no statement can be read from {file}: {error.strerror}", hint="'cairn attest export' writes one"
        ) from None


def _found(registry: "Registry", selector: str) -> "list[Attested | Unfit]":
    from cairn.registry.attestations import attestations
    from cairn.registry.selectors import resolve

    return attestations(registry, *resolve(registry, selector))


def _as_json(one: "Attested | Unfit") -> dict[str, Any]:
    import json

    from cairn.registry.attestations import Unfit

    told: dict[str, Any] = {"entry": one.place.n, "signer": one.place.signer.hex(), "actor": one.place.actor.hex()}
    if isinstance(one, Unfit):
        return told | {"unfit": one.why}
    return told | {"statement": json.loads(one.envelope.payload), "envelope": json.loads(one.envelope.encode())}
