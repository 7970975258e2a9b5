"""The registry: the fold of the log, kept up to date, and changes to it.

Reading folds first and indexes after, so whatever the fold names is found in the index. A change is validated
against the fold of n-1 and created as entry n; if another writer took n, it is folded and the change validated again.
"""

import threading
from collections.abc import Callable

from cairn.core.canonical import encode
from cairn.core.errors import ConflictError, GoneError, IntegrityError, NewerFormat, ObjectNotFound, WrongKey
from cairn.core.heap import collection_paused
from cairn.core.ids import ModelId
from cairn.core.limits import LOG_ENTRY_BYTES_MAX
from cairn.registry.bundles import feed_bundled
from cairn.registry.entries import FORMAT, TYPES, Entry, Payload, open_entry, seal_entry
from cairn.registry.fold import apply_payload, decode_state, encode_state
from cairn.registry.indexing import Found, StateIndex, found_in, salvage_packs
from cairn.registry.localfiles import Head
from cairn.registry.log import append, check_no_hole, first_entry, read_entry, read_from, root_by_reading
from cairn.registry.merkle import leaf_hash
from cairn.registry.modelkeys import ModelKeys, matched_keys, open_model_keys
from cairn.registry.names import entry_name
from cairn.registry.opened import OpenStore, first_owners, in_force
from cairn.registry.permission import check_may_write, check_membership, check_right, signer_of
from cairn.registry.replay import UNREADABLE, VOUCHES_NOT, Replay
from cairn.registry.rootkeys import is_in_force
from cairn.registry.seenlog import SeenLog
from cairn.registry.snapshots import newest_snapshot
from cairn.registry.state import Model, State
from cairn.store.cache import Cache
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.provider import RootKey
from cairn.store.crypto.signing import Identity


class NothingToDo(Exception):
    """Raised by what builds an entry: another writer has done it meanwhile, or it must not be done any more."""


class Registry:
    """One store's registry. Safe for threads; `refresh` before reading what others may have changed."""

    def __init__(self, opened: OpenStore) -> None:
        """Bring the fold up to date from the cache, or the newest snapshot, and the log.

        Raises:
            IntegrityError: entry 0 is not this store's, or the log was rolled back behind what this user has seen.
        """
        self.opened = opened
        self._lock = threading.RLock()
        # Reads through this registry that left no record, since the store cannot be written to.
        self.unrecorded = 0
        # Length of the log that this user had seen before.
        self.seen_before = 0
        self._model_keys: dict[bytes, tuple[tuple[object, ...], ModelKeys]] = {}
        first = first_entry(opened)
        # Actors whose snapshots are believed, and numbers of bundles that were found to be worth nothing.
        self.first_owners = first_owners(opened, first)
        self.bad_bundles: frozenset[int] = frozenset()
        # The cache of one who sees no index has none, and must not pass for that of one who does.
        bound = leaf_hash(first if opened.secrets.sees_index else first + b"log")
        self._cache = Cache(opened.home.cache_folder(opened.store), bound)
        self._seen_log = SeenLog(opened, self._cache)
        self._damaged_from: int | None = None
        # Lengths of the log: as of the cache, and as of the index and the state.
        self._cached, self._indexed = 0, -1
        self._load(shortcuts=True)
        seen = self._remembered()
        agreed = self._state.damaged_from is None and self._agrees(seen)
        if not agreed:
            # The cache may hold what has been repaired since; the log itself decides.
            self._cache.clear()
            self._load(shortcuts=False)
            seen = self._remembered()
            self._pass_holes(seen)
            agreed = self._agrees(seen)
        self.seen_before = seen.length if seen is not None else 0
        if seen is not None and not agreed:
            self._explain(seen)
        elif self._state.damaged_from is None:
            self._compare_with_seen()
        if self._state.damaged_from is None:
            self._remember()
        # Where a change of keys was stopped on its way, others may lie beside those that were tried first.
        self.opened = in_force(opened, self._state)
        check_membership(self.opened, self._state)

    @property
    def state(self) -> State:
        """The fold as of the last refresh; treat as read-only."""
        return self._state

    @property
    def cache(self) -> Cache:
        """The local cache."""
        return self._cache

    def foreign(self) -> list[int]:
        """Entries that came since this user last looked, have no effect, and are of none of the store's writers."""
        return [void.n for void in self._state.voids if void.n >= self.seen_before and void.reason in VOUCHES_NOT]

    def index(self) -> StateIndex:
        """The index in force as of the last refresh."""
        return StateIndex(self._state, self._cache)

    def chunks(self) -> ChunkStore:
        """The chunk store as of the last refresh."""
        return ChunkStore(self.opened.access, self.index())

    def refresh(self) -> State:
        """Fold and index what others have added."""
        with self._lock:
            for stored, leaf in read_from(self.opened, self._replay.length):
                self._replay.feed(stored, leaf)
            return self._taken_in()

    def _taken_in(self) -> State:
        """Index what the replay has met since the last time; its state is then that of the registry."""
        with self._lock:
            # Compared with what was indexed, so that a failure on the way is made up for by the next call.
            if self._replay.length != self._indexed:
                # A copy, for readers go on with the fold that they have until the index knows what is new in this one.
                state = self._marked(self._replay.current().copy())
                self._index_since(self._cached, state)
                self._state, self._indexed = state, self._replay.length
                self._cached = self._replay.attested().length
            return self._state

    def settled(self) -> State:
        """A copy of the newest state.

        Raises:
            NewerFormat, IntegrityError, NotAllowed: see `check_writable`.
        """
        with self._lock:
            self.refresh()
            self.check_writable()
            return self._replay.attested().copy()

    def check_writable(self) -> None:
        """Raise unless this version may change the store.

        Raises:
            NewerFormat: an entry of a newer format is in the log.
            IntegrityError: the log is damaged or has a hole.
        """
        state = self._state
        self.signer()
        check_no_hole(self.opened, self._replay.length)
        if state.newer_from is not None:
            raise NewerFormat(
                f"log entry {state.newer_from} has a type that this version does not know: the store is read-only here",
                hint="upgrade Cairn on this machine",
            )
        if state.damaged_from is not None:
            raise IntegrityError(
                f"log entry {state.damaged_from} is damaged, or one before it",
                hint="intact checkpoints can still be read; run 'cairn verify --full', restore the entry from a copy",
            )

    def signer(self) -> Identity:
        """The identity that signs this user's entries.

        Raises:
            NotAllowed: no entry of this user can count.
        """
        return signer_of(self.opened, self._state)

    def check_may_write(self, model: ModelId) -> None:
        """Raise unless this user's commits to a model can count; to be called before anything is uploaded.

        Raises:
            NotAllowed: they cannot; says which grant is missing.
        """
        check_may_write(self.opened, self._state, model)

    def append(self, build: Callable[[State], Payload]) -> int:
        """Append the entry that `build` makes of the newest state; returns its position.

        `build` is called again whenever another writer was first, and raises what ends the attempt.

        Raises:
            ConflictError: the fold would refuse the entry.
            IntegrityError: the log is not what it was read as.
        """
        opened = self.opened
        write_id = opened.entropy.token(16)
        with self._lock:

            def head() -> int:
                self.refresh()
                self.check_writable()
                return self._replay.length

            def make(n: int) -> bytes:
                payload, identity = build(self._state), self.signer()
                entry = Entry(
                    FORMAT, opened.tenant, opened.store, n, self._replay.root, TYPES[type(payload)],
                    identity.actor, write_id, opened.clock.wall_ns(), encode(payload),
                )  # fmt: skip
                check_right(self._state, entry, payload)
                reason = apply_payload(self._state.copy(), entry, payload)
                if reason is not None:
                    raise ConflictError(f"the {entry.type} entry would be void: {reason}")
                return seal_entry(entry, identity, opened.secrets.k_log, opened.entropy)

            n, _ = append(opened, head, make)
            # What it made may be deleted already; what is void has never been.
            if any(void.n == n for void in self.refresh().voids):
                raise IntegrityError(f"log entry {n} is void, though it was valid when it was written")
            self._remember()
            return n

    def model_keys(self, model: ModelId) -> ModelKeys:
        """Keys of a model, as far as this user was given them; unwrapped once."""
        with self._lock:
            try:
                return self._keys_as_of_now(model)
            except GoneError:
                # A rotation may have replaced the wrap since the last look.
                self.refresh()
                return self._keys_as_of_now(model)

    def _keys_as_of_now(self, model: ModelId) -> ModelKeys:
        held = self._state.kept_model(model) or self._state.live_model(model)
        # Under another root key they are the same keys.
        sign: tuple[object, ...] = held.keys, held.readers.get(self.opened.identity.actor)
        known = self._model_keys.get(model)
        if known is None or known[0] != sign:
            known = self._model_keys[model] = sign, self._open_keys(model, held, known)
        return known[1]

    def _open_keys(self, model: ModelId, held: Model, known: tuple[object, ModelKeys] | None) -> ModelKeys:
        try:
            return open_model_keys(self.opened, model, held)
        except WrongKey:
            if isinstance(self.opened.root, RootKey) and is_in_force(self.opened.root, self._state):
                raise
        # The root key was changed while we work. Where the new one is out of reach, the public halves of the log are
        # enough to seal, and what was unwrapped before to read.
        newer = in_force(self.opened, self._state)
        if newer is not self.opened:
            self.opened = newer
            return open_model_keys(newer, model, held)
        return matched_keys(self.opened, model, held, known[1].all() if known else ())

    def close(self) -> None:
        """Release the cache."""
        self._cache.close()

    # --- start --------------------------------------------------------------------------------

    def _load(self, shortcuts: bool) -> None:
        """Replay the log up to its head, and index what came of it."""
        self._replay = self._replay_from(self._base(shortcuts))
        self._seen_log.look(self._cached)
        at_head = shortcuts and self._through_bundles()
        self._state = self._replay.current().copy()
        if at_head:
            self._taken_in()
        else:
            self.refresh()

    def _base(self, shortcuts: bool) -> State:
        """The state to replay from: the cache's, else the newest snapshot's, whose index nobody here knows yet."""
        cached = self._cached_state()
        self._cached, self._indexed, self._packs_known = cached.length, cached.length or -1, cached.pack_count
        if shortcuts and not cached.length:
            return newest_snapshot(self.opened, self.first_owners, self.ends_as).state or cached
        return cached

    def _through_bundles(self) -> bool:
        """Bring the replay up to the head; False if it is where it was, since the bundles are not to be trusted."""
        fed = feed_bundled(self.opened, self._replay)
        self.bad_bundles = fed.bad
        if not fed.trusted:
            self._replay = self._replay_from(self._base(shortcuts=True))
        return fed.trusted

    def _replay_from(self, state: State) -> Replay:
        return Replay(state, self.opened.tenant, self.opened.store, self.opened.secrets.k_log)

    def _cached_state(self) -> State:
        opened, state = self.opened, State()
        cached = self._cache.fold()
        if cached is not None:
            try:
                plain = open_object(opened.secrets.k_log, opened.store, ObjectKind.CACHE, cached.fold, "cached fold")
                with collection_paused():
                    state = decode_state(plain)
            except (IntegrityError, ValueError):
                # A damaged cache is worth nothing and costs nothing.
                self._cache.clear()
            if state.length and not self.ends_as(state):
                self._cache.clear()
                state = State()
        return state

    def ends_as(self, state: State) -> bool:
        """Whether the log still has the last entry that a state knows which was folded earlier."""
        try:
            return read_entry(self.opened, state.length - 1)[1] == state.last_leaf
        except ObjectNotFound:
            return False

    def _index_since(self, before: int, state: State) -> None:
        """Add the pieces of new commits to the cache, and the fold with them."""
        opened, attested = self.opened, self._replay.attested()
        known, certain = self._packs_known, attested.pack_count
        added = found_in(opened, attested, known) if opened.secrets.sees_index else Found()
        fold = seal_object(opened.secrets.k_log, opened.store, ObjectKind.CACHE, encode_state(attested), opened.entropy)
        seen = self._seen_log.follow(self._replay, attested.length)
        if added.complete:
            self._cache.advance(before - 1, attested.length - 1, fold, added.entries, added.pieces, seen)
        else:
            # What is out of reach now may be back tomorrow; a cache that moved past it would never look again.
            self._cache.hold(added.entries, added.pieces)
        self._packs_known = certain
        if state.damaged_from is not None and opened.secrets.sees_index:
            # Numbers of packs are guesses while entries are lost, so these never reach the cache.
            guessed = found_in(opened, state, certain)
            self._cache.hold(guessed.entries, guessed.pieces)
            self._cache.hold(salvage_packs(opened, state))

    def _remembered(self) -> Head | None:
        """The newest head that this user has seen; what another process saw after this one looked is looked up now."""
        head = self.opened.home.remembered_head(self.opened.store)
        if head is not None and head.length > self._replay.length:
            self.refresh()
        return head

    def _agrees(self, head: Head | None) -> bool:
        """Whether the log continues the one whose head this user has seen, if any."""
        if head is None:
            return True
        length = self._replay.length
        if head.length == length:
            return self._replay.root == head.root
        return head.length < length and self._root_at(head.length) == head.root

    def _pass_holes(self, head: Head | None) -> None:
        """Go on behind entries that were removed, as far as this user has seen the log."""
        while head is not None and self._replay.length < self._seen_log.end(head.length):
            self._replay.feed(b"")
            self.refresh()

    def _compare_with_seen(self) -> None:
        """Mark the state as damaged where an entry was changed since it was folded; what was folded still counts."""
        n, length = self._seen_log.difference(self._replay), self._replay.length
        if n is None:
            return
        if n < length and root_by_reading(self.opened, length) == self._replay.root:
            # The log is as it was folded: what was noted of it is wrong.
            self._cache.clear()
            self._load(shortcuts=False)
        else:
            self._damaged_from = n
            self._state = self._marked(self._state)

    def _explain(self, head: Head) -> None:
        """Tell damage (the store stays readable) from a log that was rolled back or replaced (which raises)."""
        length = self._replay.length
        if head.length > length:
            raise IntegrityError(
                f"the log has {length} entries, but this user has seen {head.length}: the store was rolled back",
                hint="restore the missing log entries from a copy; docs/operations.md tells how to settle on this one",
            )
        if self._state.damaged_from is not None:
            return
        changed = [void.n for void in self._state.voids if void.n < head.length and void.reason == UNREADABLE]
        if not changed:
            raise IntegrityError(
                f"the first {head.length} log entries are not those that this user has seen: the log was replaced",
                hint="compare the store with a copy; another client may know more entries",
            )
        # Damage to the newest entries contradicts no later one; only the memory of them shows it.
        self._damaged_from = changed[0]
        self._state = self._marked(self._state)

    def _marked(self, state: State) -> State:
        if self._damaged_from is not None and state.damaged_from is None:
            state = state.copy()
            state.damaged_from = self._damaged_from
        return state

    def _root_at(self, length: int) -> bytes:
        """Root over the first entries: signed in the entry that follows them, unless that one is void."""
        if any(void.n == length for void in self._state.voids):
            return root_by_reading(self.opened, length)
        stored = self.opened.backend.read(entry_name(length), 0, LOG_ENTRY_BYTES_MAX + 1)
        try:
            return open_entry(stored, length, self.opened.tenant, self.opened.store, self.opened.secrets.k_log).root
        except IntegrityError:
            return root_by_reading(self.opened, length)

    def _remember(self) -> None:
        self.opened.home.remember_head(self.opened.store, Head(self._replay.length, self._replay.root))
