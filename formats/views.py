"""Views of one run of elements: shape, strides and offset, all counted in elements (pure arithmetic)."""

from collections.abc import Sequence

from msgspec.structs import replace

from cairn.formats.parsed import FoundTensor
from cairn.manifests.dtypes import nbytes


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor; a dimension of length 0 counts as 1, as in torch."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie end to end in row-major order; the stride of a dimension of length 1 says nothing."""
    if 0 in shape:
        return True
    step = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1:
            if stride != step:
                return False
            step *= length
    return True


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to behind the last one touched, for strides from 0 up; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def settle_overlaps(tensors: Sequence[FoundTensor]) -> tuple[FoundTensor, ...]:
    """Give strides to contiguous tensors that share only part of their bytes with another.

    Afterwards the tensors without strides are pairwise disjoint or cover the same bytes, so a file can be cut at their
    borders. Of tensors that overlap the one that starts first stays, and of these the longest. Order is kept.
    """
    spans = [
        (tensor.offset, -nbytes(tensor.dtype, tensor.shape), index)
        for index, tensor in enumerate(tensors)
        if tensor.strides is None
    ]
    settled = list(tensors)
    kept, end = (-1, 0), 0
    for begin, negated, index in sorted(spans):
        if negated == 0 or (begin, negated) == kept:
            continue
        if begin >= end:
            kept, end = (begin, negated), begin - negated
        else:
            settled[index] = replace(settled[index], strides=row_major(settled[index].shape))
    return tuple(settled)
