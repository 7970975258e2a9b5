"""torch's zip archives (.pt, .pth, .bin): a pickle that describes tensors, and one record of bytes per storage.

Records of `<root>/`: `data.pkl`, `data/<key>` per storage, `byteorder` (torch 2.1 and later). Others (`version`,
`.data/serialization_id`, ...) describe no tensor. Layout: torch, `serialization.py` and `caffe2/serialize`.
"""

from collections.abc import Iterator

from cairn.core.limits import NAME_BYTES_MAX, PICKLE_BYTES_MAX, ZIP_INFLATED_BYTES_MAX
from cairn.formats.detect import TAR_MAGIC, TAR_MAGIC_OFFSET
from cairn.formats.lfs import refuse_lfs_pointer
from cairn.formats.parsed import FoundTensor, ParsedFile, Source, TensorPath
from cairn.formats.pickle_reader import read_pickle
from cairn.formats.pickle_torch import TORCH, StorageTable
from cairn.formats.pickle_values import FrozenKey, OpaqueTensor, StorageRef, TensorRef, Value
from cairn.formats.pickle_vocabulary import Vocabulary, record
from cairn.formats.refusal import malformed, shown
from cairn.formats.views import is_contiguous, settle_overlaps
from cairn.formats.zip_reader import MEMBER_MAGIC, ZipArchive, ZipMember, open_zip
from cairn.manifests.dtypes import BITS, SWAP_BYTES, nbytes

# Views may overlap, and a stride of 0 repeats an element without end; honest files stay far below this many times
# their own size, and small ones get the same allowance as compressed members.
VIEW_BYTES_PER_FILE_BYTE = 4
# A pickle of the allowed size makes 250,000 tensors, and may name each several times; a million take 300 MB here.
TENSORS_MAX = 1_000_000
WARNINGS_MAX = 100

_LEGACY_PICKLE_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"

# Extra state of modules stands in byte streams.
_VALUES: Vocabulary = {**TORCH, "_io.BytesIO": record("_io.BytesIO")}

# A segment is what stands in the pickle: a str or int key, a list position, or a key of another kind.
_Place = tuple[Value, ...]
_Found = tuple[TensorPath, TensorRef]


class _Warnings:
    """The first hundred in words, the rest as a number: a file decides how many there are."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._more = 0

    def add(self, line: str) -> None:
        if len(self._kept) < WARNINGS_MAX:
            self._kept.append(line)
        else:
            self._more += 1

    def lines(self) -> tuple[str, ...]:
        return (*self._kept, f"and {self._more} more warnings") if self._more else tuple(self._kept)


def parse_torch(source: Source) -> ParsedFile:
    """Find every tensor of a torch zip archive that the pickle reaches by str and int keys and list positions.

    Everything else (plain values, tensors of other layouts, records that nothing refers to) stays literal bytes of the
    file; what a person might miss is named in the warnings.

    Raises:
        BadInput: not such an archive, damaged, hostile, over a limit, or with a global that is not on the closed list.
    """
    archive, root = _open_archive(source)
    warnings = _Warnings()
    big_endian = _is_big_endian(archive, root, warnings)
    table = StorageTable()
    value = read_pickle(archive.read(f"{root}/data.pkl", PICKLE_BYTES_MAX), TORCH, table.resolve)
    records = {key: _record(archive, root, storage) for key, storage in table.storages.items()}

    found = _addressable(_leaves(value), warnings)
    unreached = len(table.storages.keys() - {view.storage.key for _, view in found})
    if unreached:
        warnings.add(f"{unreached} storage records belong to no tensor that has a name; they stay plain bytes")
    tensors = [_located(path, view, records[view.storage.key], big_endian) for path, view in found]
    same = _same_views(tensors)
    _check_unfolded([group[0] for group in same], source.size)
    ties = tuple(tuple(tensor.path for tensor in group) for group in same if len(group) > 1)
    return ParsedFile("torch-zip", settle_overlaps(tensors), ties, warnings.lines())


class TorchTree:
    """A torch archive as inert data, tensors by reference, and where in the file each tensor lies."""

    def __init__(self, source: Source, vocabulary: Vocabulary) -> None:
        """Read the pickle.

        Raises:
            BadInput: as `parse_torch`.
        """
        self._archive, self._root = _open_archive(source)
        self._swapped = _is_big_endian(self._archive, self._root, _Warnings())
        program = self._archive.read(f"{self._root}/data.pkl", PICKLE_BYTES_MAX)
        self.value = read_pickle(program, vocabulary, StorageTable().resolve)

    def offset(self, tensor: TensorRef) -> int:
        """Byte offset of a tensor's elements, which follow each other there.

        Raises:
            BadInput: they do not, or are big-endian, or their record has another size than it should have.
        """
        if self._swapped or not is_contiguous(tensor.shape, tensor.strides):
            raise malformed(f"the tensor in storage {shown(tensor.storage.key)} is big-endian or not contiguous")
        record = _record(self._archive, self._root, tensor.storage)
        return record.offset + tensor.offset * (BITS[tensor.dtype] // 8)


def read_torch_value(source: Source) -> Value:
    """The value of a torch archive as inert data.

    Raises:
        BadInput: as `parse_torch`.
    """
    return TorchTree(source, _VALUES).value


def _open_archive(source: Source) -> tuple[ZipArchive, str]:
    """An archive that torch.save wrote, and its first folder."""
    refuse_lfs_pointer(source)
    _refuse_legacy(source)
    archive = open_zip(source)
    root = next(iter(archive.members)).split("/")[0] if archive.members else ""
    if f"{root}/data.pkl" not in archive.members:
        raise malformed("the zip archive has no record 'data.pkl' in its first folder; torch.save did not write it")
    if archive.members[f"{root}/data.pkl"].compressed:
        # A few bytes would stand for hundreds of megabytes of pickle; torch.save stores its records as they are.
        raise malformed("record 'data.pkl' is compressed; torch never compresses")
    return archive, root


def _refuse_legacy(source: Source) -> None:
    head = source.read_at(0, min(source.size, TAR_MAGIC_OFFSET + len(TAR_MAGIC)))
    if head.startswith(MEMBER_MAGIC):
        return
    if head.startswith(_LEGACY_PICKLE_MAGIC):
        raise malformed(
            "a legacy torch file (before 1.6, or _use_new_zipfile_serialization=False); only the zip format is parsed",
            hint="store it as plain bytes, or convert it on a trusted machine with torch.load and torch.save",
        )
    if head[TAR_MAGIC_OFFSET:] == TAR_MAGIC:
        raise malformed(
            "a legacy tar torch file (before 0.1.11); its loader ran code from the file, so it is refused",
            hint="store it as plain bytes, or convert it on a machine that may be lost",
        )
    raise malformed("not a torch zip archive: it does not start with a zip member")


def _is_big_endian(archive: ZipArchive, root: str, warnings: _Warnings) -> bool:
    name = f"{root}/byteorder"
    if name not in archive.members:
        warnings.add("the archive does not state its byte order; little-endian was assumed")
        return False
    order = archive.read(name, len(b"little"))
    if order not in (b"little", b"big"):
        raise malformed(f"the record 'byteorder' must say little or big, not {order!r}")
    return order == b"big"


def _record(archive: ZipArchive, root: str, storage: StorageRef) -> ZipMember:
    """The record of a storage, of exactly its size."""
    member = archive.members.get(f"{root}/data/{storage.key}")
    if member is None:
        raise malformed(f"storage {shown(storage.key)} has no record in the archive")
    if member.compressed:
        raise malformed(f"the record of storage {shown(storage.key)} is compressed; torch never compresses")
    needed = nbytes(storage.dtype, (storage.elements,))
    if member.size != needed:
        raise malformed(
            f"storage {shown(storage.key)}: {storage.elements} {storage.dtype} elements take {needed} bytes, "
            f"but its record has {member.size}"
        )
    return member


def _leaves(root: Value) -> Iterator[tuple[_Place, TensorRef | OpaqueTensor]]:
    """Tensors in the pickle's order. The reader has bounded the tree; long lists of numbers cost no memory here."""
    if isinstance(root, (TensorRef, OpaqueTensor)):
        yield (), root
    pending: list[tuple[_Place, Iterator[tuple[Value, Value]]]] = [((), _items(root))]
    while pending:
        outer, items = pending[-1]
        for key, value in items:
            if isinstance(value, (TensorRef, OpaqueTensor)):
                yield (*outer, key), value
            elif isinstance(value, (dict, list, tuple)):
                pending.append(((*outer, key), _items(value)))
                break
        else:
            pending.pop()


def _items(value: Value) -> Iterator[tuple[Value, Value]]:
    if isinstance(value, dict):
        return iter(value.items())
    return iter(enumerate(value) if isinstance(value, (list, tuple)) else ())


def _addressable(leaves: Iterator[tuple[_Place, TensorRef | OpaqueTensor]], warnings: _Warnings) -> list[_Found]:
    """Those whose place is a path; the others are named in the warnings."""
    found: list[_Found] = []
    for place, tensor in leaves:
        if isinstance(tensor, OpaqueTensor):
            warnings.add(f"{_spelled(place)} is a {tensor.kind} and stays plain bytes")
            continue
        path = tuple(segment for segment in place if type(segment) is str or type(segment) is int)
        if len(path) < len(place):
            warnings.add(f"{_spelled(place)} has a key that is neither text nor integer and stays plain bytes")
            continue
        if any(type(segment) is str and len(segment.encode()) > NAME_BYTES_MAX for segment in path):
            raise malformed(f"tensor {_spelled(place)}: a name has at most {NAME_BYTES_MAX} bytes")
        found.append((path, tensor))
        if len(found) > TENSORS_MAX:
            raise malformed(f"more than {TENSORS_MAX} tensors, tied ones counted by name")
    return found


def _spelled(place: _Place) -> str:
    """A path for people: `model['layer.0.weight'][3]`-like, cut short."""
    words = [f"[{shown(part)}]" if isinstance(part, str) else _bracketed(part) for part in place[:8]]
    return "".join(words) + ("..." if len(place) > 8 else "") if words else "the only value"


def _bracketed(part: Value) -> str:
    text = part.text if isinstance(part, FrozenKey) else repr(part) if isinstance(part, (int, float)) else "?"
    return f"[{text[:60]}]"


def _located(path: TensorPath, view: TensorRef, record: ZipMember, big_endian: bool) -> FoundTensor:
    strides = None if is_contiguous(view.shape, view.strides) else view.strides
    offset = record.offset + view.offset * (BITS[view.dtype] // 8)
    return FoundTensor(path, view.dtype, view.shape, offset, strides, big_endian and SWAP_BYTES[view.dtype] > 1)


def _same_views(tensors: list[FoundTensor]) -> list[list[FoundTensor]]:
    """Groups of one and the same view; an empty tensor shares nothing with anybody and is left out."""
    groups: dict[str, list[FoundTensor]] = {}
    for tensor in tensors:
        if 0 not in tensor.shape:
            # Text, because Python hashes numbers alike in every process, so a file could make all of them collide.
            view = f"{tensor.offset} {tensor.dtype} {tensor.shape} {tensor.strides}"
            groups.setdefault(view, []).append(tensor)
    return list(groups.values())


def _check_unfolded(views: list[FoundTensor], file_bytes: int) -> None:
    """Bound what strided views unfold to, together: their elements are gathered one by one by whoever reads them."""
    unfolded = sum(nbytes(view.dtype, view.shape) for view in views if view.strides is not None)
    if unfolded > VIEW_BYTES_PER_FILE_BYTE * file_bytes + ZIP_INFLATED_BYTES_MAX:
        raise malformed(f"its strided views unfold to {unfolded} bytes from a file of {file_bytes}")
