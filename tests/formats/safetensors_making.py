"""safetensors files by hand, and how the tests read them."""

from typing import Any

import pytest
import safetensors

from cairn.core.errors import BadInput
from cairn.formats.parsed import ParsedFile
from cairn.formats.safetensors import parse_safetensors
from tests.formats.support import BytesSource, safetensors_file


def parsed(header: Any, data: bytes = b"", **options: Any) -> ParsedFile:
    return parse_safetensors(BytesSource(safetensors_file(header, data, **options)))


def refusal(header: Any, data: bytes = b"", **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        parsed(header, data, **options)
    assert caught.value.hint, "an error says what to do next"
    return caught.value.message


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def accepted_by_library(content: bytes) -> bool:
    try:
        safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return False
    return True
