"""A joined state as if it were one file: its tensors laid end to end, so that ingesting it is ingesting a file."""

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from cairn.core.errors import InputChanged
from cairn.formats.logical import Block, JoinedState, JoinedTensor, Path, boxes_of_range, runs_within
from cairn.formats.parsed import FoundTensor, ParsedFile
from cairn.loader.boxes import NUMPY_OF_WIDTH
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.tiling import Box
from cairn.workspace.source import FileSource, FileStamp


def parsed_of(state: JoinedState) -> ParsedFile:
    """Where each tensor lies in the joined file."""
    starts = _starts(state.tensors)
    found = [FoundTensor(one.path, one.dtype, one.shape, at) for one, at in zip(state.tensors, starts, strict=False)]
    ties: dict[Path, list[Path]] = {}
    for one in state.tensors:
        if one.tied_to is not None:
            ties.setdefault(one.tied_to, [one.tied_to]).append(one.path)
    return ParsedFile(state.kind, tuple(found), tuple(map(tuple, ties.values())))


def _starts(tensors: Sequence[JoinedTensor]) -> list[int]:
    return list(accumulate((nbytes(one.dtype, one.shape) for one in tensors), initial=0))


class JoinedSource:
    """Positional reads of a joined state. Safe for threads.

    A file is opened for each read and closed again, since thousands of ranks may have written one each; its stamp tells
    whether it is still the one that was scanned.
    """

    def __init__(self, state: JoinedState, folder: bytes, shown: str, stamps: Mapping[str, FileStamp]) -> None:
        """Args: the folder that the files' names are relative to; what they were when the folder was scanned."""
        self.shown = shown
        self._tensors, self._folder = state.tensors, folder
        self._starts = _starts(state.tensors)
        self.size = self._starts[-1]
        self._stamps = {file: stamps[file] for file in state.files}

    def read_scattered(self, offset: int, batches: Sequence[Sequence[memoryview]]) -> None:
        """Fill views one after the other from `offset`."""
        views = [view for batch in batches for view in batch]
        content = memoryview(self.read_at(offset, sum(map(len, views))))
        at = 0
        for view in views:
            view[:] = content[at : at + len(view)]
            at += len(view)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`."""
        self.read_scattered(offset, ((target,),))

    def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes of one tensor from `offset`."""
        if not length:
            return b""
        number = bisect_right(self._starts, offset) - 1
        tensor = self._tensors[number]
        width = max(BITS[tensor.dtype] // 8, 1)
        start = (offset - self._starts[number]) // width
        elements = np.empty(length // width, NUMPY_OF_WIDTH[width])
        if tensor.blocks:
            self._read_blocks(tensor, start, elements)
        else:
            data = elements.view(np.uint8).data
            for run, first, stop in runs_within(tensor.runs, start, start + len(elements)):
                with self._open(run.file) as source:
                    into = data[(first - start) * width : (stop - start) * width]
                    source.read_into(run.offset + (first - run.start) * width, into)
        return elements.tobytes()

    def _read_blocks(self, tensor: JoinedTensor, start: int, elements: "np.ndarray[Any, Any]") -> None:
        at = 0
        for wanted in boxes_of_range(tensor.shape, start, start + len(elements)):
            into = elements[at : at + wanted.volume].reshape(wanted.lengths)
            at += wanted.volume
            for block in tensor.blocks:
                common = block.box.intersect(wanted)
                if common is not None:
                    to = _within(common, wanted)
                    target = into[tuple(slice(o, o + n) for o, n in zip(to.offsets, to.lengths, strict=True))]
                    self._read_block(block, _within(common, block.box), target)

    def _read_block(self, block: Block, box: Box, into: "np.ndarray[Any, Any]") -> None:
        """Read what a box of a block spans, and take its elements."""
        width = into.itemsize
        first = sum(o * step for o, step in zip(box.offsets, block.strides, strict=True))
        count = 1 + sum((n - 1) * step for n, step in zip(box.lengths, block.strides, strict=True))
        with self._open(block.file) as source:
            spanned = np.frombuffer(source.read_at(block.offset + first * width, count * width), into.dtype)
        steps = tuple(step * width for step in block.strides)
        into[...] = np.lib.stride_tricks.as_strided(spanned, box.lengths, steps, writeable=False)

    def _open(self, file: str) -> FileSource:
        source = FileSource(os.path.join(self._folder, os.fsencode(file)), file)
        if self._stamps[file] != source.stamp:
            source.close()
            raise InputChanged(f"{file} changed while it was read", hint="wait until its writer is done and repeat")
        return source

    def next_data(self, offset: int) -> int:
        """Where something but zeros may begin: anywhere."""
        return offset

    def check_unchanged(self) -> None:
        """Raise `InputChanged` if a file changed since it was scanned."""
        for file in self._stamps:
            self._open(file).close()

    def close(self) -> None:
        """No file is open between reads."""


def _within(box: Box, outer: Box) -> Box:
    return Box(tuple(a - b for a, b in zip(box.offsets, outer.offsets, strict=True)), box.lengths)
