"""The log as an auditor sees it: every entry from the first on, opened with the log's key and no other.

Nothing here knows a cache, a bundle or a snapshot. Whoever holds the log's key alone reads who did what when to which
id; names, messages and content are sealed to other keys.
"""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cairn.core.clock import Clock
from cairn.core.errors import CairnError, IntegrityError, ObjectNotFound, WrongKey
from cairn.core.ids import StoreId, TenantId
from cairn.registry.entries import Entry
from cairn.registry.formatfile import read_format
from cairn.registry.localfiles import Head
from cairn.registry.log import listed_length, read_from
from cairn.registry.opened import OpenStore
from cairn.registry.replay import Replay
from cairn.registry.state import State
from cairn.store.backends.contract import Backend

_TITLE, _VERSION, _KEY_BYTES = "cairn log key", 1, 32


@dataclass(frozen=True, slots=True)
class LogView:
    """Where a log lies, whose it is, and the key that opens its entries."""

    backend: Backend
    store: StoreId
    tenant: TenantId
    k_log: bytes = field(repr=False)
    clock: Clock

    @staticmethod
    def of(opened: OpenStore) -> "LogView":
        """The log of an opened store."""
        return LogView(opened.backend, opened.store, opened.tenant, opened.secrets.k_log, opened.clock)

    @staticmethod
    def by_key(backend: Backend, data: bytes, what: str, clock: Clock) -> "LogView":
        """The log that a log key opens.

        Args:
            data: of the file that holds the key.

        Raises:
            NotAStore, NewerFormat: see `read_format`.
            WrongKey: it is another store's.
            IntegrityError: it holds no log key.
        """
        store, tenant = read_format(backend)
        try:
            fields = json.loads(data)
            key, owner = bytes.fromhex(fields["log key"]), fields["store"]
            if fields[_TITLE] != _VERSION or len(key) != _KEY_BYTES:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise IntegrityError(f"{what} holds no log key", hint="'cairn audit key' of an owner writes one") from None
        if owner != store.hex():
            raise WrongKey(f"{what} belongs to store {owner!r:.80}, not to {store.hex()}", hint="name the right one")
        return LogView(backend, store, tenant, key, clock)

    def key_text(self) -> bytes:
        """Text of a file that holds the log's key."""
        return (json.dumps({_TITLE: _VERSION, "store": self.store.hex(), "log key": self.k_log.hex()}) + "\n").encode()


class StoredEntry(NamedTuple):
    """One position of the log.

    Args:
        stored: its bytes, ending one behind the size limit; None if they cannot be had.
        leaf: hash of all of them.
        fault: why they cannot be had; empty if the entry is not there.
        entry: what it says, if it opens.
    """

    n: int
    stored: bytes | None
    leaf: bytes
    fault: str = ""
    entry: Entry | None = None


class WholeLog:
    """A log that was read and replayed from entry 0 on.

    Attributes:
        leaves: leaf hash of every position; of a missing entry that of no bytes.
        missing, unreadable: positions without bytes; of the latter, why.
        roots: Merkle root at each length that was asked for and reached.
    """

    def __init__(
        self, view: LogView, lengths: Collection[int] = (), each: Callable[[StoredEntry], None] | None = None
    ) -> None:
        """Read it all.

        Args:
            lengths: at which the root is wanted.
            each: called with every position, in order.
        """
        self.view = view
        self.missing: list[int] = []
        self.unreadable: dict[int, str] = {}
        self.roots: dict[int, bytes] = {}
        self._replay = Replay(State(), view.tenant, view.store, view.k_log)
        self.leaves = self._replay.leaves
        for found in self._positions():
            entry = self._replay.feed(found.stored or b"", found.leaf or None)
            if found.stored is None:
                self.missing += [] if found.fault else [found.n]
                self.unreadable |= {found.n: found.fault} if found.fault else {}
            if self._replay.length in lengths:
                self.roots[self._replay.length] = self._replay.root
            if each is not None:
                each(found._replace(leaf=self._replay.last_leaf, entry=entry))
        self.state = self._replay.current()

    @property
    def head(self) -> Head:
        """Length, and root over all of it."""
        return Head(self._replay.length, self._replay.root)

    def _positions(self) -> Iterator[StoredEntry]:
        length, n = listed_length(self.view.backend), 0
        while True:
            fault = ""
            try:
                for stored, leaf in read_from(self.view, n):
                    yield StoredEntry(n, stored, leaf)
                    n += 1
            except ObjectNotFound:
                pass
            except CairnError as error:
                if error.retryable:
                    raise
                fault = error.message
            if n >= length and not fault:
                return
            yield StoredEntry(n, None, b"", fault)
            n += 1
