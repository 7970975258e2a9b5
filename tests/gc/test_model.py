"""Writers, readers, collectors, deletion, repair and crashes, interleaved at every backend call, against a dictionary.

`CAIRN_MODEL_STEPS` sets how many steps the random machine takes in all; each lets up to 40 backend calls through.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from cairn.core.errors import IntegrityError
from cairn.gc import repack
from cairn.gc.collect import Collector
from cairn.gc.plan import Plan
from cairn.registry import transfer
from cairn.registry.entries import Condemn
from cairn.registry.state import State
from tests.gc.model import Play, Saved
from tests.support.schedule import Inline, Verdict

_STEPS, _STEPS_PER_RUN = 3000, 60
_LANES_MAX = 5
_MEMORY = "/dev/shm"
WHICH = st.integers(0, 3)
CALLS = st.integers(1, 40)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operation has threads beside its own, so that a seed repeats a run."""
    for module in (repack, transfer):
        monkeypatch.setattr(module, "Pool", Inline)


class Model(RuleBasedStateMachine):
    """Random operations in random order."""

    counts: ClassVar[dict[str, int]] = {"steps": 0, "calls": 0, "kills": 0, "lost": 0, "commits": 0, "runs": 0}

    def __init__(self) -> None:
        super().__init__()
        # In memory where there is such a folder: caches are synced to disk thousands of times.
        self.folder = Path(tempfile.mkdtemp(prefix="cairn-model-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))
        self.play = Play(self.folder)
        for number in range(3):
            self.play.save([number, number + 3], "main").finish()

    def _lanes(self) -> list[Saved]:
        return [saved for saved in self.play.lanes if not saved.lane.done]

    def _room(self) -> bool:
        return len(self._lanes()) < _LANES_MAX

    def _busy(self) -> bool:
        return bool(self._lanes())

    def _lane(self, which: int) -> Saved:
        lanes = self._lanes()
        return lanes[which % len(lanes)]

    @precondition(_room)
    @rule(numbers=st.lists(st.integers(0, 5), min_size=1, max_size=3), branch=st.sampled_from(["main", "other"]))
    def save(self, numbers: list[int], branch: str) -> None:
        self.play.save(numbers, branch)

    @precondition(_room)
    @rule(which=WHICH)
    def read(self, which: int) -> None:
        self.play.read(which)

    @precondition(_room)
    @rule(wait=st.sampled_from([0.0, 2000.0]), unused=st.sampled_from([0.0, 0.3]), condemn_only=st.booleans())
    def collect(self, wait: float, unused: float, condemn_only: bool) -> None:
        self.play.collect(wait_seconds=wait, unused=unused, condemn_only=condemn_only)

    @precondition(_room)
    @rule(which=WHICH)
    def collect_and_give_up(self, which: int) -> None:
        """A collector is told that sessions which live are dead."""
        dead = [saved.session.id for saved in self._lanes() if saved.session is not None]
        self.play.collect(wait_seconds=0.0, unused=0.0, dead=tuple(dead))

    @precondition(_room)
    @rule(which=WHICH, due=st.booleans())
    def delete(self, which: int, due: bool) -> None:
        self.play.delete(which, due=due)

    @precondition(_room)
    @rule(which=WHICH, restore=st.booleans())
    def end_deletion(self, which: int, restore: bool) -> None:
        self.play.end_deletion(which, restore=restore)

    @precondition(_room)
    @rule(what=st.sampled_from(["merge", "take back"]))
    def tend(self, what: str) -> None:
        if what == "merge":
            self.play.merge()
        else:
            self.play.take_back()

    @precondition(_room)
    @rule(which=WHICH)
    def push(self, which: int) -> None:
        self.play.push(which)

    @precondition(_room)
    @rule(which=WHICH)
    def supply(self, which: int) -> None:
        self.play.supply(which)

    @precondition(_busy)
    @rule(which=WHICH, calls=CALLS)
    def turns(self, which: int, calls: int) -> None:
        lane = self._lane(which).lane
        for _ in range(calls):
            if not lane.done:
                lane.turn()

    @rule(seed=st.integers(0, 2**32), length=st.integers(20, 200))
    def storm(self, seed: int, length: int) -> None:
        """Much at once, for which examples would be too long."""
        draw = random.Random(seed)
        for _ in range(length):
            if self._room() and draw.random() < 0.15:
                self._begin(draw)
            if not self._busy():
                continue
            which, chance = draw.randrange(_LANES_MAX), draw.random()
            if chance < 0.01:
                self.kill(which)
            elif chance < 0.03:
                self.lose(which, draw.choice([Verdict.LOSE_ANSWER, Verdict.LOSE_REQUEST]))
            elif chance < 0.10:
                self.beat(which)
            elif chance < 0.11:
                self.time_passes(0.4)
            else:
                self.turns(which, draw.choice([1, 1, 2, 5, 20]))

    def _begin(self, draw: random.Random) -> None:
        which, chance = draw.randrange(4), draw.random()
        if chance < 0.35:
            self.save([draw.randrange(6) for _ in range(draw.randrange(1, 4))], draw.choice(["main", "other"]))
        elif chance < 0.45:
            self.read(which)
        elif chance < 0.6:
            self.collect(draw.choice([0.0, 2000.0]), draw.choice([0.0, 0.3]), draw.random() < 0.1)
        elif chance < 0.7:
            self.collect_and_give_up(which)
        elif chance < 0.8:
            self.delete(which, draw.random() < 0.4)
        elif chance < 0.87:
            self.end_deletion(which, draw.random() < 0.3)
        elif chance < 0.93:
            self.push(which)
        elif chance < 0.97:
            self.tend(draw.choice(["merge", "take back"]))
        else:
            self.supply(which)

    @precondition(_busy)
    @rule(which=WHICH)
    def finish(self, which: int) -> None:
        self._lane(which).lane.finish()

    @precondition(_busy)
    @rule(which=WHICH, verdict=st.sampled_from([Verdict.LOSE_ANSWER, Verdict.LOSE_REQUEST]))
    def lose(self, which: int, verdict: Verdict) -> None:
        lane = self._lane(which).lane
        while not lane.done and lane.waiting[0].op not in ("create", "delete"):
            lane.turn()
        if not lane.done:
            self.counts["lost"] += 1
            lane.turn(verdict)

    @precondition(_busy)
    @rule(which=WHICH)
    def kill(self, which: int) -> None:
        self.counts["kills"] += 1
        self._lane(which).lane.stop()

    @precondition(_busy)
    @rule(which=WHICH)
    def beat(self, which: int) -> None:
        self.play.beat(self._lane(which))

    @rule(part=st.sampled_from([0.4, 1.0]))
    def time_passes(self, part: float) -> None:
        self.play.site.clock.sleep(part * self.play.silence)

    @rule()
    def look(self) -> None:
        self.play.check()

    def check_invariants(self, *args: Any, **kwargs: Any) -> None:
        super().check_invariants(*args, **kwargs)
        self.counts["steps"] += 1
        assert not self.play.wrong, self.play.wrong

    def teardown(self) -> None:
        self.counts["runs"] += 1
        self.counts["commits"] += len(self.play.promised)
        self.counts["calls"] += sum(saved.lane.turns for saved in self.play.lanes)
        try:
            if not self.play.wrong:
                self.play.end()
        finally:
            self.play.close()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.slow
def test_nothing_is_lost_whatever_happens_at_once() -> None:
    steps = int(os.environ.get("CAIRN_MODEL_STEPS", _STEPS))
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=max(steps // _STEPS_PER_RUN, 1), stateful_step_count=_STEPS_PER_RUN, deadline=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
            phases=(Phase.explicit, Phase.generate),  # a storm does not get smaller
        ),
    )  # fmt: skip
    print(Model.counts)
    assert Model.counts["commits"] > 0 and Model.counts["kills"] > 0


# --- collectors that are broken on purpose -------------------------------------------------------------


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


def two_steps(play: Play) -> None:
    """The first checkpoint is dropped; the second needs other content."""
    play.save([1]).finish()
    play.save([2]).finish()
    play.delete(0).finish()
    play.end_deletion(0, restore=False).finish()


def takes_its_time(play: Play) -> None:
    """A save relies on what the dropped checkpoint had; a collection comes between its look and its commit."""
    two_steps(play)
    saving = play.save([1], "other")
    assert saving.until("create", ".reach")
    dead = [saved.session.id for saved in play.lanes if saved.session is not None]
    play.collect(wait_seconds=0.0, unused=0.0, dead=tuple(dead)).finish()
    saving.finish()
    play.end()


def comes_amid_a_plan(play: Play) -> None:
    """A save commits between a collector's marking and its condemnation."""
    two_steps(play)
    collection = play.collect(unused=0.0)
    assert collection.until("list", "sessions")  # the plan is made after it
    assert collection.until("folders", "log")  # before the entry is written
    play.save([1], "other").finish()
    collection.finish()
    play.end()


def comes_after_a_collection(play: Play) -> None:
    """A save commits after a collection that remembers what is needed."""
    two_steps(play)
    play.collect(unused=0.0).finish()
    play.save([3], "other").finish()
    play.collect(unused=0.0).finish()
    play.end()


def deletes_what_another_marks(play: Play) -> None:
    """While a collector reads what checkpoints need, one of them is dropped, and another collector takes it away."""
    play.save([1]).finish()
    play.save([2]).finish()
    play.delete(0).finish()
    collection = play.collect(unused=0.0)
    assert collection.until("read", ".reach")
    play.end_deletion(0, restore=False).finish()
    play.collect(unused=0.0).finish()
    collection.finish()
    play.end()


SCENES = [takes_its_time, comes_amid_a_plan, comes_after_a_collection, deletes_what_another_marks]


@pytest.mark.parametrize("scene", SCENES)
def test_the_collector_stands_it(play: Play, scene: Callable[[Play], None]) -> None:
    scene(play)
    play.close()


class NoFloor(Collector):
    """Deletes right after it has condemned."""

    def _sweep(self) -> bool:
        state = self._registry.refresh()
        self._delete(sorted(state.condemned), sorted(state.condemned_objects))
        return False

    def _tell_swept(self, deleted: list[int | bytes]) -> None:
        """The fold would not take it."""


class NoSecondLook(Collector):
    """Says that its plan is of now, whatever came since."""

    def _condemnation(self, state: State, plan: Plan, *rest: Any) -> Condemn:
        plan.length = state.length
        return super()._condemnation(state, plan, *rest)


class TrustsItsCache(Collector):
    """Takes what it remembers for what is needed, without a look at newer lists."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self._counted._lists:
            self._counted.count = lambda _: self._counted._words  # type: ignore[method-assign]  # this object's own


BROKEN = [(NoFloor, takes_its_time), (NoSecondLook, comes_amid_a_plan), (TrustsItsCache, comes_after_a_collection)]


@pytest.mark.parametrize(("collector", "scene"), BROKEN, ids=[one.__name__ for one, _ in BROKEN])
def test_a_broken_collector_is_caught(play: Play, collector: type[Collector], scene: Callable[[Play], None]) -> None:
    play.collector = collector
    with pytest.raises(IntegrityError) as caught:
        scene(play)
    print(f"{type(caught.value).__name__}: {caught.value}")
    play.close()
