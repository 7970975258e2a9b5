"""Sets of numbers as ranges, compared with sets."""

from hypothesis import given
from hypothesis import strategies as st

from cairn.registry.numbers import are_ranges, covers, joined, numbers_of, ranges, within, without

NUMBERS = st.sets(st.integers(0, 40))


@given(NUMBERS)
def test_ranges_say_the_same_as_the_set(numbers: set[int]) -> None:
    found = ranges(numbers)
    assert list(numbers_of(found)) == sorted(numbers)
    assert are_ranges(found, 41)
    assert [number for number in range(-1, 42) if within(found, number)] == sorted(numbers)


@given(NUMBERS, NUMBERS)
def test_joining_is_union(some: set[int], more: set[int]) -> None:
    more = more - some
    assert tuple(joined(ranges(some), ranges(more))) == ranges(some | more)


@given(NUMBERS, NUMBERS)
def test_without_is_difference(some: set[int], others: set[int]) -> None:
    assert without(ranges(some), ranges(others)) == ranges(some - others)


@given(NUMBERS, st.integers(0, 40), st.integers(0, 5))
def test_covering(numbers: set[int], low: int, more: int) -> None:
    assert covers(ranges(numbers), low, low + more) == (set(range(low, low + more + 1)) <= numbers)


def test_what_are_no_ranges() -> None:
    for given_ in (((1, 0),), ((0, 1), (1, 2)), ((2, 3), (0, 0)), ((0, 5),), ((-1, 0),)):
        assert not are_ranges(given_, 5)
