"""Collection: rounds of condemn -> floor -> delete -> swept, beside writers, readers and other collectors.

It may stop anywhere: what is condemned stays so until a later run deletes it. `docs/design.md` says why it is safe.
"""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from cairn.core.errors import IntegrityError, Overtaken, PlanVoid, RefusedError, StorageError, TryAgain
from cairn.core.ids import SessionId
from cairn.core.limits import (
    GC_LOOK_SECONDS_MAX,
    GC_REPACK_BYTES_PER_ROUND,
    GC_SWEEP_BATCH,
    GC_UNUSED_FRACTION,
)
from cairn.core.progress import Progress, Silent
from cairn.gc.counted import Counted
from cairn.gc.deferred import Deferral
from cairn.gc.drops import drop, due_to_drop
from cairn.gc.merging import merge_pieces
from cairn.gc.observe import SeenSession, list_pins, list_sessions, observe
from cairn.gc.plan import Marked, Plan, make_plan, shredded_since, update_plan
from cairn.gc.recorded import record_reads
from cairn.gc.repack import repack
from cairn.gc.silence import Silence
from cairn.registry import pins
from cairn.registry import session as sessions
from cairn.registry.entries import Condemn, Floor, ObjectRef, Swept
from cairn.registry.numbers import ranges
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.shortcuts import write_shortcuts
from cairn.registry.state import State, name_of_key
from cairn.registry.uploads import Uploads

_ROUNDS_MAX = 1000
_FIRST_LOOK_SECONDS = 0.05
# Sessions and pins, and what lies beside them.
_BESIDE = re.compile(r"[a-z]+/[0-9a-f]{32}\.(open|pin|record-[0-9]+|beat-[0-9]+)")


@dataclass(frozen=True, slots=True)
class Options:
    """How to collect.

    Args:
        wait_seconds: how long to wait for older sessions to end; then what is condemned is left for a later run.
        unused: see `make_plan`.
        repack_bytes: see `make_plan`.
        dead: sessions that an operator declares dead.
        condemn_only: stop before the floor is raised, and drop no deleted checkpoint, so that all can still be taken
            back.
    """

    wait_seconds: float = 1800.0
    unused: float = GC_UNUSED_FRACTION
    repack_bytes: int = GC_REPACK_BYTES_PER_ROUND
    dead: Collection[SessionId] = ()
    condemn_only: bool = False


@dataclass(slots=True)
class Collected:
    """What a collection did.

    Args:
        rounds: that condemned something.
        checkpoints_dropped: deleted ones that can no longer be restored.
        objects_deleted, bytes_deleted: what was deleted; bytes of packs by the log, of the rest by the listing.
        bytes_copied: what was repacked.
        objects_deferred: what stays condemned because a reader's pin protects it.
        unreadable: packs that could not be repacked, and why.
        sessions_ended: of dead writers, whose objects were removed.
        pieces_merged: index pieces that went into others.
        reads_recorded: that had ended, and that the log tells of now.
    """

    rounds: int = 0
    checkpoints_dropped: int = 0
    objects_deleted: int = 0
    bytes_deleted: int = 0
    bytes_copied: int = 0
    objects_deferred: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    sessions_ended: int = 0
    pieces_merged: int = 0
    reads_recorded: int = 0


@dataclass(slots=True)
class _Copies:
    """What a condemnation brings: nothing, or the needed part of packs that go, in new ones."""

    sessions: tuple[bytes, ...]
    epoch: int
    position: int
    packs: bytes
    pieces: tuple[ObjectRef, ...]
    ids: set[bytes] = field(default_factory=set)
    size: int = 0


class _Replan(Exception):
    """Another collector was first: what lies where has changed."""


class Collector:
    """Collects one store."""

    def __init__(self, registry: Registry, options: Options | None = None, progress: Progress | None = None) -> None:
        self._registry, self._opened = registry, registry.opened
        self._options, self._progress = options or Options(), progress or Silent()
        self._silence = Silence.of(self._opened, registry.state)
        self._counted = Counted(self._opened)
        self._sizes: dict[bytes, int] = {}
        self.done = Collected()

    def plan(self) -> Plan:
        """What a collection would begin with, deleted checkpoints whose time is over being dropped; changes nothing."""
        plan, _ = self._observe_and_plan(due_to_drop(self._registry))
        list_pins(self._opened, self._silence)  # whose silence counts from here on
        self._silence.keep()
        return plan

    def run(self) -> Collected:
        """Collect until nothing is left to collect.

        Raises:
            TryAgain: older sessions did not end in time; what is condemned is left for a later run.
            IntegrityError: a reachability list cannot be read; nothing more was deleted.
            RefusedError: the storage does not promise what collection needs.
        """
        self._check_may_collect()
        if not self._options.condemn_only:
            self.done.checkpoints_dropped = len(drop(self._registry, due_to_drop(self._registry)))
            self.done.pieces_merged = merge_pieces(self._registry)
        for _ in range(_ROUNDS_MAX):
            plan, marked = self._observe_and_plan()
            if plan.repacked and (plan.dead or plan.objects):
                # What needs no copying goes first: on a full disk there is no room for copies before.
                plan.repacked, plan.complete = [], False
            if not plan.empty and not self._condemn(plan, marked):
                continue
            # Sweeping packs sets free what only the next round sees: their index pieces.
            if not self._sweep() and (plan.empty or (plan.complete and not plan.dead and not plan.repacked)):
                break
        return self._finish()

    def apply(self, plan: Plan) -> Collected:
        """Collect what a plan says, and nothing else.

        Raises:
            PlanVoid: something was made live since it was made, or another collection went on.
        """
        self._check_may_collect()
        state = self._registry.refresh()
        if state.live_n >= plan.length:
            raise PlanVoid(f"log entry {state.live_n} came after the plan; nothing was changed", hint="plan again")
        if not self._options.condemn_only:
            self.done.checkpoints_dropped = len(drop(self._registry, plan.drops))
        fresh, marked = self._observe_and_plan()
        fresh.dead = sorted(set(fresh.dead) & set(plan.dead))
        fresh.repacked = sorted(set(fresh.repacked) & set(plan.repacked))
        fresh.objects = sorted(set(fresh.objects) & set(plan.objects))
        if not fresh.empty and not self._condemn(fresh, marked):
            raise PlanVoid("another collection was first; nothing was changed", hint="plan again")
        self._sweep()
        return self._finish()

    def _check_may_collect(self) -> None:
        self._registry.check_writable()
        if not self._opened.backend.capabilities.exclusive_create:
            raise RefusedError(
                f"{self._opened.backend.url} cannot create an object only if its name is free: collection is not safe",
                hint="copy the store to storage with conditional writes, with 'cairn push'",
            )

    def _finish(self) -> Collected:
        self._counted.keep()
        if not self._options.condemn_only:
            with suppress(StorageError):  # they only save time
                write_shortcuts(self._registry)
        told = record_reads(self._registry, self._silence)
        self.done.reads_recorded = told.reads
        self._clear_the_dead(told.pins)
        self._opened.backend.reclaim("")
        return self.done

    def _observe_and_plan(self, drops: Iterable[tuple[bytes, bytes]] = ()) -> tuple[Plan, Marked]:
        self._progress.stage("mark")
        observed = observe(self._registry, self._silence, self._options.dead)
        self._silence.keep()
        self._sizes = observed.objects
        options = self._options
        try:
            return make_plan(
                self._registry,
                observed,
                self._counted,
                drops=drops,
                unused=options.unused,
                repack_bytes=options.repack_bytes,
            )
        except IntegrityError:
            if not self._went_on_since(observed.state.epoch):
                raise
        return self._observe_and_plan(drops)

    def _went_on_since(self, epoch: int) -> bool:
        """Whether another collection has condemned something, and may have deleted a list that was to be read."""
        return self._registry.refresh().epoch != epoch

    # --- condemn ------------------------------------------------------------------------------------

    def _condemn(self, plan: Plan, marked: Marked) -> bool:
        """Copy what must be kept of packs that go, and condemn; False if all is to be planned anew."""
        registry = self._registry
        try:
            with Session(registry) as session:
                copies = self._copy(session, plan, marked)
                self._progress.stage("condemn")
                registry.append(lambda state: self._condemnation(state, plan, marked, copies))
        except (_Replan, Overtaken):
            return False
        except IntegrityError:
            if not self._went_on_since(plan.epoch):
                raise
            return False
        self.done.rounds += 1
        self.done.bytes_copied += copies.size
        return True

    def _copy(self, session: Session, plan: Plan, marked: Marked) -> "_Copies":
        copies = _Copies((), 0, 0, b"", ())
        if not plan.repacked:
            return copies
        session.ensure_open()
        state = self._registry.state.copy()
        if state.epoch != plan.epoch:
            raise _Replan
        repacked = repack(self._opened, session, state, plan.repacked, marked.stored, marked.needed, self._progress)
        for number, why in repacked.unreadable.items():
            self.done.unreadable[state.pack(number).name] = why
        plan.repacked = [number for number in plan.repacked if number not in repacked.unreadable]
        written, (epoch, position) = repacked.save.written, session.settle()
        if written.packs:
            packs, pieces = Uploads(self._opened, session).index(written)
            copies = _Copies((session.id,), epoch, position, packs, pieces, repacked.copied)
            copies.size = sum(pack.size for pack in written.packs)
        return copies

    def _condemnation(self, state: State, plan: Plan, marked: Marked, copies: "_Copies") -> Condemn:
        if state.epoch != plan.epoch or shredded_since(state, plan.length):
            raise _Replan
        if state.length > plan.length:
            update_plan(self._opened, plan, marked, copies.ids, state)
        return Condemn(
            sessions=copies.sessions,
            epoch=copies.epoch,
            hit_position=copies.position,
            relied=(),
            packs=copies.packs,
            pieces=copies.pieces,
            marked=plan.length,
            condemned=ranges([*plan.dead, *plan.repacked]),
            objects=b"".join(plan.objects),
        )

    # --- delete -------------------------------------------------------------------------------------

    def _sweep(self) -> bool:
        """Raise the floor to the newest epoch that condemned something, and delete what it allows.

        Returns:
            Whether packs went.
        """
        state = self._registry.refresh()
        begun = [*state.condemned.values(), *state.condemned_objects.values()]
        if self.done.rounds:
            begun.append(state.epoch)
        if not begun or self._options.condemn_only:
            return False
        self._raise_floor(max(begun))
        state = self._registry.state
        deferral = Deferral(self._registry, self._silence)
        packs = [number for number, epoch in state.condemned.items() if epoch <= state.floor]
        keys = [key for key, epoch in state.condemned_objects.items() if epoch <= state.floor]
        kept_packs, kept_keys = deferral.packs(packs), deferral.objects(keys)
        self.done.objects_deferred = len(kept_packs) + len(kept_keys)
        self._delete(sorted(set(packs) - kept_packs), sorted(set(keys) - kept_keys))
        return len(kept_packs) < len(packs)

    def _raise_floor(self, epoch: int) -> None:
        if self._registry.state.floor >= epoch:
            return
        self._wait_for_sessions(epoch)

        self._registry.append(lambda state: Floor(epoch))

    def _wait_for_sessions(self, epoch: int) -> None:
        """Return once every session of an older epoch has ended, advanced or been given up.

        Raises:
            TryAgain: that took too long.
        """
        clock = self._opened.clock
        end, pause = clock.monotonic() + self._options.wait_seconds, _FIRST_LOOK_SECONDS
        self._progress.stage("wait for older sessions")
        while older := self._older_sessions(epoch):
            left = end - clock.monotonic()
            if left <= 0:
                raise TryAgain(_who_is_waited_for(older), hint="run 'cairn gc apply' again: it goes on from here")
            clock.sleep(min(pause, left, GC_LOOK_SECONDS_MAX))
            pause *= 2

    def _older_sessions(self, epoch: int) -> list[SeenSession]:
        seen = list_sessions(self._opened, self._silence, self._options.dead)
        self._silence.keep()
        return [one for one in seen if one.epoch < epoch and not one.dead]

    def _delete(self, packs: list[int], keys: list[bytes]) -> None:
        """Delete, and tell the log exactly what was: in batches, and what was done so far if one delete fails."""
        state = self._registry.state
        names: list[tuple[int | bytes, str, int]] = [
            *((number, state.pack(number).name, state.pack(number).size) for number in packs),
            *((key, name_of_key(key), self._sizes.get(key, 0)) for key in keys),
        ]
        self._progress.stage("delete", sum(size for _, _, size in names))
        for first in range(0, len(names), GC_SWEEP_BATCH):
            deleted: list[int | bytes] = []
            try:
                for which, name, size in names[first : first + GC_SWEEP_BATCH]:
                    self._opened.backend.delete(name)
                    deleted.append(which)
                    self.done.objects_deleted += 1
                    self.done.bytes_deleted += size
                    self._progress.advance(size)
            finally:
                self._tell_swept(deleted)

    def _tell_swept(self, deleted: list[int | bytes]) -> None:
        def build(state: State) -> Swept:
            # Another collector may have told of some already.
            packs = [one for one in deleted if isinstance(one, int) and one in state.condemned]
            keys = sorted(one for one in deleted if isinstance(one, bytes) and one in state.condemned_objects)
            if not packs and not keys:
                raise _Replan
            return Swept(ranges(packs), b"".join(keys))

        with suppress(_Replan):
            self._registry.append(build)

    # --- afterwards ---------------------------------------------------------------------------------

    def _clear_the_dead(self, recorded: set[str]) -> None:
        """Remove the objects of sessions that count as dead and cannot commit any more, and of dead pins.

        So go records and beats without the object by which they are found: what was given up wrongly may have gone on.
        """
        floor, backend = self._registry.state.floor, self._opened.backend
        ended = [
            one.id.hex()
            for one in list_sessions(self._opened, self._silence, self._options.dead)
            if one.dead and one.epoch < floor
        ]
        self.done.sessions_ended += len(ended)
        gone = {f"{sessions.FOLDER}/{one}" for one in ended}
        gone |= {name.removesuffix(pins.PIN) for name in recorded}
        self._silence.keep()
        for folder, ending in ((sessions.FOLDER, sessions.OPEN), (pins.FOLDER, pins.PIN)):
            names = [listed.name for listed in backend.list(folder) if _BESIDE.fullmatch(listed.name)]
            there = {name.removesuffix(ending) for name in names if name.endswith(ending)} - gone
            # By its own object it is found, so that goes last.
            for name in sorted(names, key=lambda name: name.endswith(ending)):
                if name.partition(".")[0] not in there:
                    backend.delete(name)


def _who_is_waited_for(older: list[SeenSession]) -> str:
    first = min(older, key=lambda one: one.seconds_left)
    others = f" and {len(older) - 1} more" if len(older) > 1 else ""
    return (
        f"session {first.id.hex()}{others} began before this collection and still lives (given up after "
        f"{first.seconds_left:.0f} s of silence); what is condemned was not deleted yet"
    )
