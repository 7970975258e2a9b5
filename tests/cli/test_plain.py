"""Plain data on a line, and as JSON."""

import io
import json
import math
from typing import Any

import numpy as np
import pytest

from cairn.cli.plain import as_json, dotted, shortened, shown, shown_pair
from cairn.manifests.values import Container, Symbol

VALUES = [
    (None, None, "none"),
    (True, True, "true"),
    (3, 3, "3"),
    (0.1, 0.1, "0.1"),
    (0.009755282581475767, 0.009755282581475767, "0.00975528"),
    (math.inf, "inf", "inf"),
    ("word", "word", "word"),
    ("", "", '""'),
    (" padded", " padded", '" padded"'),
    ("one\ntwo\n", "one\ntwo\n", "2 lines"),
    ("one\n", "one\n", "1 line"),
    (b"abc", {"bytes": 3}, "3 bytes"),
    (bytearray(b"ab"), {"bytes": 2}, "2 bytes"),
    (io.BytesIO(b"a"), {"bytes": 1}, "1 byte"),
    (complex(1, math.nan), [1.0, "nan"], '[1.0, "nan"]'),
    ((1, [2, None]), [1, [2, None]], "[1, [2, null]]"),
    ({"a": 1}, {"a": 1}, '{"a": 1}'),
    ({1: "a", "b": 2}, [[1, "a"], ["b", 2]], '[[1, "a"], ["b", 2]]'),
    ({3, 1}, [1, 3], "[1, 3]"),
    (np.float32(0.5), 0.5, "0.5"),
    (np.zeros((2, 3), np.int16), {"array": "int16", "shape": [2, 3]}, "int16[2, 3]"),
    (Symbol("dtype", "bfloat16"), "bfloat16", '"bfloat16"'),
    (Container("ranks", ("rank=0", 1)), {"container": "ranks", "keys": ["rank=0", 1]}, "ranks of rank=0, 1"),
    (Container("names", ()), {"container": "names", "keys": []}, "names of nothing"),
]


@pytest.mark.parametrize(("value", "form", "words"), VALUES, ids=lambda value: type(value).__name__)
def test_every_kind_of_value(value: Any, form: Any, words: str) -> None:
    assert as_json(value) == form and type(as_json(value)) is type(form)
    assert json.loads(json.dumps(as_json(value), allow_nan=False)) == form
    assert shown(value) == words


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (1, 2, "1 -> 2"),
        (0.1234567, 0.1234568, "0.1234567 -> 0.1234568"),
        (1, 1.0, "1 -> 1.0"),
        ([1], (1,), "[1] -> others"),
        ("1", 1, "'1' -> 1"),
        (b"a", b"b", "1 byte -> others"),
        ("a\nb", "a\nc", "'a\\nb' -> 'a\\nc'"),
    ],
)
def test_two_values_that_differ_look_different(old: Any, new: Any, words: str) -> None:
    assert shown_pair(old, new) == words


def test_long_values_are_shown_where_they_begin_to_differ() -> None:
    old, new = "x" * 200 + "old" + "y" * 200, "x" * 200 + "new" + "y" * 200
    before, after = shown_pair(old, new).split(" -> ")
    assert before.startswith("..." + "x" * 16 + "old") and after.startswith("..." + "x" * 16 + "new")
    assert len(before) == len(after) == 72 + 6
    assert shown_pair("x" * 100, "x" * 101).endswith("xxxxxxxxx")
    assert shortened("x" * 100) == "x" * 72 + "..."


def test_paths_read_as_they_are_written_in_configurations() -> None:
    assert dotted(("optimizer", "betas", 0)) == "optimizer.betas[0]"
    assert dotted((1, "a")) == "[1].a" and dotted(()) == ""
