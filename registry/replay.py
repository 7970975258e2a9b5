"""Replays stored entries into a state, and tells void entries from damage.

An entry that does not open, or is not allowed, is void: it counts as bytes and does nothing. An entry that is in
order but whose signed root contradicts the bytes before it is *suspect*: either it lies or the bytes were changed.
If a later entry's root agrees with all the bytes, the suspect lied and is void; if none does, the bytes are damaged:
the suspects are applied for reading and writing stops.
"""

from cairn.core.errors import IntegrityError
from cairn.core.ids import StoreId
from cairn.core.limits import LOG_ENTRY_BYTES_MAX
from cairn.registry.entries import Entry, open_entry, payload_of
from cairn.registry.fold import apply_intact, apply_payload
from cairn.registry.fold_rights import NO_RIGHT, may_write
from cairn.registry.merkle import append_leaf, leaf_hash, root_of
from cairn.registry.state import State, Void

# Reason of a void entry whose bytes do not open: damage, or the work of a foreign hand.
UNREADABLE = "it does not open, or its signature is bad"
# Reason of one that opens, and speaks for other bytes before it than those that later entries speak for.
WRONG_ROOT = "its signed root is wrong"
_TOO_LONG = "it is over the size limit"
# Reasons of void entries that do not speak for the bytes before them.
VOUCHES_NOT = frozenset((UNREADABLE, WRONG_ROOT, _TOO_LONG, NO_RIGHT))


class Replay:
    """Feeds entries to a state in order.

    Attributes:
        begun: length of the starting state.
        leaves: leaf hash of each entry fed since.
    """

    def __init__(self, attested: State, tenant: bytes, store: StoreId, k_log: bytes) -> None:
        self._attested = attested
        self._identity = tenant, store, k_log
        self._suspects: list[Entry] = []
        self._late_voids: list[Void] = []
        self._length, self._frontier, self._leaf = attested.length, attested.frontier, attested.last_leaf
        self._vouched = 0
        self.begun = attested.length
        self.leaves: list[bytes] = []

    @property
    def length(self) -> int:
        """Entries fed so far, those of the starting state included."""
        return self._length

    @property
    def root(self) -> bytes:
        """Merkle root of all entries fed so far."""
        return root_of(self._frontier)

    @property
    def vouched(self) -> int:
        """How many entries the newest one in order speaks for, by its signed root; 0 before the first that was fed."""
        return self._vouched

    @property
    def last_leaf(self) -> bytes:
        """Leaf hash of the last entry fed."""
        return self._leaf

    def feed(self, stored: bytes, leaf: bytes | None = None) -> Entry | None:
        """Take the entry at position `length`, and return it if it opens.

        Args:
            leaf: its leaf hash, where `stored` is cut off at the size limit.
        """
        n = self._length
        entry, reason = self._open(stored, n)
        if entry is not None and reason is None:
            if entry.root == self.root:
                self._settle()
                self._vouched = n
                self._apply(self._attested, entry)
            else:
                self._suspects.append(entry)
        else:
            self._late_voids.append(Void(n, reason or UNREADABLE))
        self._leaf = leaf or leaf_hash(stored)
        self.leaves.append(self._leaf)
        self._frontier = append_leaf(self._frontier, n, self._leaf)
        self._length = n + 1
        if not self._suspects:
            self._settle()
        return entry

    def attested(self) -> State:
        """The state up to the last position that nothing contradicts; what may be cached."""
        return self._attested

    def current(self) -> State:
        """The state to work with; `damaged_from` is set where bytes contradict a signed root."""
        if not self._suspects:
            return self._attested
        state = self._attested.copy()
        first = self._suspects[0].n
        reasons = {void.n: void.reason for void in state.voids}
        # What was changed stands right before, or before void entries of others, which attest nothing.
        at = first - 1
        while reasons.get(at, UNREADABLE) != UNREADABLE:
            at -= 1
        state.damaged_from = at if at in reasons else first
        for entry in self._suspects:
            self._apply(state, entry, intact=True)
        state.voids.extend(self._late_voids)
        state.length, state.frontier = self._length, self._frontier
        return state

    def _open(self, stored: bytes, n: int) -> tuple[Entry | None, str | None]:
        tenant, store, k_log = self._identity
        if len(stored) > LOG_ENTRY_BYTES_MAX:
            return None, _TOO_LONG
        try:
            entry = open_entry(stored, n, tenant, store, k_log)
        except IntegrityError:
            return None, UNREADABLE
        if n and not may_write(self._attested, entry.actor):
            return entry, NO_RIGHT
        return entry, None

    def _settle(self) -> None:
        """All bytes so far are attested: what was suspect is void."""
        lied = [Void(entry.n, WRONG_ROOT) for entry in self._suspects]
        self._attested.voids.extend(sorted(lied + self._late_voids, key=lambda void: void.n))
        self._suspects, self._late_voids = [], []
        self._attested.length, self._attested.frontier = self._length, self._frontier
        self._attested.last_leaf = self._leaf

    def _apply(self, state: State, entry: Entry, intact: bool = False) -> None:
        try:
            payload = payload_of(entry)
        except IntegrityError as error:
            state.voids.append(Void(entry.n, error.message))
            return
        if payload is None:
            state.newer_from = state.newer_from if state.newer_from is not None else entry.n
            return
        if intact:
            apply_intact(state, entry, payload)
            return
        reason = apply_payload(state, entry, payload)
        if reason is not None:
            state.voids.append(Void(entry.n, reason))
