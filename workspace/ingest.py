"""Turning one file's bytes into chunks: jobs for the pool, and the record once all are done."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from cairn.core.limits import FILE_BLOCK_BYTES, INLINE_BYTES_MAX, READ_BYTES_TARGET
from cairn.formats.parsed import FoundTensor, ParsedFile, TensorPath
from cairn.manifests.dtypes import BITS, SWAP_BYTES, nbytes
from cairn.manifests.schema import Inline, Key, Literal, Segment, TensorBytes
from cairn.manifests.tiling import Band, grid
from cairn.store.chunkstore import ChunkWriter
from cairn.store.crypto.tenant import ContentType
from cairn.workspace.layout import FileLayout, LiteralRange, contiguous_strides, span
from cairn.workspace.record import BLOCKS_PER_SEGMENT, FileRecord, TensorRecord
from cairn.workspace.scatter import Scratch

# Tensors that hold so many times the bytes of their file are worth a word: each is stored for itself.
_AMPLIFICATION_TOLD = 2
# Largest run of bands that makes one job, and most bytes that it holds at once: a band of eight tiles.
READ_BYTES_MAX = 16 << 20
# Each job may hold a file open.
_BATCH_JOBS_MAX = 32


class _Target(msgspec.Struct):
    """Where digests of one tensor or literal run go."""

    digests: bytearray
    width: int = 1


class BlockJob(msgspec.Struct, frozen=True):
    """Literal bytes `[offset, offset + length)`, cut in blocks; digests go to `first`, `first + 1`, ..."""

    file: "FileIngest"
    target: _Target
    offset: int
    length: int
    first: int

    def run(self, writer: ChunkWriter, scratch: Scratch) -> None:
        """Read and store."""
        view = scratch.buffer[: self.length]
        self.file.source.read_into(self.offset, view)
        for number, at in enumerate(range(0, self.length, FILE_BLOCK_BYTES)):
            self.file.store(writer, self.target, self.first + number, view[at : at + FILE_BLOCK_BYTES])


class BandJob(msgspec.Struct, frozen=True):
    """A run of bands of one contiguous tensor that starts at file offset `base`; `length` bytes in all."""

    file: "FileIngest"
    target: _Target
    base: int
    bands: tuple[Band, ...]
    length: int

    def run(self, writer: ChunkWriter, scratch: Scratch) -> None:
        """Read band by band, and store its tiles while they are in the processor's cache."""
        for band in self.bands:
            tiles, batches = scratch.take(band)
            self.file.source.read_scattered(self.base + band.offset, batches)
            for number, tile in enumerate(tiles):
                self.file.store(writer, self.target, band.first + number, tile)


class GatherJob(msgspec.Struct, frozen=True):
    """A strided or byte-swapped tensor, put in row-major little-endian order in memory."""

    file: "FileIngest"
    target: _Target
    tensor: FoundTensor

    @property
    def length(self) -> int:
        """Bytes that are stored."""
        return nbytes(self.tensor.dtype, self.tensor.shape)

    def run(self, writer: ChunkWriter, scratch: Scratch) -> None:
        """Read the bytes that it spans, gather, store its tiles."""
        tensor = self.tensor
        flat = memoryview(gather(tensor, self.file.source.read_at(tensor.offset, span(tensor))))
        for band in grid(tensor.dtype, tensor.shape).bands():
            for number, tile in enumerate(split_band(band, flat[band.offset : band.offset + band.length])):
                self.file.store(writer, self.target, band.first + number, tile)


Job = BlockJob | BandJob | GatherJob


def batched(jobs: Iterable[Job], length: int) -> Iterator[list[Job]]:
    """Jobs in a row that one worker does, of about so many bytes: what lies together is then stored together."""
    batch, size = list[Job](), 0
    for job in jobs:
        batch.append(job)
        size += job.length
        if size >= length or len(batch) == _BATCH_JOBS_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class IngestSource(Protocol):
    """What is ingested: positional reads for several threads, and proof at the end that it did not change."""

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes: ...

    def read_into(self, offset: int, target: memoryview) -> None: ...

    def read_scattered(self, offset: int, batches: Sequence[Sequence[memoryview]]) -> None: ...

    def next_data(self, offset: int) -> int: ...

    def check_unchanged(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class FileIngest:
    """One file on its way into the store."""

    source: IngestSource
    parsed: ParsedFile
    layout: FileLayout
    _tensors: dict[int, _Target] = field(default_factory=dict)
    _inline: dict[int, bytes] = field(default_factory=dict)
    _literals: list[tuple[LiteralRange, _Target | bytes]] = field(default_factory=list)
    _open_jobs: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def jobs(self) -> Iterator[Job]:
        """Everything to be read, in file order. Small pieces are read here and ride in line."""
        layout = self.layout
        for one in layout.ranges:
            if isinstance(one, LiteralRange):
                yield from self._literal_jobs(one)
            else:
                yield from self._tensor_jobs(one.tensor)
        for number in layout.loose:
            yield from self._tensor_jobs(number)
        for number in layout.gathered:
            tensor = self.parsed.tensors[number]
            if nbytes(tensor.dtype, tensor.shape) <= INLINE_BYTES_MAX:
                self._inline[number] = gather(tensor, self.source.read_at(tensor.offset, span(tensor)))
            else:
                yield self._begun(GatherJob(self, self._tensor_target(number), tensor))
        self.done()

    def _literal_jobs(self, one: LiteralRange) -> Iterator[Job]:
        if one.length <= INLINE_BYTES_MAX:
            self._literals.append((one, self.source.read_at(one.offset, one.length)))
            return
        blocks = -(-one.length // FILE_BLOCK_BYTES)
        # All-zero until read: a hole's digests are those of zero bytes already.
        target = _Target(bytearray(32 * blocks))
        self._literals.append((one, target))
        at = 0
        while at < one.length:
            data = self.source.next_data(one.offset + at) - one.offset
            if data >= one.length:
                return
            at = data // FILE_BLOCK_BYTES * FILE_BLOCK_BYTES
            length = min(READ_BYTES_TARGET, one.length - at)
            yield self._begun(BlockJob(self, target, one.offset + at, length, at // FILE_BLOCK_BYTES))
            at += length

    def _tensor_jobs(self, number: int) -> Iterator[Job]:
        tensor = self.parsed.tensors[number]
        offset, length = tensor.offset, nbytes(tensor.dtype, tensor.shape)
        if length <= INLINE_BYTES_MAX:
            self._inline[number] = self.source.read_at(offset, length)
            return
        target, size = self._tensor_target(number), 0
        run: list[Band] = []
        for band in grid(tensor.dtype, tensor.shape).bands():
            if run and size + band.length > READ_BYTES_MAX:
                yield self._begun(BandJob(self, target, offset, tuple(run), size))
                run, size = [], 0
            run.append(band)
            size += band.length
        yield self._begun(BandJob(self, target, offset, tuple(run), size))

    def _tensor_target(self, number: int) -> _Target:
        tensor = self.parsed.tensors[number]
        count = grid(tensor.dtype, tensor.shape).tile_count
        target = _Target(bytearray(32 * count), max(BITS[tensor.dtype] // 8, 1))
        self._tensors[number] = target
        return target

    def _begun(self, job: Job) -> Job:
        with self._lock:
            self._open_jobs += 1
        return job

    def store(self, writer: ChunkWriter, target: _Target, number: int, data: memoryview) -> None:
        """Store one chunk and note its digest."""
        digest = writer.put(ContentType.CHUNK, data, target.width)
        target.digests[32 * number : 32 * number + 32] = digest

    def done(self) -> None:
        """One job is done; after the last the file is checked once more and closed."""
        with self._lock:
            self._open_jobs -= 1
            last = self._open_jobs == 0
        if last:
            try:
                self.source.check_unchanged()
            finally:
                self.source.close()

    def record(self) -> FileRecord:
        """The record; all jobs must be done."""
        layout = self.layout
        literals = iter(self._literals)
        segments: list[Segment] = []
        for one in layout.ranges:
            if isinstance(one, LiteralRange):
                _, held = next(literals)
                segments.extend([Inline(held)] if isinstance(held, bytes) else _literals(one.length, held.digests))
            else:
                segments.append(TensorBytes(Key("", self.parsed.tensors[one.tensor].path)))
        tensors = [
            self._tensor_record(number, layout.shared.get(number, number))
            for number in range(len(self.parsed.tensors))
            if number not in layout.skipped
        ]
        tensors = _tied(tensors, self.parsed.ties)
        warnings = list(self.parsed.warnings)
        told = [nbytes(one.dtype, one.shape) for n, one in enumerate(self.parsed.tensors) if n not in layout.shared]
        if sum(told) > max(_AMPLIFICATION_TOLD * self.source.size, 1 << 20):
            warnings.append(f"views of shared memory: {sum(told)} bytes of tensors in {self.source.size} of file")
        if layout.skipped:
            names = ", ".join(str(self.parsed.tensors[number].path) for number in layout.skipped[:5])
            warnings.append(
                f"{len(layout.skipped)} strided views too large to gather are kept as file bytes only: {names}"
            )
        return FileRecord(self.source.size, self.parsed.container, tuple(tensors), tuple(segments), tuple(warnings))

    def _tensor_record(self, number: int, held_by: int) -> TensorRecord:
        tensor = self.parsed.tensors[number]
        inline = self._inline.get(held_by)
        tiles = None if inline is not None else bytes(self._tensors[held_by].digests)
        return TensorRecord(tensor.path, tensor.dtype, tensor.shape, inline, tiles)


def _tied(tensors: list[TensorRecord], ties: Sequence[Sequence[TensorPath]]) -> list[TensorRecord]:
    """Records with the first of the group that each shares memory with; a note of a tie counts if the bytes agree."""
    first_of = {path: group[0] for group in ties for path in group[1:]}
    by_path = {tensor.path: tensor for tensor in tensors}
    marked = []
    for tensor in tensors:
        first = by_path.get(first_of.get(tensor.path, tensor.path))
        tied = first is not None and first is not tensor and tensor.same_content(first)
        marked.append(msgspec.structs.replace(tensor, tied_to=first.path) if first and tied else tensor)
    return marked


def _literals(length: int, digests: bytearray) -> Iterator[Literal]:
    """A run of literal bytes as segments of bounded size."""
    step = BLOCKS_PER_SEGMENT * FILE_BLOCK_BYTES
    for at in range(0, length, step):
        first = at // FILE_BLOCK_BYTES
        piece = digests[32 * first : 32 * (first + BLOCKS_PER_SEGMENT)]
        yield Literal(min(step, length - at), bytes(piece))


def split_band(band: Band, data: memoryview) -> Iterator[memoryview]:
    """The tiles of a band, each contiguous."""
    if len(band.columns) == 1:
        yield data
        return
    import numpy as np

    rows = np.frombuffer(data, np.uint8).reshape(band.rows, band.row_bytes)
    for start, width in band.columns:
        yield np.ascontiguousarray(rows[:, start : start + width]).data.cast("B")


def gather(tensor: FoundTensor, data: bytes) -> bytes:
    """Row-major little-endian bytes of a tensor from the bytes that it spans."""
    import numpy as np

    if 0 in tensor.shape:
        return b""
    item = BITS[tensor.dtype] // 8
    if tensor.swapped:
        data = np.frombuffer(data, np.uint8).reshape(-1, SWAP_BYTES[tensor.dtype])[:, ::-1].tobytes()
    strides = tensor.strides if tensor.strides is not None else contiguous_strides(tensor.shape)
    elements = np.frombuffer(data, np.dtype((np.void, item)))
    view = np.lib.stride_tricks.as_strided(
        elements, tensor.shape, tuple(stride * item for stride in strides), writeable=False
    )
    return view.tobytes()
