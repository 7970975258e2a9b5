"""Files of a checkpoint with a signature that anybody can check: OpenSSF model signing, method `files`, with a key.

The signature is a Sigstore bundle around a DSSE envelope with an in-toto statement: of each file its SHA-256, and as
subject the SHA-256 over these, one after the other (github.com/sigstore/model-transparency). It takes neither a store
nor a key of Cairn to check it; it says nothing of training state, modes or empty folders.
"""

import hashlib
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cairn.core.errors import RefusedError, UsageError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.progress import Progress, Silent
from cairn.registry.registry import Registry
from cairn.registry.statement import TYPE
from cairn.store.crypto.dsse import IN_TOTO, pae
from cairn.store.crypto.eckeys import EcKey
from cairn.workspace.checkout import checkout
from cairn.workspace.destination import becoming, checked_destination
from cairn.workspace.export import ExportOptions, export

SIGNATURE_FILE = "model.sig"
FILES, SAFETENSORS = "files", "safetensors"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
# The reference tool leaves these out at the top of a model, whatever a signature says.
_GIT = (".git", ".gitattributes", ".github", ".gitignore")


class SignedExport(msgspec.Struct, frozen=True):
    """What was written.

    Args:
        files: that the signature speaks for; `left_out`, those that it does not.
        digest: SHA-256 that stands for all of them.
    """

    files: int
    left_out: tuple[str, ...]
    digest: str


def sign_export(
    registry: Registry,
    model: ModelId,
    checkpoint: CheckpointId,
    destination: Path,
    name: str,
    key: EcKey,
    form: str = FILES,
    progress: Progress | None = None,
) -> SignedExport:
    """Write a checkpoint to `destination` as `checkout --format` does, and its signature to `model.sig` in it.

    Args:
        name: of the model, for people.
        form: `files` or `safetensors`.

    Raises:
        DestinationExists: something is there.
        RefusedError: it has links, or names that cannot be signed; the destination is untouched.
        IntegrityError: the checkpoint is damaged; the destination is untouched.
    """
    if form not in (FILES, SAFETENSORS):
        raise UsageError(f"{form!r} cannot be signed", hint=f"choose {FILES} or {SAFETENSORS}")
    destination = checked_destination(destination)
    progress = progress or Silent()
    with becoming(destination, registry.opened.entropy.token(6).hex()) as partial:
        if form == FILES:
            checkout(registry, model, checkpoint, partial, progress)
        else:
            export(registry, model, checkpoint, partial, ExportOptions(form), progress)
        signed, left_out = _digests(partial, progress)
        statement, digest = signing_statement(name, checkpoint, signed)
        (partial / SIGNATURE_FILE).write_bytes(bundle(statement, key))
    return SignedExport(len(signed), left_out, digest)


def signing_statement(name: str, checkpoint: CheckpointId, files: dict[str, str]) -> tuple[bytes, str]:
    """The statement, and the digest of its subject.

    Args:
        files: SHA-256 by path, in the order in which they count.
    """
    root = hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in files.values())).hexdigest()
    fields = {
        "_type": TYPE,
        "subject": [{"name": name, "digest": {"sha256": root}, "annotations": {"cairnCheckpoint": checkpoint.hex()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURE_FILE, *_GIT],
            },
            "resources": [{"name": path, "algorithm": "sha256", "digest": digest} for path, digest in files.items()],
        },
    }
    return json.dumps(fields, ensure_ascii=False).encode(), root


def bundle(statement: bytes, key: EcKey) -> bytes:
    """A Sigstore bundle with a signed statement."""
    fields = {
        "mediaType": _BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": key.hint()}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": b64encode(statement).decode(),
            "payloadType": IN_TOTO,
            "signatures": [{"sig": b64encode(key.sign(pae(IN_TOTO, statement))).decode(), "keyid": ""}],
        },
    }
    return json.dumps(fields).encode()


def _digests(root: Path, progress: Progress) -> tuple[dict[str, str], tuple[str, ...]]:
    """SHA-256 of each file below a folder, by path; paths are ordered segment by segment. And what is left out."""
    paths = sorted(_files(root), key=lambda path: path.parts)
    left_out = tuple(str(path) for path in paths if path.parts[0] in _GIT)
    wanted = [path for path in paths if path.parts[0] not in _GIT]
    progress.stage("sign", sum((root / path).stat().st_size for path in wanted))
    found = {}
    for path in wanted:
        with (root / path).open("rb") as file:
            found[path.as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
        progress.advance((root / path).stat().st_size)
    return found, left_out


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = Path(folder, name)
            shown = path.relative_to(root)
            if path.is_symlink():
                raise RefusedError(
                    f"{str(shown)!r} is a link, which this kind of signature does not cover",
                    hint="sign the tensors alone with --format safetensors",
                )
            if shown == Path(SIGNATURE_FILE):
                raise RefusedError(f"the checkpoint has a file {SIGNATURE_FILE}", hint="commit it without that file")
            if name in names:
                _check_text(shown)
                yield shown


def _check_text(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RefusedError(
            f"the file name {str(path)!r:.100} is not Unicode text, which this kind of signature needs",
            hint="sign the tensors alone with --format safetensors",
        ) from None
