"""Names of objects, and the rules for the names that people give.

A model or ref name is data: it stands sealed in the log and never becomes part of an object's name.
"""

from blake3 import blake3

from cairn.core.canonical import encode
from cairn.core.errors import BadName
from cairn.core.limits import LOG_FOLDER_ENTRIES, NAME_BYTES_MAX
from cairn.store.crypto.tenant import derive

MAIN = "main"
LATEST = "latest"


def entry_name(n: int) -> str:
    """Name of log entry `n`."""
    return f"log/{n // LOG_FOLDER_ENTRIES:08d}/{n:012d}"


def entry_position(name: str) -> int | None:
    """Inverse of `entry_name`; None for what is the name of no entry."""
    digits = name.rpartition("/")[2]
    return int(digits) if digits.isdecimal() and name == entry_name(int(digits)) else None


def check_model_name(name: str) -> str:
    """Return a model name that obeys the rules.

    Raises:
        BadName: empty, too long, or not Unicode text.
    """
    return _check(name, "model")


def check_ref_name(name: str) -> str:
    """Return a branch or tag name that obeys the rules.

    Raises:
        BadName: empty, too long, not Unicode text, holds `@`, is reserved, or would read as a selector.
    """
    _check(name, "ref")
    if "@" in name:
        raise BadName(f"ref name {name[:80]!r} holds '@', which separates model and ref")
    if name == LATEST:
        raise BadName(f"{LATEST!r} is reserved: it means the tip of {MAIN!r}", hint=f"write {MAIN!r}, or another name")
    if name.startswith("step:"):
        raise BadName(f"ref name {name[:80]!r} would read as a step")
    return name


def _check(name: str, kind: str) -> str:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise BadName(f"{kind} name {name[:80]!r} is not Unicode text") from None
    if not name:
        raise BadName(f"a {kind} name cannot be empty")
    if length > NAME_BYTES_MAX:
        raise BadName(f"a {kind} name of {length} bytes is over the limit of {NAME_BYTES_MAX}")
    return name


def model_tag(k_log: bytes, name: str) -> bytes:
    """Keyed tag that keeps model names unique without showing them."""
    return _tag(k_log, ["model", name])


def ref_tag(k_log: bytes, model: bytes, name: str) -> bytes:
    """Keyed tag of a ref name in a model."""
    return _tag(k_log, ["ref", model, _check(name, "ref")])


def _tag(k_log: bytes, value: list[str | bytes]) -> bytes:
    return blake3(encode(value), key=derive(k_log, "name-tag")).digest(length=16)
