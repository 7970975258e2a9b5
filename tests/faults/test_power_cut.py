"""The power goes at any moment, and takes what was not synced: what was said to be done is there afterwards.

A machine with two stores, `here` and `there`, and the user's key files works through init, commits, refs and a push.
For a cut before each call that changes files, the states that a file system may leave are made, and looked at twice: by
somebody who knows nothing but the key, and by the user, who lives on elsewhere and remembers the log heads seen.
"""

import os
import random
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cairn.core.errors import CairnError
from cairn.core.ids import StoreId
from cairn.registry import localfiles, log, names
from cairn.registry.fold import TAG
from cairn.registry.localfiles import Head, KeyHome
from cairn.registry.models import delete_ref, move_ref
from cairn.registry.opened import KeySource, create_store
from cairn.registry.sync import SendOptions, send
from cairn.store.backends import posix
from cairn.store.backends.posix import PosixBackend
from tests.faults.worlds import WHOLE, Holds, holds_tree, same_calls_each_time, see
from tests.support.doubles import HeldClock, SeededEntropy
from tests.support.powercut import Disk, Note, RecordedOs, Tree, cuts, put
from tests.support.stores import Site, close_environments, commit_tree, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

__all__ = ["same_calls_each_time"]

STORES = ("here", "there")
# States of one cut beyond which they are drawn at random.
STATES_MAX = 24


@dataclass(frozen=True)
class Done:
    """What a store said is done: a checkpoint, a ref, or the store itself.

    Args:
        refs: those that stand, None while one is about to go.
    """

    store: str
    step: int | None = None
    refs: frozenset[str] | None = frozenset()


@dataclass
class Machine:
    """The recorded machine, and what the user remembers of it."""

    folder: Path
    os: RecordedOs
    holds: dict[int | None, Holds] = field(default_factory=dict)

    @property
    def disk(self) -> Path:
        return self.os.root

    def tree(self, step: int) -> Path:
        return self.folder / "trees" / str(step)

    def site(self, name: str, seed: int) -> Site:
        home = KeyHome(self.disk / "data", self.folder / "state", self.folder / "cache")
        return Site(PosixBackend(self.disk / name), home, KeySource(), HeldClock(), SeededEntropy(seed))


def work(machine: Machine, stores: int) -> None:
    """All that is recorded, in one store or both; each step is marked once it has returned."""
    done = machine.os.mark
    here, there = (machine.site(name, seed) for seed, name in enumerate(STORES, 1))
    create_store(here.backend, here.home, here.source, here.clock, here.entropy)
    done(Done("here"))
    for step in (1, 2):
        commit_tree(here.registry(), machine.tree(step), step=step)
        done(Done("here", step=step))
    registry = here.registry()
    model, newest = tip(registry)
    move_ref(registry, model, "v1", TAG, None, newest)
    done(Done("here", refs=frozenset(["m@v1", "m@main"])))
    if stores == 1:
        return
    create_store(there.backend, there.home, there.source, there.clock, there.entropy, here.open())
    done(Done("there"))
    send(here.registry(), there.registry(), "m", SendOptions())
    done(Done("there", step=2))
    done(Done("here", refs=None))
    delete_ref(here.registry(), model, "v1", TAG)
    done(Done("here", refs=frozenset(["m@main"])))


def record(folder: Path, kind: Callable[..., RecordedOs] = RecordedOs, stores: int = 2, **options: Any) -> Machine:
    """Let a machine do its work.

    Args:
        options: of the layer.
    """
    disk = folder / "disk"
    disk.mkdir(parents=True)
    machine = Machine(folder, kind(disk, **options))
    for step in (1, 2, 3):
        tensors = safetensors({"w": weights(1, 50), "v": weights(10 + step, 700)})
        machine.holds[step] = holds_tree(
            write_files(machine.tree(step), {"a": b"%d " % step * 40, "m.safetensors": tensors})
        )
    remember = KeyHome.remember_head

    def remembered(home: KeyHome, store: StoreId, head: Head) -> None:
        machine.os.mark((store, head))
        remember(home, store, head)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posix, "os", machine.os)
        patch.setattr(posix, "_rename_exclusively", machine.os.rename_exclusively)
        patch.setattr(localfiles, "os", machine.os)
        patch.setattr(KeyHome, "remember_head", remembered)
        work(machine, stores)
    close_environments()
    return machine


@dataclass
class Survey:
    """All cuts of one machine, each state looked at once."""

    machine: Machine
    draw: random.Random
    seen: set[object] = field(default_factory=set)
    runs: "count[int]" = field(default_factory=count)
    cuts: int = 0
    states: int = 0

    def run(self, notes: list[Note]) -> "Survey":
        # What was just said to be done is what is lost first where something is left out.
        for disk in sorted(cuts(notes), key=lambda disk: not disk.after_mark):
            self.cuts += 1
            for tree in disk.trees(self.draw, STATES_MAX):
                self.states += 1
                self.look(disk, tree)
        return self

    def look(self, disk: Disk, tree: Tree) -> None:
        """Look at both stores of a state, unless an equal one was seen."""
        visible = {name: data for name, data in tree.items() if "/.tmp-" not in name}
        for name in STORES:
            mine = {place: data for place, data in visible.items() if place.startswith((name, "data"))}
            marks = [mark for mark in disk.marks if not isinstance(mark, Done) or mark.store == name]
            key = (name, tuple(sorted(mine.items())), tuple(map(repr, marks)))
            if key in self.seen:
                continue
            self.seen.add(key)
            place = self.machine.folder / f"state-{next(self.runs)}"
            try:
                put(tree, place / "disk")
                first = self.draw.random() < 0.5
                self.look_at(name, place, disk.marks, first)
                site = self.look_at(name, place, disk.marks, not first)
                if site is not None:
                    self.go_on(site)
            finally:
                close_environments()
                shutil.rmtree(place)

    def look_at(self, name: str, place: Path, marks: list[Any], survives: bool) -> Site | None:
        """Look at a store, as the user who lived on or as somebody new; None if there is none."""
        done = [mark for mark in marks if isinstance(mark, Done) and mark.store == name]
        home = KeyHome(place / "disk" / "data", place / f"state-{survives}", place / f"cache-{survives}")
        if survives:
            shutil.copytree(self.machine.folder / "state", home.state)
            shutil.rmtree(home.state / "heads")
            for mark in marks:
                if not isinstance(mark, Done):
                    home.remember_head(*mark)
        site = Site(PosixBackend(place / "disk" / name), home, KeySource(), HeldClock(), SeededEntropy(99))
        sight = see(site, self.machine.holds, place / "out")
        if sight is None:
            assert not done, "a store that was made is gone"
            return None
        assert not sight.problems, sight.problems
        assert {condition for _, condition in sight.checkpoints.values()} <= {WHOLE}
        steps = {step for step, _ in sight.checkpoints.values()}
        assert {one.step for one in done if one.step is not None} <= steps
        if done and done[-1].refs:
            assert done[-1].refs == sight.refs.keys()
        return site

    def go_on(self, site: Site) -> None:
        """The next commit works."""
        with closing(site.registry()) as registry:
            commit_tree(registry, self.machine.tree(3), "m", step=3)
        sight = see(site, self.machine.holds, self.machine.folder / "out")
        assert sight is not None and not sight.problems and (3, WHOLE) in sight.checkpoints.values()


@pytest.fixture
def survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Survey]]:
    """Records a machine and looks at what its cuts leave; log folders hold three entries."""
    for module in (names, log):
        monkeypatch.setattr(module, "LOG_FOLDER_ENTRIES", 3)
    seed = secrets.randbits(32)

    def of(kind: Callable[..., RecordedOs] = RecordedOs, **options: Any) -> Survey:
        machine = record(tmp_path, kind, **options)
        return Survey(machine, random.Random(seed)).run(machine.os.notes)

    print(f"seed {seed}")
    yield of


@pytest.mark.parametrize(("links", "stores"), [(True, 2), (False, 1)], ids=["links", "renames"])
def test_a_power_cut_takes_nothing_that_was_said_to_be_done(
    survey: Callable[..., Survey], links: bool, stores: int
) -> None:
    found = survey(links=links, stores=stores)
    print(f"{found.cuts} cuts, {found.states} states, {len(found.seen)} of them different")
    assert found.cuts > 150 * stores and found.states > 2 * found.cuts


# --- The layer can tell -------------------------------------------------------------------------


class Careless(RecordedOs):
    """A layer under code that leaves something out, in one folder of a store.

    Args:
        part: the folder.
    """

    def __init__(self, root: Path, *, part: str) -> None:
        super().__init__(root)
        self._part = f"/{part}/"

    def _path(self, file: int) -> str:
        return os.readlink(f"/proc/self/fd/{file}") + "/"

    def leaves_out(self, folder: bool) -> bool:
        """Whether the sync of a folder or file of that part is left out."""
        raise NotImplementedError

    def fsync(self, file: int) -> None:
        path = self._path(file)
        if self._part not in path or not self.leaves_out(os.path.isdir(path)):
            super().fsync(file)


class NoFileSync(Careless):
    """Files are not synced."""

    def leaves_out(self, folder: bool) -> bool:
        return not folder


class NoFolderSync(Careless):
    """Folders are not synced."""

    def leaves_out(self, folder: bool) -> bool:
        return folder


class NoNewFolderSync(Careless):
    """A folder just made is not synced into the one above it."""

    def leaves_out(self, folder: bool) -> bool:
        return [note.kind for note in self.notes[-2:]] == ["folder", "change"]


class LinkFirst(Careless):
    """A file gets its name before it is synced."""

    _late: int | None = None

    def leaves_out(self, folder: bool) -> bool:
        return not folder

    def fsync(self, file: int) -> None:
        super().fsync(file)
        if self._part in self._path(file) and not os.path.isdir(self._path(file)):
            self._late = os.dup(file)

    def link(self, *arguments: Any, **keywords: Any) -> None:
        super().link(*arguments, **keywords)
        if self._late is not None:
            RecordedOs.fsync(self, self._late)
            os.close(self._late)
            self._late = None


# What each loses: bytes of a checkpoint, of an entry, of a model's keys; their names; the folder that they are in.
CARELESS = [
    *((NoFileSync, part) for part in ("here/objects", "here/log", "here/keys", "data/keys")),
    *((NoFolderSync, part) for part in ("here/objects", "here/log", "here/keys", "data/keys")),
    *((NoNewFolderSync, part) for part in ("here/objects", "here/log", "data")),
    (LinkFirst, "here/log"),
]


@pytest.mark.parametrize(("kind", "part"), CARELESS, ids=lambda one: getattr(one, "__name__", one))
def test_what_is_left_out_is_caught(survey: Callable[..., Survey], kind: type[RecordedOs], part: str) -> None:
    with pytest.raises((AssertionError, CairnError)) as caught:
        survey(kind, stores=1, part=part)
    print(f"caught: {caught.value!r}"[:200])


def left(layer: RecordedOs) -> Iterator[tuple[list[Any], Tree]]:
    """What each cut may leave."""
    for disk in cuts(layer.notes):
        for tree in disk.trees(random.Random(0), 1000):
            yield disk.marks, tree


def test_of_a_file_that_is_replaced_one_of_the_two_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = RecordedOs(tmp_path)
    monkeypatch.setattr(localfiles, "os", layer)
    monkeypatch.setattr(posix, "os", layer)
    path = tmp_path / "below" / "file"
    for text in (b"one", b"two"):
        localfiles.replace_file(path, text)
        layer.mark(text)
    found = {(marks[-1] if marks else None, tree.get("below/file")) for marks, tree in left(layer)}
    assert found == {(None, None), (None, b"one"), (b"one", b"one"), (b"one", b"two"), (b"two", b"two")}


def test_of_what_is_not_synced_anything_may_be_left(tmp_path: Path) -> None:
    layer = RecordedOs(tmp_path)
    file = layer.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT)
    layer.write(file, b"text")
    layer.link(tmp_path / "a", tmp_path / "b")
    layer.unlink(tmp_path / "a")
    os.close(file)
    trees = [tree for _, tree in left(layer)]
    assert {tuple(sorted(tree)) for tree in trees} == {(), ("a",), ("b",), ("a", "b")}
    texts = {tree["b"] for tree in trees if "b" in tree}
    assert {b"", b"text"} < texts and any(text and not b"text".startswith(text) for text in texts)
    folder = os.open(tmp_path, os.O_RDONLY)
    layer.fsync(folder)
    os.close(folder)
    assert {tuple(tree) for tree in Disk(layer.notes).trees(random.Random(0), 1000)} == {("b",)}
