"""Numbers that a checkpoint is told by: checked where they come in."""

from collections.abc import Mapping
from contextlib import suppress
from operator import index
from typing import Any

from cairn.core.errors import UsageError
from cairn.core.limits import METRIC_NAME_CHARS_MAX, METRICS_MAX, STEP_MAX


def checked_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as plain numbers; scalars of numpy and torch are taken, infinities and NaN stay what they are.

    Raises:
        UsageError: a name or number is none, or there are too many.
    """
    if len(metrics) > METRICS_MAX:
        raise UsageError(
            f"{len(metrics)} metrics, more than {METRICS_MAX}", hint="name those that checkpoints differ by"
        )
    return {_checked_name(name): _checked_number(name, value) for name, value in metrics.items()}


def checked_step(step: Any) -> int:
    """A step as the whole number that it is; numpy's and torch's are taken.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(step, bool):
        with suppress(TypeError):
            number = index(step)
            if 0 <= number <= STEP_MAX:
                return number
    raise UsageError(f"step {step!r} is no step", hint="name a whole number from 0 on: int(step)")


def parse_metric(text: str) -> tuple[str, float]:
    """`NAME=VALUE`.

    Raises:
        UsageError: it is something else.
    """
    name, equals, value = text.rpartition("=")
    if not equals:
        raise UsageError(f"{text[:80]!r} is no metric", hint="write NAME=VALUE, such as loss=1.25")
    return _checked_name(name), _checked_number(name, value)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= METRIC_NAME_CHARS_MAX or not name.isprintable() or ":" in name:
        raise UsageError(
            f"{str(name)[:80]!r} is no name of a metric",
            hint=f"use 1 to {METRIC_NAME_CHARS_MAX} printable characters without a colon",
        )
    return name


def _checked_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise UsageError(f"metric {name!r} is {str(value)[:80]!r}, which is no number") from None
