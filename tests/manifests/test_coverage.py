"""Parts that cover what a reader wants: the same as element by element, and asked again for another tensor."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.manifests.coverage import meeting_bounds, meeting_cover
from cairn.manifests.schema import Bounds
from cairn.manifests.tiling import Box


@st.composite
def covers(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Bounds], tuple[Box, ...]]:
    """A shape, the cells of some grid of it in any order, of which one may lack or stand twice, and boxes."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    cuts = [sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=2))}) for length in shape]
    cells = [
        (tuple(a for a, _ in cell), tuple(b - a for a, b in cell)) for cell in product(*map(list, map(pairwise, cuts)))
    ]
    parts: list[Bounds] = draw(st.permutations(cells))
    at = draw(st.integers(0, len(parts) - 1))
    parts = draw(st.sampled_from([parts, parts[:at] + parts[at + 1 :], [*parts, parts[at]]]))
    boxes = []
    for _ in range(draw(st.integers(1, 2))):
        starts = [draw(st.integers(0, length - 1)) for length in shape]
        lengths = [draw(st.integers(1, length - start)) for start, length in zip(starts, shape, strict=True)]
        boxes.append(Box(tuple(starts), tuple(lengths)))
    return shape, parts, tuple(boxes)


def _slices(bounds: Bounds) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(*bounds, strict=True))


@given(covers())
def test_parts_are_found_and_judged_as_element_by_element(
    drawn: tuple[tuple[int, ...], list[Bounds], tuple[Box, ...]],
) -> None:
    shape, parts, boxes = drawn
    wanted, counts = np.zeros(shape, bool), np.zeros(shape, int)
    for box in boxes:
        wanted[_slices((box.offsets, box.lengths))] = True
    for part in parts:
        counts[_slices(part)] += 1
    expected = [number for number, part in enumerate(parts) if wanted[_slices(part)].any()]
    assert list(meeting_bounds(len(shape), tuple(parts), boxes)) == expected
    numbers, fault = meeting_cover(len(shape), tuple(parts), boxes)
    assert list(numbers) == expected
    assert ("overlap" in fault) == (counts[wanted] > 1).any()
    assert ("held by no rank" in fault) == (counts[wanted] < 1).any()


WANTED = (Box((0, 0), (1, 1)),)
IMPOSSIBLE: dict[str, tuple[Bounds, ...]] = {
    "axes": (((0,), (1,)),),
    "lengths": (((0, 0), (1,)),),
    "unlike": (((0, 0), (1, 1)), ((0,), (1,))),
    "huge": (((0, 1 << 70), (1, 1)),),
}


@pytest.mark.parametrize("bounds", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_no_tensor_of_these_axes_has_is_refused(bounds: tuple[Bounds, ...]) -> None:
    with pytest.raises(ValueError, match="a part"):
        meeting_bounds(2, bounds, WANTED)
    with pytest.raises(ValueError, match="a part"):
        meeting_cover(2, bounds, WANTED)


def test_bounds_that_are_negative_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        meeting_bounds(2, (((0, -1), (1, 1)),), WANTED)
