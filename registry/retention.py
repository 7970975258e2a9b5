"""Which checkpoints of a branch stay: rules, as pure functions. One stays if any rule keeps it."""

import re
from collections.abc import Callable, Sequence
from math import isfinite, isnan
from time import gmtime
from typing import Any

import msgspec

from cairn.core.errors import UsageError
from cairn.core.ids import CheckpointId

_NS = 1_000_000_000
_HOUR_NS, _DAY_NS = 3600 * _NS, 86_400 * _NS
_BEST = re.compile(r"([^:]+):(min|max):([1-9]\d{0,8})")

# Periods of the time ladder, in UTC: which one a time (ns) falls into. Weeks begin on Monday; 1970 began on Thursday.
_PERIODS: dict[str, Callable[[int], object]] = {
    "hourly": lambda ns: ns // _HOUR_NS,
    "daily": lambda ns: ns // _DAY_NS,
    "weekly": lambda ns: (ns // _DAY_NS + 3) // 7,
    "monthly": lambda ns: gmtime(ns // _NS)[:2],
    "yearly": lambda ns: gmtime(ns // _NS)[:1],
}


class Candidate(msgspec.Struct, frozen=True):
    """A checkpoint of a branch, as rules see it.

    Args:
        saved_at: when it was saved, by its writer's clock (ns).
        kept_by: what keeps it whatever the rules say.
    """

    id: CheckpointId
    step: int | None
    saved_at: int
    metrics: dict[str, float] = {}
    kept_by: tuple[str, ...] = ()


class Retention(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rules of what stays; each keeps some, and what none keeps goes.

    Whatever they say, these stay: what a branch or tag names, the newest two of every branch, and of every branch the
    newest that was found whole.

    Args:
        last: the newest so many.
        every: those whose step is a multiple of this.
        hourly, daily, weekly, monthly, yearly: the newest of each of so many hours, days, ... (UTC) that have one.
        best: `METRIC:min:COUNT` or `METRIC:max:COUNT`: so many with the lowest or highest value of a metric.
        min_age_seconds: those that are younger.
    """

    last: int = 0
    every: int = 0
    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    best: tuple[str, ...] = ()
    min_age_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("last", "every", *_PERIODS):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise UsageError(f"{name}={count!r} is no rule of retention", hint="name a whole number from 0 on")
        if not (isfinite(self.min_age_seconds) and self.min_age_seconds >= 0):
            raise UsageError(f"{self.min_age_seconds!r} seconds are no age", hint="name a number from 0 on")
        best: Any = self.best
        if isinstance(best, str):
            raise UsageError("best is a list of rules", hint=f"write best=({best!r},)")
        for text in best:
            if not isinstance(text, str) or not _BEST.fullmatch(text):
                raise UsageError(f"{text!r} is no rule of the best", hint="write METRIC:min:COUNT or METRIC:max:COUNT")
        if not any(getattr(self, name) for name in self.__struct_fields__):
            raise UsageError("no rule says what is to stay", hint="name one, such as the last 5")


def kept_by_rules(candidates: Sequence[Candidate], rules: Retention, now: int) -> list[tuple[str, ...]]:
    """What keeps each candidate: the names of rules, none if it goes.

    Args:
        candidates: of one branch, newest first.
        now: the clock (ns), for ages.
    """
    kept = [list(one.kept_by) for one in candidates]

    def keep(numbers: Sequence[int], name: str) -> None:
        for number in numbers:
            kept[number].append(name)

    everyone = range(len(candidates))
    keep(everyone[: rules.last], f"last {rules.last}")
    if rules.every:
        steps = ((number, one.step) for number, one in enumerate(candidates) if one.step is not None)
        keep([number for number, step in steps if step % rules.every == 0], f"every {rules.every} steps")
    for period, of_time in _PERIODS.items():
        count: int = getattr(rules, period)
        keep(_newest_of_periods(candidates, of_time, count), f"{period} {count}")
    for text in rules.best:
        keep(_best(candidates, text), f"best {text}")
    if rules.min_age_seconds:
        border = now - int(rules.min_age_seconds * _NS)
        keep([number for number in everyone if candidates[number].saved_at > border], "minimum age")
    return [tuple(names) for names in kept]


def _newest_of_periods(candidates: Sequence[Candidate], of_time: Callable[[int], object], count: int) -> list[int]:
    newest: dict[object, int] = {}
    for number, one in enumerate(candidates):
        if len(newest) == count:
            break
        newest.setdefault(of_time(one.saved_at), number)
    return list(newest.values())


def _best(candidates: Sequence[Candidate], text: str) -> list[int]:
    match = _BEST.fullmatch(text)
    assert match is not None, "rules are checked when they are made"
    metric, way, count = match[1], match[2], int(match[3])
    values = [(one.metrics[metric], number) for number, one in enumerate(candidates) if metric in one.metrics]
    sign = 1 if way == "min" else -1
    # Of equals the newer one, which has the lower number; what is not a number is never among the best.
    ranked = sorted((sign * value, number) for value, number in values if not isnan(value))
    return [number for _, number in ranked[:count]]
