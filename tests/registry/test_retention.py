"""The rules of retention: what each keeps, and what holds for any of them."""

from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.errors import UsageError
from cairn.core.ids import CheckpointId
from cairn.registry.retention import Candidate, Retention, kept_by_rules

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def ns(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000_000


def candidate(number: int, **more: Any) -> Candidate:
    return Candidate(**{"id": CheckpointId(number.to_bytes(32, "big")), "step": None, "saved_at": 0, **more})


def kept(candidates: list[Candidate], now: datetime = NOW, **rules: Any) -> list[int]:
    """Numbers of what stays, in the order of the candidates."""
    names = kept_by_rules(candidates, Retention(**rules), ns(now))
    return [number for number, why in enumerate(names) if why]


def aged(*ages: timedelta) -> list[Candidate]:
    return [candidate(number, saved_at=ns(NOW - age)) for number, age in enumerate(ages)]


def test_the_last_and_the_steps() -> None:
    some = [candidate(number, step=step) for number, step in enumerate([500, 450, 400, None, 300, 0])]
    assert kept(some, last=2) == [0, 1]
    assert kept(some, last=99) == [0, 1, 2, 3, 4, 5]
    assert kept(some, every=200) == [2, 5]
    assert kept(some, last=1, every=300) == [0, 4, 5]


def test_the_ladder_keeps_the_newest_of_each_period_that_has_one() -> None:
    hours = aged(*(timedelta(minutes=20 * number) for number in range(9)))
    # 12:30, 12:10 | 11:50, 11:30, 11:10 | 10:50, 10:30, 10:10 | 9:50
    assert kept(hours, hourly=2) == [0, 2]
    assert kept(hours, hourly=99) == [0, 2, 5, 8]
    days = aged(*(timedelta(days=number) for number in (0, 0, 1, 7, 8, 40, 400)))
    assert kept(days, daily=2) == [0, 2]
    # 2026-03-01 is a Sunday, so seven days before it is the week before.
    assert kept(days, weekly=2) == [0, 3]
    assert kept(days, monthly=3) == [0, 2, 5]
    assert kept(days, yearly=9) == [0, 6]


def test_weeks_begin_on_monday_and_times_before_1970_are_times() -> None:
    monday = datetime(2026, 3, 2, tzinfo=UTC)
    some = [candidate(n, saved_at=ns(monday) - back) for n, back in enumerate((0, 1, 2, 60 * 365 * 86_400 * 10**9))]
    assert kept(some, weekly=9) == kept(some, daily=9) == [0, 1, 3]
    assert kept(some, yearly=9) == [0, 3]


def test_the_best_by_a_metric() -> None:
    values = [{"loss": 3.0}, {"loss": 1.0}, {}, {"loss": nan}, {"loss": 1.0, "acc": 0.5}, {"loss": inf, "acc": 0.9}]
    some = [candidate(number, metrics=value) for number, value in enumerate(values)]
    assert kept(some, best=("loss:min:1",)) == [1], "of equals the newer"
    assert kept(some, best=("loss:min:2",)) == [1, 4]
    assert kept(some, best=("loss:max:1", "acc:max:1")) == [5]
    assert kept(some, best=("loss:min:9",)) == [0, 1, 4, 5], "never what is no number"
    assert kept(some, best=("other:min:9",)) == []


def test_the_age_and_what_is_kept_anyway() -> None:
    some = aged(timedelta(hours=-1), timedelta(hours=1), timedelta(hours=3))
    assert kept(some, min_age_seconds=2 * 3600) == [0, 1]
    tagged = [*some, candidate(3, kept_by=("tag good",))]
    assert kept(tagged, min_age_seconds=1) == [0, 3]
    (why,) = kept_by_rules(tagged[3:], Retention(last=1), ns(NOW))
    assert why == ("tag good", "last 1")


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"last": -1},
        {"last": True},
        {"every": 2.5},
        {"best": "loss:min:3"},
        {"best": ("loss",)},
        {"best": ("loss:least:3",)},
        {"best": ("loss:min:0",)},
        {"best": (3,)},
        {"min_age_seconds": -1.0},
        {"min_age_seconds": nan},
    ],
    ids=str,
)
def test_rules_that_make_no_sense(rules: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Retention(**rules)


CANDIDATES = st.lists(
    st.tuples(
        st.none() | st.integers(0, 50),
        st.integers(-(10**18), 2 * 10**18),
        st.dictionaries(st.sampled_from(["loss", "acc"]), st.floats()),
        st.sampled_from([(), ("tag good",), ("branch main", "newest whole of main")]),
    ),
    max_size=30,
).map(
    lambda rows: [
        candidate(number, step=step, saved_at=saved, metrics=metrics, kept_by=kept_by)
        for number, (step, saved, metrics, kept_by) in enumerate(rows)
    ]
)
COUNTS = ("last", "every", "hourly", "daily", "weekly", "monthly", "yearly")
RULES = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.integers(1, 12) for name in COUNTS},
        "best": st.lists(st.sampled_from(["loss:min:2", "loss:max:1", "acc:max:3"]), min_size=1, max_size=2).map(tuple),
        "min_age_seconds": st.floats(1, 1e9),
    },
).filter(bool)


@given(CANDIDATES, RULES)
def test_what_a_name_keeps_stays_whatever_the_rules(candidates: list[Candidate], rules: dict[str, Any]) -> None:
    stays = kept(candidates, **rules)
    assert {number for number, one in enumerate(candidates) if one.kept_by} <= set(stays)


@given(CANDIDATES, RULES, RULES)
def test_adding_a_rule_never_removes_more(
    candidates: list[Candidate], rules: dict[str, Any], others: dict[str, Any]
) -> None:
    added = {name: value for name, value in others.items() if name not in rules}
    assert set(kept(candidates, **rules)) <= set(kept(candidates, **rules, **added))


@given(CANDIDATES, RULES, st.sampled_from([name for name in COUNTS if name != "every"]))
def test_a_larger_count_never_removes_more(candidates: list[Candidate], rules: dict[str, Any], name: str) -> None:
    more = {**rules, name: rules.get(name, 0) + 1}
    assert set(kept(candidates, **rules)) <= set(kept(candidates, **more))


@given(CANDIDATES, RULES)
def test_each_rule_keeps_no_more_than_it_says(candidates: list[Candidate], rules: dict[str, Any]) -> None:
    names = kept_by_rules(candidates, Retention(**rules), ns(NOW))
    for name in COUNTS:
        if name in rules and name != "every":
            title = f"{name} {rules[name]}"
            assert sum(title in why for why in names) <= rules[name]


@given(CANDIDATES, RULES)
def test_what_goes_is_none_of_any_rule_alone(candidates: list[Candidate], rules: dict[str, Any]) -> None:
    together = set(kept(candidates, **rules))
    alone = [set(kept(candidates, **{name: value})) for name, value in rules.items()]
    assert together == set().union(*alone)
