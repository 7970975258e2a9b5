"""The process stops at call 1, 2, 3 ... of an operation, or an answer is lost there: nothing earlier is harmed.

After each: a reader without a cache finds every earlier checkpoint bit for bit, the new one whole or not at all, and
the same command, repeated by the same user, completes the work exactly once.
"""

from pathlib import Path

import pytest

from cairn.core.errors import AnswerLost, CairnError, IntegrityError, NotAStore, ObjectExists, StorageError, TryAgain
from cairn.gc.scrub_open import verify_store
from cairn.registry.opened import KeySource, create_store, open_store
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Crash, Effect, Fail, Fault, FaultyBackend, LoseAnswer, LoseRequest, Stopped
from cairn.store.backends.memory import MemoryBackend
from tests.faults.scenarios import SCENARIOS, Scenario, make
from tests.support.doubles import HeldClock, SeededEntropy
from tests.support.stores import home_in


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Scenario:
    return make(request.param, tmp_path)


def points(scenario: Scenario, op: str = "") -> range:
    """Numbers of the calls (of one method) that the operation makes when nothing goes wrong."""
    error, calls = scenario.attempt(scenario.fresh())
    assert error is None
    found = range(1, 1 + sum(op in ("", call.op) for call in calls))
    print(f"{scenario.name}: {len(found)} points")
    assert len(found) > 0 or op == "delete"  # a tag needs no session, which is what is deleted
    return found


def repeat(scenario: Scenario, number: int, fault: Fault) -> BaseException | None:
    """Meet a call with a fault, check, repeat the operation, check again; returns how the first try ended."""
    site = scenario.fresh()
    error, _ = scenario.attempt(site, fault)
    scenario.check(site, scenario.folder / f"out-{number}-first")
    # The same user, with the cache that the first try left.
    again, _ = scenario.attempt(site)
    assert again is None, f"point {number}: {again!r}"
    assert scenario.check(site, scenario.folder / f"out-{number}-again")
    if not (isinstance(fault, Crash) and fault.effect is Effect.TORN):
        report = verify_store(site.backend, site.home, site.source, True)
        assert report.ok, f"point {number}: {report.errors}"
    return error


# Calls that only look have one effect: none.
CRASHES = [(Effect.NONE, ""), (Effect.COMPLETE, "create"), (Effect.COMPLETE, "delete"), (Effect.TORN, "create")]
LOSSES: list[tuple[type[Fault], str]] = [
    (Fail, ""),
    (LoseRequest, "create"),
    (LoseAnswer, "create"),
    (LoseAnswer, "delete"),
]


@pytest.mark.parametrize(("effect", "op"), CRASHES)
def test_A18_a_crash_at_any_call_harms_nothing_and_the_rerun_completes(
    scenario: Scenario, effect: Effect, op: str
) -> None:
    for number in points(scenario, op):
        error = repeat(scenario, number, Crash(op=op or None, call=number, effect=effect))
        assert isinstance(error, Stopped), f"point {number}: {error!r}"


@pytest.mark.parametrize(("fault", "op"), LOSSES)
def test_a_lost_or_refused_call_harms_nothing_and_the_rerun_completes(
    scenario: Scenario, fault: type[Fault], op: str
) -> None:
    for number in points(scenario, op):
        error = repeat(scenario, number, fault(op=op or None, call=number))
        assert error is None or isinstance(error, (StorageError, TryAgain)), f"point {number}: {error!r}"
        # A refusal is never told as an unknown outcome, nor the other way round.
        assert error is None or isinstance(error, AnswerLost) == (fault is not Fail), f"point {number}: {error!r}"


@pytest.mark.parametrize("fault", [LoseAnswer, LoseRequest], ids=lambda fault: fault.__name__)
def test_a_lost_answer_to_a_log_entry_is_made_up_for_at_once(scenario: Scenario, fault: type[Fault]) -> None:
    for number in (1, 2):
        site = scenario.fresh()
        error, calls = scenario.attempt(site, fault(op="create", name="log/*", call=number))
        if sum(call.op == "create" and call.name.startswith("log/") for call in calls) > number:
            assert error is None
            assert scenario.check(site, scenario.folder / f"out-{number}")


def test_two_crashes_in_a_row(scenario: Scenario) -> None:
    for number in points(scenario)[::3]:
        site = scenario.fresh()
        scenario.attempt(site, Crash(call=number, effect=Effect.COMPLETE))
        scenario.attempt(site, Crash(call=number + 1))
        scenario.check(site, scenario.folder / f"out-{number}-twice")
        assert scenario.attempt(site)[0] is None
        assert scenario.check(site, scenario.folder / f"out-{number}-again")


# --- Creating a store -------------------------------------------------------------------------


def create(backend: FaultyBackend, folder: Path, seed: int) -> BaseException | None:
    try:
        create_store(backend, home_in(folder), KeySource(), HeldClock(), SeededEntropy(seed))
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("effect", Effect)
def test_a_crash_while_a_store_is_made_leaves_a_store_or_none(tmp_path: Path, effect: Effect) -> None:
    recorder = FaultyBackend(MemoryBackend())
    assert create(recorder, tmp_path / "whole", 0) is None
    total = len(recorder.calls)
    print(f"init: {total} points")
    assert total > 5
    for number in range(1, total + 1):
        inner, folder = MemoryBackend(), tmp_path / str(number)
        assert isinstance(create(FaultyBackend(inner, [Crash(call=number, effect=effect)]), folder, number), Stopped)
        leftovers = [listed.name for listed in inner.list()]
        try:
            registry = Registry(open_store(inner, home_in(folder), KeySource()))
        except (NotAStore, IntegrityError) as error:
            assert isinstance(error, NotAStore) or effect is Effect.TORN
        else:
            assert number == total and effect is Effect.COMPLETE
            assert registry.state.owners
            continue
        again = create(FaultyBackend(inner), folder, number + 100)
        if leftovers:  # what is there may be somebody's, and is not overwritten
            assert isinstance(again, ObjectExists)
            assert leftovers == [listed.name for listed in inner.list()]
            for name in leftovers:
                inner.delete(name)
            again = create(FaultyBackend(inner), folder, number + 200)
        assert again is None
        assert Registry(open_store(inner, home_in(folder), KeySource())).state.length == 1


@pytest.mark.parametrize("fault", [LoseAnswer, LoseRequest, Fail], ids=lambda fault: fault.__name__)
def test_a_lost_call_while_a_store_is_made_is_told(tmp_path: Path, fault: type[Fault]) -> None:
    recorder = FaultyBackend(MemoryBackend())
    assert create(recorder, tmp_path / "whole", 0) is None
    for number in range(1, len(recorder.calls) + 1):
        inner, folder = MemoryBackend(), tmp_path / str(number)
        error = create(FaultyBackend(inner, [fault(call=number)]), folder, number)
        if error is None:
            assert Registry(open_store(inner, home_in(folder), KeySource())).state.length == 1
        else:
            assert isinstance(error, CairnError)
            assert str(error)
