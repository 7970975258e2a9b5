"""Folders of `torch.distributed.checkpoint`: a pickled `.metadata`, and torch archives at offsets of `.distcp` files.

The metadata is read by the restricted reader, so none of its classes is ever made. Layout: torch, `distributed/
checkpoint/metadata.py` and `filesystem.py` (1.13 to 2.13); up to 2.0 the properties of tensors were those of
ShardedTensor. Megatron's `torch_dist` folders are of this form, with plain state in `common.pt` beside it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec

from cairn.core.errors import BadInput
from cairn.core.limits import LISTED_NAMES_MAX, PICKLE_BYTES_MAX
from cairn.formats.lfs import refuse_lfs_pointer
from cairn.formats.logical import Block, JoinedState, JoinedTensor, JoinedValue, Path, tensor_of_blocks
from cairn.formats.parsed import Source
from cairn.formats.pickle_reader import read_pickle
from cairn.formats.pickle_torch import TORCH
from cairn.formats.pickle_values import FrozenKey, Name, Record, Value
from cairn.formats.pickle_vocabulary import Vocabulary, record
from cairn.formats.plain_values import plain_of
from cairn.formats.refusal import malformed, shown
from cairn.formats.safe_names import check_member_name
from cairn.formats.torch_zip import parse_torch, read_torch_value
from cairn.formats.views import row_major
from cairn.formats.within import Within
from cairn.manifests.tiling import Box

METADATA_FILE = ".metadata"
_METADATA, _FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
_CLASSES = (
    *(f"{_METADATA}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata",
      "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING")),
    *(f"{_SHARDED}.{name}" for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
    f"{_FILES}._StorageInfo",
    # The folder that it was written to.
    *("pathlib.PosixPath", "pathlib._local.PosixPath", "pathlib.WindowsPath", "pathlib._local.WindowsPath"),
)  # fmt: skip
VOCABULARY: Vocabulary = {**TORCH, **{name: record(name) for name in _CLASSES}}
# A transposed shard is read as a whole for each of its tiles.
STRIDED_BYTES_MAX = 64 << 20

Open = Callable[[str], AbstractContextManager[Source]]


class _Place(msgspec.Struct, frozen=True):
    """Where one archive lies."""

    file: str
    offset: int
    length: int


def parse_dcp(metadata: Source, open_file: Open, kind: str = "PyTorch DCP") -> JoinedState:
    """Find every tensor and plain value of a folder.

    Args:
        open_file: opens a file of the folder by its name.
        kind: whose it is, for people.

    Raises:
        BadInput: the metadata is damaged or hostile, a file is missing or cut off, or shards do not cover a tensor.
    """
    refuse_lfs_pointer(metadata)
    if metadata.size > PICKLE_BYTES_MAX:
        raise malformed(f"metadata of {metadata.size} bytes is over the limit of {PICKLE_BYTES_MAX}")
    root = _state(read_pickle(metadata.read_at(0, metadata.size), VOCABULARY), "Metadata")
    described, stored = root.get("state_dict_metadata"), root.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise malformed("the metadata does not say what is stored where")
    places = dict(_places(stored))
    paths = _paths(root.get("planner_data"))
    tensors: list[tuple[str, str, tuple[int, ...], list[tuple[Box, _Place]]]] = []
    values: list[tuple[str, _Place]] = []
    for name, entry in described.items():
        if not isinstance(name, str):
            raise malformed("the metadata has a name that is no text")
        what = f"{shown(name)} of the metadata"
        facts = _state(entry, "TensorStorageMetadata", "BytesStorageMetadata")
        if isinstance(entry, Record) and entry.name.endswith(".BytesStorageMetadata"):
            values.append((name, _placed(places, (name, None), what)))
            continue
        shape = _sizes(facts.get("size"), what)
        chunks = facts.get("chunks")
        if not isinstance(chunks, list):
            raise malformed(f"{what} has no list of chunks")
        parts = []
        for chunk in chunks:
            one = _state(chunk, "ChunkStorageMetadata")
            offsets, lengths = _sizes(one.get("offsets"), what), _sizes(one.get("sizes"), what)
            if not len(offsets) == len(lengths) == len(shape):
                raise malformed(f"{what}: a chunk has another number of axes than its shape {list(shape)}")
            parts.append((Box(offsets, lengths), _placed(places, (name, offsets), what)))
        tensors.append((name, _dtype(facts.get("properties"), what), shape, parts))
    return _joined(kind, tensors, values, paths, open_file)


def _joined(
    kind: str,
    tensors: list[tuple[str, str, tuple[int, ...], list[tuple[Box, _Place]]]],
    values: list[tuple[str, _Place]],
    paths: dict[str, Path],
    open_file: Open,
) -> JoinedState:
    wanted: dict[str, list[_Place]] = {}
    for place in (place for *_, parts in tensors for _, place in parts):
        wanted.setdefault(place.file, []).append(place)
    found: dict[_Place, tuple[str, tuple[int, ...], int, tuple[int, ...]]] = {}
    for file, some in wanted.items():
        with open_file(file) as source:
            for place in some:
                found[place] = _tensor_at(source, place)
    joined: list[JoinedTensor] = []
    for name, dtype, shape, parts in tensors:
        blocks = []
        for box, place in parts:
            stored_dtype, lengths, offset, strides = found[place]
            if stored_dtype != dtype or lengths != box.lengths:
                raise malformed(
                    f"{shown(name)}: {place.file} holds {stored_dtype} {list(lengths)} at byte {place.offset}, "
                    f"where the metadata says {dtype} {list(box.lengths)}"
                )
            blocks.append(Block(place.file, offset, box, strides))
        joined.append(tensor_of_blocks(paths.get(name, ("", name)), dtype, shape, blocks, f"tensor {shown(name)}"))
    plain, refused = _values(values, paths, open_file)
    files = frozenset((METADATA_FILE, *wanted, *(place.file for _, place in values)))
    listed = ", ".join(refused[:LISTED_NAMES_MAX])
    warnings = [f"{len(refused)} values are not plain data and were left out: {listed}"] if refused else []
    return JoinedState(kind, tuple(joined), tuple(plain), files, tuple(warnings))


def _values(
    values: list[tuple[str, _Place]], paths: dict[str, Path], open_file: Open
) -> tuple[list[JoinedValue], list[str]]:
    plain, refused = [], []
    for name, place in values:
        with open_file(place.file) as source:
            inside = Within(source, place.offset, place.length)
            try:
                plain.append(JoinedValue(paths.get(name, ("", name)), plain_of(read_torch_value(inside))))
            except BadInput as error:
                refused.append(f"{name} ({error.message})")
    return plain, refused


def _tensor_at(source: Source, place: _Place) -> tuple[str, tuple[int, ...], int, tuple[int, ...]]:
    """Dtype, shape, byte offset in the file, strides."""
    parsed = parse_torch(Within(source, place.offset, place.length))
    if len(parsed.tensors) != 1 or parsed.tensors[0].path or parsed.tensors[0].swapped:
        raise malformed(f"{place.file} holds something else than one tensor at byte {place.offset}")
    (tensor,) = parsed.tensors
    if tensor.strides is not None and place.length > STRIDED_BYTES_MAX:
        raise malformed(f"{place.file} holds a transposed tensor of {place.length} bytes at byte {place.offset}")
    strides = tensor.strides if tensor.strides is not None else row_major(tensor.shape)
    return tensor.dtype, tensor.shape, place.offset + tensor.offset, strides


# --- metadata -------------------------------------------------------------------------------------


def _state(value: Value, *names: str) -> dict[Value, Value]:
    """The attributes of a record of one of some classes; a class without attributes has none."""
    if isinstance(value, Record) and value.name.rpartition(".")[2] in names:
        if value.state is None:
            return {}
        if isinstance(value.state, dict):
            return value.state
    raise malformed(f"the metadata has something else where a {' or '.join(names)} belongs")


def _places(stored: dict[Value, Value]) -> Iterator[tuple[tuple[str, tuple[int, ...] | None], _Place]]:
    for key, value in stored.items():
        index = _state(key.value if isinstance(key, FrozenKey) else key, "MetadataIndex")
        info = _state(value, "_StorageInfo")
        name, offsets = index.get("fqn"), index.get("offset")
        file, offset, length = info.get("relative_path"), info.get("offset"), info.get("length")
        if not isinstance(name, str) or not isinstance(file, str) or type(offset) is not int or type(length) is not int:
            raise malformed("the metadata has a place that is none")
        if info.get("transform_descriptors"):
            raise malformed(f"{shown(name)} is stored compressed or otherwise transformed, which is not read")
        check_member_name(file)
        yield (name, None if offsets is None else _sizes(offsets, shown(name))), _Place(file, offset, length)


def _placed(places: dict[tuple[str, tuple[int, ...] | None], _Place], key: tuple[str, tuple[int, ...] | None],
            what: str) -> _Place:  # fmt: skip
    place = places.get(key) or (places.get((key[0], None)) if key[1] is not None and not any(key[1]) else None)
    if place is None:
        raise malformed(f"{what} is stored nowhere, at least not what begins at {list(key[1] or ())}")
    return place


def _paths(planner_data: Value) -> dict[str, Path]:
    """The path of each flat name, as the planner that flattened a state dict noted it; others stand in no scope."""
    found: dict[str, Path] = {}
    for name, path in planner_data.items() if isinstance(planner_data, dict) else ():
        if isinstance(name, str) and isinstance(path, tuple) and path and all(type(one) in (str, int) for one in path):
            found[name] = path
    return found


def _sizes(value: Value, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or any(type(one) is not int or one < 0 for one in value):
        raise malformed(f"{what} has a size that is none")
    return tuple(value)


def _dtype(properties: Value, what: str) -> str:
    state = properties.state if isinstance(properties, Record) else None
    first = state.get("dtype") if isinstance(state, dict) else state[0] if isinstance(state, tuple) and state else None
    if not isinstance(first, Name) or not first.text.startswith("torch."):
        raise malformed(f"{what} has no dtype")
    return first.text.removeprefix("torch.")
