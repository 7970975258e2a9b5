"""Sources in memory, and what a parsed tensor's bytes really are."""

import io
import json
import struct
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cairn.core.errors import InputChanged
from cairn.formats.parsed import FoundTensor, ParsedFile
from cairn.manifests.dtypes import SWAP_BYTES, nbytes


@dataclass
class BytesSource:
    """A file in memory that counts what is read of it; `size` may claim more than is there."""

    content: bytes
    size: int = -1
    bytes_read: int = field(default=0)

    def __post_init__(self) -> None:
        self.size = len(self.content) if self.size < 0 else self.size

    def read_at(self, offset: int, length: int) -> bytes:
        assert offset >= 0 and length >= 0
        if offset + length > self.size:
            raise AssertionError(f"a parser reads [{offset}, {offset + length}) of {self.size} bytes")
        if offset + length > len(self.content):
            raise InputChanged("shorter than it was")
        self.bytes_read += length
        return self.content[offset : offset + length]


def gathered(content: bytes, found: FoundTensor) -> bytes:
    """Row-major little-endian bytes of a found tensor, by its offset and strides alone."""
    if found.strides is None:
        data = content[found.offset : found.offset + nbytes(found.dtype, found.shape)]
    else:
        width = nbytes(found.dtype, (1,))
        view = np.lib.stride_tricks.as_strided(
            np.frombuffer(content, dtype=f"V{width}", offset=found.offset, count=1),
            found.shape,
            tuple(step * width for step in found.strides),
        )
        data = view.tobytes()
    part = SWAP_BYTES[found.dtype]
    return np.frombuffer(data, dtype=f"V{part}").view(f"u{part}").byteswap().tobytes() if found.swapped else data


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Row-major bytes of a tensor of any dtype."""
    dense = tensor.detach().clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""


def by_path(parsed: ParsedFile) -> dict[tuple[str | int, ...], FoundTensor]:
    found = {tensor.path: tensor for tensor in parsed.tensors}
    assert len(found) == len(parsed.tensors), "two tensors have one path"
    return found


def torch_file(value: Any, **options: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def rezipped(content: bytes, change: dict[str, bytes | None], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The archive with records replaced, added, or (`None`) left out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        records = {info.filename: old.read(info) for info in old.infolist()}
        root = next(iter(records)).split("/")[0]
        records |= {f"{root}/{name}": data for name, data in change.items()}  # type: ignore[misc]  # None is dropped next
        for name, data in records.items():
            if data is not None:
                new.writestr(name, data)
    return buffer.getvalue()


def torch_archive(program: bytes, records: dict[str, bytes] | None = None) -> bytes:
    """A zip file around a hand-made `data.pkl`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/byteorder", "little")
        for name, data in (records or {}).items():
            archive.writestr(f"archive/{name}", data)
    return buffer.getvalue()


def safetensors_file(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file around a header: a value, or JSON text, or bytes."""
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header)
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data
