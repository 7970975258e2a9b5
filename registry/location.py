"""Where stores lie: a folder, the `.cairn/` in it, or a URL.

A URL is a place and nothing else. Credentials come from the surroundings; a URL that carries some is refused, and no
message repeats what it carries.
"""

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from cairn.core.clock import SystemClock
from cairn.core.errors import NotAllowed, NotAStore, RefusedError, UsageError
from cairn.core.settings import S3Settings
from cairn.store.backends.contract import Backend
from cairn.store.backends.posix import PosixBackend

if TYPE_CHECKING:
    from cairn.store.backends.connections import Place

FOLDER = ".cairn"
# How the format record of a store begins.
_STORE_MARK = b'{"cairn store"'

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", re.ASCII)
_PREFIX = re.compile(r"[\w.=+~-]+(/[\w.=+~-]+)*", re.ASCII)
# Host, or container and account, of other kinds of storage.
_HOST = re.compile(r"[A-Za-z0-9._-]*(:\d{1,5})?", re.ASCII)
_ACCOUNT = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9._-]+", re.ASCII)
# fsspec calls these file systems too, but nothing can be kept there: read-only, or around another one.
_NO_PLACES = {
    *(
        "arrow_hdfs",
        "asynclocal",
        "asyncwrapper",
        "blockcache",
        "cached",
        "data",
        "dir",
        "file",
        "filecache",
        "generic",
    ),
    *("gist", "git", "github", "http", "https", "jlab", "jupyter", "libarchive", "local", "reference", "root"),
    *("s3a", "simplecache", "tar", "wandb", "zip"),
}
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "hdfs": "hdfs"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FORM = "write s3://bucket/prefix, file:///absolute/path, or another scheme://place/path"


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


def is_store(folder: bytes) -> bool:
    """Whether a folder is itself a store."""
    try:
        # Without O_NONBLOCK, a pipe of that name would wait for its writer.
        file = os.open(os.path.join(folder, b"format"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(file).st_mode) and os.read(file, len(_STORE_MARK)) == _STORE_MARK
    finally:
        os.close(file)


def store_around(path: Path) -> Path | None:
    """The store that a path lies in, if any."""
    return next((folder for folder in path.parents if is_store(os.fsencode(folder))), None)


def nearer_places(start: Path, store: Path) -> list[Path]:
    """Where a store would have been found before `store`, none if `store` is not one that `find_store` finds."""
    above = [folder / FOLDER for folder in (start, *start.parents)]
    return above[: above.index(store)] if store in above else []


def is_remote(location: str) -> bool:
    """Whether a location is a URL of another kind than `file://`."""
    return "://" in location and not location.startswith("file://")


def backend_at(location: str) -> Backend:
    """The backend of an existing store: a folder that holds `.cairn/` means that store.

    Raises:
        UsageError: not a URL of a place that this version can use.
        NotAllowed: no credentials.
    """
    if is_remote(location):
        return _remote(location)
    shown = plain_location(location)
    folder = local_path(shown)
    if (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    return PosixBackend(folder, shown)


def backend_for_new(location: str) -> tuple[Backend, Path | None]:
    """The backend of a new store, and its folder, if any: `DIR/.cairn` for a folder, the very place for a URL.

    Raises:
        RefusedError: it lies inside a store.
    """
    if is_remote(location):
        return _remote(location), None
    folder = local_path(location) if "://" in location else new_folder(Path(location))
    inside = store_around(folder)
    if inside is not None:
        raise RefusedError(f"{folder} lies inside the store {inside}", hint="name a place outside of it")
    return PosixBackend(folder, plain_location(location) if "://" in location else str(folder)), folder


def new_folder(folder: Path) -> Path:
    """Where a new store for a folder goes: `.cairn` in it, unless that is what was named."""
    place = Path(plain_location(str(folder)))
    return place if place.name == FOLDER else place / FOLDER


def plain_location(location: str) -> str:
    """A location as it is noted and shown: what it means does not change with the working folder."""
    if "://" in location:
        bare = location.rstrip("/")
        return location if bare.endswith(":") else bare
    # A link before '..' leads elsewhere than the text says.
    return os.path.realpath(location) if ".." in Path(location).parts else os.path.abspath(location)


def make_place(location: str) -> None:
    """Make the bucket that a location names, where there is such a thing; one that exists is fine.

    Raises:
        ObjectExists: it is somebody else's.
    """
    from cairn.store.backends.s3 import S3Backend

    backend = backend_at(location)
    if isinstance(backend, S3Backend):
        backend.make_bucket()


def local_path(location: str) -> Path:
    """The folder that a path or `file://` URL names.

    Raises:
        UsageError: another scheme, or a URL that is not a plain local one.
    """
    if "://" not in location:
        return Path(location)
    parts = _split(location)
    if parts.scheme != "file":
        raise UsageError(f"a store at {parts.scheme}:// is not in a folder", hint="use a folder or a file:// URL")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path.startswith("/"):
        raise UsageError("not a plain local file:// URL", hint="write file:///absolute/path")
    if ".." in path.split("/") or "\0" in path:
        raise UsageError("a file:// URL must not climb with '..'", hint="write file:///absolute/path")
    return Path(path)


def _remote(location: str) -> Backend:
    parts = _split(location)
    prefix = parts.path.strip("/")
    plain = not parts.query and not parts.fragment and "?" not in location and "#" not in location
    if not plain or (prefix and not _PREFIX.fullmatch(prefix)) or {".", ".."} & set(prefix.split("/")):
        raise UsageError(
            f"not a plain {parts.scheme}:// URL: after the place come names of letters, digits and ._=+~-, and no more",
            hint=_FORM + "; credentials come from the environment",
        )
    return _s3(parts.netloc, prefix) if parts.scheme == "s3" else _other(parts, prefix)


def _s3(bucket: str, prefix: str) -> Backend:
    from cairn.store.backends.connections import Place
    from cairn.store.backends.s3 import S3Backend
    from cairn.store.backends.s3_signing import Signer, source_of

    if not _BUCKET.fullmatch(bucket):
        raise UsageError("not a plain s3:// URL: the bucket's name is malformed, or more than a name", hint=_FORM)
    settings, clock = S3Settings.from_environment(), SystemClock()
    source = source_of(settings)
    region = settings.region or "us-east-1"
    # A certificate for `*.s3...` does not hold for names with dots.
    in_host = settings.bucket_in_host or (settings.endpoint is None and "." not in bucket)
    place = _endpoint(settings) if settings.endpoint else Place(True, f"s3.{region}.amazonaws.com", None)
    if in_host:
        place = place._replace(host=f"{bucket}.{place.host}")
    signer = Signer(source, region, clock)
    try:
        return S3Backend(bucket, prefix, place, signer, in_host=in_host, ca_bundle=settings.ca_bundle, clock=clock)
    except OSError:
        raise UsageError("AWS_CA_BUNDLE is no file of certificates", hint="name a PEM file that can be read") from None


def _endpoint(settings: S3Settings) -> "Place":
    from cairn.store.backends.connections import Place

    try:
        parts = urlsplit(settings.endpoint or "")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise UsageError("AWS_ENDPOINT_URL is not an address", hint="write https://host:port, and nothing more")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError("AWS_ENDPOINT_URL is more than an address", hint="write https://host:port, and nothing more")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK and not settings.allow_http:
        raise NotAllowed(
            f"requests to {parts.hostname} would travel in the clear", hint="use https, or set AWS_ALLOW_HTTP=true"
        )
    return Place(parts.scheme == "https", parts.hostname, port)


def _other(parts: SplitResult, prefix: str) -> Backend:
    import fsspec

    from cairn.store.backends.filesystem import FilesystemBackend

    scheme, host = parts.scheme, parts.netloc
    if scheme in _NO_PLACES or scheme not in {*fsspec.available_protocols(), *_EXTRAS}:
        raise UsageError(f"stores at {scheme}:// are not supported by this version", hint=_FORM)
    if not _HOST.fullmatch(host) and not (scheme in ("abfs", "abfss") and _ACCOUNT.fullmatch(host)):
        raise UsageError(f"not a plain {scheme}:// URL: its host is malformed, or more than a name", hint=_FORM)
    url = f"{scheme}://{host}" + (f"/{prefix}" if prefix else "")
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError):
        hint = f"install 'cairn-store[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else "install fsspec's package for it"
        raise UsageError(f"{scheme}:// needs a package that is missing", hint=hint) from None
    return FilesystemBackend(url, scheme, kind._strip_protocol(url), kind._get_kwargs_from_urls(url))


def _split(location: str) -> SplitResult:
    try:
        return urlsplit(location)
    except ValueError:
        raise UsageError("not a URL: its host is malformed", hint=_FORM) from None
