"""The canonical codec: one value has one spelling, and whatever else comes in is an integrity error."""

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cairn.core.canonical import decode, encode
from cairn.core.errors import IntegrityError
from cairn.manifests.schema import Body, FileEntry, Inline, Key, Page, TensorEntry, TensorPage


class Small(msgspec.Struct, frozen=True):
    a: int
    b: str = ""


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(plain)
def test_every_value_comes_back_from_one_spelling(value: object) -> None:
    spelt = encode(value)
    again = decode(spelt, object, "value")
    assert encode(again) == spelt
    assert repr(again) == repr(value) or isinstance(value, dict | list)


def test_the_order_of_keys_does_not_matter() -> None:
    assert encode({"b": 1, "a": 2, "é": 3}) == encode({"é": 3, "a": 2, "b": 1})
    # A struct spells itself as the map that it is.
    assert encode(Small(1, "x")) == encode({"b": "x", "a": 1})


SECOND_SPELLINGS = {
    "long integer": b"\x82\xa1a\xcc\x01\xa1b\xa0",
    "long string": b"\x82\xa1a\x01\xa1b\xd9\x00",
    "long map": b"\xde\x00\x02\xa1a\x01\xa1b\xa0",
    "unsorted": b"\x82\xa1b\xa0\xa1a\x01",
    "twice the same key": b"\x83\xa1a\x00\xa1a\x01\xa1b\xa0",
    "signed form of a positive": b"\x82\xa1a\xd0\x01\xa1b\xa0",
}


@pytest.mark.parametrize("spelling", SECOND_SPELLINGS.values(), ids=SECOND_SPELLINGS)
def test_a_second_spelling_is_refused(spelling: bytes) -> None:
    assert msgspec.msgpack.decode(spelling, type=Small) == Small(1, "")
    with pytest.raises(IntegrityError, match="canonical"):
        decode(spelling, Small, "the thing")


def test_float32_is_a_second_spelling_of_a_float() -> None:
    with pytest.raises(IntegrityError, match="canonical"):
        decode(b"\xca\x3f\x80\x00\x00", object, "the thing")


def test_unknown_fields_are_ignored() -> None:
    assert decode(encode({"a": 1, "b": "x", "c": [1, {"d": b"\0"}]}), Small, "the thing") == Small(1, "x")


def test_an_unknown_field_does_not_excuse_a_second_spelling() -> None:
    with pytest.raises(IntegrityError, match="canonical"):
        decode(b"\x83\xa1a\x01\xa1b\xa0\xa1c\xcc\x01", Small, "the thing")


@pytest.mark.parametrize("defect", [b"", b"\x82\xa1a", b"\xc1", b"\xa1\xff", b"\x81\x90\x01", b"\x82\x01\x02\xa1a\x03"])
def test_what_does_not_decode_is_an_integrity_error(defect: bytes) -> None:
    with pytest.raises(IntegrityError, match="the thing"):
        decode(defect, object, "the thing")


def test_bytes_after_the_value_are_refused() -> None:
    with pytest.raises(IntegrityError):
        decode(encode(Small(1)) + b"\0", Small, "the thing")


@pytest.mark.parametrize("value", [{"b": "x"}, {"a": "1"}, {"a": 1.5}, {"a": None}, [1, "x"], 7, None])
def test_another_type_is_refused(value: object) -> None:
    with pytest.raises(IntegrityError):
        decode(encode(value), Small, "the thing")


@pytest.mark.parametrize("depth", [2_000, 200_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"])
def test_deep_nesting_is_an_integrity_error(opening: bytes, depth: int) -> None:
    for kind in (object, Small):
        with pytest.raises(IntegrityError):
            decode(opening * depth + b"\xc0", kind, "the thing")


SAMPLE = encode(
    TensorPage(
        (TensorEntry(Key("", ("a", 1)), "float32", (2, 3), tiles=bytes(32)), TensorEntry(Key("s", ()), "int8", ()))
    )
)


def test_every_truncation_is_refused() -> None:
    for length in range(len(SAMPLE)):
        with pytest.raises(IntegrityError):
            decode(SAMPLE[:length], Page, "page")


@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255))
@settings(max_examples=300)
def test_a_changed_byte_is_refused_or_says_something_else(at: int, flip: int) -> None:
    changed = bytearray(SAMPLE)
    changed[at] ^= flip
    try:
        page = decode(bytes(changed), Page, "page")
    except IntegrityError:
        return
    assert encode(page) != SAMPLE


@given(st.binary(max_size=200))
@settings(max_examples=500)
@example(b"\xd6\xff\x00\x00\x00\x00")
@example(b"\xc7\x0c\xff" + b"\xff" * 12)
@example(b"\xc7\x00\x05")
@example(b"\x81\xc4\x01a\x01")
@example(b"\x82\xa1a\xa1b\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00")
def test_noise_is_refused_in_one_way(noise: bytes) -> None:
    for kind in (object, Small, Page, Body, FileEntry):
        try:
            value = decode(noise, kind, "the thing")
        except IntegrityError as error:
            assert "the thing" in str(error)
        else:
            # Whatever is accepted has this one spelling.
            assert kind is not object or encode(value) == noise


def test_a_view_decodes_as_its_bytes_do() -> None:
    page = encode(FileEntry(b"a", "file", segments=(Inline(b"x"),)))
    assert decode(memoryview(page), FileEntry, "page") == decode(page, FileEntry, "page")
