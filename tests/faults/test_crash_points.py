"""Every operation of the table, with a fault at call 1, 2, 3 ... until it runs clean: nothing earlier is harmed.

After each: a reader without a cache finds every earlier checkpoint bit for bit, the new one whole or not at all, every
ref where it was or where it shall be, and nothing to complain of; the same user, with the cache that the first try
left, repeats the operation and gets what an undisturbed one makes; a collector leaves nothing that nothing needs.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from cairn.core.errors import AnswerLost, CairnError, SaveFailed, StorageError, StorageFull, TryAgain
from cairn.store.backends.faults import Call, Crash, Effect, Fail, Fault, LoseAnswer, LoseRequest, Stopped
from tests.faults import operations
from tests.faults.operations import OPERATIONS, Operation
from tests.faults.worlds import GONE, WHOLE, Image, Sight, World, same_calls_each_time
from tests.support.doubles import HeldClock
from tests.support.points import Record, count_points

__all__ = ["same_calls_each_time"]


@dataclass
class Trial:
    """One operation, the world that it starts from, and what it makes of it when nothing goes wrong."""

    operation: Operation
    image: Image
    final: dict[str, Sight | None]
    collected: set[object] = field(default_factory=set)

    @classmethod
    def of(cls, operation: Operation, folder: Path) -> "Trial":
        world = World.empty(folder, operation.stores, operation.clock)
        operation.prepare(world)
        image = Image(world)
        world = image.fresh()
        error, _ = world.attempt(operation.run)
        assert error is None, repr(error)
        return cls(operation, image, {name: image.see(world, name) for name in world.sites})

    def check(self, world: World, *, torn: bool = False) -> None:
        """Whatever happened: what was there is there, what is new is whole or not there."""
        for name, before in self.image.sights.items():
            sight, final = self.image.see(world, name, torn=torn), self.final[name]
            assert final is not None
            if sight is None:
                assert before is None, f"store {name!r} is gone"
                continue
            old = before or Sight({}, {}, frozenset(), 0)
            for identifier, (step, condition) in old.checkpoints.items():
                found = sight.checkpoints.get(identifier, (step, GONE))
                taken = found[1] == GONE and step in self.operation.takes
                assert found[1] in (WHOLE, condition) or taken, f"step {step} was {condition}, is {found[1]}"
            for identifier in sight.checkpoints.keys() - old.checkpoints.keys():
                assert sight.checkpoints[identifier] in final.checkpoints.values()
            for ref in {**old.refs, **sight.refs}:
                assert sight.refs.get(ref) in (old.refs.get(ref), final.refs.get(ref)), ref
            assert torn or sight.problems <= old.problems, sight.problems

    def check_done(self, world: World, *, torn: bool = False) -> None:
        """After the repetition: as if nothing had happened."""
        self.check(world, torn=torn)
        for name, final in self.final.items():
            sight = self.image.see(world, name)
            assert sight is not None and final is not None
            assert sight.gist() == final.gist(), name
            assert torn or sight.problems <= final.problems
        if not torn:
            self.collect(world)

    def collect(self, world: World) -> None:
        """A collector changes nothing that is seen, and leaves nothing that nothing needs; once for equal stores."""
        for name, site in world.sites.items():
            key = self.image.key(world, name)
            sight = None if key in self.collected else self.image.see(world, name)
            self.collected.add(key)
            if sight is not None:
                with closing(replace(site, clock=HeldClock()).registry()) as registry:
                    operations.collect(registry)
                collected = self.image.see(world, name)
                assert collected is not None and collected.gist() == sight.gist()
                assert collected.leftovers == 0, f"{collected.leftovers} objects that nothing needs are left"

    def points(self, fault: Callable[[int], Fault]) -> Iterator[tuple[int, World, BaseException | None]]:
        """A world for each call that the fault can meet, and how the operation ended there."""
        for number in count(1):
            world, met = self.image.fresh(), fault(number)
            error, calls = world.attempt(self.operation.run, met)
            if sum(map(met.matches, calls)) < number:
                assert error is None, f"no fault was met, and yet {error!r}"
                return
            yield number, world, error

    def check_twice(self, world: World, number: int, *, torn: bool = False) -> None:
        """What is there now, and once the same user has run it again; every second time a collector comes between."""
        self.check(world, torn=torn)
        if number % 2 and not torn:
            self.collect(world)
        error, _ = world.attempt(self.operation.run)
        if error is not None:
            raise AssertionError(f"the repetition fails: {error!r}") from error
        self.check_done(world, torn=torn)


# What each kind of operation has in common is tried with one of them: the second of two crashes meets what the first
# left, objects are torn, and calls that create nothing are refused.
TWICE = [operation for operation in OPERATIONS if operation.name in ("second commit", "second push", "save")]
EACH_KIND = ("init", "first commit", "second commit", "tag", "second push", "save", "gc apply")
ONE_OF_EACH_KIND = [operation for operation in OPERATIONS if operation.name in EACH_KIND]


@pytest.fixture(scope="module", params=OPERATIONS, ids=lambda operation: operation.name)
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.of(request.param, tmp_path_factory.mktemp("world"))


def stopped(effect: Effect, op: str) -> Callable[[int], Fault]:
    return lambda number: Crash(op=op or None, call=number, effect=effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseOther(Fail):
    """Refuses a call that creates nothing; those that do are refused by a full disk, below."""

    def matches(self, call: Call) -> bool:
        return call.op != "create"


# Calls that only look have one effect: none.
CRASHES = [(Effect.NONE, ""), (Effect.COMPLETE, "create"), (Effect.COMPLETE, "delete")]


@pytest.mark.parametrize(("effect", "op"), CRASHES)
def test_A18_a_crash_at_any_call_harms_nothing_and_the_rerun_completes(
    trial: Trial, effect: Effect, op: str, record_property: Record
) -> None:
    number = 0
    for number, world, error in trial.points(stopped(effect, op)):
        assert isinstance(error, Stopped), f"call {number}: {error!r}"
        trial.check_twice(world, number)
    assert number or op
    count_points(record_property, trial.operation.name, number, all_calls=not op)


@pytest.mark.parametrize("trial", ONE_OF_EACH_KIND, ids=lambda operation: operation.name, indirect=True)
def test_a_crash_that_tears_an_object_harms_nothing_else(trial: Trial, record_property: Record) -> None:
    number = 0
    for number, world, error in trial.points(stopped(Effect.TORN, "create")):
        assert isinstance(error, Stopped), f"call {number}: {error!r}"
        trial.check_twice(world, number, torn=True)
    count_points(record_property, trial.operation.name, number)


@pytest.mark.parametrize("op", ["create", "delete"])
def test_a_lost_answer_harms_nothing_and_the_rerun_completes(trial: Trial, op: str, record_property: Record) -> None:
    number = 0
    for number, world, error in trial.points(lambda number: LoseAnswer(op=op, call=number)):
        check_told(error, LoseAnswer, number)
        trial.check_twice(world, number)
    count_points(record_property, trial.operation.name, number)


@pytest.mark.parametrize("trial", ONE_OF_EACH_KIND, ids=lambda operation: operation.name, indirect=True)
def test_a_refused_call_harms_nothing_and_the_rerun_completes(trial: Trial, record_property: Record) -> None:
    number = 0
    for number, world, error in trial.points(lambda number: RefuseOther(call=number)):
        check_told(error, RefuseOther, number)
        trial.check_twice(world, number)
    count_points(record_property, trial.operation.name, number)


def check_told(error: BaseException | None, fault: type[Fault], number: int) -> None:
    """The error says what is known: a refusal is never told as an unknown outcome, nor the other way round."""
    assert error is None or isinstance(error, (StorageError, TryAgain, SaveFailed)), f"call {number}: {error!r}"
    if isinstance(error, StorageError | TryAgain):
        assert isinstance(error, AnswerLost) == (fault is LoseAnswer), f"call {number}: {error!r}"


@pytest.mark.parametrize("fault", [LoseAnswer, LoseRequest], ids=lambda fault: fault.__name__)
def test_a_lost_answer_to_a_log_entry_is_made_up_for_at_once(trial: Trial, fault: type[Fault]) -> None:
    if trial.operation.name in ("init", "clone"):
        return  # a store's first entry is no append: the interrupted `init` is repeated
    for _, world, error in trial.points(lambda number: fault(op="create", name="log/*", call=number)):
        assert error is None
        trial.check_done(world)


def test_a_disk_that_is_full_is_named_and_once_there_is_space_the_rerun_completes(
    trial: Trial, record_property: Record
) -> None:
    def full(number: int) -> Fault:
        return Fail(op="create", call=number, lasting=True, error=StorageFull)

    number = 0
    for number, world, error in trial.points(full):
        if error is None:
            # All that there was no room for is the record of a read, which is of best effort; the work itself is done.
            trial.check_done(world)
        else:
            assert isinstance(error, StorageFull | SaveFailed), f"call {number}: {error!r}"
            assert isinstance(error, CairnError) and "cannot create" in error.message
        trial.check_twice(world, number)
    count_points(record_property, trial.operation.name, number)


@pytest.mark.parametrize("trial", TWICE, ids=lambda operation: operation.name, indirect=True)
def test_two_crashes_in_a_row(trial: Trial, record_property: Record) -> None:
    number = 0
    for number, world, _ in trial.points(stopped(Effect.COMPLETE, "")):
        if number % 3 == 0:
            world.attempt(trial.operation.run, Crash(call=number + 1))
            trial.check_twice(world, number)
    count_points(record_property, trial.operation.name, number // 3)
