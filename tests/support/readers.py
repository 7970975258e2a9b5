"""The same entries for both readers: Cairn's fold, and the second one of the format's vectors."""

from typing import NamedTuple

from cairn.core.canonical import encode
from cairn.registry.entries import TYPES, Entry, Payload
from cairn.registry.fold import apply_payload
from cairn.registry.state import State, Void
from tests.vectors.format.reader import decode
from tests.vectors.format.reader_collection import Collection
from tests.vectors.format.reader_deletion import Deletion
from tests.vectors.format.reader_log import Log
from tests.vectors.format.reader_rights import Rights


class Applied(NamedTuple):
    """What became of one entry; `said` tells it in a failure."""

    type: str
    void: bool
    said: str


class BothReaders:
    """Two readers of one log, which begins with these owners."""

    def __init__(self, *owners: bytes, recovery: bytes = b"") -> None:
        self.state, self.log = State(length=1, owners=list(owners), recovery=recovery), Log.__new__(Log)
        self.log.owners, self.log.models, self.log.void, self.log.leaves = list(owners), {}, {}, []
        self.log.collection, self.log.rights, self.log.deletion = Collection(), Rights(), Deletion()
        self.log.rights.recovery, self.log.settings = recovery, {}

    def apply(self, actor: bytes, payload: Payload, claimed_at: int = 0) -> Applied:
        """Let both read the next entry."""
        n, kind = self.state.length, TYPES[type(payload)]
        entry = Entry(1, bytes(16), bytes(16), n, bytes(32), kind, actor, bytes(16), claimed_at, encode(payload))
        reason = apply_payload(self.state, entry, payload)
        if reason is not None:
            self.state.voids.append(Void(n, reason))
        self.state.length = n + 1
        self.log._apply(decode(encode(entry)))
        said = f"entry {n} by {actor[:1]!r}: {payload}; {reason}; {self.log.void.get(n)}"
        assert (reason is not None) == (n in self.log.void), said
        return Applied(kind, reason is not None, said)
