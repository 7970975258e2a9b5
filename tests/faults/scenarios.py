"""Operations that are tried with a fault at call 1, 2, 3 ...; each starts from the same store every time."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from cairn.core import pool
from cairn.core.errors import NotFoundError
from cairn.registry.fold import TAG
from cairn.registry.localfiles import KeyHome
from cairn.registry.models import history, move_ref, ref_value
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Call, Fault, FaultyBackend
from cairn.store.backends.memory import MemoryBackend
from cairn.workspace import commit
from tests.support.doubles import HeldClock, SeededEntropy
from tests.support.stores import Site, checkout_to, close_environments, commit_tree, new_site, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot, write_files

Tree = dict[bytes, tuple[object, ...]]


@dataclass
class Scenario:
    """An operation on a store that holds some checkpoints.

    Args:
        steps: steps of `m`'s main branch before, newest first; each has a tree.
        done: what must be true once the operation has taken effect.
    """

    name: str
    folder: Path
    steps: list[int]
    trees: dict[int, Tree]
    operate: Callable[[Registry], object]
    done: Callable[[Registry], bool]
    objects: dict[str, bytes] = field(default_factory=dict)
    _runs: "count[int]" = field(default_factory=count)

    def fresh(self) -> Site:
        """The store as it was, with a user who knows it but has an empty cache; the last one's is thrown away."""
        close_environments()
        for old in self.folder.glob("run-*"):
            shutil.rmtree(old)
        run = self.folder / f"run-{next(self._runs)}"
        backend = MemoryBackend()
        for name, data in self.objects.items():
            backend.create(name, [data])
        home = self.folder / "home"
        shutil.copytree(home / "state", run / "state")
        return Site(backend, new_home(home, run), clock=HeldClock(), entropy=SeededEntropy(next(self._runs) + 1000))

    def attempt(self, site: Site, *script: Fault) -> tuple[BaseException | None, Sequence[Call]]:
        """Operate once through a faulty backend; returns how it ended and what it called."""
        backend = FaultyBackend(site.backend, script)
        with pytest.MonkeyPatch.context() as patch:
            # One worker, so that every run makes the same calls.
            patch.setattr(pool, "MEMORY_BUDGET_BYTES", commit._WORKER_BYTES)
            return self._operated(site, backend), backend.calls

    def _operated(self, site: Site, backend: FaultyBackend) -> BaseException | None:
        try:
            self.operate(site.registry(backend))
        except BaseException as error:
            return error
        return None

    def check(self, site: Site, out: Path) -> bool:
        """All that was there is there, bit for bit; the new is there whole or not at all. Returns whether it is."""
        reader = site.registry(cold=True)
        done = self.done(reader)
        try:
            model, newest = tip(reader)
        except NotFoundError:
            assert self.steps == []
            return done
        steps = [line.meta.step for line in history(reader, model, newest)]
        assert steps[-len(self.steps) :] == self.steps or not self.steps
        assert steps in (self.steps, [*sorted(self.trees, reverse=True)])
        for step in steps:
            assert step is not None
            place = out / str(step)
            checkout_to(reader, f"m@step:{step}", place)
            assert snapshot(place) == self.trees[step]
            shutil.rmtree(place)
        return done


def new_home(home: Path, run: Path) -> KeyHome:
    """The keys of one, state and cache of another."""
    return KeyHome(home / "data", run / "state", run / "cache")


def has_step(registry: Registry, step: int) -> bool:
    """Whether main's newest checkpoint is of a step."""
    try:
        model, newest = tip(registry)
    except NotFoundError:
        return False
    return history(registry, model, newest, 1)[0].meta.step == step


def make(name: str, folder: Path) -> Scenario:
    """Set up the store for a scenario."""
    site = new_site(folder / "home")
    trees = {
        1: write_files(folder / "one", {"a": b"first " * 40, "d/m.safetensors": safetensors({"w": weights(1, 50)})}),
        2: write_files(folder / "two", {"a": b"second " * 40, "d/m.safetensors": safetensors({"w": weights(1, 50)})}),
    }
    registry = site.registry()
    before = {"first commit": [], "second commit": [1], "tag": [2, 1]}[name]
    for step in reversed(before):
        commit_tree(registry, trees[step], step=step)
    new = {"first commit": 1, "second commit": 2}.get(name)

    def tag(registry: Registry) -> None:
        model, newest = tip(registry)
        if ref_value(registry, model, "v1") != newest:
            move_ref(registry, model, "v1", TAG, None, newest)

    def tagged(registry: Registry) -> bool:
        model, newest = tip(registry)
        return ref_value(registry, model, "v1") == newest

    known = {step: snapshot(trees[step]) for step in [*before, *([new] if new else [])]}
    assert isinstance(site.backend, MemoryBackend)
    return Scenario(
        name, folder, list(before), known,
        operate=tag if new is None else lambda registry: commit_tree(registry, trees[new], step=new),
        done=tagged if new is None else lambda registry: has_step(registry, new),
        objects={listed.name: site.backend.read(listed.name) for listed in site.backend.list()},
    )  # fmt: skip


SCENARIOS = ["first commit", "second commit", "tag"]
