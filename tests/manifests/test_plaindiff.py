"""Plain data compared item by item."""

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.manifests.plaindiff import ItemChange, diff_plain
from cairn.manifests.values import encode_value

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4)
KEYS = st.text(max_size=3) | st.integers(0, 3)
PLAIN = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=4) | st.dictionaries(KEYS, below, max_size=4), max_leaves=12
)


def found(old: Any, new: Any) -> dict[tuple[str | int, ...], tuple[str, Any, Any]]:
    return {one.path: (one.kind, one.old, one.new) for one in diff_plain(old, new)}


def test_dicts_are_compared_by_key_at_any_depth() -> None:
    old = {"lr": 0.1, "model": {"dim": 64, "layers": 4}, "gone": {"a": 1}, "same": [1, 2]}
    new = {"lr": 0.2, "model": {"dim": 64, "layers": 8}, "same": [1, 2], "extra": None}
    assert found(old, new) == {
        ("extra",): ("added", None, None),
        ("gone",): ("removed", {"a": 1}, None),
        ("lr",): ("changed", 0.1, 0.2),
        ("model", "layers"): ("changed", 4, 8),
    }
    assert [one.path for one in diff_plain(old, new)] == sorted(found(old, new))


def test_sequences_are_compared_by_position_by_name_or_as_a_whole() -> None:
    assert found([1, 2, 3], [1, 5, 3]) == {(1,): ("changed", 2, 5)}
    assert found((1, 2), (1, 2, 3)) == {(): ("changed", (1, 2), (1, 2, 3))}
    assert found([], [1]) == {(): ("changed", [], [1])}
    named = [{"name": "a", "size": 1}, {"name": "b", "size": 2}]
    assert found(named, [{"name": "c", "size": 3}, {"name": "a", "size": 7}]) == {
        ("a", "size"): ("changed", 1, 7),
        ("b",): ("removed", named[1], None),
        ("c",): ("added", None, {"name": "c", "size": 3}),
    }
    twice = [{"name": "a", "size": 1}, {"name": "a", "size": 2}]
    assert found(twice, [twice[0], {"name": "a", "size": 3}]) == {(1, "size"): ("changed", 2, 3)}
    assert found(named, [1, 2]) == {(): ("changed", named, [1, 2])}


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, 1.0), (1, True), (0.0, -0.0), ("1", 1), (b"a", "a"), ([1], (1,)), ({"a": 1}, OrderedDict(a=1))],
)
def test_what_only_looks_alike_differs(old: Any, new: Any) -> None:
    (one,) = diff_plain(old, new)
    assert (one.path, one.kind) == ((), "changed")
    assert diff_plain({"x": old}, {"x": new})[0].path == ("x",)


def test_the_order_of_keys_is_told_where_nothing_else_differs() -> None:
    (one,) = diff_plain({"x": {"a": 1, "b": 2}}, {"x": {"b": 2, "a": 1}})
    assert (one.path, one.note) == (("x",), "the same items in another order or kind of container")
    assert len(diff_plain({"a": 1, "b": 2}, {"b": 3, "a": 1})) == 1


def test_equal_is_equal_in_every_bit() -> None:
    value = {"nan": math.nan, "array": np.arange(3), "set": {1, 2}, "bytes": b"x"}
    assert diff_plain(value, {**value, "array": np.arange(3)}) == []
    assert found(value, {**value, "array": np.arange(1, 4)}).keys() == {("array",)}


def test_a_caller_says_what_is_one_item() -> None:
    (one,) = diff_plain({"span": [0, 1]}, {"span": [0, 2]}, whole=lambda value: isinstance(value, list))
    assert one == ItemChange(("span",), "changed", [0, 1], [0, 2])


@given(PLAIN, PLAIN)
def test_there_is_a_difference_exactly_if_the_encodings_differ(old: Any, new: Any) -> None:
    changes = diff_plain(old, new)
    assert (changes == []) == (encode_value(old, "it") == encode_value(new, "it"))
    paths = [one.path for one in changes]
    assert len(set(paths)) == len(paths)
