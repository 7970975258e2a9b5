"""How exactly training goes on from a checkpoint, as the checkpoint declares it.

Each level includes those after it: a run that is bitwise the same on equal topology also sees the same data on any.
"""

from cairn.core.errors import RefusedError, UsageError

LEVELS = ("bitwise_same_topology", "deterministic_data_any_topology", "statistical", "weights_only")


def check_level(level: str) -> str:
    """Return a level that is known; empty for none declared.

    Raises:
        UsageError: it is not one of `LEVELS`.
    """
    if level and level not in LEVELS:
        raise UsageError(f"{level!r} is no level of exactness", hint=f"one of {', '.join(LEVELS)}")
    return level


def check_exact_enough(declared: str, required: str, what: str) -> None:
    """Refuse a checkpoint that promises less than is required.

    Raises:
        RefusedError: it does, or declares nothing.
    """
    if not check_level(required):
        return
    if declared not in LEVELS or LEVELS.index(declared) > LEVELS.index(required):
        raise RefusedError(
            f"{what} declares {declared or 'no exactness'}, which is less than the required {required}",
            hint="load another checkpoint, or require less",
        )
