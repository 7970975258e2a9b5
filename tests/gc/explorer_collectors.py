"""The explorer's collectors. Values, as all actors; see `explorer.py`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cairn.registry.entries import Condemn, Floor, Swept
from cairn.registry.numbers import ranges
from cairn.registry.state import State, named_keys, object_key, pack_key, pack_records
from tests.gc.explorer import (
    OVER,
    Logs,
    Moves,
    Rules,
    World,
    add,
    chunk_of,
    ended,
    in_force,
    needs,
    opened,
    owner,
    pack,
    ref,
)


@dataclass(frozen=True)
class Planned:
    """A round's plan: what `gc.plan.Plan` says, and the best pack of each chunk."""

    length: int
    epoch: int
    dead: tuple[int, ...]
    repacked: tuple[int, ...]
    objects: tuple[bytes, ...]
    best: tuple[tuple[str, int], ...]

    @property
    def empty(self) -> bool:
        return not (self.dead or self.repacked or self.objects)


class Collector(NamedTuple):
    """Rounds of list, mark, copy, condemn, raise the floor, look at pins, delete one by one, tell.

    It never waits for a session: as if it took every one for dead by then.

    Args:
        listed: objects that it saw; later what is to be deleted.
        known: sessions that it takes for alive; later what it has deleted.
    """

    name: str
    number: int
    rounds: int
    pc: str = "objects"
    listed: Any = None
    known: Any = None
    plan: Planned | None = None
    epoch: int = 0

    @property
    def session(self) -> bytes:
        return owner(f"c{self.number}.{self.rounds}".encode())

    def steps(self, world: World, logs: Logs, rules: Rules) -> Moves:
        state = logs.states[world.log]
        move = getattr(self, f"_{self.pc}", None)
        if move is not None:
            yield from move(world, state, logs, rules)

    def _objects(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        if not rules.lists_objects_first:
            yield from self._see_sessions(world, "objects_last")
            return
        yield "lists objects", world, self._replace(pc="sessions", listed=world.objects)

    def _sessions(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        yield from self._see_sessions(world, "mark")

    def _objects_last(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        yield "lists objects", world, self._replace(pc="mark", listed=world.objects)

    def _see_sessions(self, world: World, then: str) -> Moves:
        alive = frozenset(session for session, _ in world.sessions)
        yield "lists sessions", world, self._replace(pc=then, known=alive)
        if alive:
            yield "takes all sessions for dead", world, self._replace(pc=then, known=frozenset())

    def _mark(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        packs, needed = in_force(state), named_keys(state)
        # Marks in local caches have collectors choose different places.
        ordered = packs if self.number % 2 else packs[::-1]
        best = {chunk_of(pack_key(state.pack(number)), rules): number for number in ordered}
        wanted = {best[chunk] for chunk in needs(state, rules, deleted=rules.keeps_deleted) if chunk in best}
        repacked = (0,) if rules.repacks and 0 in wanted else ()
        dead = tuple(sorted(set(packs) - wanted))
        objects = tuple(
            sorted(
                key for key in self.listed
                if key not in needed and key not in state.condemned_objects and key[:16] not in self.known
            )
        )  # fmt: skip
        plan = Planned(state.length, state.epoch, dead, repacked, objects, tuple(sorted(best.items())))
        if plan.empty:
            yield from self._to_floor(world, state, rules, "finds nothing")
        else:
            pc = "open" if repacked else "condemn"
            yield "marks", world, self._replace(pc=pc, plan=plan, listed=None, known=None)

    def _open(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        assert self.plan is not None
        after = opened(world, self.session, self.plan.epoch)
        yield "opens a session", after, self._replace(pc="copy", epoch=self.plan.epoch)

    def _copy(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        if pack_key(state.pack(0)) in world.objects:
            yield "copies pack 0", add(world, pack_key(pack(self.session))), self._replace(pc="piece")
        else:
            yield from self._anew(world)

    def _piece(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        """Settling takes up the newest epoch without a look at the copies."""
        after = add(opened(world, self.session, state.epoch), object_key(ref(self.session, 60), "index"))
        yield "settles, and stores a piece", after, self._replace(pc="condemn", epoch=state.epoch)

    def _condemn(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        plan = self.plan
        assert plan is not None
        if rules.follows_one_epoch and state.epoch != plan.epoch:
            yield from self._anew(world)
            return
        copied = bool(plan.repacked)
        if state.length > plan.length:
            plan = _brought_up_to_date(plan, state, rules)
        payload = Condemn(
            sessions=(self.session,) if copied else (), epoch=self.epoch, hit_position=state.length - 1, relied=(),
            packs=pack_records([pack(self.session)]) if copied else b"",
            pieces=(ref(self.session, 60),) if copied else (), marked=plan.length,
            condemned=ranges([*plan.dead, *plan.repacked]), objects=b"".join(plan.objects),
        )  # fmt: skip
        log = logs.append(world.log, payload)
        if log is None:
            yield from self._anew(world)
            return
        after = ended(world, self.session)._replace(log=log)
        numbers = sorted([*plan.dead, *plan.repacked])
        yield f"CONDEMNS {numbers} and {len(plan.objects)} objects", after, self._replace(pc="floor", plan=None)

    def _anew(self, world: World) -> Moves:
        after = ended(world, self.session)
        if self.rounds > 1:
            yield "plans anew", after, Collector(self.name, self.number, self.rounds - 1)
        else:
            yield "was not the first", after, Collector(self.name, self.number, 0, pc=OVER)

    def _to_floor(self, world: World, state: State, rules: Rules, why: str) -> Moves:
        left = state.condemned or state.condemned_objects
        pc = "floor" if left else OVER
        yield why, world, Collector(self.name, self.number, self.rounds if left else 0, pc=pc)

    def _floor(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        stands = Collector(self.name, self.number, self.rounds, pc="pins")
        if not rules.waits_for_floor or state.floor == state.epoch:
            yield "goes on", world, stands
            return
        log = logs.append(world.log, Floor(state.epoch))
        assert log is not None
        yield f"RAISES THE FLOOR to {state.epoch}", world._replace(log=log), stands

    def _pins(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        limit = state.floor if rules.waits_for_floor and rules.deletes_below_floor else state.epoch
        packs = [number for number, epoch in state.condemned.items() if epoch <= limit]
        keys = [key for key, epoch in state.condemned_objects.items() if epoch <= limit]
        if world.pins and rules.sees_pins:
            # By the index nothing would be deferred, for it offers nothing that is condemned.
            packs = [
                n for n in packs if chunk_of(pack_key(state.pack(n)), rules) != "kept" or not rules.pins_by_content
            ]
            pinned = frozenset[bytes]().union(*(objects for _, objects in world.pins))
            keys = [key for key in keys if not (rules.pins_objects and key in pinned)]
        todo = (*((number, pack_key(state.pack(number))) for number in sorted(packs)), *((-1, k) for k in sorted(keys)))
        yield "looks at pins", world, self._replace(pc="delete", listed=todo, known=())

    def _delete(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        if self.listed:
            first, *rest = self.listed
            after = world._replace(objects=world.objects - {first[1]})
            yield "deletes", after, self._replace(listed=tuple(rest), known=(*self.known, first))
            return
        told: Iterable[tuple[int, bytes]] = self.known
        if not rules.tells_what_it_deleted:
            told = [(number, b"") for number, epoch in state.condemned.items() if epoch <= state.floor]
            told += [(-1, key) for key, epoch in state.condemned_objects.items() if epoch <= state.floor]
        packs = [number for number, _ in told if number >= 0 and number in state.condemned]
        keys = sorted(key for number, key in told if number < 0 and key in state.condemned_objects)
        stands = Collector(self.name, self.number, self.rounds - 1, pc="objects" if self.rounds > 1 else OVER)
        if not packs and not keys:
            yield "has nothing to tell", world, stands
            return
        log = logs.append(world.log, Swept(ranges(packs), b"".join(keys)))
        if log is not None:
            yield "TELLS what it has deleted", world._replace(log=log), stands


def _brought_up_to_date(plan: Planned, state: State, rules: Rules) -> Planned:
    """As `gc.plan.update_plan`: what is needed by now stays."""
    if not rules.updates_plan:
        return plan if rules.tells_when_it_marked else replace(plan, length=state.length)
    wanted = needs(state, rules, deleted=rules.keeps_deleted)
    stays = {number for number in (*plan.dead, *plan.repacked) if not state.in_force(number)}
    stays |= {number for chunk, number in plan.best if chunk in wanted and number not in plan.repacked}
    needed = named_keys(state)
    return replace(
        plan,
        length=state.length,
        dead=tuple(number for number in plan.dead if number not in stays),
        repacked=tuple(number for number in plan.repacked if number not in stays),
        objects=tuple(key for key in plan.objects if key not in needed and key not in state.condemned_objects),
    )
