"""What a parser finds in a file."""

from typing import Protocol

import msgspec

TensorPath = tuple[str | int, ...]


class Source(Protocol):
    """Positional bytes of one file; `read_at` returns exactly `length` bytes or raises `InputChanged`."""

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes: ...


class FoundTensor(msgspec.Struct, frozen=True):
    """One tensor of a file.

    Args:
        path: its key; a nested container gives one segment a level (a str key, an int key or list position).
        dtype: a name of `manifests.dtypes.BITS`.
        shape: global shape.
        offset: byte offset in the file of its first element.
        strides: in elements; `None` when row-major and contiguous, so that its bytes are `[offset, offset + nbytes)`.
        swapped: the file holds it big-endian.
    """

    path: TensorPath
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] | None = None
    swapped: bool = False


class ParsedFile(msgspec.Struct, frozen=True):
    """The tensors of one file, in the order of the file's own listing.

    Args:
        container: `safetensors` or `torch-zip`.
        tensors: what was found; contiguous ones may coincide (tied), else they do not overlap.
        ties: groups of paths that share storage.
        warnings: what a person should know; never secret.
    """

    container: str
    tensors: tuple[FoundTensor, ...]
    ties: tuple[tuple[TensorPath, ...], ...] = ()
    warnings: tuple[str, ...] = ()
