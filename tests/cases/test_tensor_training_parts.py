"""Group T, what a live model holds beside plain tensors: extra state, wrappers, nested tensors, none at all."""

import io
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.cases.slices import numbered
from tests.cases.trees import equal
from tests.support.threads import Fleet, on_each

State = dict[str, Any]


class WithExtra(nn.Module):
    """A layer whose extra state is whatever it is given."""

    def __init__(self, extra: Any) -> None:
        super().__init__()
        self.weight, self.extra, self.calls = nn.Parameter(torch.ones(2)), extra, 0

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra, self.calls = state, self.calls + 1


EXTRAS: dict[str, Callable[[], Any]] = {
    "BytesIO": lambda: io.BytesIO(bytes(range(100))),
    "empty BytesIO": io.BytesIO,
    "none": lambda: None,
    "no bytes": lambda: b"",
    "bytes": lambda: b"\x00\xff" * 50,
    "tensor": lambda: numbered(3, 4),
    "empty tensor": lambda: torch.empty(0, dtype=torch.uint8),
    "list of tensors": lambda: [numbered(2), numbered(3)],
    "dict": lambda: {"scale": numbered(4), "history": [1, 2.5], "blob": io.BytesIO(b"x"), "none": None},
    "bytearray": lambda: bytearray(b"abc"),
    "empty dict": dict,
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_T12_extra_state_of_any_type_comes_back_as_it_was(fleet: Fleet, ranks: int) -> None:
    def states(filled: bool) -> list[State]:
        def model() -> nn.Module:
            return nn.ModuleList([WithExtra(make() if filled else empty(make())) for make in EXTRAS.values()])

        blobs = {name: make() if filled else None for name, make in EXTRAS.items()}
        return [{"model": model(), **blobs} for _ in range(ranks)]

    fleet.save("m", states(True))
    for targets in (states(False), states(False)[:1]):
        fleet.load("m", targets)
        for target in targets:
            for (name, make), part in zip(EXTRAS.items(), target["model"], strict=True):
                assert equal(part.extra, make()) and part.calls == 1, name
                assert equal(target[name], make()), name


def empty(value: Any) -> Any:
    """A template of the same kind: zeros for tensors, nothing for values."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, list):
        return [empty(one) for one in value]
    return {"scale": torch.zeros(4)} if isinstance(value, dict) and value else None


def test_T12_extra_state_that_is_no_data_or_differs_is_refused_by_name(fleet: Fleet) -> None:
    cause = fleet.refused_save("m", [{"model": nn.ModuleList([WithExtra(object())])}])
    assert "model:0._extra_state" in cause and "not plain data" in cause
    cause = fleet.refused_save("m", [{"model": nn.ModuleList([WithExtra(io.BytesIO(b))])} for b in (b"a", b"b")])
    assert "model:0._extra_state differs between ranks 0 and 1" in cause


# --- Tensors by parts ---------------------------------------------------------------------------------


class Packed(torch.Tensor):
    """Four-bit weights as torchao keeps them: packed bytes, and for each group a scale and a zero."""

    PARTS: ClassVar[list[str]] = ["packed", "scale", "zero"]
    packed: torch.Tensor
    block: int

    @staticmethod
    def __new__(cls, parts: dict[str, torch.Tensor], shape: tuple[int, ...], block: int) -> "Packed":
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16)
        for name, part in parts.items():
            setattr(made, name, part)
        made.block = block
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return self.PARTS, (tuple(self.shape), self.block)

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, kept: Any, size: Any, stride: Any) -> "Packed":
        return cls(parts, *kept)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            one = args[0]
            return type(one)({name: getattr(one, name) for name in one.PARTS}, tuple(one.shape), one.block)
        raise NotImplementedError(f"nobody unpacks: {function}")


class Otherwise(Packed):
    """The same parts, which mean something else."""


class WithoutZero(Packed):
    """A unit that lacks a part."""

    PARTS: ClassVar[list[str]] = ["packed", "scale"]


def packed_model(filled: bool, kind: type[Packed] = Packed, block: int = 4) -> nn.Module:
    full = {
        "packed": (numbered(16, 8) % 251).to(torch.uint8), "scale": numbered(4, 2) + 0.5, "zero": -numbered(4, 2),
    }  # fmt: skip
    parts = {name: full[name].clone() * filled for name in kind.PARTS}
    model = nn.Linear(2, 2)
    model.register_parameter("quantized", nn.Parameter(kind(parts, (16, 16), block), requires_grad=False))
    return model


def test_T14_a_wrapper_is_saved_by_its_parts_and_loaded_in_place(fleet: Fleet) -> None:
    fleet.save("m", [{"model": packed_model(True)}])
    entries = {name: (entry.dtype, entry.shape) for name, entry in fleet.entries("m").items()}
    assert entries["model:quantized/packed"] == ("uint8", (16, 8))
    assert entries["model:quantized/scale"] == entries["model:quantized/zero"] == ("float32", (4, 2))
    back = packed_model(False)
    kept = back.quantized.packed
    fleet.load("m", [{"model": back}])
    assert type(back.quantized) is Packed and back.quantized.packed is kept
    for name in Packed.PARTS:
        assert torch.equal(getattr(back.quantized, name), getattr(packed_model(True).quantized, name))


def test_T14_a_wrapper_and_a_plain_tensor_are_not_each_other(fleet: Fleet) -> None:
    plain = nn.Linear(2, 2)
    plain.register_parameter("quantized", nn.Parameter(torch.zeros(16, 16, dtype=torch.bfloat16)))
    fleet.save("packed", [{"model": packed_model(True)}])
    fleet.save("plain", [{"model": plain}])
    cause = fleet.refused_load("packed", [{"model": plain}])
    assert "model:quantized" in cause and "model:quantized/packed" in cause
    assert "model:quantized/packed" in fleet.refused_load("plain", [{"model": packed_model(False)}])


def test_T32_a_unit_without_one_of_its_parts_is_refused(fleet: Fleet) -> None:
    fleet.save("m", [{"model": packed_model(True, WithoutZero)}])
    assert "lacks model:quantized/zero" in fleet.refused_load("m", [{"model": packed_model(False)}])


@pytest.mark.parametrize(("kind", "block"), [(Otherwise, 4), (Packed, 8)], ids=["class", "block size"])
def test_T32_parts_that_mean_something_else_are_refused(fleet: Fleet, kind: type[Packed], block: int) -> None:
    """Side data without which the bytes cannot be read: the class, and what it flattens beside its tensors."""
    fleet.save("m", [{"model": packed_model(True)}])
    target = packed_model(False, kind, block)
    assert "model:quantized" in fleet.refused_load("m", [{"model": target}])
    assert not target.quantized.packed.any(), "nothing was changed"


def test_T32_side_data_in_a_dict_stays_with_its_tensor(fleet: Fleet) -> None:
    unit = {
        "packed": torch.arange(3, dtype=torch.uint8), "absmax": torch.ones(1), "block_size": 64, "shape": [2, 3],
        "dtype": torch.bfloat16, "type": "nf4",
    }  # fmt: skip
    fleet.save("m", [{"w": unit}])
    assert equal(fleet.whole("m", "w")["w"], unit)
    partial = {"w": {**unit, "code": torch.zeros(16)}}
    assert "w:code" in fleet.refused_load("m", [partial])


def jagged(filled: bool, traced: bool) -> torch.Tensor:
    """Rows of one and two elements; a kernel or the tracer lets it remember its longest and shortest row."""
    made = torch.nested.nested_tensor_from_jagged(torch.tensor([1.0, 2.0, 3.0]) * filled, torch.tensor([0, 1, 3]))
    if traced:
        assert (made._max_seqlen, made._min_seqlen) == (2, 1)
    assert (len(made.__tensor_flatten__()[0]) > 2) == traced, "the two kinds differ in what they are made of"
    return made


@pytest.mark.parametrize("after", [False, True], ids=["into a fresh one", "into a traced one"])
@pytest.mark.parametrize("before", [False, True], ids=["fresh", "traced"])
def test_T28_a_jagged_tensor_is_saved_by_its_components(fleet: Fleet, before: bool, after: bool) -> None:
    fleet.save("m", [{"x": jagged(True, before)}])
    target = {"x": jagged(False, after)}
    fleet.load("m", [target])
    assert target["x"].values().tolist() == [1.0, 2.0, 3.0] and target["x"].offsets().tolist() == [0, 1, 3]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
def test_T28_kinds_without_dense_bytes_are_refused_by_name(fleet: Fleet) -> None:
    kinds = {
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.strided),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "mkldnn": torch.ones(2, 2).to_mkldnn(),
    }
    for name, tensor in kinds.items():
        assert f"tensor state:{name}" in fleet.refused_save("m", [{"state": {"fine": torch.ones(2), name: tensor}}])


# --- Tensors without data -------------------------------------------------------------------------------


def test_T29_meta_tensors_are_refused_with_all_their_names(fleet: Fleet) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"), nn.Linear(2, 2))
    model.register_buffer("mask", torch.empty(3, device="meta"))
    cause = fleet.refused_save("m", [{"model": model, "w": torch.ones(4)}])
    assert all(f"model:{name}" in cause for name in ("1.weight", "1.bias", "mask"))
    assert "model:0" not in cause and "model:2" not in cause and "w:~" not in cause


def test_T29_so_are_those_of_a_dict(fleet: Fleet) -> None:
    state = {"real": torch.ones(4), "first": torch.empty(4, device="meta"), "second": torch.empty(2, device="meta")}
    cause = fleet.refused_save("m", [{"state": state}])
    assert "state:first" in cause and "state:second" in cause and "state:real" not in cause


def test_T29_a_rank_whose_part_is_on_meta_ends_the_save_on_all(fleet: Fleet) -> None:
    states = [{"model": nn.Linear(2, 2)}, {"model": nn.Linear(2, 2, device="meta")}]
    cause = fleet.refused_save("m", states)
    assert "model:weight" in cause and "model:bias" in cause
    fleet.save("m", states[:1])
    assert "meta" in fleet.refused_load("m", [{"model": nn.Linear(2, 2, device="meta")}])


class Tiny(nn.Module):
    """Parameters of one element and of few, in a model for many ranks."""

    def __init__(self, filled: bool) -> None:
        super().__init__()
        self.linear, self.scale, self.six = nn.Linear(1, 1), nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(6))
        for number, parameter in enumerate(self.parameters(), start=1):
            with torch.no_grad():
                parameter.copy_((torch.arange(parameter.numel()) + number).reshape(parameter.shape) * float(filled))


def sharded(ranks: int, filled: bool) -> list[State]:
    def rank(number: int) -> State:
        model = Tiny(filled)
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if filled:
            for parameter in model.parameters():
                optimizer.state[parameter] = {"momentum_buffer": parameter.detach() * 2.0}
        return {"model": model, "optimizer": optimizer}

    return on_each(ranks, rank)


@pytest.mark.parametrize("source", [4, 1])
def test_T26_ranks_without_data_contribute_nothing_and_miss_nothing(fleet: Fleet, source: int) -> None:
    fleet.save("m", sharded(source, True))
    for ranks in (1, 2, 3, 8):
        targets, twins = sharded(ranks, False), sharded(ranks, True)
        fleet.load("m", targets)
        for target, twin in zip(targets, twins, strict=True):
            pairs = zip(target["model"].parameters(), twin["model"].parameters(), strict=True)
            for (name, _), (mine, its) in zip(twin["model"].named_parameters(), pairs, strict=True):
                assert torch.equal(mine._local_tensor, its._local_tensor), (ranks, name)
                held = [one["optimizer"].state[p]["momentum_buffer"] for one, p in ((target, mine), (twin, its))]
                assert torch.equal(held[0]._local_tensor, held[1]._local_tensor), (ranks, name)
