"""safetensors files to be written: which tensor goes into which file, and the header of each. Pure.

Files are cut by size in the order given. One header stays under the limit that the library's reader has, a file is
never empty, and a tensor is never cut: one that is larger than the limit has a file to itself.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cairn.core.errors import RefusedError
from cairn.core.limits import LISTED_NAMES_MAX, SAFETENSORS_HEADER_BYTES_MAX
from cairn.formats.safetensors import DTYPES, METADATA_KEY, TIED_KEY
from cairn.manifests.dtypes import BITS, nbytes

_SPELLED = {name: spelled for spelled, name in DTYPES.items()}
# What an entry takes besides its names: fields, at most 64 dimensions and two offsets, all in digits.
_ENTRY_BYTES = 256
# Data starts at a multiple of this, as in what the library writes, so that it can be mapped.
_ALIGN_BYTES = 8
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor to be written, and the first of the group that it shares memory with, if it is not that itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tied_to: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return nbytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file: its name, its first bytes, the offset of each tensor in it, and its size."""

    name: str
    head: bytes
    offsets: Mapping[str, int]
    size: int


def plan_shards(tensors: Iterable[Named], stem: str, shard_bytes: int) -> list[Shard]:
    """Files of about `shard_bytes` at most; one of `stem` alone, several numbered as transformers does.

    Raises:
        RefusedError: dtypes that the format lacks, or a name that it keeps for itself; names all of them.
    """
    ordered = list(tensors)
    unknown = [f"{one.name} ({one.dtype})" for one in ordered if one.dtype not in _SPELLED]
    if unknown:
        raise RefusedError(
            f"safetensors has no dtype for {len(unknown)} tensors: {', '.join(unknown[:LISTED_NAMES_MAX])}",
            hint="choose --format torch or dcp",
        )
    if any(one.name == METADATA_KEY for one in ordered):
        raise RefusedError(f"a tensor is called {METADATA_KEY}, which safetensors keeps for itself")
    parts = list(_parts(_units(ordered), shard_bytes)) or [[]]
    names = [f"{stem}.safetensors"]
    if len(parts) > 1:
        names = [f"{stem}-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)]
    return [_shard(name, part) for name, part in zip(names, parts, strict=True)]


def index_of(shards: Sequence[Shard]) -> bytes:
    """`*.safetensors.index.json`, as transformers reads it."""
    sizes = sum(shard.size - len(shard.head) for shard in shards)
    weight_map = {name: shard.name for shard in shards for name in shard.offsets}
    index = {"metadata": {"total_size": sizes}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2).encode() + b"\n"


def _units(tensors: Sequence[Named]) -> Iterator[list[Named]]:
    """Tied tensors together, so that one file tells of them; all others alone."""
    groups: dict[str, list[Named]] = {}
    for one in tensors:
        groups.setdefault(one.tied_to or one.name, []).append(one)
    yield from groups.values()


def _parts(units: Iterable[list[Named]], shard_bytes: int) -> Iterator[list[Named]]:
    part: list[Named] = []
    data = head = 0
    for unit in units:
        more = sum(one.nbytes for one in unit)
        text = sum(_ENTRY_BYTES + 6 * len(one.name) + 6 * len(one.tied_to) for one in unit)
        if part and (data + more > shard_bytes or head + text > SAFETENSORS_HEADER_BYTES_MAX):
            yield part
            part, data, head = [], 0, 0
        part += unit
        data, head = data + more, head + text
    if part:
        yield part


def _shard(name: str, tensors: Sequence[Named]) -> Shard:
    header: dict[str, object] = {
        METADATA_KEY: {"format": "pt"} | {TIED_KEY + one.name: one.tied_to for one in tensors if one.tied_to}
    }
    at, places = 0, {}
    # Wide elements first, so that each is aligned to its own width.
    for one in sorted(tensors, key=lambda one: (-BITS[one.dtype], one.name)):
        places[one.name] = at
        spelled = {"dtype": _SPELLED[one.dtype], "shape": one.shape, "data_offsets": (at, at + one.nbytes)}
        header[one.name] = spelled
        at += one.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGN_BYTES)
    head = _LENGTH.pack(len(text)) + text
    return Shard(name, head, {name: len(head) + offset for name, offset in places.items()}, len(head) + at)
