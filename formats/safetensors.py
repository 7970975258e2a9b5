"""safetensors: eight bytes of length, a JSON header, and the tensors' bytes without a gap.

Format: https://github.com/huggingface/safetensors (README, "Format"); dtypes as of release 0.8.
"""

import re
import struct

from cairn.core.errors import BadInput
from cairn.core.limits import NAME_BYTES_MAX, SAFETENSORS_HEADER_BYTES_MAX, TENSOR_DIMS_MAX
from cairn.formats.lfs import refuse_lfs_pointer
from cairn.formats.parsed import FoundTensor, ParsedFile, Source, TensorPath
from cairn.formats.refusal import malformed, shown
from cairn.formats.strict_json import JsonScanner
from cairn.manifests.dtypes import nbytes

DTYPES: dict[str, str] = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn",
}  # fmt: skip

METADATA_KEY = "__metadata__"
# In the metadata of files that Cairn wrote: this and a tensor's name -> the tensor that it shares memory with.
TIED_KEY = "cairn.tied:"
_FIELDS = ("dtype", "shape", "data_offsets")
# An entry as the library writes it, read in one step: 4 times as fast. Any other spelling, and any defect, goes the
# long way with the same result.
_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_USUAL_ENTRY = re.compile(
    r'\{"dtype": ?"([A-Z0-9_]+)", ?"shape": ?'
    rf"\[((?:{_NUMBER}(?:, ?{_NUMBER}){{0,{TENSOR_DIMS_MAX - 1}}})?)\]"
    rf', ?"data_offsets": ?\[({_NUMBER}), ?({_NUMBER})\]\}}'
)
_LENGTH = struct.Struct("<Q")
# A name of one, a shape, and where it begins and ends in the data.
_Range = tuple[int, int, str]


def parse_safetensors(source: Source) -> ParsedFile:
    """Find every tensor of a safetensors file, in the order of its header.

    No byte of the tensors is read. An empty set of tensors is legal.

    Raises:
        BadInput: not safetensors, damaged, hostile or over a limit; each defect has its own message.
    """
    refuse_lfs_pointer(source)
    text, data_start = _read_header(source)
    data_bytes = source.size - data_start
    tensors: list[FoundTensor] = []
    ranges: list[_Range] = []
    scanner = JsonScanner(text, "safetensors header")
    seen: set[str] = set()
    metadata: dict[str, str] = {}
    for name in scanner.members("the header"):
        if name in seen:
            kind = "key" if name == METADATA_KEY else "tensor name"
            raise malformed(f"duplicate {kind} {shown(name)} in the header; each may stand there once")
        seen.add(name)
        scanner.place = name
        if name == METADATA_KEY:
            metadata = _read_metadata(scanner)
            continue
        dtype, shape, begin, end = _read_entry(scanner, name)
        _check_range(name, dtype, shape, begin, end, data_bytes)
        tensors.append(FoundTensor((name,), dtype, shape, data_start + begin))
        ranges.append((begin, end, name))
    scanner.place = ""
    scanner.end()
    _check_cover(ranges, data_bytes)
    return ParsedFile("safetensors", tuple(tensors), _ties(metadata, tensors))


def _read_header(source: Source) -> tuple[str, int]:
    """The header's text and the offset of the data; the length is checked before anything is read by it."""
    if source.size < _LENGTH.size:
        raise malformed(f"a file of {source.size} bytes is too short: safetensors starts with 8 bytes of length")
    (length,) = _LENGTH.unpack(source.read_at(0, _LENGTH.size))
    if length > SAFETENSORS_HEADER_BYTES_MAX:
        raise malformed(
            f"the header claims {length} bytes, over the limit of {SAFETENSORS_HEADER_BYTES_MAX}; "
            "this is no safetensors file, or not one that its library reads"
        )
    if length > source.size - _LENGTH.size:
        raise malformed(f"the header claims {length} bytes, but only {source.size - _LENGTH.size} follow")
    if length == 0:
        raise malformed("the header is empty; it must hold at least '{}'")
    header = source.read_at(_LENGTH.size, length)
    if header[:1] != b"{":
        raise malformed(f"the header must start with '{{', not with byte {header[0]:#04x}")
    try:
        return header.decode("utf-8"), _LENGTH.size + length
    except UnicodeDecodeError as error:
        raise malformed(f"the header is not UTF-8 (at byte {error.start})") from None


def _read_metadata(scanner: JsonScanner) -> dict[str, str]:
    """Strings by string; may be empty. The header is kept as it is, so only what tells of ties is used."""
    metadata: dict[str, str] = {}
    for key in scanner.members("the metadata"):
        if key in metadata:
            raise malformed(f"duplicate key {shown(key)} in {METADATA_KEY}; each may stand there once")
        metadata[key] = scanner.string("a metadata value")
    return metadata


def _ties(metadata: dict[str, str], tensors: list[FoundTensor]) -> tuple[tuple[TensorPath, ...], ...]:
    """Groups that an export noted, of tensors that look alike; whether their bytes are equal is for the reader."""
    forms = {tensor.path[0]: (tensor.dtype, tensor.shape) for tensor in tensors}
    groups: dict[str, list[TensorPath]] = {}
    for key, first in metadata.items():
        name = key.removeprefix(TIED_KEY)
        if key != name != first and name in forms and forms[name] == forms.get(first):
            groups.setdefault(first, [(first,)]).append((name,))
    return tuple(map(tuple, groups.values()))


def _read_entry(scanner: JsonScanner, name: str) -> tuple[str, tuple[int, ...], int, int]:
    """Dtype (our name), shape, begin and end."""
    usual = _USUAL_ENTRY.match(scanner.text, scanner.at)
    if usual is not None and usual[1] in DTYPES:
        scanner.at = usual.end()
        shape = tuple(map(int, usual[2].split(","))) if usual[2] else ()
        return DTYPES[usual[1]], shape, int(usual[3]), int(usual[4])
    return _read_entry_slowly(scanner, name)


def _read_entry_slowly(scanner: JsonScanner, name: str) -> tuple[str, tuple[int, ...], int, int]:
    """The same from any spelling, in any order, with an error that names what is wrong."""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offsets: tuple[int, ...] | None = None
    for field in scanner.members("the entry"):
        if field == "dtype" and dtype is None:
            dtype = scanner.string("dtype")
        elif field == "shape" and shape is None:
            shape = scanner.whole_numbers("shape", TENSOR_DIMS_MAX)
        elif field == "data_offsets" and offsets is None:
            offsets = scanner.whole_numbers("data_offsets", 2)
        elif field in _FIELDS:
            raise malformed(f"tensor {shown(name)}: duplicate key {field!r}; each may stand there once")
        else:
            raise malformed(f"tensor {shown(name)}: unknown key {shown(field)}; allowed are {', '.join(_FIELDS)}")
    if dtype is None or shape is None or offsets is None:
        missing = [key for key, value in zip(_FIELDS, (dtype, shape, offsets), strict=True) if value is None]
        raise malformed(f"tensor {shown(name)}: {' and '.join(missing)} missing from its entry")
    if dtype not in DTYPES:
        raise malformed(f"tensor {shown(name)}: dtype {shown(dtype)} is not one that safetensors defines")
    if len(offsets) != 2:
        raise malformed(f"tensor {shown(name)}: data_offsets must hold begin and end, not {len(offsets)} numbers")
    return DTYPES[dtype], shape, *offsets


def _check_range(name: str, dtype: str, shape: tuple[int, ...], begin: int, end: int, data_bytes: int) -> None:
    if len(name) * 4 > NAME_BYTES_MAX and len(name.encode()) > NAME_BYTES_MAX:
        raise malformed(f"tensor {shown(name)}: a name has at most {NAME_BYTES_MAX} bytes")
    if begin > end:
        raise malformed(f"tensor {shown(name)}: data_offsets are reversed: begin {begin} is behind end {end}")
    if end > data_bytes:
        raise malformed(f"tensor {shown(name)}: ends at byte {end} of the data, which has {data_bytes}")
    try:
        needed = nbytes(dtype, shape)
    except BadInput as error:
        raise malformed(f"tensor {shown(name)}: {error.message}") from None
    if end - begin != needed:
        raise malformed(
            f"tensor {shown(name)}: {dtype} of shape {list(shape)[:8]} takes {needed} bytes, "
            f"but data_offsets give it {end - begin}"
        )


def _check_cover(ranges: list[_Range], data_bytes: int) -> None:
    """Laid end to end in the order of their offsets, the tensors are the data: no hole, no overlap, nothing after."""
    position, before = 0, "the start of the data"
    for begin, end, name in sorted(ranges):
        if begin > position:
            raise malformed(f"a hole of {begin - position} bytes between {before} and tensor {shown(name)}")
        if begin < position:
            raise malformed(f"tensor {shown(name)} overlaps {before} by {position - begin} bytes or lies inside it")
        position, before = end, f"tensor {shown(name)}"
    if position < data_bytes:
        raise malformed(f"{data_bytes - position} trailing bytes follow {before}; every byte must belong to a tensor")
