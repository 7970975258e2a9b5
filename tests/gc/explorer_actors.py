"""All actors of the explorer, and its readers and operators. Values; see `explorer.py`."""

from typing import Any, NamedTuple

from cairn.registry.entries import Payload, Uncondemn
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.numbers import ranges
from cairn.registry.state import objects_of, pack_key
from tests.gc.explorer import KEPT, OVER, Found, Logs, Moves, Rules, World, chunk_of, explore, in_force
from tests.gc.explorer_collectors import Collector
from tests.gc.explorer_writers import Merger, Writer
from tests.support.logs import MODEL


def explored(nearest: int | None = None, **rules: Any) -> Found:
    """Explore with some rules; see `Rules` and `explore`."""
    given = Rules(**rules)
    return explore(given, actors_of(given), nearest)


def actors_of(rules: Rules) -> tuple[Any, ...]:
    """All that take part, at their start."""
    actors: list[Any] = [Writer(f"w{number}", number) for number in range(rules.writers)]
    actors += [Collector(f"c{number}", number, rounds=rules.rounds) for number in range(rules.collectors)]
    actors += [Reader("r")] * bool(rules.readers)
    actors += [Deleter("d")] * rules.deletes
    actors += [TakerBack("t")] * rules.takes_back
    actors += [Merger("m")] * rules.merges
    return tuple(actors)


class Reader(NamedTuple):
    """Pins the first checkpoint, reads the head again, then its body and chunk."""

    name: str
    pc: str = "begin"
    objects: frozenset[bytes] = frozenset()
    places: tuple[bytes, ...] = ()

    def steps(self, world: World, logs: Logs, rules: Rules) -> Moves:
        state = logs.states[world.log]
        held = state.models[MODEL].checkpoints.get(KEPT)
        if self.pc in ("begin", "verify") and held is not None:
            keys = [pack_key(state.pack(number)) for number in in_force(state)]
            places = tuple(key for key in keys if chunk_of(key, rules) == "kept")
            pc = "pin" if self.pc == "begin" else "read"
            looks = self._replace(pc=pc, objects=frozenset(objects_of(held)), places=places)
            yield "finds the checkpoint", world, looks
        elif self.pc == "pin":
            after = world._replace(pins=world.pins | {(self.name, self.objects)})
            yield "pins", after, self._replace(pc="verify" if rules.rereads_after_pin else "read")
        elif self.pc == "verify":
            yield "finds it gone", self._let_go(world), Reader(self.name, OVER)
        elif self.pc == "read":
            well = world.objects.intersection(self.places) and world.objects.issuperset(self.objects)
            yield "reads", self._let_go(world), Reader(self.name, OVER if well else "missed")

    def _let_go(self, world: World) -> World:
        return world._replace(pins=world.pins - {(self.name, self.objects)})


class Deleter(NamedTuple):
    """Deletes the first checkpoint, and then restores or drops it."""

    name: str
    pc: str = "begin"

    def steps(self, world: World, logs: Logs, rules: Rules) -> Moves:
        entries: dict[str, list[tuple[str, Payload]]] = {
            "begin": [("TOMBSTONE", Tombstone(MODEL, (KEPT,), 0, ""))],
            "deleted": [("RESTORE", Restore(MODEL, (KEPT,))), ("DROP", Drop(MODEL, (KEPT,)))],
        }
        for label, payload in entries.get(self.pc, []):
            log = logs.append(world.log, payload)
            if log is not None:
                after = world._replace(log=log)
                yield label, after, self._replace(pc="deleted" if self.pc == "begin" else OVER)


class TakerBack(NamedTuple):
    """Takes back all that is condemned above the floor, once."""

    name: str
    pc: str = "begin"

    def steps(self, world: World, logs: Logs, rules: Rules) -> Moves:
        state = logs.states[world.log]
        limit = state.floor if rules.takes_back_in_time else -1
        packs = [number for number, epoch in state.condemned.items() if epoch > limit]
        keys = sorted(key for key, epoch in state.condemned_objects.items() if epoch > limit)
        if self.pc == "begin" and (packs or keys):
            log = logs.append(world.log, Uncondemn(ranges(packs), b"".join(keys)))
            if log is not None:
                yield "TAKES BACK", world._replace(log=log), self._replace(pc=OVER)
