"""Worlds that can be thrown away: one user, the stores that he works with, and what a reader sees there.

* **world** - stores in memory by name, the user's folders, and what a checkpoint of each step has to hold.
* **image** - a world as it was at one moment, from which any number of equal worlds are made.
* **sight** - what somebody without a cache sees in one store, every checkpoint read and compared.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from cairn.core import pool
from cairn.core.clock import Clock
from cairn.core.errors import GoneError, IntegrityError, NotAStore
from cairn.core.ids import CheckpointId, ModelId
from cairn.gc.scrub import verify
from cairn.registry.attestations import Attested, attestations
from cairn.registry.fold import encode_state
from cairn.registry.localfiles import KeyHome
from cairn.registry.models import history, list_refs, model_name, open_meta
from cairn.registry.opened import KeySource
from cairn.registry.registry import Registry
from cairn.registry.state import Checkpoint
from cairn.store import chunkstore
from cairn.store.backends.faults import Call, Fault, FaultyBackend
from cairn.store.backends.memory import MemoryBackend
from tests.support.doubles import HeldClock, SeededEntropy
from tests.support.stores import Site, checkout_to, close_environments
from tests.support.trees import snapshot

# Whether a checkpoint, named by a selector, holds what it has to; the path is a free place.
Holds = Callable[[Registry, str, Path], bool]
WHOLE, PART, BROKEN, GONE = "whole", "in part", "broken", "gone"
# A commit of little content makes several packs.
_PACK_BYTES = 2 << 10


@pytest.fixture(scope="module", autouse=True)
def same_calls_each_time() -> Iterator[None]:
    """One worker, so that every run makes the same calls, and nothing that takes time for a power cut's sake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "MEMORY_BUDGET_BYTES", 1)
        patch.setattr(chunkstore, "PACK_BYTES_TARGET", _PACK_BYTES)
        patch.setattr(os, "fsync", lambda file: None)
        yield


@dataclass(frozen=True)
class Sight:
    """What a store shows.

    Args:
        checkpoints: step and condition, by id in hexadecimal.
        refs: kind, and steps of the history from the tip back, by `model@ref`.
        problems: objects that `verify --full` complains of.
        leftovers: objects that nothing needs.
        signed: steps of checkpoints and the names that they are signed by.
    """

    checkpoints: dict[str, tuple[int | None, str]]
    refs: dict[str, tuple[str, tuple[int | None, ...]]]
    problems: frozenset[str]
    leftovers: int
    signed: tuple[tuple[int | None, str], ...] = ()

    def gist(self) -> object:
        """What is the same however often the work towards it was interrupted."""
        return Counter(self.checkpoints.values()), self.refs, self.signed


@dataclass
class World:
    """See the module. `sites` outlive every process; `attempt` is one process."""

    folder: Path
    sites: dict[str, Site]
    holds: dict[int | None, Holds]
    _through: dict[str, FaultyBackend] = field(default_factory=dict)
    _attempts: "count[int]" = field(default_factory=count)

    @classmethod
    def empty(cls, folder: Path, stores: Sequence[str], clock: Callable[[], Clock] = HeldClock) -> "World":
        """No store stands yet."""
        home = KeyHome(*(folder / kind / "cairn" for kind in ("data", "state", "cache")))
        seeds = count(1)
        sites = {
            name: Site(MemoryBackend(f"memory://{name}"), home, KeySource(), clock(), SeededEntropy(next(seeds)))
            for name in stores
        }
        return cls(folder, sites, {})

    def backend(self, name: str = "here") -> FaultyBackend | MemoryBackend:
        """A store's backend as the process at work has it."""
        inner = self.sites[name].backend
        assert isinstance(inner, MemoryBackend)
        return self._through.get(name, inner)

    def registry(self, name: str = "here") -> Registry:
        """A store as the process at work opens it."""
        return self.sites[name].registry(self.backend(name))

    def attempt(self, run: Callable[["World"], object], *script: Fault) -> tuple[BaseException | None, Sequence[Call]]:
        """Let a new process run to its end through faulty backends; returns how it ended and what it called."""
        first: FaultyBackend | None = None
        # Other random names than those of the processes before, and the same ones in every world.
        seeds = count(1000 * (1 + next(self._attempts)))
        for name, site in self.sites.items():
            self._through[name] = FaultyBackend(site.backend, script, beside=first)
            first = first or self._through[name]
            site.entropy = SeededEntropy(next(seeds))
        assert first is not None
        try:
            run(self)
        except BaseException as error:
            return error, first.calls
        finally:
            self._through = {}
        return None, first.calls

    def objects(self, name: str) -> dict[str, bytes]:
        """All that a store holds."""
        backend = self.sites[name].backend
        return {listed.name: backend.read(listed.name) for listed in backend.list()}


class Image:
    """A world as it is now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._objects = {name: world.objects(name) for name in world.sites}
        self._runs = count()
        self._sights: dict[object, Sight | None] = {}
        self.sights = {name: self.see(world, name) for name in world.sites}

    def fresh(self) -> World:
        """An equal world, with a user whose cache is empty; the one before is thrown away."""
        close_environments()
        old = self._world
        for leftover in old.folder.glob("run-*"):
            shutil.rmtree(leftover)
        world = World.empty(old.folder / f"run-{next(self._runs)}", list(old.sites), _same_clock(old))
        world.holds = old.holds
        for kind in ("data", "state"):
            if (old.folder / kind).exists():
                shutil.copytree(old.folder / kind, world.folder / kind)
        for name, objects in self._objects.items():
            for each, data in objects.items():
                world.sites[name].backend.create(each, [data])
        return world

    def see(self, world: World, name: str, *, torn: bool = False) -> Sight | None:
        """What a store of a world shows now, None if there is none; equal objects are looked at once.

        Args:
            torn: the storage has broken its word: a store whose record is damaged counts as none.
        """
        site, looked_at = world.sites[name], self.key(world, name)
        if looked_at not in self._sights:
            try:
                self._sights[looked_at] = see(site, world.holds, world.folder / "out")
            except IntegrityError:
                if not torn:
                    raise
                return None
        return self._sights[looked_at]

    def key(self, world: World, name: str) -> object:
        """The same for stores that show the same."""
        site = world.sites[name]
        # Names are drawn at random, so names and lengths tell one content from another; bytes hold fresh nonces.
        objects = tuple((listed.name, listed.size) for listed in site.backend.list())
        remembered = sorted((site.home.state / "heads").glob("*"))
        heads = tuple((path.name, json.loads(path.read_text())["length"]) for path in remembered)
        return name, objects, heads


def see(site: Site, holds: dict[int | None, Holds], place: Path) -> Sight | None:
    """Look at a store with an empty cache; None if there is none."""
    try:
        registry = site.registry(cold=True)
    except NotAStore:
        return None
    with closing(registry):
        checkpoints, refs = {}, {}
        for model, known in registry.state.models.items():
            name = model_name(registry, ModelId(model))
            for identifier, committed in known.checkpoints.items():
                step = open_meta(registry, ModelId(model), committed).step
                condition = _condition(registry, f"{name}@{identifier.hex()}", committed, holds[step], place)
                checkpoints[identifier.hex()] = step, condition
            for ref in list_refs(registry, ModelId(model)):
                steps = tuple(line.meta.step for line in history(registry, ModelId(model), ref.checkpoint))
                refs[f"{name}@{ref.name}"] = ref.kind, steps
        report = verify(registry, full=True)
        problems = frozenset(problem.object for problem in report.errors)
        with closing(site.registry()) as warm:
            assert encode_state(warm.state) == encode_state(registry.state), "the user's cache contradicts the log"
        return Sight(checkpoints, refs, problems, report.leftover_objects, _signed(registry))


def _signed(registry: Registry) -> tuple[tuple[int | None, str], ...]:
    return tuple(
        sorted(
            (open_meta(registry, ModelId(model), committed).step, one.subject.name)
            for model, known in registry.state.models.items()
            for identifier, committed in known.checkpoints.items()
            for one in attestations(registry, ModelId(model), CheckpointId(identifier))
            if isinstance(one, Attested)
        )
    )


def holds_tree(tree: Path) -> Holds:
    """A checkpoint of a tree as it is now."""
    known = snapshot(tree)

    def holds(registry: Registry, selector: str, place: Path) -> bool:
        checkout_to(registry, selector, place)
        same = snapshot(place) == known
        shutil.rmtree(place)
        return same

    return holds


def _condition(registry: Registry, selector: str, committed: Checkpoint, holds: Holds, place: Path) -> str:
    if committed.partial:
        return PART
    try:
        assert holds(registry, selector, place), f"{selector} holds something else than what was committed"
    except GoneError:
        return GONE
    except IntegrityError:
        return BROKEN
    return WHOLE


def _same_clock(world: World) -> Callable[[], Clock]:
    return type(next(iter(world.sites.values())).clock)
