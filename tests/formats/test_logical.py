"""Where the elements of joined tensors lie: ranges as boxes, blocks as runs."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.errors import BadInput
from cairn.formats.logical import Block, Run, boxes_of_range, runs_within, tensor_of_blocks, tensor_of_runs
from cairn.formats.views import row_major
from cairn.manifests.tiling import Box

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_boxes_of_a_range_are_its_elements_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    total = prod(shape)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    numbers = np.arange(total).reshape(shape)
    found: list[int] = []
    for box in boxes_of_range(shape, start, stop):
        slices = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.lengths, strict=True))
        found += numbers[slices].reshape(-1).tolist()
    assert found == list(range(start, stop))


@given(SHAPES, st.data())
def test_a_block_becomes_a_run_only_where_its_elements_follow_each_other(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, max(len(shape) - 1, 0)))
    cut = data.draw(st.integers(0, shape[axis])) if shape else 0
    low, high = list(shape), list(shape)
    if shape:
        low[axis], high[axis] = cut, shape[axis] - cut
    starts = [0] * len(shape)
    after = [cut if at == axis else 0 for at in range(len(shape))]
    boxes = [Box(tuple(starts), tuple(low)), Box(tuple(after), tuple(high))] if shape else [Box((), ())]
    blocks = [Block(str(n), 0, box, row_major(box.lengths)) for n, box in enumerate(boxes)]
    tensor = tensor_of_blocks(("w",), "float32", shape, blocks, "w")
    numbers = np.arange(prod(shape)).reshape(shape)
    for run in tensor.runs:
        box = boxes[int(run.file)]
        slices = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.lengths, strict=True))
        assert numbers[slices].reshape(-1).tolist() == list(range(run.start, run.start + run.count))
    assert bool(tensor.runs) != bool(tensor.blocks)
    if tensor.blocks:
        assert any(np.diff(numbers[: cut if axis == 0 else None].reshape(-1)) == 1) and axis > 0


def test_runs_within_a_range() -> None:
    runs = [Run("a", 0, 0, 3), Run("b", 0, 3, 4), Run("c", 0, 7, 1)]
    assert [(run.file, *ends) for run, *ends in runs_within(runs, 2, 7)] == [("a", 2, 3), ("b", 3, 7)]
    assert [run.file for run, *_ in runs_within(runs, 7, 8)] == ["c"]


@pytest.mark.parametrize(
    ("runs", "match"),
    [
        ([Run("a", 0, 0, 3)], "3 elements are there"),
        ([Run("a", 0, 0, 3), Run("b", 0, 2, 2)], "element 2 is held twice"),
        ([Run("a", 0, 0, 1), Run("b", 0, 3, 1)], "element 1 is held nowhere"),
    ],
)
def test_runs_cover_a_tensor_once(runs: list[Run], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        tensor_of_runs(("w",), "float32", (2, 2), runs, "w")
