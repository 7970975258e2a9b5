"""File systems that fold case: two names of a checkpoint must not become one file."""

import os
import unicodedata

from cairn.core.errors import RefusedError


def check_names_fit(folder: bytes, paths: list[bytes]) -> None:
    """Raise before anything is written if the file system at `folder` would merge two of `paths`.

    Raises:
        RefusedError: it would; names the pair.
    """
    folded: dict[str, bytes] = {}
    clash = None
    for path in paths:
        other = folded.setdefault(_fold(path), path)
        if other != path:
            clash = other, path
            break
    if clash is None or not _folds_case(folder):
        return
    shown = " and ".join(ascii(os.fsdecode(path)) for path in clash)
    raise RefusedError(f"{shown} would be one file here: the file system folds case", hint="name another destination")


def _fold(path: bytes) -> str:
    return unicodedata.normalize("NFC", os.fsdecode(path)).casefold()


def _folds_case(folder: bytes) -> bool:
    """Try it: no interface tells."""
    probe = os.path.join(folder, b"cairn-Case-Probe")
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    try:
        return os.path.lexists(os.path.join(folder, b"cairn-case-probe"))
    finally:
        os.unlink(probe)
