"""Resharding: from boxes that a reader wants to stored boxes, and to the copies that bring them there. Pure.

What layout wrote a tensor plays no part: a stored tensor is a set of boxes, a target is an array that holds a box, and
each pair that meets is one copy. Where a stored box lies in a target as one run of bytes, it is decrypted in place.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cairn.core.errors import IntegrityError
from cairn.core.ids import Digest
from cairn.core.limits import CHUNK_BYTES_MAX
from cairn.loader.plan import Group, Wanted
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.pieces import cached_grid, tiles_in
from cairn.manifests.schema import Region, TensorEntry
from cairn.manifests.tiling import Box

Array = np.ndarray[Any, Any]
# Slices and a trailing ellipsis, which makes a view also of what has no axes.
Index = tuple[Any, ...]
# Integers of an element's width; numpy knows no bfloat16 and need not.
NUMPY_OF_WIDTH: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8"), 16: np.dtype("c16"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's bytes are: in line, as digests of its tiles, or as regions; all, or those that are needed."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    inline: bytes | None = None
    tiles: Mapping[int, Digest] | Sequence[Digest] = ()
    regions: Sequence[Region] = ()

    @staticmethod
    def of(
        entry: TensorEntry, tiles: Mapping[int, Digest] | Sequence[Digest], regions: Sequence[Region]
    ) -> "StoredTensor":
        """A manifest entry with digests by tile, as its pages say; those of `inline` entries are not needed.

        A tensor of elements narrower than a byte counts as a flat one of its bytes, as it does in its grid.

        Raises:
            BadInput: dtype or shape is impossible.
        """
        dtype, shape = entry.dtype, entry.shape
        size = nbytes(dtype, shape)
        if BITS[dtype] % 8:
            dtype, shape = "uint8", (size,)
        return StoredTensor(str(entry.key), dtype, shape, entry.inline, tiles, regions)

    def boxes(self, wanted: Box) -> Iterator[tuple[Digest, Box]]:
        """Stored boxes that meet a wanted one."""
        if self.regions:
            for region in self.regions:
                box = Box(region.offsets, region.lengths)
                if box.intersect(wanted) is not None:
                    yield Digest(region.digest), box
        else:
            for number, box in tiles_in(cached_grid(self.dtype, self.shape), wanted):
                yield self.tiles[number], box


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Memory for one box of a global tensor: `array` has the box's shape and items of the element's width."""

    box: Box
    array: Array


@dataclass(slots=True, eq=False)
class _Copy:
    target: Target
    source: Index
    into: Index


@dataclass(slots=True, eq=False)
class _Chunk:
    """One stored box and where its content goes."""

    name: str
    box: Box
    width: int
    copies: list[_Copy] = field(default_factory=list)


class BoxPlan:
    """What to read into which targets."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._wanted: list[Wanted] = []
        self._known: dict[tuple[Digest, Box, int], int] = {}
        self._inline: list[tuple[StoredTensor, Target]] = []
        self.bytes_wanted = 0

    def add(self, stored: StoredTensor, targets: Iterable[Target]) -> None:
        """Want some boxes of a tensor; bytes in line are copied at once when the plan is carried out.

        Raises:
            IntegrityError: a stored box is larger than any chunk.
        """
        width = max(BITS[stored.dtype] // 8, 1)
        for target in targets:
            self.bytes_wanted += target.box.volume * width
            if stored.inline is not None:
                self._inline.append((stored, target))
                continue
            for digest, box in stored.boxes(target.box):
                self._chunk(stored, digest, box, width).copies.append(_copy(target, box))

    def _chunk(self, stored: StoredTensor, digest: Digest, box: Box, width: int) -> _Chunk:
        # The width too: a fill's digest is the same for elements of any.
        number = self._known.setdefault((digest, box, width), len(self._chunks))
        if number == len(self._chunks):
            length = box.volume * width
            if length > CHUNK_BYTES_MAX:
                raise IntegrityError(f"tensor {stored.name} has a stored box of {length} bytes, larger than any chunk")
            self._chunks.append(_Chunk(stored.name, box, width))
            self._wanted.append(Wanted(digest, length))
        return self._chunks[number]

    def groups(self) -> list[Group]:
        """One group for each chunk, by its number."""
        return [Group(number, (wanted,)) for number, wanted in enumerate(self._wanted)]

    @property
    def bytes_of_chunks(self) -> int:
        """Plaintext bytes of all chunks that are touched: what is read, since a chunk is opened as a whole."""
        return sum(wanted.length for wanted in self._wanted)

    def copy_inline(self) -> None:
        """Fill targets of tensors whose bytes are in line."""
        for stored, target in self._inline:
            width = max(BITS[stored.dtype] // 8, 1)
            data = stored.inline or b""
            if len(data) != prod(stored.shape) * width:
                raise IntegrityError(f"tensor {stored.name} has {len(data)} bytes in line, not those of its shape")
            whole = np.frombuffer(data, NUMPY_OF_WIDTH[width]).reshape(stored.shape)
            target.array[...] = whole[_slices(target.box)]

    def place(self, number: int) -> memoryview | None:
        """Memory that takes a chunk's content as it is, if there is such."""
        chunk = self._chunks[number]
        for one in chunk.copies:
            into = one.target.array[one.into]
            if into.shape == chunk.box.lengths and into.flags.c_contiguous and into.size:
                return into.reshape(-1).view(np.uint8).data
        return None

    def deliver(self, number: int, content: Sequence[memoryview]) -> None:
        """Copy a chunk's content to wherever it is wanted and not already in place."""
        chunk = self._chunks[number]
        (data,) = content
        source = np.frombuffer(data, NUMPY_OF_WIDTH[chunk.width]).reshape(chunk.box.lengths)
        for one in chunk.copies:
            into, part = one.target.array[one.into], source[one.source]
            if _address(into) != _address(part) or not into.flags.c_contiguous:
                into[...] = part

    def name_of(self, number: int) -> str:
        """Name of the tensor that a chunk belongs to."""
        return self._chunks[number].name


def _copy(target: Target, box: Box) -> _Copy:
    """What boxes that meet have in common."""
    source: list[Any] = []
    into: list[Any] = []
    for at, length, other, room in zip(box.offsets, box.lengths, target.box.offsets, target.box.lengths, strict=True):
        start, end = max(at, other), min(at + length, other + room)
        source.append(slice(start - at, end - at))
        into.append(slice(start - other, end - other))
    return _Copy(target, (*source, ...), (*into, ...))


def _slices(box: Box) -> Index:
    return (*(slice(at, at + n) for at, n in zip(box.offsets, box.lengths, strict=True)), ...)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
