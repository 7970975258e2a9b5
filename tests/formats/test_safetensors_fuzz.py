"""safetensors: whatever the bytes are, never laxer than the library."""

from typing import Any

import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.core.errors import BadInput
from cairn.formats.parsed import ParsedFile
from cairn.formats.safetensors import DTYPES, parse_safetensors
from tests.formats.safetensors_making import accepted_by_library, entry
from tests.formats.support import BytesSource, safetensors_file

SEED = safetensors_file(
    {
        "__metadata__": {"format": "pt"},
        "a.b": entry([2, 2], 0, 16),
        "c": entry([3], 16, 22, "BF16"),
        "d": entry([0], 22, 22),
    },
    bytes(22),
)


def outcome(content: bytes) -> ParsedFile | None:
    try:
        return parse_safetensors(BytesSource(content))
    except BadInput as error:
        assert str(error)
        return None


@settings(max_examples=400)
@given(st.binary(max_size=200), st.booleans())
def test_safetensors_random_bytes(content: bytes, framed: bool) -> None:
    outcome(safetensors_file(b"{" + content) if framed else content)


TOKENS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "\\",
    "0",
    "9",
    "-",
    ".",
    "e",
    " ",
    "\n",
    "null",
    "true",
    '"a.b"',
    '"shape"',
    "\u00e9",
]


@settings(max_examples=800)
@given(st.data())
def test_safetensors_mutated_headers(data: st.DataObject) -> None:
    text = SEED[8:-22].decode()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 6))
        text = text[:at] + data.draw(st.sampled_from(TOKENS)) + text[at + cut :]
    content = safetensors_file(text, bytes(data.draw(st.sampled_from([22, 21, 23, 0]))))
    result = outcome(content)
    # Never laxer than the library. (It is laxer with unknown and duplicate keys.)
    if result is not None:
        assert accepted_by_library(content), text
        names = dict(safetensors.deserialize(content))
        assert {tensor.path[0]: tensor.shape for tensor in result.tensors} == {
            name: tuple(value["shape"]) for name, value in names.items()
        }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(list(DTYPES)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=400)
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4), st.integers(0, 16))
def test_safetensors_random_json(header: dict[str, Any], size: int) -> None:
    content = safetensors_file(header, bytes(size))
    if outcome(content) is not None:
        assert accepted_by_library(content)
