"""Sets of pack numbers as closed ranges: `((0, 2), (5, 5))` means 0, 1, 2, 5."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

Ranges = tuple[tuple[int, int], ...]


def ranges(numbers: Iterable[int]) -> Ranges:
    """Distinct numbers as closed ranges, ascending."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    found = ([number for _, number in run] for _, run in runs)
    return tuple((run[0], run[-1]) for run in found)


def numbers_of(given: Sequence[tuple[int, int]]) -> Iterator[int]:
    """All numbers of ranges."""
    for low, high in given:
        yield from range(low, high + 1)


def are_ranges(given: Ranges, count: int) -> bool:
    """Whether ranges are in order, do not overlap, and lie below `count`."""
    previous = -1
    for low, high in given:
        if not previous < low <= high < count:
            return False
        previous = high
    return True


def within(given: Sequence[tuple[int, int]], number: int) -> bool:
    """Whether ranges that are in order hold a number."""
    at = bisect_right(given, number, key=lambda one: one[0]) - 1
    return at >= 0 and number <= given[at][1]


def covers(given: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    """Whether ranges that are in order, and joined where they touch, hold all numbers from `low` to `high`."""
    at = bisect_right(given, low, key=lambda one: one[0]) - 1
    return at >= 0 and high <= given[at][1]


def without(given: Ranges, taken: Ranges) -> Ranges:
    """What is left of ranges without others; both are in order."""
    left: list[tuple[int, int]] = []
    for low, high in given:
        for first, last in taken[max(bisect_right(taken, low, key=lambda one: one[0]) - 1, 0) :]:
            if first > high:
                break
            if low < first:
                left.append((low, first - 1))
            low = max(low, last + 1)
        if low <= high:
            left.append((low, high))
    return tuple(left)


def joined(given: Sequence[tuple[int, int]], more: Ranges) -> list[tuple[int, int]]:
    """Both, in order, with touching ranges made one; they do not overlap."""
    result: list[tuple[int, int]] = []
    for low, high in sorted((*given, *more)):
        if result and result[-1][1] + 1 == low:
            result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return result
