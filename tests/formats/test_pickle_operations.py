"""Operations touch only their own types, views stay inside their storages, and damage is an error."""

import pickle
import struct

import pytest
import torch

from cairn.core.errors import BadInput
from cairn.formats.pickle_reader import read_pickle
from cairn.formats.pickle_torch import TORCH
from tests.formats.pickle_making import HEAD, glob, read, refusal, storage, tensor, text


def test_X14_rules_check_their_arguments() -> None:
    names = [name for name, rule in TORCH.items() if rule.call is not None]
    odd = [
        b")",
        b"N\x85",
        b"K\x01\x85",
        b"]\x85",
        b"}\x85",
        text("x") + b"\x85",
        b"NNN\x87",
        b"(NNNNt",
        b"(NNNNNNt",
        b"(NNNNNNNt",
        b"(NNNNNNNNt",
    ]
    for name in names:
        for arguments in odd:
            try:
                read(HEAD + glob(name) + arguments + b"R.")
            except BadInput:
                continue


# --- Tensors stay inside their storages ---------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (tensor(b"K\x01"), "reaches byte 20 of a storage of 4 float32"),
        (tensor(b"\x8a\x09" + (1 << 64).to_bytes(9, "little")), "larger than any tensor"),
        (tensor(b"J\xff\xff\xff\xff"), "a negative offset or stride"),
        (tensor(strides=b"J\xff\xff\xff\xff\x85"), "a negative offset or stride"),
        (tensor(strides=b"K\x02\x85"), "reaches byte 28"),
        (tensor(shape=b"K\x05\x85"), "reaches byte 20"),
        (tensor(shape=b"J\xff\xff\xff\xff\x85"), "not a whole number from 0 up"),
        (
            tensor(shape=b"(" + b"J\x00\x00\x00\x40" * 4 + b"t", strides=b"(K\x00K\x00K\x00K\x00t"),
            "larger than any tensor",
        ),
        (tensor(shape=b"K\x02K\x02\x86"), "2 dimensions but 1 strides"),
        (tensor(shape=b"\x88\x85"), "tuples of integers"),
        (tensor(shape=b"G" + struct.pack(">d", 4.0) + b"\x85"), "tuples of integers"),
        (tensor(shape=b"]"), "tuples of integers"),
        (tensor(shape=b"(" + b"K\x01" * 65 + b"t", strides=b"(" + b"K\x01" * 65 + b"t"), "tuples of integers"),
        (tensor(offset=b"\x88"), "storage, offset, shape and strides"),
        (tensor(ref=b"N"), "storage, offset, shape and strides"),
        (tensor(shape=b"K\x00\x85", offset=b"K\x05"), "reaches byte 20"),
        (tensor(ref=storage(elements=b"\x88")), "not a whole number"),
        (tensor(ref=storage(elements=b"J\xff\xff\xff\xff")), "not a whole number"),
        (tensor(ref=storage("float32")), "not that of a torch storage"),
        (tensor(ref=b"(" + text("module") + b"NNNNtQ"), "not that of a torch storage"),
        (tensor() + storage(elements=b"K\x05") + b"\x86", "two different types or sizes"),
        (tensor() + storage("IntStorage") + b"\x86", "two different types or sizes"),
    ],
)
def test_X14_views_lie_inside_their_storage(program: bytes, message: str) -> None:
    assert message in refusal(HEAD + program + b".")


def test_X14_persistent_references_need_a_meaning() -> None:
    with pytest.raises(BadInput, match="means nothing here"):
        read_pickle(HEAD + storage() + b".", TORCH)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"NK\x01K\x02s.", "sets items of a NoneType"),
        (b")K\x01K\x02s.", "sets items of a tuple"),
        (b"](K\x01K\x02u.", "sets items of a list"),
        (tensor() + b"K\x01K\x02s.", "sets items of a TensorRef"),
        (glob("torch.float32") + b"K\x01K\x02s.", "sets items of a Name"),
        (b"}K\x01a.", "appends to a dict"),
        (b")(K\x01e.", "appends to a tuple"),
        (tensor() + b"K\x01a.", "appends to a TensorRef"),
        (b"](K\x01\x90.", "adds members to a list"),
        (b"}(K\x01u.", "sets a key without a value"),
        (b"}]K\x01s.", "a list like this one cannot be a key"),
        (b"}}K\x01s.", "a dict like this one cannot be a key"),
        (b"}" + tensor() + b"K\x01s.", "a TensorRef like this one cannot be a key"),
        (b"}]\x85K\x01s.", "a tuple like this one cannot be a key"),
        (b"\x8f(]\x90.", "cannot be a key or a member of a set"),
        (b"(]\x91.", "cannot be a key or a member of a set"),
        (b"]}b.", "sets the state of a list"),
        (b"}]b.", "sets the state of a dict"),
        (tensor() + b"}b.", "sets the state of a TensorRef"),
        (glob("torch.Tensor") + b"}b.", "sets the state of a Name"),
        (glob("numpy.dtype") + b")R}b}b.", "sets the state of a Record"),
    ],
)
def test_X14_operations_only_on_their_own_types(program: bytes, message: str) -> None:
    assert message in refusal(HEAD + program)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"", "ends inside an operation that needs 1 bytes"),
        (b"\x80", "ends inside an operation that needs 1 bytes"),
        (b"N.", "not a pickle of protocol 2 to 5"),
        (b"\x80\x01N.", "not a pickle of protocol"),
        (b"\x80\x06N.", "not a pickle of protocol"),
        (b"\x80\x02", "ends before its STOP"),
        (b"\x80\x02N", "ends before its STOP"),
        (b"\x80\x02.", "does not leave exactly one value"),
        (b"\x80\x02NN.", "does not leave exactly one value"),
        (b"\x80\x02(N.", "does not leave exactly one value"),
        (b"\x80\x02N.x", "is followed by 1 bytes"),
        (b"\x80\x02N.\x80\x02N.", "is followed by 4 bytes"),
        (b"\x80\x02N\x80\x02.", "uses opcode 0x80"),
        (b"\x80\x02\xff.", "uses opcode 0xff"),
        (b"\x80\x02I1\n.", "uses opcode 0x49"),
        (b"\x80\x02(cos\nsystem\no.", "closed list"),
        (b"\x80\x02(ios\nsystem\n.", "uses opcode 0x69"),
        (b"\x80\x02(o.", "uses opcode 0x6f"),
        (b"\x80\x02\x82\x01.", "uses opcode 0x82"),
        (b"\x80\x02Px\n.", "uses opcode 0x50"),
        (b"\x80\x05\x97.", "uses opcode 0x97"),
        (b"\x80\x02K", "ends inside an operation"),
        (b"\x80\x02J\x00\x00", "ends inside an operation that needs 4 bytes"),
        (b"\x80\x02X\xff\xff\xff\xffx.", "ends inside an operation that needs 4294967295 bytes"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b".", "ends inside an operation"),
        (b"\x80\x04\x95" + b"\xff" * 8 + b".", "ends inside a frame"),
        (b"\x80\x02\x8b\xff\xff\xff\xff.", "has an integer of 4294967295 bytes"),
        (b"\x80\x02\x8a\x81" + bytes(0x81) + b".", "has an integer of 129 bytes"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "not UTF-8"),
        (b"\x80\x02X\x03\x00\x00\x00\xed\xa0\x80.", "not UTF-8"),
        (b"\x80\x02ccollections", "without a line end"),
        (b"\x80\x02c" + b"x" * 600 + b"\n\n.", "too long a name"),
        (b"\x80\x02c\xff\n\n.", "not UTF-8"),
        (b"\x80\x04NN\x93.", "by something else than text"),
        (b"\x80\x02a.", "takes more from the stack"),
        (b"\x80\x02Na.", "takes more from the stack"),
        (b"\x80\x02\x86.", "takes more from the stack"),
        (b"\x80\x020.", "takes more from the stack"),
        (b"\x80\x02R.", "takes more from the stack"),
        (b"\x80\x02Q.", "takes more from the stack"),
        (b"\x80\x02N(a.", "takes more from the stack"),
        (b"\x80\x02N(\x85.", "takes more from the stack"),
        (b"\x80\x02N(q\x00.", "takes more from the stack"),
        (b"\x80\x02q\x00.", "takes more from the stack"),
        (b"\x80\x02t.", "closes a group"),
        (b"\x80\x02Nu.", "closes a group"),
        (b"\x80\x02h\x00.", "asks for memo entry 0 of 0"),
        (b"\x80\x02j\xff\xff\xff\xff.", "asks for memo entry 4294967295"),
        (b"\x80\x02Nq\x01.", "stores memo entry 1, but the next one is 0"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", "stores memo entry 4294967295"),
        (b"\x80\x02Nq\x00q\x00.", "stores memo entry 0, but the next one is 1"),
        (b"\x80\x02}\x8a\x09" + bytes(8) + b"\x01Ns.", "an integer key is over 64 bits"),
    ],
)
def test_pickle_defects(program: bytes, message: str) -> None:
    assert message in refusal(program)


def test_pickle_pops() -> None:
    assert read(HEAD + b"NK\x010.") is None
    assert read(HEAD + b"N(K\x01K\x021.") is None
    assert read(HEAD + b"N(0.") is None


def test_pickle_every_truncation_is_refused() -> None:
    program = pickle.dumps({"a": [1, 2.5, "x", b"y", (1, 2), {3}], "b": torch.float32, "c": 2**70}, 4)
    read(program)
    for length in range(len(program)):
        refusal(program[:length])
