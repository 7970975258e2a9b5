"""Every interleaving of writers, collectors, a reader and deletion over the real fold, within bounds.

* **world** - a fold of the log, the objects in the store, sessions, pins, and where each actor stands.
* **actor** - a writer, collector, reader or operator; its next steps are functions of the world. Crashing is never
  being scheduled again, which every prefix of a run shows; a collector may take any session for dead at any time.
* **rules** - what actors of this model may be told to leave out; rules of the fold are left out by monkeypatching it.

Appending is one step: an entry is validated against the fold that it extends, and created only there. All packs of
the start hold one chunk, and those of writers another or the same; pack 0 holds waste too, so it may be repacked.
`explore` visits all worlds in the order of their distance and stops at the first in which something is lost.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cairn.core.ids import SessionId
from cairn.registry.entries import ObjectRef, Payload, RefDelete
from cairn.registry.fold import encode_state
from cairn.registry.state import State, object_key, objects_of, pack_key
from cairn.store.index import PackRef
from tests.support.logs import MAIN, MODEL, LogMaker, commit_entry, model_create

LOG = LogMaker()
KEPT = b"k" * 32


@dataclass(frozen=True)
class Rules:
    """Who takes part, and what they leave out.

    Args:
        attempts: of each writer.
        rounds: of each collector.
        copies: packs that hold the chunk from the start.
        finds: whether writers need the chunk that is there, and look for it; else all store one of their own.
        resumes: whether a writer may be killed once it has stored its pack, and go on by its journal.
        late_puts: whether a commit's answer may be lost, and the entry land later or never.
    """

    writers: int = 1
    collectors: int = 1
    readers: int = 0
    attempts: int = 1
    rounds: int = 1
    copies: int = 1
    finds: bool = True
    deletes: bool = False
    takes_back: bool = False
    repacks: bool = False
    merges: bool = False
    late_puts: bool = False
    resumes: bool = False
    # Of writers.
    rereads_head: bool = True
    checks_own_packs: bool = True
    checks_relied_packs: bool = True
    checks_packs_on_their_way: bool = True
    names_are_new: bool = True
    settles_before_upload: bool = True
    # Of collectors.
    lists_objects_first: bool = True
    follows_one_epoch: bool = True
    updates_plan: bool = True
    tells_when_it_marked: bool = False
    keeps_deleted: bool = True
    waits_for_floor: bool = True
    deletes_below_floor: bool = True
    tells_what_it_deleted: bool = True
    sees_pins: bool = True
    pins_by_content: bool = True
    pins_objects: bool = True
    # Of readers and operators.
    rereads_after_pin: bool = True
    takes_back_in_time: bool = True


class World(NamedTuple):
    """Args:
    log: number of a fold.
    objects: keys of what is stored.
    sessions: id and epoch.
    pins: objects that each protects beside all packs.
    late: payloads whose answer is lost, and the length at which they land.
    """

    log: int
    objects: frozenset[bytes]
    sessions: frozenset[tuple[bytes, int]]
    pins: frozenset[tuple[str, frozenset[bytes]]]
    late: frozenset[tuple[int, Payload]]
    actors: tuple[Any, ...]


Step = tuple[str, World]
# What happens, the world after it but for the actor, and the actor.
Moves = Iterator[tuple[str, World, Any]]
OVER = "over"


@dataclass
class Found:
    """What an exploration came to: worlds visited, and the shortest way to a loss, if there is one."""

    worlds: int
    loss: str = ""
    steps: list[str] = field(default_factory=list)


class Logs:
    """Folds of all logs that come up; those that are equal count as one."""

    def __init__(self, copies: int) -> None:
        self._numbers: dict[bytes, int] = {}
        self.states: list[State] = []
        self._after: dict[tuple[int, Payload], int | None] = {}
        first = [pack(b"first", number) for number in range(copies)]
        own = checkpoint_parts(KEPT, b"first", bool(first))
        kept = commit_entry(KEPT, first, sessions=(owner(b"first"),), **own)
        self.first = self._number(LOG.state(model_create(), kept, RefDelete(MODEL, MAIN, KEPT)))
        self.stored = frozenset([*map(pack_key, first), *keys_of(own)])

    def append(self, log: int, payload: Payload) -> int | None:
        """Number of the fold with one entry more; None if the entry would be void."""
        if (log, payload) not in self._after:
            state = self.states[log].copy()
            void = LOG.apply(state, payload) is not None
            self._after[log, payload] = None if void else self._number(state)
        return self._after[log, payload]

    def _number(self, state: State) -> int:
        encoded = encode_state(state)
        number = self._numbers.setdefault(encoded, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number


def owner(name: bytes) -> SessionId:
    """A session's id."""
    return SessionId(name.ljust(16, b"-"))


def ref(name: bytes, number: int) -> ObjectRef:
    """An object of a session."""
    return ObjectRef(owner(name) + number.to_bytes(12, "big"), 1, b"")


def pack(name: bytes, number: int = 0) -> PackRef:
    """A pack of a session."""
    return PackRef(owner(name), number.to_bytes(12, "big"), 1)


def checkpoint_parts(checkpoint: bytes, name: bytes, packs: bool) -> dict[str, Any]:
    """What a commit names beside packs."""
    return {"body": ref(name, 50), "reachability": ref(name, 50), "pieces": (ref(name, 60),) if packs else ()}


def keys_of(parts: dict[str, Any]) -> list[bytes]:
    """Keys of the objects of `checkpoint_parts`."""
    keys = [object_key(parts["body"], "body"), object_key(parts["reachability"], "reach")]
    return keys + [object_key(piece, "index") for piece in parts["pieces"]]


def add(world: World, *keys: bytes) -> World:
    """With objects stored."""
    return world._replace(objects=world.objects | set(keys))


def opened(world: World, session: bytes, epoch: int) -> World:
    """With a session that says an epoch."""
    return world._replace(sessions=ended(world, session).sessions | {(session, epoch)})


def ended(world: World, session: bytes) -> World:
    """Without a session."""
    return world._replace(sessions=frozenset(one for one in world.sessions if one[0] != session))


def chunk_of(key: bytes, rules: Rules) -> str:
    """What is in the pack of a key."""
    return "written" if key.startswith(b"w") and not rules.finds else "kept"


def needs(state: State, rules: Rules, *, deleted: bool = True) -> set[str]:
    """Chunks that checkpoints need."""
    found: set[str] = set()
    for model in state.models.values():
        restorable = [one for one, gone in model.gone.items() if gone.checkpoint is not None]
        for one in (*model.checkpoints, *(restorable if deleted else ())):
            found.add("kept" if one == KEPT else chunk_of(one, rules))
    return found


def in_force(state: State) -> list[int]:
    """Packs that the index offers, best first."""
    return [number for number in reversed(range(state.pack_count)) if state.in_force(number)]


def loss(world: World, state: State, rules: Rules) -> str:
    """What is lost in a world, if anything is."""
    packs = (pack_key(state.pack(number)) for number in in_force(state))
    if needs(state, rules) - {chunk_of(key, rules) for key in packs if key in world.objects}:
        return "a checkpoint has no usable copy of its chunk"
    for model in state.models.values():
        deleted = (one.checkpoint for one in model.gone.values() if one.checkpoint is not None)
        for held in (*model.checkpoints.values(), *deleted):
            if not world.objects.issuperset(objects_of(held)):
                return "a checkpoint lacks an object of its own"
    if not world.objects.issuperset(object_key(piece.object, "index") for piece in state.pieces):
        return "an index piece is missing"
    return "a pinned reader missed" if any(actor.pc == "missed" for actor in world.actors) else ""


def explore(rules: Rules, actors: tuple[Any, ...], nearest: int | None = None) -> Found:
    """Visit every world, or the nearest ones."""
    logs = Logs(rules.copies)
    start = World(logs.first, logs.stored, frozenset(), frozenset(), frozenset(), actors)
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    queue = deque([start])
    while queue and (nearest is None or len(came_from) < nearest):
        world = queue.popleft()
        what = loss(world, logs.states[world.log], rules)
        if what:
            return Found(len(came_from), what, _way(came_from, world))
        for label, after in _steps(world, logs, rules):
            if after not in came_from:
                came_from[after] = world, label
                queue.append(after)
    return Found(len(came_from))


def _steps(world: World, logs: Logs, rules: Rules) -> Iterator[Step]:
    for place, actor in enumerate(world.actors):
        for label, after, stands in actor.steps(world, logs, rules):
            actors = (*world.actors[:place], stands, *world.actors[place + 1 :])
            yield f"{actor.name}: {label}", after._replace(actors=actors)
    length = logs.states[world.log].length
    for slot, payload in world.late:
        rest = world._replace(late=world.late - {(slot, payload)})
        log = logs.append(world.log, payload) if slot == length else None
        if log is not None:
            yield "an entry lands late", rest._replace(log=log)
        elif slot < length:
            yield "a late entry finds its place taken", rest


def _way(came_from: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    steps = []
    while (before := came_from[world]) is not None:
        world, label = before
        steps.append(label)
    return steps[::-1]
