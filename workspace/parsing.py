"""Choosing a parser for a file, and what to do when it refuses.

Parsers are imported when a file asks for one: all together take 10 ms.
"""

import os

from cairn.core.errors import BadInput
from cairn.formats.detect import detect
from cairn.formats.parsed import ParsedFile
from cairn.workspace.source import FileSource

OPAQUE = ParsedFile("", ())
_HEAD_BYTES = 4096
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
    kind = detect(name, source.read_at(0, min(source.size, _HEAD_BYTES)))
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
