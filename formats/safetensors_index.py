"""`*.safetensors.index.json` and `pytorch_model.bin.index.json`: which file holds which tensor."""

import msgspec

from cairn.core.limits import KIB, MIB, NAME_BYTES_MAX
from cairn.formats.lfs import POINTER_START, PULL, told_pointer
from cairn.formats.refusal import malformed, shown
from cairn.formats.safe_names import check_file_name
from cairn.formats.strict_json import JsonScanner

# 91,000 tensors of a 671B model take 9 MB; 64 MiB admits seven times as many.
INDEX_BYTES_MAX = 64 * MIB
# Keys beside the map; published indexes have one or two.
INDEX_KEYS_MAX = KIB


def parse_index(data: bytes) -> dict[str, str]:
    """Tensor name → name of a file in the same folder, in the index's order. May be empty.

    Raises:
        BadInput: too large, not JSON, without a `weight_map`, a duplicate name, or a file name with a path in it.
    """
    if len(data) > INDEX_BYTES_MAX:
        raise malformed(f"an index of {len(data)} bytes is over the limit of {INDEX_BYTES_MAX}")
    if data.startswith(POINTER_START):
        raise malformed(told_pointer(len(data)), hint=PULL)
    scanner = JsonScanner(_checked_text(data), "index")
    weight_map: dict[str, str] | None = None
    seen: set[str] = set()
    for key in scanner.members("the index"):
        if key in seen:
            raise malformed(f"index: duplicate key {shown(key)}; each may stand there once")
        seen.add(key)
        if len(seen) > INDEX_KEYS_MAX:
            raise malformed(f"index: more than {INDEX_KEYS_MAX} keys beside each other at the top")
        if key == "weight_map":
            weight_map = _read_weight_map(scanner)
        else:
            scanner.skip()
    scanner.end()
    if weight_map is None:
        raise malformed("index: no 'weight_map', which must say what file holds each tensor")
    return weight_map


def _checked_text(data: bytes) -> str:
    """The text, known to be well-formed JSON, so that values which nobody needs can be skipped by their brackets."""
    try:
        text = data.decode("utf-8")
        msgspec.json.decode(data, type=msgspec.Raw)
    except UnicodeDecodeError as error:
        raise malformed(f"index: not UTF-8 (at byte {error.start})") from None
    except msgspec.DecodeError as error:
        raise malformed(f"index: not JSON: {error}") from None
    except RecursionError:
        raise malformed("index: nested too deeply") from None
    return text.lstrip(" \t\n\r")


def _read_weight_map(scanner: JsonScanner) -> dict[str, str]:
    weight_map: dict[str, str] = {}
    for name in scanner.members("weight_map"):
        if name in weight_map:
            raise malformed(f"index: duplicate tensor name {shown(name)} in weight_map; each may stand there once")
        if len(name.encode()) > NAME_BYTES_MAX:
            raise malformed(f"index: tensor {shown(name)}: a name has at most {NAME_BYTES_MAX} bytes")
        scanner.place = name
        file = scanner.string("its file")
        check_file_name(file, f"index: tensor {shown(name)}")
        weight_map[name] = file
    scanner.place = ""
    return weight_map
