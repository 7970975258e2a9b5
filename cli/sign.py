"""`cairn sign`: say with one's signature what a checkpoint is, and by which name it goes."""

from pathlib import Path

import click

from cairn.cli.opening import PlainPath, ask_passphrase, open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe
from cairn.cli.progress import ProgressBar
from cairn.core.errors import UsageError
from cairn.core.ids import short


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.option("--key", type=PlainPath(path_type=Path), help="File of the identity that signs (default: your own).")
@click.option(
    "--model-signing", "destination", type=PlainPath(path_type=Path), metavar="DEST",
    help="Write its files to DEST, with a signature of the OpenSSF's kind.",
)  # fmt: skip
@click.option("--private-key", type=PlainPath(path_type=Path), metavar="PEM", help="EC key for --model-signing.")
@click.option(
    "--format", "form", type=click.Choice(["files", "safetensors"]), default="files", show_default=True,
    help="What --model-signing writes.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the checkpoint id only.")
@store_options
def command(
    selector: str, key: Path | None, destination: Path | None, private_key: Path | None, form: str, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Sign that MODEL@REF means the checkpoint that it means now, with how that was made; the log keeps it.

    By an id or a step the checkpoint alone is signed, under no name. With --model-signing nothing goes into the log:
    the checkpoint is written to DEST, which must not exist, with DEST/model.sig for people without Cairn.
    """
    if (destination is None) != (private_key is None):
        raise UsageError("--model-signing and --private-key go together", hint="name both, or none")
    if destination is not None and private_key is not None:
        if key is not None:
            raise UsageError("--key signs for the log", hint="name --private-key alone")
        _model_signing(selector, destination, private_key, form, as_json, quiet)
        return
    from cairn import __version__
    from cairn.registry.attestations import sign
    from cairn.registry.statement import rfc3339
    from cairn.registry.stores import identity_in

    identity = identity_in(key) if key is not None else None
    with open_registry() as registry:
        made = sign(registry, selector, __version__, identity)
    subject, place = made.subject, made.place
    if quiet:
        emit(subject.checkpoint.hex())
    elif as_json:
        emit_json(
            {
                "checkpoint": subject.checkpoint.hex(),
                "model": subject.model.hex(),
                "ref": subject.ref or None,
                "signer": place.signer.hex(),
                "signed_at": rfc3339(subject.signed_at),
                "entry": place.n,
            }
        )
    else:
        emit(f"signed {safe(subject.name)} as {short(subject.checkpoint)} by {short(place.signer)}, entry {place.n}")
        note("next: cairn push brings the signature to others, who name you with: cairn trust add IDENTITY")


def _model_signing(selector: str, destination: Path, private_key: Path, form: str, as_json: bool, quiet: bool) -> None:
    from msgspec import structs

    from cairn.registry.selectors import parse_selector, resolve
    from cairn.store.crypto.eckeys import EcKey
    from cairn.workspace.model_signing import sign_export

    key = EcKey.read(private_key, ask_passphrase)
    with open_registry() as registry, ProgressBar(quiet or as_json) as progress:
        model, checkpoint = resolve(registry, selector)
        name = parse_selector(selector).model
        made = sign_export(registry, model, checkpoint, destination, name, key, form, progress)
    if as_json:
        emit_json({"checkpoint": checkpoint.hex(), "destination": str(destination), **structs.asdict(made)})
    elif quiet:
        emit(checkpoint.hex())
    else:
        emit(f"wrote {short(checkpoint)} to {safe(str(destination))}: {count(made.files, 'file')}, signed in model.sig")
        for path in made.left_out:
            note(f"note: {safe(path)} is not signed: model signing leaves files of git out")
        note("next: model_signing verify key DEST --signature DEST/model.sig --public_key PUBLIC_PEM")
