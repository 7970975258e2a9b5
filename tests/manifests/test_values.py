"""Plain values: each comes back as it was, whatever is no plain data is named, and bytes that lie are damage."""

import datetime
import io
import math
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError, RefusedError
from cairn.core.limits import VALUE_DEPTH_MAX
from cairn.manifests.values import Container, Symbol, decode_value, encode_value

DTYPES = ("?", "i1", "u1", "<i2", ">u2", "<i4", ">u4", "<i8", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16")
NAN, INF = math.nan, math.inf
Point = namedtuple("Point", "x y")


def form(value: Any) -> Any:
    """A value as something that compares: types count, and so do the bits of a float and the order of a dict."""
    kind = type(value)
    if isinstance(value, float) and kind is float:
        return "float", struct.pack(">d", value)
    if kind is complex:
        return "complex", struct.pack(">dd", value.real, value.imag)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        little = array.astype(array.dtype.newbyteorder("<"))
        return isinstance(value, np.ndarray), little.dtype.str, array.shape, little.tobytes()
    if isinstance(value, dict):
        return kind, [(form(key), form(item)) for key, item in value.items()]
    if kind in (list, tuple):
        return kind, [form(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(form(item)) for item in value)
    return (kind, value.getvalue()) if kind is io.BytesIO else (kind, value)


def survives(value: Any) -> bytes:
    """Check that a value comes back from its encoding, which is one; returns it."""
    data = encode_value(value, "v")
    found = decode_value(data, "v")
    assert form(found) == form(value)
    assert encode_value(found, "v") == data
    return data


integers = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers() | st.integers(-(1 << 300), 1 << 300)
numbers = st.sampled_from(DTYPES).flatmap(
    lambda code: st.binary(min_size=np.dtype(code).itemsize, max_size=np.dtype(code).itemsize).map(
        lambda data: np.frombuffer(data, np.dtype(code)).astype("?" if code == "?" else code)[0]
    )
)
hashable_atoms = st.one_of(
    st.none(), st.booleans(), integers, st.floats(), st.text(), st.binary(), st.complex_numbers(), numbers,
    st.builds(Symbol, st.text(), st.text()),
)  # fmt: skip
hashables = st.recursive(
    hashable_atoms,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3).map(frozenset),
    max_leaves=5,
)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype, shape = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.lists(st.integers(0, 3), max_size=4))
    data = draw(st.binary(min_size=math.prod(shape), max_size=math.prod(shape)))
    # Not every bit pattern of a float survives a conversion, so these are small integers.
    array = np.frombuffer(data, np.uint8).reshape(shape).astype(dtype)
    return array[::-1].T if shape and draw(st.booleans()) else array


values = st.recursive(
    hashables
    | arrays()
    | st.binary().map(bytearray)
    | st.binary().map(io.BytesIO)
    | st.lists(hashables, max_size=3).map(set),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(st.tuples(hashables, inner), max_size=4).map(dict),
        st.lists(st.tuples(hashables, inner), max_size=4).map(OrderedDict),
        st.lists(st.tuples(hashables, inner), max_size=4).map(lambda pairs: Counter(dict(pairs))),
    ),
    max_leaves=15,
)


@given(values)
@example({1: [{"a": (1, {2, 3})}], None: OrderedDict([(2, Counter("aab"))]), (1, "x"): frozenset({b"", ()})})
@example([0.0, -0.0, NAN, -NAN, INF, complex(-0.0, NAN)])
@example({NAN, float("nan")})
@settings(max_examples=300)
def test_a_value_comes_back_with_its_types(value: Any) -> None:
    survives(value)


@pytest.mark.parametrize(
    "value",
    [
        -(1 << 63),
        (1 << 63) - 1,
        1 << 63,
        -(1 << 63) - 1,
        (1 << 64) - 1,
        1 << 64,
        10**4300 - 1,
        1 - 10**4300,
        0,
        127,
        128,
    ],
)
def test_integers_of_any_size(value: int) -> None:
    spelled = msgspec.msgpack.decode(survives(value))
    assert spelled == (value if -(1 << 63) <= value < 1 << 63 else ["int", str(value)])


@pytest.mark.parametrize("code", DTYPES)
def test_numbers_and_arrays_of_numpy(code: str) -> None:
    dtype = np.dtype(code)
    matrix = np.arange(6).reshape(2, 3).astype(dtype)
    for value in (
        matrix,
        matrix.T,
        matrix[:, ::-2],
        matrix[:0],
        matrix[:, :0],
        matrix[0, 0],
        matrix[1, 1],
        np.array(1, dtype),
    ):
        survives(value)
    assert decode_value(encode_value(matrix, "v"), "v").flags.writeable


def test_a_mapped_array_is_an_array(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "m", "<i4", "w+", shape=(3,))
    mapped[:] = (1, 2, 3)
    assert np.array_equal(decode_value(encode_value(mapped, "v"), "v"), [1, 2, 3])


def test_a_dict_keeps_its_order_and_a_set_has_none() -> None:
    assert encode_value({"b": 1, "a": 2}, "v") != encode_value({"a": 2, "b": 1}, "v")
    assert encode_value({"b", "a", 1, None}, "v") == encode_value({None, 1, "a", "b"}, "v")


@given(st.text(), st.lists(st.text() | st.integers(-(1 << 63), (1 << 63) - 1), unique=True).map(tuple))
def test_containers_stand_alone(kind: str, keys: tuple[str | int, ...]) -> None:
    container = Container(kind, keys)
    assert decode_value(encode_value(container, "v"), "v") == container
    with pytest.raises(RefusedError, match=r"v\[0\] is a cairn.manifests.values.Container"):
        encode_value([container], "v")


# --- Refusals -----------------------------------------------------------------------------------


class Own:
    """What a user has made."""


class Grown(dict[str, int]):
    """A dict, and more than that."""


REFUSED = {
    "an object": (Own(), "Own, which is not plain data"),
    "a class": (Own, "builtins.type"),
    "a function": (len, "builtin_function_or_method"),
    "a subclass of dict": (Grown(), "Grown"),
    "a defaultdict": (defaultdict(int), "collections.defaultdict"),
    "a named tuple": (Point(1, 2), "Point"),
    "a date": (datetime.date(2026, 1, 1), "datetime.date"),
    "a range": (range(3), "builtins.range"),
    "numpy objects": (np.array([Own()], object), "numpy.ndarray"),
    "numpy strings": (np.array(["a"]), "numpy.ndarray"),
    "numpy records": (np.zeros(2, "i4,f4"), "numpy.ndarray"),
    "numpy dates": (np.zeros(2, "M8[s]"), "numpy.ndarray"),
    "a number of one platform": (np.longdouble(1), "numpy.longdouble"),
    "an array of them": (np.zeros(2, np.longdouble), "numpy.ndarray"),
    "a matrix": (np.zeros((2, 2)).view(np.matrix), "numpy.matrix"),
    "a masked array": (np.ma.zeros(2), "MaskedArray"),
    "a lone surrogate": ("caf\udce9", "lone surrogate"),
    "too many digits": (1 << 20000, "integer of 20001 bits"),
    "one digit too many": (-(10**4300), "integer of 14285 bits"),
}


@pytest.mark.parametrize(("value", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_plain_data_is_named(value: Any, text: str) -> None:
    for place, state in {
        "the state": value,
        "the state['a'][1]['b']": {"a": [0, {"b": value}]},
        "the state[2][0]": (0, 1, OrderedDict([(0, value)])),
    }.items():
        with pytest.raises(RefusedError) as caught:
            encode_value(state, "the state")
        assert caught.value.message.startswith(f"{place} ")
        assert text in caught.value.message
        assert caught.value.hint


@pytest.mark.parametrize("value", [frozenset({Own}), {Own: 1}, {"caf\udce9": 1}, {(1, Own): 2}])
def test_keys_and_members_are_named_too(value: Any) -> None:
    with pytest.raises(RefusedError, match=r"v\['x'\]"):
        encode_value({"x": value}, "v")


@pytest.mark.parametrize("keys", [("a", 1 << 64), (-(1 << 63) - 1,), ("caf\udce9",)])
def test_a_container_with_an_impossible_key_is_refused(keys: tuple[str | int, ...]) -> None:
    with pytest.raises(RefusedError, match=r"^the state"):
        encode_value(Container("dict", keys), "the state")


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RefusedError, match="nested deeper"):
        encode_value(endless, "v")


def nested(depth: int, innermost: Any) -> Any:
    value = innermost
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded_alike_on_both_sides() -> None:
    survives(nested(VALUE_DEPTH_MAX, 1))
    with pytest.raises(RefusedError, match="nested deeper"):
        encode_value(nested(VALUE_DEPTH_MAX + 1, 1), "v")
    spelled: Any = 1
    for _ in range(VALUE_DEPTH_MAX + 1):
        spelled = ["l", spelled]
    with pytest.raises(IntegrityError, match="nested deeper"):
        decode_value(encode(spelled), "v")


# --- Bytes that lie -----------------------------------------------------------------------------

BIG = 1 << 62
LIES: list[Any] = [
    # no tag, no such tag, a tag of another type
    [], ["x"], ["L"], ["l "], [None], [1, 2], [["l"], 1], [b"l", 1], ["_read"], ["numpy.ndarray", "<f4", [1], b"1234"],
    # foreign types
    {}, {"a": 1}, ["l", {"a": 1}], 1 << 63, (1 << 64) - 1, ["l", 1 << 63],
    # number and type of items
    ["d", 1], ["od", 1, 2, 3], ["ctr", 1], ["d", ["l"], 1], ["d", ["d"], 1], ["set", ["l"]], ["fset", ["set"]],
    ["int"], ["int", 5], ["int", 5.5], ["int", None], ["int", "1", 16], ["int", b"99999999999999999999"],
    ["c"], ["c", 1.0], ["c", 1, 2], ["c", "1+2j"], ["c", 1.0, 2.0, 3.0], ["c", True, 1.0], ["c", ["c", 1.0, 1.0], 1.0],
    ["ba"], ["ba", 1 << 40], ["ba", BIG], ["ba", -1], ["ba", "x", "utf-8"], ["ba", "x"], ["ba", ["l", 1]],
    ["ba", b"", 1], ["io"], ["io", None], ["io", 3], ["io", "x"], ["io", b"", b""], ["io", ["ba", b""]],
    ["sym"], ["sym", "dtype"], ["sym", 1, 2], ["sym", "dtype", "x", "y"], ["sym", "dtype", None],
    ["box"], ["box", 1], ["box", None, "a"], ["box", "dict", 1.5], ["box", "dict", ["l"]], ["box", "dict", True],
    ["box", "dict", "a", "a"], ["box", "dict", 1 << 63], ["l", ["box", "dict", "a"]], ["t", ["box", "list", 0]],
    # second spellings
    ["int", "1"], ["int", "9223372036854775807"], ["int", "09223372036854775808"], ["int", "+9223372036854775808"],
    ["int", " 9223372036854775808"], ["int", "9_223372036854775808"], ["int", "-0"], ["int", ""], ["int", "９" * 30],
    ["int", "1" * 5000], ["int", "9223372036854775808.0"], ["int", "0x" + "f" * 20],
    ["set", 2, 1], ["fset", "b", "a"], ["set", 1, 1], ["set", 1, True], ["fset", 1, ["np", "|u1", b"\1"]],
    ["d", 1, 2, 1, 3], ["d", 1, 2, True, 3], ["od", "a", 1, "a", 1],
    # arrays
    ["np"], ["np", "<f4"], ["np", "<f4", b""], ["np", "<f4", b"123"], ["np", "<f4", b"12345678"],
    ["np", "<f4", b"1234", 1], ["np", "O", bytes(8)], ["np", "|O", bytes(8)], ["np", "object", bytes(8)],
    ["np", None, bytes(8)], ["np", "", b""], ["np", "f8", bytes(8)], ["np", ">f8", bytes(8)], ["np", "=f8", bytes(8)],
    ["np", "float64", bytes(8)], ["np", "<f16", bytes(16)], ["np", "<c32", bytes(32)], ["np", "<M8[s]", bytes(8)],
    ["np", "<U1", bytes(4)], ["np", "|S1", b"a"], ["np", "|V1", b"a"], ["np", "i4,f4", bytes(8)],
    ["np", [["l"]], bytes(8)], ["np", "<f4", "1234"], ["nd"], ["nd", "<f4", [1]], ["nd", "<f4", [1], b"1234", 0],
    ["nd", "O", [1], bytes(8)], ["nd", "|O", [0], b""], ["nd", "(2,)<f4", [1], bytes(8)], ["nd", "<f4", [2], b"1234"],
    ["nd", "<f4", [1], b"12345678"], ["nd", "<f4", [], b""], ["nd", "<f4", [-1], b"1234"],
    ["nd", "<f4", [-1, -1], b"1234"], ["nd", "<f4", [1.0], b"1234"], ["nd", "<f4", [True], b"1234"],
    ["nd", "<f4", 1, b"1234"], ["nd", "<f4", None, b"1234"], ["nd", "<f4", "1", b"1234"],
    ["nd", "<f4", [[1]], b"1234"], ["nd", "<f4", [BIG, BIG], b""], ["nd", "<f4", [0, BIG, BIG], b""],
    ["nd", "<f4", [0, (1 << 64) - 1], b""], ["nd", "<f4", [0, 1 << 61], b""], ["nd", "|u1", [1] * 65, b"1"],
    ["nd", "|u1", [(1 << 64) - 1] * 200_000, b"1"], ["nd", "<f4", [1], "1234"],
]  # fmt: skip


@pytest.mark.parametrize("plain", LIES, ids=range(len(LIES)))
def test_bytes_that_are_no_value_are_damage(plain: Any) -> None:
    for spelled in (plain, ["l", 1, ["d", "a", plain]]):
        with pytest.raises(IntegrityError, match=r"^value x does not decode"):
            decode_value(encode(spelled), "value x")


SPELLED_OTHERWISE = {
    "a longer integer": b"\xcc\x01",
    "a signed integer": b"\xd0\x01",
    "a short float": b"\xca\x3f\x80\x00\x00",
    "a longer string": b"\xd9\x01a",
    "a longer list": b"\xdc\x00\x02\xa1l\x01",
    "a map": b"\x81\xa1a\x01",
    "a map out of order": b"\x82\xa1b\x01\xa1a\x01",
    "a time stamp": b"\xd6\xff\x00\x00\x00\x00",
    "an extension": b"\xd4\x05a",
    "an extension in a list": b"\x92\xa1l\xd4\x05a",
    "no byte": b"",
    "two values": b"\x01\x01",
    "a cut one": b"\x92\xa1l",
    "a string that is no text": b"\xa1\xff",
    "a reserved byte": b"\xc1",
    "a list of four thousand million items": b"\xdd\xff\xff\xff\xff",
    "such lists in each other": b"\xdd\xff\xff\xff\xff\xa1l" * 500,
    "such a map": b"\xdf\xff\xff\xff\xff",
    "such bytes": b"\xc6\xff\xff\xff\xff",
    "a depth bomb": b"\x91" * 100_000,
    "a depth bomb that ends": b"\x92\xa1l" * 990 + b"\xc0",
    "a short depth bomb": b"\x92\xa1t" * (VALUE_DEPTH_MAX + 1) + b"\xc0",
    "a depth bomb of keys": b"\x93\xa1d" * 300 + b"\xc0" + b"\xc0" * 300,
}


@pytest.mark.parametrize("data", SPELLED_OTHERWISE.values(), ids=SPELLED_OTHERWISE)
def test_bytes_that_are_not_canonical_are_damage(data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"^value x does not decode"):
        decode_value(data, "value x")


def check_hostile(data: bytes) -> None:
    """Either a value whose one spelling this is, or damage."""
    try:
        found = decode_value(data, "v")
    except IntegrityError:
        return
    assert encode_value(found, "v") == data


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_any_bytes_are_a_value_or_damage(data: bytes) -> None:
    check_hostile(data)


tags = st.sampled_from(["l", "t", "d", "od", "ctr", "set", "fset", "int", "c", "ba", "io", "np", "nd", "sym", "box"])
atoms = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=3),
    st.binary(max_size=8), st.sampled_from(["<f4", "|b1", "|O", "9223372036854775808", "-1", "dtype"]),
)  # fmt: skip
spelled_values = st.recursive(
    atoms, lambda inner: st.builds(lambda tag, items: [tag, *items], tags | atoms, st.lists(inner, max_size=4))
    | st.lists(inner, max_size=3), max_leaves=12,
)  # fmt: skip


@given(spelled_values)
@settings(max_examples=500)
def test_anything_under_known_tags_is_a_value_or_damage(plain: Any) -> None:
    check_hostile(encode(plain))


@given(values, st.data())
def test_a_changed_byte_is_another_value_or_damage(value: Any, data: st.DataObject) -> None:
    changed = bytearray(encode_value(value, "v"))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    check_hostile(bytes(changed))


def test_what_is_read_shares_nothing_with_the_bytes() -> None:
    data = encode_value([np.zeros(3), bytearray(b"abc")], "v")
    first, second = decode_value(data, "v"), decode_value(data, "v")
    first[0][:], first[1][:] = 1, b"xyz"
    assert form(second) == form([np.zeros(3), bytearray(b"abc")])
    assert msgspec.msgpack.decode(data)[1][0] == "nd"
