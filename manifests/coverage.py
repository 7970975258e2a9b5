"""Whether boxes cover what they should, each element once; for hundreds of thousands of boxes of one tensor.

Boxes stand in rows of one array, int64: offsets, then lengths. Apart from `pieces.py` for the sake of numpy, which few
commands need.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cairn.manifests.schema import Bounds, Region
from cairn.manifests.tiling import Box

Rows = np.ndarray[Any, np.dtype[np.int64]]


def rows_of(axes: int, boxes: Sequence[Box | Region]) -> Rows:
    """Boxes of a tensor with so many axes as rows.

    Raises:
        ValueError: one has another number of axes, or a number that no tensor's length is.
    """
    return rows_of_bounds(axes, [(box.offsets, box.lengths) for box in boxes])


def rows_of_bounds(axes: int, bounds: Sequence[Bounds]) -> Rows:
    """The same, of offsets and lengths."""
    shape = len(bounds), 2, axes
    try:
        rows = np.array(bounds, dtype=np.int64) if bounds else np.zeros(shape, dtype=np.int64)
    except OverflowError:
        raise ValueError("a part's offsets or lengths are over all bounds") from None
    except ValueError:  # not all of one length
        rows = np.zeros(0, dtype=np.int64)
    if rows.shape != shape:
        raise ValueError(f"a part has another number of axes than {axes}")
    return rows.reshape(len(bounds), 2 * axes)


def uncovered(shape: tuple[int, ...], boxes: Sequence[Box]) -> str:
    """What is wrong with boxes that should cover a tensor exactly once; empty if nothing is."""
    return uncovered_rows(shape, rows_of(len(shape), boxes))


def uncovered_rows(shape: tuple[int, ...], rows: Rows) -> str:
    """The same, of rows."""
    axes, total = len(shape), _product(shape)
    rows = rows[(rows[:, axes:] != 0).all(axis=1)]
    starts, lengths, sizes = rows[:, :axes], rows[:, axes:], np.array(shape, dtype=np.int64)
    outside = ((starts < 0) | (lengths < 0) | (lengths > sizes) | (starts > sizes - lengths)).any(axis=1)
    if outside.any():
        at, size = _ends(rows[outside.argmax()])
        return f"a part at {at} of {size} lies outside its shape {list(shape)}"
    pair = _overlap(starts, starts + lengths)
    if pair is not None:
        return f"parts at {starts[pair[0]].tolist()} and {starts[pair[1]].tolist()} overlap"
    covered = sum(lengths.prod(axis=1).tolist())  # in Python's integers, which have no bounds
    return "" if covered == total else f"{total - covered} of its {total} elements are held by no rank"


def uncovered_within(wanted: Box, rows: Rows) -> str:
    """What is wrong with boxes that should cover another one, each element once, and may stick out of it."""
    axes = len(wanted.offsets)
    low = np.array(wanted.offsets, dtype=np.int64)
    high = low + np.array(wanted.lengths, dtype=np.int64)
    starts = np.maximum(rows[:, :axes], low)
    lengths = np.maximum(np.minimum(rows[:, :axes] + rows[:, axes:], high) - starts, 0)
    return uncovered_rows(wanted.lengths, np.concatenate([starts - low, lengths], axis=1))


def meeting(rows: Rows, boxes: Sequence[Box]) -> list[int]:
    """Numbers of the rows that share an element with some of the boxes."""
    axes = rows.shape[1] // 2
    starts, ends = rows[:, :axes], rows[:, :axes] + rows[:, axes:]
    met = np.zeros(len(rows), dtype=bool)
    for box in boxes:
        low = np.array(box.offsets, dtype=np.int64)
        met |= ((starts < low + np.array(box.lengths, dtype=np.int64)) & (ends > low)).all(axis=1)
    return np.flatnonzero(met).tolist()


# Layers are cut alike: a model of a hundred layers asks the same few dozen questions again and again.
_alike = lru_cache(maxsize=64)


@_alike
def meeting_bounds(axes: int, bounds: tuple[Bounds, ...], boxes: tuple[Box, ...]) -> Sequence[int]:
    """Numbers of the parts that share an element with some of the boxes.

    Raises:
        ValueError: parts that no tensor of so many axes has.
    """
    rows = rows_of_bounds(axes, bounds)
    if (rows < 0).any():
        raise ValueError("a part's offsets or lengths are negative")
    return meeting(rows, boxes)


@_alike
def meeting_cover(axes: int, bounds: tuple[Bounds, ...], boxes: tuple[Box, ...]) -> tuple[Sequence[int], str]:
    """The same, of parts that should cover each of the boxes; and what is wrong with them, if anything is."""
    rows = rows_of_bounds(axes, bounds)
    numbers = meeting(rows, boxes)
    return numbers, next(filter(None, (uncovered_within(box, rows[numbers]) for box in boxes)), "")


def _overlap(starts: Rows, ends: Rows) -> tuple[int, int] | None:
    """Two boxes, none empty, that share an element.

    Boxes are swept along the axis on which the fewest pairs overlap. Each is compared with the next one in that order,
    all at once, then with the one after, as long as these begin before it ends.
    """
    count, axes = starts.shape
    if count < 2 or not axes:
        return (0, 1) if count > 1 else None
    sweeps = [_sweep(starts[:, axis], ends[:, axis]) for axis in range(axes)]
    order, reach = min(sweeps, key=lambda sweep: int(sweep[1].sum()))
    starts, ends = starts[order], ends[order]
    active, step = np.arange(count), 1
    while len(active := active[active + step < reach[active]]):
        other = active + step
        meet = ((starts[other] < ends[active]) & (starts[active] < ends[other])).all(axis=1)
        if meet.any():
            one = int(active[meet.argmax()])
            return int(order[one]), int(order[one + step])
        step += 1
    return None


def _sweep(starts: Rows, ends: Rows) -> tuple[Rows, Rows]:
    """The order of boxes along an axis, and for each in this order the first that begins at or after its end."""
    order = np.argsort(starts, kind="stable")
    return order, np.searchsorted(starts[order], ends[order])


def _ends(row: Rows) -> tuple[list[int], list[int]]:
    axes = len(row) // 2
    return row[:axes].tolist(), row[axes:].tolist()


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total
