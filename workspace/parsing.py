"""Choosing a parser for a file, and what to do when it refuses.

Parsers are imported when a file asks for one: all together take 10 ms.
"""

import os

from cairn.core.errors import BadInput
from cairn.formats.detect import INDEX_SUFFIXES, TORCH_SUFFIXES, detect
from cairn.formats.lfs import POINTER_START, PULL, told_pointer
from cairn.formats.parsed import ParsedFile
from cairn.workspace.record import FileRecord
from cairn.workspace.source import FileSource
from cairn.workspace.tree import Tree

OPAQUE = ParsedFile("", ())
_HEAD_BYTES = 4096
# Names of files that hold weights and nothing else, in formats that are parsed.
_WEIGHTS = TORCH_SUFFIXES
_HINT = "commit with --opaque to keep all files as plain bytes"


def parse_file(source: FileSource, path: bytes, neighbours: set[bytes]) -> ParsedFile:
    """Tensors of a file, none for files of no known kind.

    A pickle that the restricted reader refuses is kept as plain bytes, with a warning; a malformed safetensors
    file or index is refused, since whoever wrote it meant tensors.

    Args:
        neighbours: names of the other files in its folder.

    Raises:
        BadInput: the file claims a format and breaks its rules.
    """
    name = os.fsdecode(path)
    head = source.read_at(0, min(source.size, _HEAD_BYTES))
    kind = detect(name, head)
    if kind is None and head.startswith(POINTER_START):
        if name.lower().endswith(_WEIGHTS):
            raise BadInput(f"{source.shown}: {told_pointer(source.size)}", hint=f"{PULL}, or {_HINT}")
        return ParsedFile("", (), warnings=(told_pointer(source.size),))
    try:
        if kind == "safetensors":
            from cairn.formats.safetensors import parse_safetensors

            return parse_safetensors(source)
        if kind == "safetensors-index":
            from cairn.formats.safetensors_index import INDEX_BYTES_MAX, parse_index

            if source.size > INDEX_BYTES_MAX:
                raise BadInput(f"an index of {source.size} bytes is over the limit of {INDEX_BYTES_MAX}")
            files = set(parse_index(source.read_at(0, source.size)).values())
            missing = sorted(f for f in files if os.fsencode(f) not in neighbours)
            if missing:
                raise BadInput(f"it names {len(missing)} shards that are not there, first {missing[0]!r}")
    except BadInput as error:
        hint = f"{error.hint}, or {_HINT}" if error.hint else _HINT
        raise BadInput(f"{source.shown}: {error.message}", hint=hint) from None
    if kind == "torch":
        from cairn.formats.torch_zip import parse_torch

        try:
            return parse_torch(source)
        except BadInput as error:
            return ParsedFile("", (), warnings=(f"kept as plain bytes: {error.message}",))
    return OPAQUE


def check_indices(tree: Tree, records: dict[bytes, FileRecord]) -> None:
    """See that what each index of shards says is so: its tensors are in the files that it names, and in no other.

    Raises:
        BadInput: it is not; names the tensor and its file.
    """
    from cairn.formats.safetensors_index import parse_index

    for path in records:
        shown = os.fsdecode(path)
        if not shown.lower().endswith(INDEX_SUFFIXES):
            continue
        with FileSource(tree.absolute(path), shown) as source:
            weight_map = parse_index(source.read_at(0, source.size))
        folder = os.path.dirname(path)
        parsed = {}
        for name in set(weight_map.values()):
            shard = records.get(os.path.join(folder, os.fsencode(name)))
            if shard is not None and shard.container:
                parsed[name] = {one.path: one for one in shard.tensors}
        for tensor, name in weight_map.items():
            own = parsed.get(name, {}).get((tensor,))
            if name in parsed and own is None:
                raise BadInput(f"{shown}: tensor {tensor!r} is not in {name}", hint=f"get both again, or {_HINT}")
            for other, tensors in parsed.items():
                found = tensors.get((tensor,))
                if own is not None and found is not None and not found.same_content(own):
                    raise BadInput(
                        f"{shown}: tensor {tensor!r} is in {name} and, with other values, in {other}",
                        hint=f"leave out what belongs to another save, or {_HINT}",
                    )
