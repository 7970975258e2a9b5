"""What a collection would condemn. Pure but for reading lists and index.

Nothing here decides about safety: the fold refuses what is not safe (`registry/fold_collection.py`), and the plan is
brought up to date whenever the log has grown by an entry that makes something live.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from cairn.core.errors import ObjectNotFound
from cairn.core.limits import GC_OBJECTS_PER_ROUND, GC_PACKS_PER_ROUND, GC_REPACK_BYTES_PER_ROUND, GC_UNUSED_FRACTION
from cairn.gc.counted import Counted
from cairn.gc.liveness import Array, Needed, Stored, packs_of_chunks, stored_in
from cairn.gc.observe import Observed, left_over
from cairn.gc.roots import all_roots, packs_in_force
from cairn.registry.numbers import numbers_of
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.state import BINARY_NAME_BYTES, OBJECT_KINDS, State, named_keys, pack_key
from cairn.store.index import PackRef

_DELETED = tuple[bytes, bytes]


@dataclass(slots=True)
class Plan:
    """One round.

    Args:
        length, epoch: of the log that it goes by, and of collection.
        fence: sessions of dead writers could still commit; the next epoch ends that.
        drops: model and checkpoint of deleted ones that can no longer be restored.
        dead: numbers of packs in force that hold nothing that is needed.
        repacked: numbers of packs in force of which the needed part is to be copied.
        objects: keys of other objects that nobody needs.
        bytes_freed: stored bytes that go.
        bytes_copied: stored bytes that are copied for it.
        bytes_unused: of what stays, stored bytes that nobody needs.
        bytes_live: of what stays, sealed chunks and pages that are needed.
        damaged: packs that are missing, or shorter than they should be.
        complete: nothing more is left for another round.
    """

    length: int
    epoch: int
    fence: bool
    drops: list[_DELETED]
    dead: list[int] = field(default_factory=list)
    repacked: list[int] = field(default_factory=list)
    objects: list[bytes] = field(default_factory=list)
    bytes_freed: int = 0
    bytes_copied: int = 0
    bytes_unused: int = 0
    bytes_live: int = 0
    damaged: list[int] = field(default_factory=list)
    complete: bool = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing to condemn."""
        return not (self.dead or self.repacked or self.objects or self.fence)


@dataclass(slots=True)
class Marked:
    """What a plan was made of, to bring it up to date with."""

    needed: Needed
    stored: Stored


def make_plan(
    registry: Registry,
    observed: Observed,
    counted: Counted,
    *,
    drops: Iterable[_DELETED] = (),
    unused: float = GC_UNUSED_FRACTION,
    repack_bytes: int = GC_REPACK_BYTES_PER_ROUND,
) -> tuple[Plan, Marked]:
    """Mark, and choose what goes.

    Args:
        drops: deleted checkpoints that count as dropped.
        unused: the part of what stays in packs that may be unneeded; more is repacked, the emptiest packs first.
        repack_bytes: needed bytes that one round copies at most.

    Raises:
        IntegrityError: a reachability list cannot be read.
    """
    opened, state = registry.opened, observed.state
    dropped = set(drops)
    roots = all_roots(state, dropped)
    needed = Needed(counted.count(roots), (root.state.reachability.name for root in roots))
    missing = [number for number in packs_in_force(state) if not _is_there(opened, observed, state.pack(number))]
    stored = stored_in(opened, state, missing, registry.cache.bad_places())
    fence = any(seen.dead and seen.epoch >= state.floor for seen in observed.sessions)
    plan = Plan(state.length, state.epoch, fence, sorted(dropped), damaged=missing)
    _choose_packs(plan, state, stored, needed, unused, repack_bytes)
    _choose_objects(plan, observed)
    return plan, Marked(needed, stored)


def _is_there(opened: OpenStore, observed: Observed, pack: PackRef) -> bool:
    """Whether a pack is there at its full size; what a commit brought after the listing is asked for by itself."""
    size = observed.objects.get(pack_key(pack))
    if size is None:
        with suppress(ObjectNotFound):
            size = opened.backend.size(pack.name)
    return size == pack.size


def _choose_packs(plan: Plan, state: State, stored: Stored, needed: Needed, unused: float, repack_bytes: int) -> None:
    live, least = live_bytes(state, stored, needed)
    numbers = [number for number in packs_in_force(state) if number not in stored.unknown]
    waste = {number: max(state.pack(number).size - int(least[number]), 0) for number in numbers}
    plan.dead = [number for number in numbers if not live[number]]
    if len(plan.dead) > GC_PACKS_PER_ROUND:
        plan.dead, plan.complete = plan.dead[:GC_PACKS_PER_ROUND], False
    kept = [number for number in numbers if live[number]]
    shredded = shredded_packs(state)
    plan.bytes_live = int(live.sum())
    plan.bytes_freed = sum(state.pack(number).size for number in plan.dead)
    plan.bytes_unused = sum(waste[number] for number in kept)
    allowed = unused * plan.bytes_live
    order = sorted(kept, key=lambda number: (number in shredded, waste[number] / state.pack(number).size), reverse=True)
    for number in order:
        if plan.bytes_unused <= allowed and number not in shredded:
            break
        if number in plan.damaged:
            continue
        if plan.bytes_copied + int(live[number]) > repack_bytes and plan.repacked:
            plan.complete = False
            break
        plan.repacked.append(number)
        plan.bytes_copied += int(live[number])
        plan.bytes_freed += waste[number]
        plan.bytes_unused -= waste[number]
    plan.repacked.sort()


def shredded_packs(state: State) -> set[int]:
    """Packs in force that held what only shredded models needed: they go, however little of it is left."""
    named = (number for deleted in state.deleted.values() for number in numbers_of(deleted.packs))
    return {number for number in named if state.in_force(number)}


def live_bytes(state: State, stored: Stored, needed: Needed) -> tuple[Array, Array]:
    """Stored bytes of each pack, by number, that are needed from it, and the size of a pack of these alone."""
    rows = stored.needed_rows(needed)
    live = np.bincount(stored.packs[rows], stored.lengths[rows], state.pack_count).astype(np.int64)
    chunks = np.bincount(stored.packs[rows], minlength=state.pack_count)
    return live, packs_of_chunks(live, chunks)


def _choose_objects(plan: Plan, observed: Observed) -> None:
    """Leftovers of writers that live no more, and what dropped checkpoints had of their own."""
    found = left_over(observed.objects, observed.state, observed.sessions, set(plan.drops))
    if len(found) > GC_OBJECTS_PER_ROUND:
        found, plan.complete = found[:GC_OBJECTS_PER_ROUND], False
    plan.objects = found
    plan.bytes_freed += sum(observed.objects[key] for key in found)


def update_plan(opened: OpenStore, plan: Plan, marked: Marked, copied: set[bytes], state: State) -> None:
    """Bring a plan up to date with a state that others have changed: what they need now stays.

    Args:
        copied: ids that the round has copied, beside their old places.
    """
    for root in all_roots(state, plan.drops):
        marked.needed.add(opened, root)
    stored = marked.stored
    rows = stored.needed_rows(marked.needed)
    going = np.zeros(state.pack_count + 1, bool)
    going[[*plan.dead, *plan.repacked]] = True
    stays = set[int]()
    for at in np.flatnonzero(rows & going[stored.packs]):
        if bytes(stored.ids[at]).ljust(32, b"\0") not in copied:
            stays.add(int(stored.packs[at]))
    for number in (*plan.dead, *plan.repacked):
        if not state.in_force(number):
            stays.add(number)
    plan.dead = [number for number in plan.dead if number not in stays]
    plan.repacked = [number for number in plan.repacked if number not in stays]
    needed = named_keys(state)
    plan.objects = [key for key in plan.objects if key not in needed and key not in state.condemned_objects]
    plan.length = state.length


def kinds_of(keys: Iterable[bytes]) -> dict[str, int]:
    """How many objects of each kind."""
    counts: dict[str, int] = {}
    for key in keys:
        kind = OBJECT_KINDS[key[BINARY_NAME_BYTES]]
        counts[kind] = counts.get(kind, 0) + 1
    return counts
