"""The operations that are stopped, refused and left without an answer at each of their calls.

To add one, write how the world is `prepare`d and what a user `run`s, and add a line to `OPERATIONS`. A run is what he
would do once more after an interruption: it goes on from whatever is there, and its second time changes nothing.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cairn.core.clock import Clock, SystemClock
from cairn.core.errors import GoneError, IntegrityError, NotAStore, ObjectExists
from cairn.core.ids import CheckpointId
from cairn.gc.collect import Collector, Options
from cairn.gc.depth import QUICK
from cairn.gc.operator import uncondemn_all
from cairn.gc.repair import Repair
from cairn.gc.shred import shred_due
from cairn.registry import stores
from cairn.registry.attestations import attestations, sign
from cairn.registry.deletion import restore, tombstone
from cairn.registry.delivery import Selection
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.fold import BRANCH, TAG
from cairn.registry.holding import add_hold, list_holds
from cairn.registry.members import named_wraps
from cairn.registry.modeldeletion import delete_model
from cairn.registry.modelkeys import WRAP_FOLDERS
from cairn.registry.models import delete_ref, find_model, history, move_ref, ref_value
from cairn.registry.opened import create_store, open_store
from cairn.registry.registry import Registry
from cairn.registry.retaining import retain
from cairn.registry.retention import Retention
from cairn.registry.sync import SendOptions, send
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Crash, Stopped
from cairn.workspace.clone import clone
from tests.faults.saves import load_and_save, saved
from tests.faults.worlds import World, holds_tree
from tests.support.doubles import HeldClock
from tests.support.signing import ALICE, VERSION
from tests.support.stores import commit_tree, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

ALL, PART = Selection(), Selection(tensors=("*v*",))


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Args:
        prepare: makes what is there before. Stores are `here` and, if a row names more, those.
        run: works through `world.registry(name)` and `world.backend(name)` alone.
        takes: steps of checkpoints that it may take away.
        clock: of its stores.
    """

    name: str
    prepare: Callable[[World], object]
    run: Callable[[World], object]
    stores: tuple[str, ...] = ("here",)
    takes: frozenset[int] = frozenset()
    clock: Callable[[], Clock] = HeldClock


# --- What there is before ---------------------------------------------------------------------


def nothing(world: World) -> None:
    """Nothing stands; trees of four steps are known."""
    for step in (1, 2, 3, 4):
        tensors = {"w": weights(1, 50), "u": weights(20 + step, 60), "v": weights(10 + step, 700)}
        files = {"a": b"%d " % step * 40, "d/m.safetensors": safetensors(tensors)}
        world.holds[step] = holds_tree(write_files(_tree(world, step), files))


def store(world: World) -> None:
    """An empty store `here`, and for each further name an empty one of the same tenant."""
    nothing(world)
    for name, site in world.sites.items():
        twin = world.sites["here"].open() if name != "here" else None
        create_store(site.backend, site.home, site.source, site.clock, site.entropy, twin)


def steps(*committed: int, name: str = "here") -> Callable[[World], None]:
    """Stores, and checkpoints in one of them."""

    def prepare(world: World) -> None:
        store(world)
        for step in committed:
            commit_step(world, step, name)

    return prepare


def pushed(*later: int, selection: Selection = ALL) -> Callable[[World], None]:
    """Step 1 is `here` and `there`, or a part of it; later ones are here alone."""

    def prepare(world: World) -> None:
        steps(1)(world)
        push(world, selection=selection)
        for step in later:
            commit_step(world, step)

    return prepare


def diverged(world: World) -> None:
    """Step 1 is in both stores, step 2 `there` alone, step 3 `here` alone."""
    pushed(3)(world)
    commit_step(world, 2, "there")


def damaged(world: World) -> None:
    """A pack of what was pushed is lost."""
    pushed()(world)
    there = world.sites["there"]
    there.backend.delete(there.names(".pack")[0])


def harmed(world: World) -> None:
    """Steps 1 and 2 in both stores; `here` has lost a pack, a body, a root and an index piece."""
    steps(1, 2)(world)
    push(world)
    here = world.sites["here"]
    for ending in (".pack", ".body", ".root", ".index"):
        here.backend.delete(here.names(ending)[0])


def tagged(world: World) -> None:
    """Steps 1 and 2, and a tag on the second."""
    steps(1, 2)(world)
    name_tip("v1", TAG)(world)


def lonely(world: World) -> None:
    """As `tagged`, and no store `there`."""
    there = world.sites.pop("there")
    tagged(world)
    world.sites["there"] = there


def littered(world: World) -> None:
    """Steps 2 and 3; step 1, with which they share a pack, is deleted for good; a commit of step 4 died half-way."""
    steps(1, 2, 3)(world)
    error, _ = world.attempt(committed(4), Crash(op="create", name="*.body", call=1))
    assert isinstance(error, Stopped)
    registry = world.registry()
    Collector(registry).run()
    model, newest = tip(registry)
    first = history(registry, model, newest)[-1].id
    registry.append(lambda state: Tombstone(model, (first,), 0, "test"))
    registry.append(lambda state: Drop(model, (first,)))
    plan = Collector(registry, Options(unused=0.0)).plan()
    assert plan.dead and plan.repacked


def tombstoned(world: World) -> None:
    """Steps 1 to 3, of which 1 is deleted and can be restored."""
    steps(1, 2, 3)(world)
    registry = world.registry()
    model, newest = tip(registry)
    tombstone(registry, model, [history(registry, model, newest)[-1].id], "test", 3600.0)


def two_models(world: World) -> None:
    """Beside two steps of `m`, a model `old` that shares some of what it holds with them."""
    steps(1, 2)(world)
    commit_tree(world.registry(), _tree(world, 3), "old", step=3)


def condemned(world: World) -> None:
    """As `littered`, and all of it condemned."""
    littered(world)
    Collector(world.registry(), Options(unused=0.0, condemn_only=True)).run()


# --- What a user does ---------------------------------------------------------------------------


def _tree(world: World, step: int) -> Path:
    # Copies of a world are made below its folder.
    folder = world.folder if not world.folder.name.startswith("run-") else world.folder.parent
    return folder / "trees" / str(step)


def commit_step(world: World, step: int, name: str = "here") -> None:
    """Commit the tree of a step to main."""
    commit_tree(world.registry(name), _tree(world, step), step=step)


def init(world: World) -> None:
    """Create a store; what an interrupted `init` left is not overwritten, but removed, as the message says."""
    site, backend = world.sites["here"], world.backend()
    if world.objects("here"):
        with pytest.raises(ObjectExists):
            create_store(backend, site.home, site.source, site.clock, site.entropy)
        if stands(world, "here"):
            return
        clear(backend)
    create_store(backend, site.home, site.source, site.clock, site.entropy)


def stands(world: World, name: str) -> bool:
    """Whether there is a store; what an interrupted `init` leaves is none."""
    try:
        world.registry(name)
    except (NotAStore, IntegrityError):
        return False
    return True


def clear(backend: Backend) -> None:
    """Remove all that there is."""
    for listed in list(backend.list()):
        backend.delete(listed.name)


def push(world: World, source: str = "here", target: str = "there", selector: str = "m", **options: Any) -> None:
    """Send main, or what a selector names."""
    settings = SendOptions(**options)
    send(world.registry(source), world.registry(target), selector, settings)


def sent(source: str = "here", target: str = "there", **options: Any) -> Callable[[World], None]:
    """`push` with options, as a run."""
    return lambda world: push(world, source, target, **options)


def cloned(world: World) -> None:
    """Clone `here` to `there`; an interrupted clone whose store stands is finished by pulling."""
    here, there = (world.backend(name) for name in ("here", "there"))
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("data", "state", "cache"):
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(world.folder / kind))
        patch.setattr(stores, "backend_at", lambda location: {here.url: here, there.url: there}[location])
        patch.setattr(stores, "backend_for_new", lambda location: (there, None))
        site = world.sites["there"]
        for name, function in (("_create", create_store), ("_open", open_store)):
            patch.setattr(stores, name, partial(function, clock=site.clock, entropy=site.entropy))
        if stands(world, "there"):
            for ref in ("main", "v1"):
                send(world.registry("here"), world.registry("there"), f"m@{ref}", SendOptions())
        else:
            clear(there)
            clone(here.url, world.folder / "clone")


def name_tip(name: str, kind: str) -> Callable[[World], None]:
    """Put a ref on main's tip, unless it is there."""

    def run(world: World) -> None:
        registry = world.registry()
        model, newest = tip(registry)
        current = ref_value(registry, model, name)
        if current != newest:
            move_ref(registry, model, name, kind, current, newest)

    return run


def untag(world: World) -> None:
    """Remove the tag, unless it is gone."""
    registry = world.registry()
    model, _ = tip(registry)
    if ref_value(registry, model, "v1") is not None:
        delete_ref(registry, model, "v1", TAG)


def signed_release(world: World) -> None:
    """Sign what `v1` means, unless it is signed."""
    registry = world.registry()
    if not attestations(registry, *tip(registry, "m@v1")):
        sign(registry, "m@v1", VERSION, ALICE)


def signed_before(world: World) -> None:
    """As `tagged`, and the tag is signed."""
    tagged(world)
    signed_release(world)


def collect(registry: Registry, times: int = 2) -> None:
    """Collect, each time after so long that whoever was silent since the last is given up."""
    for _ in range(times):
        registry.opened.clock.sleep(registry.state.silence_seconds)
        Collector(registry, Options(unused=0.0)).run()


def cancelled(world: World) -> None:
    """Take back what is condemned, unless nothing is any more."""
    registry = world.registry()
    if registry.refresh().condemned:
        uncondemn_all(registry)


def mended(world: World) -> None:
    """Mend what is damaged from the other store."""
    report = Repair(world.registry(), {"there": world.registry("there")}, QUICK).run()
    assert report.after.ok, report.after.errors


def retained(world: World) -> None:
    """Keep the newest two."""
    registry = world.registry()
    model, _ = tip(registry)
    retain(registry, model, "main", Retention(last=2))


def restored(world: World) -> None:
    """Bring back what is deleted."""
    registry = world.registry()
    model, _ = tip(registry)
    restore(registry, model, [CheckpointId(one) for one in registry.state.models[model].gone])


def destroyed(world: World) -> None:
    """Delete model `old` and destroy its keys, or go on with it."""
    registry = world.registry()
    with suppress(GoneError):
        delete_model(registry, find_model(registry, "old"), "deleted", 0.0)
    shred_due(registry, lambda: None)
    collect(registry, 1)
    (deleted,) = registry.refresh().deleted.values()
    named = named_wraps(registry.state)
    wraps = [found.name for folder in WRAP_FOLDERS for found in world.backend().list(folder)]
    assert deleted.destroyed_n is not None and set(wraps) == named


def held(world: World) -> None:
    """Hold the model, unless it is held."""
    registry = world.registry()
    model, _ = tip(registry)
    if not list_holds(registry):
        add_hold(registry, model, None, "a reason")


def committed(step: int) -> Callable[[World], None]:
    """`commit_step` as a run."""
    return lambda world: commit_step(world, step)


BOTH = ("here", "there")
OPERATIONS = [
    Operation("init", nothing, init),
    Operation("first commit", store, committed(1)),
    Operation("second commit", steps(1), committed(2)),
    Operation("commit unchanged", steps(1, 2), committed(2)),
    Operation("tag", steps(2, 1), name_tip("v1", TAG)),
    Operation("branch", steps(1, 2), name_tip("next", BRANCH)),
    Operation("ref delete", tagged, untag),
    Operation("sign", tagged, signed_release),
    Operation("push of what is signed", signed_before, sent(selector="m@v1"), BOTH),
    Operation("first push", steps(1), sent(), BOTH),
    Operation("second push", pushed(2), sent(), BOTH),
    Operation("push of a part", steps(1), sent(selection=PART), BOTH),
    Operation("supply of the rest", pushed(selection=PART), sent(), BOTH),
    Operation("push --rebase", diverged, sent(rebase=True), BOTH),
    Operation("push --repair", damaged, sent(repair=True), BOTH),
    Operation("pull", steps(1, name="there"), sent("there", "here"), BOTH),
    Operation("gc apply", littered, lambda world: collect(world.registry(), 1)),
    Operation("gc cancel", condemned, cancelled),
    Operation("verify --repair", harmed, mended, BOTH),
    Operation("retain apply", steps(1, 2, 3, 4), retained, takes=frozenset({1, 2})),
    Operation("delete restore", tombstoned, restored),
    Operation("delete a model", two_models, destroyed, takes=frozenset({3})),
    Operation("hold", steps(1), held),
    Operation("save", saved, load_and_save, clock=SystemClock),
    Operation("clone", lonely, cloned, BOTH),
]
