"""Shapes, boxes in them and ways to cut them, for hypothesis; and grids of tiles that are small enough to look at."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from hypothesis import strategies as st

from cairn.manifests.pieces import cached_grid, cut_box
from cairn.manifests.tiling import Box

TINY_TILE_BYTES_MAX = 128
_TINY = {"TILE_BYTES_MIN": 64, "TILE_BYTES_MAX": TINY_TILE_BYTES_MAX, "ROW_BYTES_MIN": 8}


@contextmanager
def tiny_tiles() -> Iterator[None]:
    """Rule 1 with tiles of 64 to 128 bytes in place of one to two MiB."""
    with ExitStack() as stack:
        for name, value in _TINY.items():
            stack.enter_context(patch(f"cairn.manifests.tiling.{name}", value))
        stack.enter_context(patch("cairn.manifests.pieces.TILE_BYTES_MAX", TINY_TILE_BYTES_MAX))
        cached_grid.cache_clear()
        cut_box.cache_clear()
        try:
            yield
        finally:
            cached_grid.cache_clear()
            cut_box.cache_clear()


def whole(shape: tuple[int, ...]) -> Box:
    """The box that is all of a tensor."""
    return Box((0,) * len(shape), shape)


def slices(box: Box) -> tuple[slice, ...]:
    """The index of a box in an array."""
    return tuple(slice(at, at + length) for at, length in zip(box.offsets, box.lengths, strict=True))


def shapes(low: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Up to four axes, few elements in all."""
    return st.lists(st.integers(low, 12), max_size=4).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """A box of a tensor, perhaps empty."""
    offsets = tuple(draw(st.integers(0, length)) for length in shape)
    lengths = tuple(draw(st.integers(0, length - at)) for at, length in zip(offsets, shape, strict=True))
    return Box(offsets, lengths)


@st.composite
def partitions(draw: st.DrawFn, box: Box, cuts: int = 6) -> list[Box]:
    """Boxes that are `box` together, none empty: cut in two again and again."""
    parts = [box] if box.volume else []
    for _ in range(draw(st.integers(0, cuts)) if parts else 0):
        part = parts.pop(draw(st.integers(0, len(parts) - 1)))
        axes = [axis for axis, length in enumerate(part.lengths) if length > 1]
        if not axes:
            parts.append(part)
            continue
        axis = draw(st.sampled_from(axes))
        at = draw(st.integers(1, part.lengths[axis] - 1))
        parts += [narrowed(part, axis, 0, at), narrowed(part, axis, at, part.lengths[axis] - at)]
    return parts


def narrowed(box: Box, axis: int, at: int, length: int) -> Box:
    """The part of a box from `at` on along one axis."""
    offsets, lengths = list(box.offsets), list(box.lengths)
    offsets[axis] += at
    lengths[axis] = length
    return Box(tuple(offsets), tuple(lengths))
