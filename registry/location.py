"""Where stores lie: a folder, the `.cairn/` in it, or a URL."""

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from cairn.core.errors import NotAStore, UsageError
from cairn.store.backends.contract import Backend
from cairn.store.backends.posix import PosixBackend

FOLDER = ".cairn"


def find_store(start: Path) -> str:
    """The `.cairn/` folder in `start` or the nearest folder above it, as git finds `.git`.

    Raises:
        NotAStore: there is none.
    """
    for folder in (start, *start.parents):
        if (folder / FOLDER).is_dir():
            return str(folder / FOLDER)
    raise NotAStore(
        f"no {FOLDER}/ in {start} or above it",
        hint="create a store with 'cairn init', or name one with --store or CAIRN_STORE",
    )


def nearer_places(start: Path, store: Path) -> list[Path]:
    """Where a store would have been found before `store`, none if `store` is not one that `find_store` finds."""
    above = [folder / FOLDER for folder in (start, *start.parents)]
    return above[: above.index(store)] if store in above else []


def backend_at(location: str) -> Backend:
    """The backend of an existing store: a folder that holds `.cairn/` means that store.

    Raises:
        UsageError: a URL scheme that this version does not know.
    """
    folder = local_path(location)
    if (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    return PosixBackend(folder, location)


def backend_for_new(location: str) -> tuple[Backend, Path]:
    """The backend of a new store, and its folder: `DIR/.cairn` for a folder, the very place for a URL."""
    folder = local_path(location)
    if "://" in location:
        return PosixBackend(folder, location), folder
    folder = (folder / FOLDER).absolute()
    return PosixBackend(folder, str(folder)), folder


def local_path(location: str) -> Path:
    """The folder that a path or `file://` URL names.

    Raises:
        UsageError: another scheme, or a URL that is not a plain local one.
    """
    if "://" not in location:
        return Path(location)
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise UsageError(f"{location!r} is not a URL: {error}", hint="write file:///absolute/path") from None
    if parts.scheme != "file":
        raise UsageError(
            f"stores at {parts.scheme}:// are not supported by this version", hint="use a folder or a file:// URL"
        )
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path.startswith("/"):
        raise UsageError("not a plain local file:// URL", hint="write file:///absolute/path")
    if ".." in path.split("/") or "\0" in path:
        raise UsageError("a file:// URL must not climb with '..'", hint="write file:///absolute/path")
    return Path(path)
