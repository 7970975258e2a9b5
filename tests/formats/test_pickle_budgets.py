"""Small pickles that want to become large ones."""

import pickle
import struct
import time
import tracemalloc
from typing import Any

import pytest
import torch

from cairn.core.limits import KIB, MIB, PICKLE_DEPTH_MAX
from cairn.formats import pickle_machine, pickle_reader
from cairn.formats.pickle_values import FrozenKey, Name
from tests.formats.pickle_making import HEAD, glob, read, refusal, tensor, text

LIST_TWICE = b"](h%bh%beq%b"


def bomb(step: bytes = LIST_TWICE, levels: int = 30) -> bytes:
    """Pushes one value of 2**levels leaves: each level is stored in the memo, dropped, and used twice by the next."""
    stored = b"".join(step % (bytes([i]), bytes([i]), bytes([i + 1])) + b"0" for i in range(levels))
    return b"]q\x000" + stored + b"h" + bytes([levels])


def test_X05_memo_bomb_of_lists() -> None:
    program = HEAD + bomb() + b"."
    assert len(program) < 320
    start = time.perf_counter()
    assert "memo bomb" in refusal(program)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("step", [b"h%bh%b\x86q%b", b"}(K\x00h%bK\x01h%buq%b", b"(h%bh%btq%b"])
def test_X05_memo_bomb_of_other_containers(step: bytes) -> None:
    assert "memo bomb" in refusal(HEAD + bomb(step) + b".")


def test_X05_bomb_as_a_state_or_key() -> None:
    assert "memo bomb" in refusal(HEAD + glob("numpy.dtype") + b")R" + bomb() + b"b.")
    assert "cannot be a key" in refusal(HEAD + b"}" + bomb(b"h%bh%b\x86q%b") + b"Ns.")


def test_X05_bomb_that_frees_a_tensor_a_billion_times() -> None:
    leaf = bomb().replace(b"]q\x000", tensor() + b"q\x000", 1)
    assert "memo bomb" in refusal(HEAD + leaf + b".")


def test_X05_record_changed_after_it_became_a_key() -> None:
    """The key's text was taken before its state was set, so the state is walked on its own."""
    nest = b"]" * 250 + b"a" * 249
    record_ = glob("numpy.dtype") + b")Rq\x000"
    for container in (b"}h\x00Nsq\x010", b"\x8f(h\x00\x90q\x010", b"(h\x00\x91q\x010"):
        assert "nests deeper" in refusal(HEAD + record_ + container + b"h\x00" + nest + b"b0h\x01.")
        assert read(HEAD + record_ + container + b"h\x00]b0h\x01.")


def test_X05_recursion() -> None:
    assert "contains itself" in refusal(HEAD + b"]q\x00h\x00a.")
    assert "contains itself" in refusal(HEAD + b"}q\x00K\x00h\x00s.")
    assert "contains itself" in refusal(HEAD + b"]q\x00](h\x00ea.")
    assert "contains itself" in refusal(HEAD + glob("numpy.dtype") + b")Rq\x00h\x00b.")
    itself: list[Any] = []
    itself.append((itself,))
    for protocol in range(2, 6):
        assert "contains itself" in refusal(pickle.dumps(itself, protocol))


def test_X05_depth() -> None:
    nested: Any = 1
    for _ in range(PICKLE_DEPTH_MAX):
        nested = [nested]
    assert read(pickle.dumps(nested, 4)) == nested
    assert "nests deeper" in refusal(pickle.dumps([nested], 4))
    assert "nests deeper" in refusal(HEAD + b"(" * (PICKLE_DEPTH_MAX + 1))
    # Deep without a single mark; freeing it must not overflow the stack either.
    assert "nests deeper" in refusal(HEAD + b"N" + b"\x85" * 1_000_000 + b".")


def test_X05_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_machine, "PICKLE_OPS_MAX", 10)
    assert "more than 10 operations" in refusal(HEAD + b"N0" * 10 + b"N.")
    monkeypatch.setattr(pickle_reader, "PICKLE_BYTES_MAX", 10)
    assert "over the limit of 10" in refusal(HEAD + b"N0" * 10 + b"N.")


@pytest.mark.parametrize(
    "unit",
    [
        b"N", b"]", b"}", b"\x8f", b")\x85", b"K\x00\x85", b"J\x00\x01\x00\x00", b"G12345678", b"X\x00\x00\x00\x00",
        b"X\x04\x00\x00\x00\xf0\x9f\x98\x80", b"C\x01x", b"]Na", b"}NNs", b"N\x94", b"\x8f(N\x90", b"h\x00)R",
        b"h\x01)R}b", b"h\x02" + text("cpu") + b"\x85R",
    ],
)  # fmt: skip
def test_X05_memory_stays_near_the_budget(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The price list is honest: no spelling takes half as much again as it was charged."""
    budget = 2 * MIB
    monkeypatch.setattr("cairn.formats.pickle_run.OBJECT_BYTES_MAX", budget)
    setup = b"\x80\x04(" + b"".join(
        glob(n) + b"\x94" for n in ("collections.OrderedDict", "numpy.dtype", "torch.device")
    )
    program = setup + unit * (budget // 8 // len(unit) + 1)
    tracemalloc.start()
    try:
        refusal(program)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < budget * 1.5 + 64 * KIB


def test_X05_repeated_copies_are_charged() -> None:
    """A tuple of 100,000 entries, made into a set again and again."""
    big = b"(" + b"K\x00" * 100_000 + b"t\x94"
    for name in ("builtins.set", "builtins.frozenset"):
        program = b"\x80\x04" + big + glob(name) + b"\x94(" + b"h\x01h\x00\x85R" * 100_000 + b"t\x86."
        start = time.perf_counter()
        assert "bytes of objects" in refusal(program)
        assert time.perf_counter() - start < 10
    word = b"X" + struct.pack("<I", MIB) + b"x" * MIB + b"\x94"
    encode = (
        b"\x80\x04"
        + word
        + glob("_codecs.encode")
        + b"\x94"
        + text("latin1")
        + b"\x94("
        + b"h\x01h\x00h\x02\x86R" * 100_000
        + b"t."
    )
    assert "bytes of objects" in refusal(encode)
    keys = b"\x80\x04" + word + b"}(" + b"h\x00\x85N" * 100_000 + b"u\x86."
    assert "cannot be a key" in refusal(keys)


def test_X05_keys_that_collide_in_python() -> None:
    """Tuples of integers hash alike in every process, so a file could choose them to be slow; ours hash as texts."""
    value = {(i, ("a", None, 1.5, b"x", True)): i for i in range(100)} | {(torch.float32, (1,)): 0}
    result = read(pickle.dumps(value, 4))
    assert all(isinstance(key, FrozenKey) for key in result)
    assert {key.value for key in result} == {*list(value)[:-1], (Name("torch.float32"), (1,))}
    # Its hash is that of a text, which differs from process to process.
    assert hash(FrozenKey((1, 2), "(1 2)")) == hash(FrozenKey(None, "(1 2)")) != hash((1, 2))
