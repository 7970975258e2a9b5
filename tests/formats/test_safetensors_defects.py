"""safetensors: each defect has its own error, found before anything is read by it."""

import json
import struct
from typing import Any

import pytest

from cairn.core.errors import BadInput
from cairn.core.limits import NAME_BYTES_MAX, SAFETENSORS_HEADER_BYTES_MAX, TENSOR_DIMS_MAX
from cairn.formats.safetensors import parse_safetensors
from tests.formats.safetensors_making import accepted_by_library, entry, parsed, refusal
from tests.formats.support import BytesSource, safetensors_file

# --- Length -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ((1 << 64) - 1, "over the limit"),
        ((1 << 64) - 2, "over the limit"),
        (1 << 63, "over the limit"),
        (SAFETENSORS_HEADER_BYTES_MAX + 1, "over the limit"),
        (SAFETENSORS_HEADER_BYTES_MAX, "only 92 follow"),
        (100, "only 92 follow"),  # the size of the file
        (93, "only 92 follow"),  # size - 7
        (0, "is empty"),
        (1, "end of the text"),
    ],
)
def test_X22_length_is_compared_before_anything_is_read(length: int, message: str) -> None:
    source = BytesSource(struct.pack("<Q", length) + b"{}" + b" " * 90)
    with pytest.raises(BadInput, match=message):
        parse_safetensors(source)
    assert source.bytes_read < 64


def test_X22_limit_is_inclusive_and_checked_before_the_read() -> None:
    source = BytesSource(struct.pack("<Q", SAFETENSORS_HEADER_BYTES_MAX + 1) + bytes(64), 1 << 40)
    with pytest.raises(BadInput, match="over the limit of 100000000"):
        parse_safetensors(source)


@pytest.mark.parametrize("size", range(8))
def test_safetensors_shorter_than_its_length(size: int) -> None:
    with pytest.raises(BadInput, match="too short"):
        parse_safetensors(BytesSource(bytes(size)))


def test_safetensors_lfs_pointer() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    with pytest.raises(BadInput, match="Git LFS pointer") as caught:
        parse_safetensors(BytesSource(pointer))
    assert "git lfs pull" in caught.value.hint


# --- JSON -------------------------------------------------------------------------------------


def test_T24_duplicate_tensor_name() -> None:
    first, second = json.dumps(entry([1], 0, 4)), json.dumps(entry([1], 4, 8))
    text = f'{{"key00":{first},"key00":{second}}}'
    assert refusal(text, bytes(8)).startswith("duplicate tensor name 'key00'")
    same = f'{{"key00":{first},"\\u006bey00":{first}}}'
    assert refusal(same, bytes(4)).startswith("duplicate tensor name 'key00'")


def test_T24_duplicate_key_inside() -> None:
    text = '{"x":{"dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,8]}}'
    assert "duplicate key 'shape'" in refusal(text, bytes(8))
    assert "duplicate key '__metadata__'" in refusal('{"__metadata__":{},"__metadata__":{}}')
    assert "duplicate key 'k' in __metadata__" in refusal('{"__metadata__":{"k":"a","k":"a"}}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" {}", "must start with '{', not with byte 0x20"),
        ("[]", "must start with '{', not with byte 0x5b"),
        ("\ufeff{}", "not with byte 0xef"),
        (b"{\xff}", "not UTF-8"),
        ('{"\ud800":1}', "not UTF-8"),
        ('{"\\ud800":1}', "half a surrogate pair"),
        ("{}x", "text follows"),
        ("{}\0", "text follows"),
        ("{} {}", "text follows"),
        ("{", "a key must be a string, not the end"),
        ('{"x"', "must start with ':'"),
        ('{"x" 1', "must start with ':'"),
        ('{"x', "is not a JSON string"),
        ('{"\n":1}', "is not a JSON string"),
        ('{"\\x":1}', "is not a JSON string"),
        ('{"x":1}', "must start with '{', not the number '1'"),
        ('{"x":null}', "must start with '{', not 'null'"),
        ('{"x":[]}', "must start with '{', not a list"),
        ('{"x":NaN}', "must start with '{', not 'NaN'"),
        ('{"x":{}}', "dtype and shape and data_offsets missing"),
        ('{"x":{"dtype":"F32","shape":[1]}}', "data_offsets missing"),
        ('{"x":{"dtype":"F32",}}', "must be a string"),
        ('{"x":{"dtype":"F32" "shape":[1]}}', "',' or '}' must follow"),
        ('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}}', "unknown key 'more'"),
        ('{"x":{"dtype":1}}', "dtype must be a string, not the number"),
        ('{"x":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}}', "dtype 'f32' is not one"),
        ('{"__metadata__":{"k":1}}', "must be a string, not the number"),
        ('{"__metadata__":{"k":{}}}', "must be a string, not an object"),
        ('{"__metadata__":null}', "must start with '{'"),
        ("{1:2}", "a key must be a string"),
        ("{" + '"x":{' * 100_000, "unknown key 'x'"),
        ('{"x":{"shape":' + "[" * 100_000, "holds a list"),
    ],
)
def test_safetensors_json_is_strict(text: str | bytes, message: str) -> None:
    assert message in refusal(text, bytes(4))


def test_safetensors_long_names() -> None:
    assert "a name has at most" in refusal({"x" * (NAME_BYTES_MAX + 1): entry([1], 0, 4)}, bytes(4))
    assert "a name has at most" in refusal({"\u00fc" * (NAME_BYTES_MAX // 2 + 1): entry([1], 0, 4)}, bytes(4))
    assert len(parsed({"\u00fc" * (NAME_BYTES_MAX // 2): entry([1], 0, 4)}, bytes(4)).tensors) == 1


# --- Shape and offsets ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([1 << 32, 1 << 32], "larger than any tensor"),
        ([1 << 63, 2], "larger than any tensor"),
        ([1 << 62, 0], None),  # nothing in it: zero bytes, as said
        ([(1 << 62) + 1, 0], "larger than any tensor"),
        ([10**19], "20 digits"),
        ([-1], "negative numbers are not sizes"),
        ([-1, -1], "negative"),
        ([1.0], "holds the number '1.0'"),
        ([1e300], "only whole numbers"),
        ([True], "holds a bool"),
        (["1"], "holds a string"),
        ([None], "holds 'null'"),
        ([[1]], "holds a list"),
        ([{}], "holds an object"),
        (1, "must be a list of whole numbers, not the number '1'"),
        ("1", "must be a list of whole numbers, not a string"),
        ([1] * 1000, f"more than {TENSOR_DIMS_MAX} entries"),
        ([1] * (TENSOR_DIMS_MAX + 1), f"more than {TENSOR_DIMS_MAX} entries"),
        ([1], "takes 4 bytes, but data_offsets give it 0"),
        ([], "takes 4 bytes, but data_offsets give it 0"),
    ],
)
def test_X03_shape_and_bytes_agree_exactly(shape: Any, message: str | None) -> None:
    header = {"x": entry(shape, 0, 0)}
    if message is None:
        assert parsed(header).tensors[0].shape == tuple(shape)
    else:
        assert message in refusal(header)


@pytest.mark.parametrize("token", ["01", "1e2", "1.", ".5", "+1", "0x10", "1_0", "1 0", "\u0661", "Infinity", "-0"])
def test_X03_numbers_are_plain_digits(token: str) -> None:
    refusal('{"x":{"dtype":"F32","shape":[' + token + '],"data_offsets":[0,4]}}', bytes(4))


def test_X03_narrow_elements_fill_whole_bytes() -> None:
    assert parsed({"x": entry([2, 4], 0, 6, "F6_E2M3")}, bytes(6)).tensors[0].dtype == "float6_e2m3fn"
    assert "does not fill whole bytes" in refusal({"x": entry([3], 0, 2, "F4")}, bytes(2))


def test_X03_most_dimensions() -> None:
    assert len(parsed({"x": entry([1] * TENSOR_DIMS_MAX, 0, 4)}, bytes(4)).tensors[0].shape) == TENSOR_DIMS_MAX


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([8, 4], "are reversed"),
        ([-4, 0], "negative"),
        ([0.0, 4], "holds the number '0.0'"),
        (["0", "4"], "holds a string"),
        ([False, 4], "holds a bool"),
        ([0, 4, 8], "more than 2 entries"),
        ([0], "not 1 numbers"),
        ([], "not 0 numbers"),
        ({}, "not an object"),
        ([0, 12], "ends at byte 12 of the data, which has 8"),
        ([1 << 63, 1 << 63], "of the data, which has 8"),
        ([0, 8], "takes 4 bytes, but data_offsets give it 8"),
    ],
)
def test_X25_offsets_are_strict(offsets: Any, message: str) -> None:
    assert message in refusal({"x": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}, bytes(8))


@pytest.mark.parametrize(
    ("spans", "size", "message"),
    [
        ([(0, 8), (4, 12)], 12, "tensor 'b' overlaps tensor 'a' by 4 bytes"),
        ([(0, 4), (0, 4)], 4, "overlaps"),
        ([(0, 8), (4, 4), (8, 12)], 12, "lies inside it"),
        ([(0, 4), (8, 12)], 12, "a hole of 4 bytes between tensor 'a' and tensor 'b'"),
        ([(4, 8)], 8, "a hole of 4 bytes between the start of the data and tensor 'a'"),
        ([(0, 4), (4, 4)], 9, "5 trailing bytes follow tensor 'b'"),
        ([], 1, "1 trailing bytes follow the start of the data"),
        ([(0, 4)], 3, "which has 3"),
    ],
)
def test_X23_tensors_cover_the_data_exactly(spans: list[tuple[int, int]], size: int, message: str) -> None:
    header = {"abc"[i]: entry([(end - begin) // 4], begin, end) for i, (begin, end) in enumerate(spans)}
    assert message in refusal(header, bytes(size))
    assert not accepted_by_library(safetensors_file(header, bytes(size)))


def test_X23_unsorted_is_fine() -> None:
    assert len(parsed({"b": entry([2], 4, 12), "a": entry([1], 0, 4)}, bytes(12)).tensors) == 2
