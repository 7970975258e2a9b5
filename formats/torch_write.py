"""What torch writes, with room where the bytes of tensors belong: torch makes the container, others fill it.

* **outline** - a tensor by dtype and shape; tied ones are one and the same.

A tensor is never in memory: torch is given tensors without bytes and told to leave their room empty
(`torch.serialization.skip_data`), and the reader of this package says where the room is. Archives have no CRCs, which
`torch.load` does not ask for.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from cairn.core.errors import RefusedError
from cairn.core.limits import LISTED_NAMES_MAX
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.tiling import Box

DTYPES: dict[str, torch.dtype] = {
    name: dtype
    for name, bits in BITS.items()
    if bits % 8 == 0 and isinstance(dtype := getattr(torch, name, None), torch.dtype)
}


@dataclass(frozen=True, slots=True)
class Outline:
    """A tensor without its bytes; those with equal `storage` share theirs."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: int


@dataclass(frozen=True, slots=True)
class Room:
    """Where the row-major bytes of a box of a tensor belong: `at` is the byte offset of an archive in a file."""

    file: str
    at: int
    length: int
    name: str
    box: Box


def check_dtypes(outlines: Iterable[Outline]) -> None:
    """See that torch has all dtypes.

    Raises:
        RefusedError: it lacks some; names all tensors.
    """
    unknown = [f"{one.name} ({one.dtype})" for one in outlines if one.dtype not in DTYPES]
    if unknown:
        raise RefusedError(
            f"torch has no dtype for {len(unknown)} tensors: {', '.join(unknown[:LISTED_NAMES_MAX])}",
            hint="choose --format safetensors",
        )


def check_values(values: Mapping[str, Any]) -> None:
    """See that `torch.load(weights_only=True)` takes all values.

    Raises:
        RefusedError: it does not; names them.
    """
    refused = [name for name, value in values.items() if not _loads_safely(value)]
    if refused:
        raise RefusedError(
            f"torch.load(weights_only=True) takes no values such as {len(refused)} here: "
            f"{', '.join(refused[:LISTED_NAMES_MAX])}",
            hint="leave them out with --component weights --component optimizer, or choose --format dcp",
        )


def _loads_safely(value: Any) -> bool:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception:  # whatever torch raises, it cannot be loaded
        return False
    return True


def write_torch(path: Path, tree: Any, outlines: Iterable[Outline]) -> None:
    """Write one archive of a tree in which `Outline`s stand for tensors."""
    with _without_bytes():
        storages: dict[tuple[int, str, tuple[int, ...]], torch.Tensor] = {}
        tensors = {one.name: _empty(one, storages) for one in outlines}
        torch.save(_placed(tree, tensors), path)


def write_dcp(
    folder: Path, outlines: Iterable[Outline], values: Mapping[str, Any], paths: Mapping[str, Any], file_bytes: int
) -> list[Room]:
    """Write a folder for `torch.distributed.checkpoint` in files of about `file_bytes` at most.

    Its writer keeps all tensors of a file in memory, so archives are written here and the metadata by the writer.

    Args:
        values, paths: plain values by flat name, and the path that each flat name stands for.
    """
    described: dict[str, STORAGE_TYPES] = {name: BytesStorageMetadata() for name in values}
    written: list[WriteResult] = []
    rooms: list[Room] = []
    with _Files(folder, file_bytes) as files:
        for name, value in values.items():
            written.append(_result(MetadataIndex(name), files.add(value, 0)))
        for one in outlines:
            shape, chunks = torch.Size(one.shape), []
            for number, box in enumerate(_pieces(one, file_bytes)):
                chunk = ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.lengths))
                with _without_bytes():
                    tensor = _empty(replace(one, shape=box.lengths), {})
                    place = files.add(tensor, nbytes(one.dtype, box.lengths))
                chunks.append(chunk)
                written.append(_result(MetadataIndex(one.name, chunk.offsets, number), place))
                rooms.append(Room(place.relative_path, place.offset, place.length, one.name, box))
            described[one.name] = TensorStorageMetadata(TensorProperties(DTYPES[one.dtype]), shape, chunks)
    writer = FileSystemWriter(folder, sync_files=False)
    writer.finish(Metadata(described, planner_data=dict(paths)), [written])
    return rooms


def _result(index: MetadataIndex, place: _StorageInfo) -> WriteResult:
    return WriteResult(index, place.length, place)


class _Files:
    """Files that take one archive after the other; a full one is followed by the next."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self._number, self._size = 0, 0
        self._stream = self._open()

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def add(self, value: Any, size: int) -> _StorageInfo:
        """Append an archive; `size` is that of its tensor."""
        if self._size and self._size + size > self._file_bytes:
            self._stream.close()
            self._number, self._size = self._number + 1, 0
            self._stream = self._open()
        self._size += size
        offset = self._stream.tell()
        torch.save(value, self._stream)
        return _StorageInfo(self._name, offset, self._stream.tell() - offset)

    @property
    def _name(self) -> str:
        return f"__{self._number}_0.distcp"

    def _open(self) -> BinaryIO:
        return open(self._folder / self._name, "xb")


@contextmanager
def _without_bytes() -> Iterator[None]:
    with FakeTensorMode(), torch.serialization.skip_data(materialize_fake_tensors=True):
        yield


def _empty(one: Outline, storages: dict[tuple[int, str, tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
    key = one.storage, one.dtype, one.shape
    if key not in storages:
        storages[key] = torch.empty(one.shape, dtype=DTYPES[one.dtype])
    return storages[key]


def _placed(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(tree, Outline):
        return tensors[tree.name]
    if type(tree) is dict:
        return {name: _placed(item, tensors) for name, item in tree.items()}
    if type(tree) is list:
        return [_placed(item, tensors) for item in tree]
    return tree


def _pieces(one: Outline, file_bytes: int) -> Iterator[Box]:
    """A tensor as runs of rows that fit a file; one row is never cut."""
    offsets = (0,) * len(one.shape)
    size = nbytes(one.dtype, one.shape)
    rows = one.shape[0] if one.shape else 1
    step = rows if size <= file_bytes else max(file_bytes * rows // size, 1)
    if not one.shape or step >= rows:
        yield Box(offsets, one.shape)
        return
    for start in range(0, rows, step):
        yield Box((start, *offsets[1:]), (min(step, rows - start), *one.shape[1:]))
