"""How a file is cut: which byte ranges are tensors, which are literal bytes. Pure."""

import msgspec

from cairn.core.errors import BadInput
from cairn.formats.parsed import FoundTensor, ParsedFile
from cairn.manifests.dtypes import nbytes

# A strided view is gathered from one read of all the bytes it spans.
STRIDED_SPAN_BYTES_MAX = 64 << 20


class TensorRange(msgspec.Struct, frozen=True):
    """File bytes `[offset, offset + length)` are tensor number `tensor`, row-major."""

    tensor: int
    offset: int
    length: int


class LiteralRange(msgspec.Struct, frozen=True):
    """File bytes that belong to no tensor."""

    offset: int
    length: int


class FileLayout(msgspec.Struct, frozen=True):
    """A file as a sequence of ranges without gaps, and the tensors that are read beside them.

    Args:
        loose: contiguous tensors whose bytes a range of another form or type holds already.
        gathered: strided, byte-swapped or empty tensors.
        shared: tensor number -> number of the tensor with the same range.
        skipped: strided tensors too large to gather; they live on in the literal bytes only.
    """

    ranges: tuple[TensorRange | LiteralRange, ...]
    loose: tuple[int, ...]
    gathered: tuple[int, ...]
    shared: dict[int, int]
    skipped: tuple[int, ...]


def lay_out(parsed: ParsedFile, size: int) -> FileLayout:
    """Cut a file of `size` bytes along its tensors.

    Raises:
        BadInput: tensors overlap or lie outside the file (a fault of the parser, checked again here).
    """
    ranges: list[TensorRange | LiteralRange] = []
    loose: list[int] = []
    gathered: list[int] = []
    skipped: list[int] = []
    shared: dict[int, int] = {}
    by_form: dict[tuple[object, ...], int] = {}
    taken: set[tuple[int, int]] = set()
    found = []
    for number, tensor in enumerate(parsed.tensors):
        length = nbytes(tensor.dtype, tensor.shape)
        if tensor.strides is not None or tensor.swapped:
            (gathered if span(tensor) <= STRIDED_SPAN_BYTES_MAX else skipped).append(number)
        elif (twin := by_form.setdefault((tensor.offset, tensor.dtype, tensor.shape), number)) != number:
            shared[number] = twin
        elif not length:
            gathered.append(number)
        elif (tensor.offset, length) in taken:
            loose.append(number)
        else:
            taken.add((tensor.offset, length))
            found.append(TensorRange(number, tensor.offset, length))
    at = 0
    for one in sorted(found, key=lambda one: (one.offset, one.length)):
        if one.offset < at or one.offset + one.length > size:
            raise BadInput(f"tensor {parsed.tensors[one.tensor].path} overlaps another, or lies outside the file")
        if one.offset > at:
            ranges.append(LiteralRange(at, one.offset - at))
        ranges.append(one)
        at = one.offset + one.length
    if at < size:
        ranges.append(LiteralRange(at, size - at))
    return FileLayout(tuple(ranges), tuple(loose), tuple(gathered), shared, tuple(skipped))


def span(tensor: FoundTensor) -> int:
    """Bytes from a tensor's first element to its last."""
    item = nbytes(tensor.dtype, (1,)) if tensor.shape else nbytes(tensor.dtype, ())
    if 0 in tensor.shape:
        return 0
    strides = tensor.strides if tensor.strides is not None else contiguous_strides(tensor.shape)
    return (sum((n - 1) * stride for n, stride in zip(tensor.shape, strides, strict=True)) + 1) * item


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
