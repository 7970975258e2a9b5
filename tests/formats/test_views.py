"""Arithmetic of views, against torch and by exhaustion."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cairn.formats.parsed import FoundTensor
from cairn.formats.views import is_contiguous, reach, row_major, settle_overlaps

shapes = st.lists(st.integers(0, 4), max_size=4)


@given(shapes)
def test_views_row_major_is_torchs(shape: list[int]) -> None:
    assert row_major(shape) == torch.empty(shape).stride()
    assert is_contiguous(shape, row_major(shape))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=4))
def test_views_contiguous_and_reach_are_torchs(dims: list[tuple[int, int]]) -> None:
    shape, strides = [length for length, _ in dims], [step for _, step in dims]
    view = torch.arange(200).as_strided(shape, strides)
    assert is_contiguous(shape, strides) == view.is_contiguous()
    assert reach(shape, strides) == (int(view.max()) + 1 if view.numel() else 0)


def test_views_wide_numbers_do_not_wrap() -> None:
    assert reach([2, 2], [1 << 64, 1 << 63]) == (1 << 64) + (1 << 63) + 1


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 5), st.booleans()), max_size=8))
def test_views_settled_ones_are_disjoint_or_equal(spans: list[tuple[int, int, bool]]) -> None:
    tensors = [
        FoundTensor((i,), "uint8", (length, 1), begin, (1, 7) if strided else None)
        for i, (begin, length, strided) in enumerate(spans)
    ]
    settled = settle_overlaps(tensors)
    assert [(t.path, t.offset, t.shape) for t in settled] == [(t.path, t.offset, t.shape) for t in tensors]
    whole = [(t.offset, t.offset + t.shape[0]) for t in settled if t.strides is None and t.shape[0]]
    for a in whole:
        for b in whole:
            assert a == b or a[1] <= b[0] or b[1] <= a[0]
    for before, after in zip(tensors, settled, strict=True):
        assert after.strides == before.strides or after.strides == row_major(after.shape)
    # Nothing that stands alone is touched, and something of every overlapping heap stays whole.
    if any(t.strides is None and t.shape[0] for t in tensors):
        assert whole


def test_views_the_longest_stays_whole() -> None:
    rows = [FoundTensor((i,), "float32", (4,), 100 + 16 * i) for i in range(3)]
    matrix = FoundTensor(("w",), "float32", (3, 4), 100)
    after = FoundTensor(("z",), "float32", (1,), 148)
    settled = settle_overlaps([*rows, matrix, after])
    assert [t.strides for t in settled] == [(1,), (1,), (1,), None, None]
