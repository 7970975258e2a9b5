"""Sessions: what protects a writer's uploads until its commit.

A session object is created before the first upload and holds the collection epoch that the writer has seen;
numbered heartbeat objects beside it show that the writer lives. Both go when the writer ends. A writer that dies
leaves them, and a collector gives the session up after the store's silence time.
"""

import contextlib
import re
import threading

import msgspec

from cairn.core.canonical import encode
from cairn.core.errors import CairnError, ObjectNotFound, TryAgain
from cairn.core.ids import RANDOM_ID_BYTES, SessionId
from cairn.registry.opened import OpenStore
from cairn.store.crypto.objects import ObjectKind, seal_object

FOLDER = "sessions"
OPEN, BEAT = ".open", ".beat-"
_HEX_ID = re.compile(r"[0-9a-f]{32}")


class SessionRecord(msgspec.Struct, frozen=True):
    """What a session object says (sealed under K_log)."""

    session: bytes
    epoch: int
    actor: bytes
    claimed_at: int


def is_open(opened: OpenStore, session: SessionId) -> bool:
    """Whether a session's object exists."""
    try:
        opened.backend.size(f"{FOLDER}/{session.hex()}{OPEN}")
    except ObjectNotFound:
        return False
    return True


def open_sessions(opened: OpenStore) -> list[SessionId]:
    """Sessions whose object exists: of writers at work, and of some that died."""
    names = [listed.name.removeprefix(f"{FOLDER}/") for listed in opened.backend.list(FOLDER)]
    stems = [name.removesuffix(OPEN) for name in names if name.endswith(OPEN)]
    return [SessionId(bytes.fromhex(stem)) for stem in stems if _HEX_ID.fullmatch(stem)]


class Session:
    """One writer's session; opened lazily by the first upload. Use as a context manager."""

    def __init__(
        self, opened: OpenStore, epoch: int, heartbeat_seconds: float, resumed: SessionId | None = None
    ) -> None:
        """Nothing happens before the first upload.

        Args:
            epoch: the collection epoch that the writer has seen.
            resumed: a session of the same user that ended without a commit and whose object still exists; `epoch` is
                then that session's.
        """
        self.epoch = epoch
        self.id = resumed or SessionId(opened.entropy.token(RANDOM_ID_BYTES))
        self._resumed = resumed is not None
        self._opened = opened
        self._heartbeat_seconds = heartbeat_seconds
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beater: threading.Thread | None = None
        self._beats = 0

    @property
    def name(self) -> str:
        """What the names of the session's objects begin with."""
        return f"{FOLDER}/{self.id.hex()}"

    def ensure_open(self) -> SessionId:
        """Create the session object on first call; returns the session's id."""
        with self._lock:
            if self._beater is None:
                self._reclaim_others()
                if self._resumed:
                    self._beats = self._last_beat()
                else:
                    self._create()
                self._beater = threading.Thread(target=self._beat, name="cairn-heartbeat", daemon=True)
                self._beater.start()
            return self.id

    def _create(self) -> None:
        opened = self._opened
        record = SessionRecord(self.id, self.epoch, opened.identity.actor, opened.clock.wall_ns())
        sealed = seal_object(opened.secrets.k_log, opened.store, ObjectKind.SESSION, encode(record), opened.entropy)
        opened.backend.create(f"{self.name}{OPEN}", [sealed])

    def _last_beat(self) -> int:
        """Number of the newest heartbeat, 0 if there is none: those of a resumed session go on from there."""
        stem = f"{self.name}{BEAT}"
        names = [one.name for one in self._opened.backend.list(FOLDER) if one.name.startswith(stem)]
        return max((int(name.removeprefix(stem)) for name in names if name.removeprefix(stem).isdigit()), default=0)

    def _reclaim_others(self) -> None:
        """Free what writers of other sessions left behind unfinished when they were killed."""
        for other in open_sessions(self._opened):
            with contextlib.suppress(CairnError):
                self._opened.backend.reclaim(f"objects/{other.hex()}")

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_seconds):
            # A beat that fails is made up by the next one; silence is what counts.
            with contextlib.suppress(CairnError):
                self._opened.backend.create(f"{self.name}{BEAT}{self._beats + 1}", [b""])
                self._beats += 1
                if self._beats > 1:
                    self._opened.backend.delete(f"{self.name}{BEAT}{self._beats - 1}")

    def end(self) -> None:
        """Stop the heartbeat and remove the session's objects; uploads without a commit become collectable."""
        self._ended.set()
        with self._lock:
            if self._beater is None:
                return
            self._beater.join()
            self._beater = None
        with contextlib.suppress(CairnError):
            if self._beats:
                self._opened.backend.delete(f"{self.name}{BEAT}{self._beats}")
            self._opened.backend.delete(f"{self.name}{OPEN}")

    def __enter__(self) -> "Session":
        return self

    def abandon(self) -> None:
        """Stop the heartbeat and leave the session's objects: its silence will end it, late enough."""
        self._ended.set()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        # While an answer is open, a commit may yet appear: until then its uploads must stay protected.
        if kind is not None and issubclass(kind, TryAgain):
            self.abandon()
        else:
            self.end()
