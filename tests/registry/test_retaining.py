"""Retention on a branch: what a plan protects, when it is void, and what happens if it is interrupted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cairn.core.errors import BadInput, NotFoundError, PlanVoid, UsageError
from cairn.registry.deletion import restore, tombstone
from cairn.registry.entries import Verified
from cairn.registry.fold import BRANCH, TAG
from cairn.registry.holding import add_hold
from cairn.registry.models import move_ref
from cairn.registry.names import ref_tag
from cairn.registry.planfiles import encode_plan
from cairn.registry.retaining import apply_plan, decode_plan, plan_retention, retain
from cairn.registry.retention import Retention
from cairn.registry.state import Ref
from cairn.store.backends.faults import FaultyBackend
from tests.support.histories import History, drop_due
from tests.support.rivals import interleaved
from tests.support.stores import commit_tree
from tests.support.twins import clean, twin_of

NEWEST = Retention(last=1)


class Line(History):
    """Six checkpoints, an hour apart."""

    def verified(self, *steps: int) -> None:
        self.registry.append(lambda state: Verified(self.model, tuple(self.ids[step] for step in steps), "full"))

    def stays(self, branch: str = "main", **rules: Any) -> dict[int, tuple[str, ...]]:
        """Steps that stay by some rules, and why."""
        plan = plan_retention(self.registry, self.model, branch, Retention(**rules))
        return {one.step or 0: one.kept_by for one in plan.verdicts if one.kept_by}


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path, 6)


# --- what stays ---------------------------------------------------------------------------------


def test_rules_act_on_what_checkpoints_say_of_themselves(line: Line) -> None:
    assert list(line.stays(last=3)) == [6, 5, 4]
    assert list(line.stays(every=2)) == [6, 5, 4, 2]
    assert list(line.stays(best=("loss:min:1",))) == [6, 5, 3]
    assert list(line.stays(hourly=3)) == [6, 5, 4]
    assert list(line.stays(min_age_seconds=3.5 * 3600)) == [6, 5, 4, 3]
    assert line.stays(last=1)[6] == ("branch main", "newest whole of main", "last 1")
    assert line.stays(last=1)[5] == ("second of main",)


def test_a_tag_keeps_what_it_names(line: Line) -> None:
    line.tag(2, "good")
    assert line.stays(last=1)[2] == ("tag good",)
    retain(line.registry, line.model, "main", NEWEST)
    assert line.steps() == [6, 5, 2]


def test_another_branch_keeps_its_newest_two(line: Line) -> None:
    line.branch(3, "fork")
    line.branch(2, "old")
    assert list(line.stays(last=1)) == [6, 5, 3, 2, 1]
    assert line.stays(last=1)[2] == ("second of fork", "branch old", "newest whole of old")
    assert list(line.stays("fork", last=1)) == [3, 2, 1]


def test_the_newest_verified_one_stays(line: Line) -> None:
    line.verified(1, 3)
    assert line.stays(last=1)[3] == ("newest verified of main",)
    line.verified(4)
    assert list(line.stays(last=1)) == [6, 5, 4]


@pytest.mark.parametrize("kind", [".body", ".root", ".reach", ".pack"])
def test_the_newest_that_is_there_stays_if_none_was_verified(line: Line, kind: str) -> None:
    for step in (6, 5, 4):
        session = line.registry.state.models[line.model].checkpoints[line.ids[step]].body.name[:16].hex()
        damaged = [name for name in line.site.names(kind) if session in name]
        assert damaged
        for name in damaged:
            if step == 4:  # cut short, not missing
                data = line.site.backend.read(name)
                line.site.backend.delete(name)
                line.site.backend.create(name, [data[:-1]])
            else:
                line.site.backend.delete(name)
    assert line.stays(last=1)[3] == ("newest whole of main",)
    retain(line.registry, line.model, "main", NEWEST)
    assert line.steps() == [6, 5, 3]


def test_where_nothing_goes_the_storage_is_not_asked_and_nothing_is_written(line: Line) -> None:
    backend = FaultyBackend(line.site.backend)
    registry = line.site.registry(backend)
    registry.model_keys(line.model)
    begun = len(backend.calls)
    plan_retention(registry, line.model, "main", Retention(last=6))
    assert len(backend.calls) == begun
    before = registry.state.length
    assert retain(registry, line.model, "main", Retention(last=6)).removed == []
    assert registry.refresh().length == before


def test_a_tag_or_nothing_is_no_branch(line: Line) -> None:
    line.tag(2, "good")
    for name in ("good", "other"):
        with pytest.raises(NotFoundError, match=f"no branch {name!r}"):
            plan_retention(line.registry, line.model, name, NEWEST)


@pytest.fixture(scope="module")
def long_line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    return Line(tmp_path_factory.mktemp("line"), 6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    verified=st.sets(st.integers(1, 6)),
    tags=st.lists(st.integers(1, 6), max_size=2),
    branches=st.lists(st.integers(1, 6), max_size=2),
    rules=st.fixed_dictionaries(
        {}, optional={"last": st.integers(1, 4), "every": st.integers(2, 4), "hourly": st.integers(1, 3)}
    ).filter(bool),
)
def test_names_tips_the_newest_two_and_the_newest_verified_stay(
    long_line: Line, verified: set[int], tags: list[int], branches: list[int], rules: dict[str, Any]
) -> None:
    line, real = long_line, long_line.registry.state
    k_log, keys = line.registry.opened.secrets.k_log, line.registry.model_keys(line.model)
    state = real.copy()
    model = state.models[line.model]
    for kind, steps in ((TAG, tags), (BRANCH, branches)):
        for number, step in enumerate(steps):
            name = f"{kind}{number}"
            model.refs[ref_tag(k_log, line.model, name)] = Ref(kind, keys.seal_name(name), line.ids[step])
    for step in verified:
        held = model.checkpoints[line.ids[step]]
        model.checkpoints[line.ids[step]] = msgspec.structs.replace(held, verified="quick")
    line.registry._state = state
    try:
        stays = set(line.stays(**rules))
        more = set(line.stays(**rules, weekly=1))
    finally:
        line.registry._state = real
    must = {*tags}
    for top in (6, *branches):
        below = range(top, 0, -1)
        must |= {*below[:2], max((step for step in below if step in verified), default=top)}
    assert must <= stays <= more


# --- a plan is of one state ---------------------------------------------------------------------


CHANGES: dict[str, Callable[[Line], object]] = {
    "commit": lambda line: line.commit(7),
    "tag": lambda line: line.tag(2, "good"),
    "branch": lambda line: line.branch(2, "fork"),
    "verified": lambda line: line.verified(2),
    "deleted": lambda line: tombstone(line.registry, line.model, [line.ids[2]], "deleted", 0),
    "restored": lambda line: restore(line.registry, line.model, [line.ids[1]]),
    "tag moved": lambda line: move_ref(line.registry, line.model, "t", TAG, line.ids[5], line.ids[4]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_plan_is_void_once_its_model_has_changed(line: Line, change: Callable[[Line], object]) -> None:
    line.tag(5, "t")
    tombstone(line.registry, line.model, [line.ids[1]], "deleted", 0)
    plan = decode_plan(encode_plan(plan_retention(line.registry, line.model, "main", Retention(last=3))))
    change(line)
    before, steps = line.registry.refresh().length, line.steps()
    with pytest.raises(PlanVoid, match="is void") as caught:
        apply_plan(line.registry, plan)
    assert "plan again: 'cairn retain plan m@main" in caught.value.hint
    assert (line.registry.refresh().length, line.steps()) == (before, steps)


def test_a_plan_outlives_what_happens_to_other_models(line: Line) -> None:
    plan = plan_retention(line.registry, line.model, "main", NEWEST)
    commit_tree(line.registry, line.tree(1), model="other")
    assert apply_plan(line.registry, plan, 60.0) == [line.ids[step] for step in (4, 3, 2, 1)]
    assert line.steps() == [6, 5]
    assert clean(line.site)
    assert drop_due(line.registry) == [], "it has its time of grace"


def test_a_file_decides_nothing_but_the_rules(line: Line) -> None:
    line.verified(1)
    plan = plan_retention(line.registry, line.model, "main", NEWEST)
    bold = tuple(msgspec.structs.replace(one, kept_by=()) for one in plan.verdicts)
    for changed in ({"verdicts": bold}, {"verdicts": plan.verdicts[1:]}, {"seen": "00"}, {"rules": Retention(last=4)}):
        with pytest.raises(PlanVoid, match="is void"):
            apply_plan(line.registry, msgspec.structs.replace(plan, **changed))
    with pytest.raises(UsageError, match="of store"):
        apply_plan(twin_of(line.site).registry(), plan)
    with pytest.raises(NotFoundError, match="no model"):
        apply_plan(line.registry, msgspec.structs.replace(plan, model="00" * 16))
    assert line.steps() == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"cairn retention plan 1"', b'"cairn retention plan 2"'),
        (b'"verdicts"', b'"verdict"'),
        (b'"last"', b'"least"'),
        (b'"model":"', b'"model":"zz'),
        (b'"checkpoint":"', b'"checkpoint":"zz'),
        (b"{", b"["),
    ],
    ids=str,
)
def test_what_is_no_plan_is_refused(line: Line, old: bytes, new: bytes) -> None:
    data = encode_plan(plan_retention(line.registry, line.model, "main", NEWEST))
    assert encode_plan(decode_plan(data)) == data
    assert old in data
    with pytest.raises(BadInput, match="no plan of retention"):
        decode_plan(data.replace(old, new, 1))


# --- others at the same time --------------------------------------------------------------------


def test_a_commit_between_plan_and_entry_counts(line: Line) -> None:
    rival = line.site.registry()
    backend = interleaved(line.site.backend, lambda: line.commit(7, rival), op="create", name="log/*")
    plan = retain(line.site.registry(backend), line.model, "main", NEWEST)
    assert plan.verdicts[0].step == 7
    assert line.steps() == [7, 6]


def test_a_tag_between_plan_and_entry_keeps_what_it_names(line: Line) -> None:
    backend = interleaved(line.site.backend, lambda: line.tag(2, "good"), op="create", name="log/*")
    retain(line.site.registry(backend), line.model, "main", NEWEST)
    assert line.steps() == [6, 5, 2]


def test_one_who_is_always_late_says_so(line: Line) -> None:
    steps = iter(range(7, 99))
    rival = line.site.registry()
    backend = interleaved(
        line.site.backend, lambda: line.commit(next(steps), rival), op="create", name="log/*", times=99
    )
    with pytest.raises(PlanVoid, match="is void"):
        retain(line.site.registry(backend), line.model, "main", NEWEST)
    assert len(line.steps()) == len(line.ids)


@pytest.mark.parametrize("from_file", [False, True])
def test_two_appliers_at_once_delete_once(line: Line, from_file: bool) -> None:
    plan = plan_retention(line.registry, line.model, "main", NEWEST)
    other = line.site.registry()
    backend = interleaved(line.site.backend, lambda: apply_plan(other, plan), op="create", name="log/*")
    registry = line.site.registry(backend)
    if from_file:
        with pytest.raises(PlanVoid, match="is void"):
            apply_plan(registry, plan)
    else:
        assert retain(registry, line.model, "main", NEWEST).removed == []
    assert line.steps() == [6, 5]
    assert registry.refresh().length == plan.length + 1, "one entry"


def test_a_hold_that_comes_between_plan_and_deletion_is_heeded(line: Line) -> None:
    """By rules one plans again; a plan that others have seen is void."""
    holder, plan = line.site.registry(), plan_retention(line.registry, line.model, "main", NEWEST)

    def hold() -> None:
        add_hold(holder, line.model, line.ids[1], "case 3")

    registry = line.site.registry(interleaved(line.site.backend, hold, op="create", name="log/*"))
    made = retain(registry, line.model, "main", NEWEST)
    assert [one.step for one in made.verdicts if any(why.startswith("hold") for why in one.kept_by)] == [1]
    assert set(registry.state.models[line.model].checkpoints) == {line.ids[step] for step in (1, 5, 6)}
    with pytest.raises(PlanVoid, match="hold of the model has changed"):
        apply_plan(registry, plan)
