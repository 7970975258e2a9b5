"""How many calls of each operation met a fault; the end of a test run prints the sums."""

from collections.abc import Callable, Iterable

# The fixture `record_property`: what a test notes reaches the end of the run from every worker process.
Record = Callable[[str, object], None]
PROPERTY = "crash points"


def count_points(record: Record, operation: str, tries: int, *, all_calls: bool = False) -> None:
    """Note how often one operation was tried with a fault.

    Args:
        all_calls: each try met another call, and together they met every call that the operation makes.
    """
    record(PROPERTY, [operation, tries, tries if all_calls else 0])


def points_table(noted: Iterable[tuple[str, object]]) -> list[str]:
    """Lines that say, of each operation, how many calls it makes and how many tries met a fault there."""
    sums: dict[str, tuple[int, int]] = {}
    for name, value in noted:
        if name == PROPERTY and isinstance(value, list):
            operation, tries, calls = value
            known = sums.get(operation, (0, 0))
            sums[operation] = max(known[0], calls), known[1] + tries
    if not sums:
        return []
    sums["all"] = sum(calls for calls, _ in sums.values()), sum(tries for _, tries in sums.values())
    rows = [f"  {name:<28}{calls:>6} calls{tries:>8} tries" for name, (calls, tries) in sums.items()]
    return ["crash points: how many calls an operation makes, and how many tries met a fault there", *rows]
