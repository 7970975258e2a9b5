"""Group X, misshapen safetensors files: shapes, lengths, ranges, offsets are checked before they are used."""

import os
import random
import struct
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.cases.shell import Shell, peak_mib
from tests.formats.support import safetensors_file
from tests.support.trees import snapshot

PEAK_MIB = 256  # what the reports allow

F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def header(**changes: Any) -> bytes:
    """A file of four bytes whose one entry is changed."""
    return safetensors_file({"w": {**F32, **changes}}, bytes(4))


X03 = {
    "wraps to zero": [1 << 32, 1 << 32], "wraps twice": [1 << 63, 2], "negative": [-1], "two negatives": [-1, -1],
    "float": [1.0],
    "exponent": [1e3], "bool": [True], "text": ["1"], "null": [None], "nested": [[1]], "not a list": 1,
    "huge": [10**400],
    "zero and huge": [0, 1 << 63], "65 dimensions": [1] * 65, "too few": [], "too many": [2],
}  # fmt: skip


@pytest.mark.parametrize("shape", X03.values(), ids=X03)
def test_X03_a_shape_that_does_not_fit_is_refused(shell: Shell, shape: Any) -> None:
    file = header(shape=shape, data_offsets=[0, 0] if shape == [1 << 32, 1 << 32] else [0, 4])
    if shape == []:
        file = header(shape=[], data_offsets=[0, 2])
    good = {"a.safetensors": save({"ok": torch.ones(500)}), "z.safetensors": file}
    assert "z.safetensors" in shell.refused(good)


@pytest.mark.parametrize(
    "length",
    [0, 1, 2, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1, "size", "size - 7", "size - 8"],
)
def test_X22_a_header_length_is_compared_before_it_is_used(shell: Shell, length: int | str) -> None:
    data = save({"w": torch.ones(1000)})
    value = eval(length, {"size": len(data)}) if isinstance(length, str) else length
    error = shell.refused({"m.safetensors": struct.pack("<Q", value) + data[8:]})
    assert "m.safetensors" in error


def test_X22_no_length_takes_memory(shell: Shell) -> None:
    for length in ((1 << 64) - 1, 99_000_000):
        place = shell.tree({"m.safetensors": struct.pack("<Q", length) + b"{}"})
        os.truncate(place / "m.safetensors", 1 << 20)
        done, peak = peak_mib(shell, "commit", place, "m", code=3)
        assert peak < PEAK_MIB and "header" in done.err


X23 = {
    "overlap": ([0, 8], [4, 12], 12), "gap": ([0, 8], [12, 20], 20), "hole at the start": ([4, 12], [12, 20], 20),
    "trailing bytes": ([0, 8], [8, 16], 17), "beyond the end": ([0, 8], [8, 16], 15),
    "the same twice": ([0, 8], [0, 8], 8),
    "inside the other": ([0, 8], [0, 4], 8),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "size"), X23.values(), ids=X23)
@pytest.mark.parametrize("order", [1, -1], ids=["sorted", "unsorted"])
def test_X23_tensors_must_be_the_data_exactly(
    shell: Shell, first: list[int], second: list[int], size: int, order: int
) -> None:
    entries = [
        (name, {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]})
        for name, (begin, end) in (("a", first), ("b", second))
    ]
    error = shell.refused({"m.safetensors": safetensors_file(dict(entries[::order]), bytes(size))})
    assert any(word in error for word in ("overlap", "hole", "trailing", "ends at", "inside")), error


def test_X23_order_in_the_header_is_free(shell: Shell) -> None:
    entries = {
        "b": {"dtype": "U8", "shape": [200], "data_offsets": [200, 400]},
        "a": {"dtype": "U8", "shape": [200], "data_offsets": [0, 200]},
    }
    file = safetensors_file(entries, random.Random(0).randbytes(400))
    shell.commit({"m.safetensors": file})
    assert (shell.back() / "m.safetensors").read_bytes() == file


OFFSETS: list[Any] = [
    [8, 4], [-4, 0], [0.0, 4], ["0", "4"], [0, 4, 8], [0], [], None, {"0": 4}, [True, 4], [0, 1 << 64], [[0], 4],
    [0, -4], "04",
]  # fmt: skip


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_X25_offsets_must_be_two_whole_numbers_in_order(shell: Shell, offsets: Any) -> None:
    error = shell.refused({"m.safetensors": header(data_offsets=offsets)})
    assert "'w'" in error and "m.safetensors" in error


def test_X23_a_refused_file_can_be_kept_as_bytes_on_request(shell: Shell) -> None:
    tree = shell.tree({"m.safetensors": header(shape=[2]), "config.json": b"{}"})
    assert "plain bytes" in shell("commit", tree, "m", code=3).err
    shell.commit(tree, "m", "--opaque")
    assert snapshot(shell.back()) == snapshot(tree)


def test_X23_the_next_step_names_the_option(shell: Shell) -> None:
    assert "--opaque" in shell.refused({"m.safetensors": header(shape=[2])})
