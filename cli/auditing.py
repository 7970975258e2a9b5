"""What the subcommands of `cairn audit` share: opening the log, with the store's keys or with the log's key alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cairn.cli.opening import Command, PlainPath, store_place
from cairn.core.errors import NotAllowed, UsageError

if TYPE_CHECKING:
    from cairn.registry.audit import KnownHead
    from cairn.registry.localfiles import Head, KeyHome
    from cairn.registry.logview import LogView
    from cairn.registry.opened import OpenStore
    from cairn.registry.registry import Registry
    from cairn.store.crypto.signing import Identity

# A log key and a head are a few hundred bytes; whatever else was named must not fill the memory.
_FILE_BYTES_MAX = 64 << 10


@dataclass(slots=True)
class OpenLog:
    """A log, and the store's other keys if they are at hand."""

    view: "LogView"
    home: "KeyHome"
    opened: "OpenStore | None"

    def remembered(self) -> "list[KnownHead]":
        """The head that this user has seen, if any."""
        from cairn.registry.audit import KnownHead

        head = self.home.remembered_head(self.view.store)
        return [KnownHead(head, "this user's memory")] if head is not None else []

    def signer(self, owners: "list[bytes]") -> "Identity":
        """Who signs a head: an owner if the user is one, else the user as a witness."""
        from cairn.core.clock import SystemEntropy

        found = self.opened.identity_among(owners) if self.opened is not None else None
        return found or self.home.identity(SystemEntropy())

    @contextmanager
    def registry(self) -> "Iterator[Registry | None]":
        """The registry, for who has the store's keys: its fold, and names."""
        from cairn.registry.registry import Registry

        if self.opened is None:
            yield None
            return
        registry = Registry(self.opened)
        try:
            yield registry
        finally:
            registry.close()


def log_key_option(command: Command) -> Command:
    """Add `--log-key`."""
    return click.option(
        "--log-key",
        type=PlainPath(path_type=Path),
        metavar="FILE",
        help="Open the log with this key alone ('cairn audit key'), and nothing else of the store.",
    )(command)


def open_log(log_key: Path | None) -> OpenLog:
    """The log of the chosen store, also where its registry would refuse to open.

    Raises:
        NotAStore, NotAllowed, WrongKey, IntegrityError: it cannot be opened.
    """
    from cairn.core.clock import SystemClock
    from cairn.registry.logview import LogView
    from cairn.registry.opened import open_store

    backend, home, source = store_place()
    if log_key is not None:
        view = LogView.by_key(backend, read_small(log_key), f"log key {log_key}", SystemClock())
        return OpenLog(view, home, None)
    opened = open_store(backend, home, source)
    return OpenLog(LogView.of(opened), home, opened)


def read_small(path: Path) -> bytes:
    """Bytes of a small file of the user's."""
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise NotAllowed(f"{path} cannot be read: {error.strerror}") from None


def parse_head(text: str) -> "Head | None":
    """A head given as LENGTH:ROOT; None if it is something else, as the name of a file."""
    from cairn.registry.localfiles import Head

    length, colon, root = text.partition(":")
    if not colon or not length.isdecimal():
        return None
    try:
        head = Head(int(length), bytes.fromhex(root))
    except ValueError:
        head = Head(0, b"")
    if not head.length or len(head.root) != 32:
        raise UsageError(f"{text[:100]!r} is no head", hint="write LENGTH:ROOT, the root in 64 hexadecimal digits")
    return head
