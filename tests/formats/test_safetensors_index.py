"""Indexes of split checkpoints: names in, plain file names out."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.core.errors import BadInput
from cairn.core.limits import NAME_BYTES_MAX
from cairn.formats import safetensors_index
from cairn.formats.safetensors_index import parse_index


def test_index_maps_tensors_to_files() -> None:
    weights = {"b.weight": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors", "ü": "ü x.bin"}
    index = {"metadata": {"total_size": 1.5e10, "nested": [{"a": ']}\\"'}, None, True]}, "weight_map": weights, "z": -1}
    for text in (json.dumps(index), json.dumps(index, indent=2, ensure_ascii=False), f" \n{json.dumps(index)}\n "):
        assert parse_index(text.encode()) == weights
        assert list(parse_index(text.encode())) == list(weights)


def test_T20_empty_index() -> None:
    assert parse_index(b'{"weight_map": {}}') == {}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("../x", "is a path"),
        ("a/x.safetensors", "is a path"),
        ("/etc/passwd", "is a path"),
        ("..", "not the name of a file"),
        (".", "not the name of a file"),
        ("", "not the name of a file"),
        ("..\\x", "backslash"),
        ("\\\\host\\x", "backslash"),
        ("C:x", "names a drive"),
        ("x\0.safetensors", "NUL or another control"),
        ("x\n", "NUL or another control"),
        ("x" * 256, "at most 255 bytes"),
    ],
)
def test_X17_files_stay_in_the_folder(file: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_index(json.dumps({"weight_map": {"a": file}}).encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "must start with '{', not a list"),
        (b"{}", "no 'weight_map'"),
        (b'{"weight_map":[]}', "must start with '{', not a list"),
        (b'{"weight_map":{"a":1}}', "'a': its file must be a string, not the number"),
        (b'{"weight_map":{"a":null}}', "its file must be a string"),
        (b'{"weight_map":{"a":{"b":"c"}}}', "its file must be a string, not an object"),
        (b'{"weight_map":{"a":"x","a":"x"}}', "duplicate tensor name 'a'"),
        (b'{"weight_map":{"a":"x","\\u0061":"y"}}', "duplicate tensor name 'a'"),
        (b'{"weight_map":{},"weight_map":{}}', "duplicate key 'weight_map'"),
        (b'{"weight_map":{}', "not JSON"),
        (b'{"weight_map":{}} x', "not JSON"),
        (b'{"weight_map":{},"m":[,]}', "not JSON"),
        (b'{"weight_map":{},"m":NaN}', "not JSON"),
        (b'{"weight_map":{"a":"\xff"}}', "not UTF-8"),
        (b'{"weight_map":{"\\ud800":"x"}}', "surrogate|not JSON"),
        (b'{"m":' + b"[" * 100_000 + b"]" * 100_000 + b',"weight_map":{}}', "too deeply"),
        (b"{" + b",".join(b'"%d":0' % i for i in range(2000)) + b"}", "more than 1024 keys"),
        (json.dumps({"weight_map": {"x" * (NAME_BYTES_MAX + 1): "x"}}).encode(), "a name has at most"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
    ],
)
def test_index_defects(text: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        parse_index(text)
    assert caught.value.hint


def test_index_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_index, "INDEX_BYTES_MAX", 10)
    with pytest.raises(BadInput, match="over the limit of 10"):
        parse_index(b'{"weight_map":{}}')


@settings(max_examples=300)
@given(st.data())
def test_index_mutations(data: st.DataObject) -> None:
    text = b'{"metadata":{"total_size":8,"x":["]"]},"weight_map":{"a":"m-1.bin","b":"m-2.bin"}}'
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.binary(max_size=3)) + text[at + data.draw(st.integers(0, 5)) :]
    try:
        result = parse_index(text)
    except BadInput:
        return
    assert result == json.loads(text)["weight_map"]
