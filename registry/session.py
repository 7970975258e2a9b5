"""Sessions: what protects a writer's uploads until its commit.

A session object is created before the first upload and holds the collection epoch that the writer has seen;
numbered heartbeat objects beside it show that the writer lives. All go when the writer ends. A writer that dies
leaves them, and a collector gives the session up after the store's silence time.

A session that lasts while collectors work *advances*: it makes sure that what it has uploaded and relies on is still
good by a newer fold, and says so by a newer record with that fold's epoch, so that collectors need not wait for it.
"""

import contextlib
import re
import threading
from collections.abc import Iterable

import msgspec

from cairn.core.canonical import decode, encode
from cairn.core.clock import Clock
from cairn.core.errors import CairnError, IntegrityError, ObjectNotFound, Overtaken, TryAgain
from cairn.core.ids import RANDOM_ID_BYTES, SessionId
from cairn.core.process import ProcessMark, this_process
from cairn.registry.heartbeat import Heartbeat
from cairn.registry.numbers import within
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.state import State, pack_key
from cairn.store.chunkstore import ChunkSave
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object

FOLDER = "sessions"
OPEN, RECORD = ".open", ".record-"
_HEX_ID = re.compile(r"[0-9a-f]{32}")
# Collections that may go on while a session is opened, before that is given up.
_OPENINGS_MAX = 16


class SessionRecord(msgspec.Struct, frozen=True):
    """What a session object says (sealed under K_log)."""

    session: bytes
    epoch: int
    actor: bytes
    claimed_at: int
    process: ProcessMark = ProcessMark()


def open_sessions(opened: OpenStore) -> list[SessionId]:
    """Sessions whose object exists: of writers at work, and of some that died."""
    return sessions_named(listed.name for listed in opened.backend.list(FOLDER))


def sessions_named(names: Iterable[str]) -> list[SessionId]:
    """Sessions whose object is among these names."""
    stems = [name.removeprefix(f"{FOLDER}/").removesuffix(OPEN) for name in names if name.endswith(OPEN)]
    return [SessionId(bytes.fromhex(stem)) for stem in stems if _HEX_ID.fullmatch(stem)]


def session_object(session: SessionId) -> str:
    """Name of a session's object."""
    return f"{FOLDER}/{session.hex()}{OPEN}"


def read_session(opened: OpenStore, session: SessionId, names: Iterable[str] | None = None) -> SessionRecord:
    """What a session says of itself, by its newest record.

    Args:
        names: of the objects in the sessions' folder, if they have been listed.

    Raises:
        ObjectNotFound: its writer ended meanwhile.
        IntegrityError: damaged, or another session's.
    """
    if names is None:
        names = [listed.name for listed in opened.backend.list(FOLDER)]
    newest = _newest_record(session, names)
    name = f"{FOLDER}/{session.hex()}{RECORD}{newest}" if newest else session_object(session)
    what = f"session object {name}"
    plain = open_object(opened.secrets.k_log, opened.store, ObjectKind.SESSION, opened.backend.read(name), what)
    record = decode(plain, SessionRecord, what)
    if record.session != session:
        raise IntegrityError(f"{what} is another session's")
    return record


def _newest_record(session: SessionId, names: Iterable[str]) -> int:
    """Number of a session's newest record; 0 if its object is the only one."""
    stem = f"{FOLDER}/{session.hex()}{RECORD}"
    numbers = [name.removeprefix(stem) for name in names if name.startswith(stem)]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


class Session:
    """One writer's session; opened lazily by the first upload. Use as a context manager."""

    def __init__(self, registry: Registry, resumed: SessionId | None = None) -> None:
        """Nothing happens before the first upload.

        Args:
            registry: refreshed; what the session's saves rely on is looked up in it.
            resumed: a session of the same user that ended without a commit and whose object still exists.

        Raises:
            ObjectNotFound: the resumed session's object does not exist.
            IntegrityError: it is damaged.
        """
        opened, state = registry.opened, registry.state
        self.id = resumed or SessionId(opened.entropy.token(RANDOM_ID_BYTES))
        self._registry, self._opened = registry, opened
        self._resumed = resumed is not None
        self._good, self._records = (state.epoch, state.length - 1), 0
        if resumed is not None:
            names = [listed.name for listed in opened.backend.list(FOLDER)]
            if session_object(resumed) not in names:
                raise ObjectNotFound(f"session {resumed.hex()} was given up by a collector")
            self._good = read_session(opened, resumed, names).epoch, state.length - 1
            self._records = _newest_record(resumed, names)
        # Whether own packs may have been uploaded under another epoch than the session's.
        self._advanced = self._resumed
        self._settled = False
        self._saves: list[ChunkSave] = []
        self._lock = threading.Lock()
        self._heart: Heartbeat | None = None

    @property
    def name(self) -> str:
        """What the names of the session's objects begin with."""
        return f"{FOLDER}/{self.id.hex()}"

    @property
    def epoch(self) -> int:
        """The collection epoch that the session has seen."""
        return self._good[0]

    def save(self, policy: CodecPolicy = CodecPolicy.RAW, clock: Clock | None = None) -> ChunkSave:
        """Start putting content into packs of this session. See `ChunkStore.save`."""
        save = self._registry.chunks().save(self, policy, clock)
        self._saves.append(save)
        return save

    def ensure_open(self) -> SessionId:
        """Create the session object on first call; returns the session's id.

        Raises:
            Overtaken: what its saves rely on was collected before they could say so.
        """
        with self._lock:
            if self._heart is None:
                self._reclaim_others()
                if self._resumed:
                    self._renew()
                else:
                    self._open()
                seconds = self._registry.state.heartbeat_seconds
                self._heart = Heartbeat(self._opened, self.name, seconds, self._beat)
                self._heart.start(resumed=self._resumed)
            return self.id

    def settle(self) -> tuple[int, int]:
        """Make sure for the last time that uploads and hits are good; to be called when all packs are durable.

        Returns:
            The epoch that an entry may claim, and the log position that the hits are good for. Neither changes again.

        Raises:
            Overtaken: something was collected meanwhile, since this session was given up; start anew.
        """
        with self._lock:
            if not self._settled:
                self._advance()
                if self._advanced:
                    self._check(self._registry.state, stored=True)
                self._settled = True
            return self._good

    def _open(self) -> None:
        """Create the object, and read the head again: an epoch that began before it existed does not wait for it."""
        for _ in range(_OPENINGS_MAX):
            self._put(OPEN)
            before, state = self._good, self._registry.refresh()
            if state.epoch == before[0] or not self._take_up(state):
                return
            self._opened.backend.delete(f"{self.name}{OPEN}")
            self.id = SessionId(self._opened.entropy.token(RANDOM_ID_BYTES))
        raise Overtaken("no session could be opened: collections follow one another", hint="repeat the command")

    def _renew(self) -> None:
        """Say anew what the session is.

        Raises:
            Overtaken: a collector gave it up and has removed its object, by which others would find it.
        """
        record = f"{RECORD}{self._records + 1}"
        self._put(record)
        try:
            self._opened.backend.size(session_object(self.id))
        except ObjectNotFound:
            self._opened.backend.delete(f"{self.name}{record}")
            raise self._overtaken() from None
        self._records += 1

    def _put(self, ending: str) -> None:
        opened = self._opened
        record = SessionRecord(self.id, self.epoch, opened.identity.actor, opened.clock.wall_ns(), this_process())
        sealed = seal_object(opened.secrets.k_log, opened.store, ObjectKind.SESSION, encode(record), opened.entropy)
        opened.backend.create(f"{self.name}{ending}", [sealed])

    def _beat(self) -> None:
        with self._lock:
            if not self._settled:
                self._advance()

    def _advance(self) -> None:
        """Go over to the newest epoch, if all that the saves need is uncondemned by it; else stay."""
        state = self._registry.refresh()
        while state.epoch != self.epoch and self._take_up(state):
            if self._heart is not None:
                self._renew()
            state = self._registry.refresh()

    def _take_up(self, state: State) -> bool:
        """Claim a newer fold's epoch, unless something that is needed stands condemned, which the commit takes back."""
        if not self._check(state, stored=self._heart is not None):
            return False
        chunks = self._registry.chunks()
        # Hits that were found in the old index while the new one was looked at would not have been checked.
        if not all(save.continue_on(chunks, state.in_force) for save in self._saves):
            return False
        self._good, self._advanced = (state.epoch, state.length - 1), self._heart is not None
        return True

    def _check(self, state: State, *, stored: bool) -> bool:
        """Whether nothing that the saves need is condemned.

        What an epoch condemned that the session claims itself may be deleted at any time, and the commit rule would not
        tell: so it is with a pack that was on its way while the session advanced.

        Args:
            stored: make sure that own packs still exist.

        Raises:
            Overtaken: something may be deleted already.
        """
        relied = {number for save in self._saves for number in save.relied()}
        own = [pack for save in self._saves for pack in list(save.written.packs)]
        theirs = [state.condemned.get(number) for number in relied]
        ours = [state.condemned_objects.get(pack_key(pack)) for pack in own]
        lost = any(epoch is not None and epoch <= state.floor for epoch in (*theirs, *ours))
        lost = lost or any(epoch is not None and epoch <= self.epoch for epoch in ours)
        lost = lost or any(within(state.swept, number) for number in relied)
        if not lost and stored and own:
            listed = self._opened.backend.list(f"objects/{self.id.hex()}")
            sizes = {one.name: one.size for one in listed}
            lost = any(sizes.get(pack.name) != pack.size for pack in own)
        if lost:
            raise self._overtaken()
        return all(epoch is None for epoch in (*theirs, *ours))

    def _overtaken(self) -> Overtaken:
        return Overtaken(
            f"session {self.id.hex()} was given up by a collector, and what it relies on may be gone; nothing was "
            "changed",
            hint="repeat the command: it stores anew what is missing",
        )

    def _reclaim_others(self) -> None:
        """Free what writers of other sessions left behind unfinished when they were killed."""
        for other in open_sessions(self._opened):
            with contextlib.suppress(CairnError):
                self._opened.backend.reclaim(f"objects/{other.hex()}")

    def end(self) -> None:
        """Stop the heartbeat and remove the session's objects; uploads without a commit become collectable."""
        heart = self._heart
        if heart is None:
            return
        heart.stop()
        with self._lock, contextlib.suppress(CairnError):
            if self._heart is None:
                return
            self._heart = None
            for number in range(self._records, 0, -1):
                self._opened.backend.delete(f"{self.name}{RECORD}{number}")
            self._opened.backend.delete(f"{self.name}{OPEN}")

    def __enter__(self) -> "Session":
        return self

    def abandon(self) -> None:
        """Stop the heartbeat and leave the session's objects: its silence will end it, late enough."""
        if self._heart is not None:
            self._heart.cease()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        # While an answer is open, a commit may yet appear: until then its uploads must stay protected.
        if kind is not None and issubclass(kind, TryAgain):
            self.abandon()
        else:
            self.end()
