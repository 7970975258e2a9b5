"""One rank's part of one `dcp.save`: its session, its fragment, and the watch over both until the outcome.

torch calls only the coordinator once all ranks have written. The others hear nothing of the outcome, and none does if
a rank has failed, so each looks into the log itself: its session ends when the log has the commit, when the writer is
used again or forgotten, when the process ends, or when an attempt could have been done long ago.
"""

import atexit
import contextlib
import threading
import weakref

import msgspec

from cairn.core.errors import CairnError
from cairn.core.ids import short
from cairn.core.limits import ATTEMPT_SECONDS
from cairn.core.pool import threads_within_budget
from cairn.registry.entries import ObjectRef
from cairn.registry.envelope import Stages
from cairn.registry.outcomes import commit_of_session
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.codec import CodecPolicy
from cairn.training.dcp_items import RankItems
from cairn.training.encode import WORKER_BYTES, Encoder
from cairn.training.fragment import Fragment
from cairn.training.gathering import leave_fragment, make_fragment

# The commit follows within a second or a few; short looks end sessions of processes that are gone soon after.
_LOOK_SECONDS_MIN = 0.1
_KEY_BYTES = 32


class Told(msgspec.Struct, frozen=True):
    """What a rank tells the coordinator: where its fragment lies, and the key that it alone was sealed under.

    It travels through the memory of DCP's own gathering and is stored nowhere. `ref` is None on the coordinator, which
    has its fragment at hand. A key for each rank and attempt needs nothing from the plan, which DCP may keep for later
    saves.
    """

    rank: int
    store: bytes
    step: int | None
    key: bytes = b""
    ref: ObjectRef | None = None

    def __repr__(self) -> str:
        return f"Told(rank {self.rank}, <secret>)"


class Attempt:
    """This rank's part of one save. Dropping the last reference ends it."""

    def __init__(self, registry: Registry, codec: CodecPolicy, rank: int, coordinates: bool) -> None:
        opened, state = registry.opened, registry.refresh()
        self.rank, self.coordinates = rank, coordinates
        self.session = Session(registry)
        self.save = self.session.save(codec, opened.clock)
        self.stages = Stages()
        self.fragment: Fragment | None = None
        self._registry, self._since = registry, state.length - 1
        self._begun = opened.clock.monotonic()
        self._watch: Watch | None = None

    def contribute(self, items: RankItems, step: int | None) -> Told:
        """Store this rank's items and leave its fragment; everything is durable when this returns."""
        opened, stages = self._registry.opened, self.stages
        self.session.ensure_open()
        begun = opened.clock.monotonic()
        tensors = Encoder(self.save, items.plan, items.leaves, None).run(threads_within_budget(WORKER_BYTES))
        now = opened.clock.monotonic()
        stages.write, stages.total = now - begun, now - self._begun
        fragment = make_fragment(
            self.rank, step or 0, self.session, tensors, items.values, self.save.written, stages,
            stays=self.coordinates,
        )  # fmt: skip
        told = Told(self.rank, opened.store, step)
        if self.coordinates:
            self.fragment = fragment
        else:
            key = opened.entropy.token(_KEY_BYTES)
            told = Told(self.rank, opened.store, step, key, leave_fragment(opened, key, fragment))
        self._watch = Watch(self._registry, self.session, self._since + 1)
        weakref.finalize(self, self._watch.leave).atexit = False
        return told

    def settle(self) -> Session:
        """Hand the session over to whoever brings the outcome about."""
        if self._watch is not None:
            self._watch.dismiss()
        return self.session

    def give_up(self) -> None:
        """End the session now; what was stored becomes collectable."""
        self.settle().end()


class Watch:
    """A thread that ends a session when there is no more reason to hold it."""

    def __init__(self, registry: Registry, session: Session, since: int) -> None:
        self._registry, self._session, self._since = registry, session, since
        self._over = threading.Event()
        self._dismissed = False
        self._thread = threading.Thread(target=self._run, name="cairn-watch", daemon=True)
        _watches.add(self)
        self._thread.start()

    def leave(self) -> None:
        """Have the session ended soon."""
        self._over.set()

    def dismiss(self) -> None:
        """Stop watching; the session stays open."""
        self._dismissed = True
        self.close()

    def close(self) -> None:
        """Have the session ended now."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        clock, pause = self._registry.opened.clock, _LOOK_SECONDS_MIN
        limit = clock.monotonic() + ATTEMPT_SECONDS
        while not self._over.wait(pause) and clock.monotonic() < limit:
            with contextlib.suppress(CairnError):
                if commit_of_session(self._registry, self._session.id, self._since) is not None:
                    break
            pause = min(2 * pause, self._registry.state.heartbeat_seconds)
        _watches.discard(self)
        if not self._dismissed:
            self._session.end()

    def __repr__(self) -> str:
        return f"Watch({short(self._session.id)})"


_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """What a process has not heard of when it ends it never will."""
    for watch in list(_watches):
        watch.close()
