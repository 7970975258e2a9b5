"""What every backend owes. `tests/contracts/backend.py` holds one suite that each must pass.

Guarantees:

1. *Atomic visibility*: an object is seen whole or not at all, by name and in listings.
2. *Durable on return*: when `create` returns, the object survives a power cut, its name included.
3. *Exclusive creation*: of several `create` calls on one name, in any process or host, one succeeds;
   the others raise `ObjectExists`, and only when the winner's object is durable.
4. *Read after write* and *list after write*: what `create` has returned for is read and listed by all.
5. *Deletion* is visible at once; deleting what is absent is no error.

Names are relative, of `[a-z0-9._-]` segments joined by `/`, at most 255 bytes a segment, never `.` or `..`,
and no segment starts with `.`: those are a backend's own (temporary files). No object's name is a folder of another's.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from cairn.core.buffers import Buffer
from cairn.core.errors import BadName

_NAME = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,254}(/[a-z0-9_-][a-z0-9._-]{0,254})*", re.ASCII)


class Listed(msgspec.Struct, frozen=True):
    """One listed object: its full name and its size in bytes.

    Args:
        stamp: what tells versions of the object apart. While it stays the same, so do the bytes, for whoever changes
            them through this storage; whoever controls the storage itself can forge it. Empty where none can be told.
    """

    name: str
    size: int
    stamp: bytes = b""


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend can promise; measured at `init`, stored in the init entry."""

    exclusive_create: bool
    ranged_read: bool
    durable: bool


class Backend(Protocol):
    """One location that holds objects. Methods may be called from several threads at once.

    Raises (all methods):
        BadName: the name breaks the rules above.
        NotAllowed: the caller lacks the right; the call had no effect.
        StorageError: the storage refused; the call had no effect.
        StorageFull: no space, quota or file-size allowance is left; the call had no effect.
        AnswerLost: the call may or may not have taken effect.
    """

    url: str
    capabilities: Capabilities

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        """Create an object from the concatenation of `parts`.

        Raises:
            ObjectExists: the name is taken (guarantee 3).
        """
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes `[offset, offset + length)`, to the end without `length`; short only where the object ends.

        Raises:
            ObjectNotFound: no such object.
        """
        ...

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        """Like `read`, into a writable buffer; returns the number of bytes read."""
        ...

    def size(self, name: str) -> int:
        """Size in bytes.

        Raises:
            ObjectNotFound: no such object.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """Objects in the folder `prefix` and below, sorted by name; nothing for an absent folder."""
        ...

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Names (last segment only) of the folders right below `prefix`, sorted.

        Only folders that hold something need be named.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove an object; absent is fine."""
        ...

    def settle(self, name: str) -> None:
        """Return once an existing object is durable, whoever wrote it.

        Raises:
            ObjectNotFound: no such object.
        """
        ...

    def reclaim(self, prefix: str) -> int:
        """Remove temporary leftovers of dead writers below `prefix`, never a live one's; returns the bytes freed."""
        ...


def waits(backend: Backend) -> bool:
    """Whether requests cross a network, so that more of them under way than processors are worth their memory."""
    return "://" in backend.url and not backend.url.startswith("file://")


@runtime_checkable
class Lender(Protocol):
    """A backend that can lend stored bytes where they lie."""

    def lend(self, name: str, offset: int, length: int) -> memoryview | None:
        """Bytes `[offset, offset + length)`, not to be written to; None where `read_into` serves better.

        Raises:
            ObjectNotFound: no such object.
        """
        ...


def check_name(name: str) -> str:
    """Return `name` if it obeys the rules.

    Raises:
        BadName: it does not.
    """
    if not is_name(name):
        raise BadName(f"{name[:80]!r} is not an object name: segments of [a-z0-9._-], none starting with a dot")
    return name


def is_name(name: str) -> bool:
    """Whether `name` obeys the rules: what a listing holds besides is not ours."""
    return len(name) <= 1024 and _NAME.fullmatch(name) is not None
