"""Group T, what a tensor is, from a live model into a store and back: ties, strides, element types."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cairn.manifests.dtypes import BITS
from cairn.training.sharded import ShardedSlice
from tests.cases.slices import numbered
from tests.support.threads import Fleet

State = dict[str, Any]


class Tied(nn.Module):
    """An embedding and a head, and a configuration that says that they are tied."""

    def __init__(self, tie: bool, rows: int = 64) -> None:
        super().__init__()
        self.tie_word_embeddings = True
        self.embed, self.head = nn.Embedding(rows, 8), nn.Linear(8, rows, bias=False)
        if tie:
            self.head.weight = self.embed.weight


def filled(model: Tied, embed: float, head: float) -> Tied:
    with torch.no_grad():
        model.head.weight.fill_(head)
        model.embed.weight.fill_(embed)
        model.embed.weight[0, 0] = -1.0
    return model


def ties(fleet: Fleet, model: str = "m") -> dict[str, str]:
    """Tensors of a checkpoint that are aliases, and of what."""
    return {name: str(entry.tied_to) for name, entry in fleet.entries(model).items() if entry.tied_to}


both_sizes = pytest.mark.parametrize("rows", [4, 1 << 14], ids=["in line", "in tiles"])


@both_sizes
def test_T01_a_flag_of_the_model_ties_nothing(fleet: Fleet, rows: int) -> None:
    with torch.device("meta"):
        model = Tied(tie=True, rows=rows)
    # Materialising gives each name a storage of its own, whatever was tied before.
    for part in (model.embed, model.head):
        part.weight = nn.Parameter(torch.empty(rows, 8))
    fleet.save("m", [{"model": filled(model, 1.0, 2.0)}])
    assert ties(fleet) == {}
    back = filled(Tied(tie=False, rows=rows), 0.0, 0.0)
    fleet.load("m", [{"model": back}])
    assert torch.equal(back.embed.weight, model.embed.weight) and torch.equal(back.head.weight, model.head.weight)
    assert back.head.weight[0, 0] == 2.0 and back.embed.weight[0, 0] == -1.0


@both_sizes
def test_T01_tensors_that_differ_are_not_loaded_into_a_tied_pair(fleet: Fleet, rows: int) -> None:
    fleet.save("m", [{"model": filled(Tied(tie=False, rows=rows), 1.0, 2.0)}])
    tied = filled(Tied(tie=True, rows=rows), 7.0, 7.0)
    cause = fleet.refused_load("m", [{"model": tied}])
    assert "model:embed.weight and model:head.weight are tied in the model, but differ in the checkpoint" in cause
    assert tied.embed.weight[1, 1] == 7.0, "nothing was changed"


@both_sizes
def test_T01_views_of_one_storage_are_tied_only_if_they_are_the_same_area(fleet: Fleet, rows: int) -> None:
    flat = numbered(2 * rows, 8)
    model = nn.Module()
    for name, view in {
        "first": flat[:rows], "same": flat[:rows], "second": flat[rows:], "turned": flat[:8].t(), "bits": flat[:rows],
    }.items():  # fmt: skip
        model.register_buffer(name, view.view(torch.int32) if name == "bits" else view)
    fleet.save("m", [{"model": model}])
    assert ties(fleet) == {"model:same": "model:first"}
    back = nn.Module()
    for name, buffer in model.named_buffers():
        back.register_buffer(name, torch.zeros_like(buffer))
    fleet.load("m", [{"model": back}])
    assert all(torch.equal(back.get_buffer(name), buffer) for name, buffer in model.named_buffers())


@both_sizes
def test_T03_a_tied_pair_is_stored_once_and_comes_back_into_any_model(fleet: Fleet, rows: int) -> None:
    model = filled(Tied(tie=True, rows=rows), 3.0, 3.0)
    fleet.save("m", [{"model": model}])
    assert ties(fleet) == {"model:head.weight": "model:embed.weight"}
    for tie in (True, False):
        back = filled(Tied(tie=tie, rows=rows), 0.0, 0.0)
        fleet.load("m", [{"model": back}])
        assert torch.equal(back.embed.weight, model.embed.weight)
        assert torch.equal(back.head.weight, model.embed.weight)
        assert (back.head.weight is back.embed.weight) == tie


@both_sizes
def test_T03_equal_bytes_that_are_not_tied_load_into_a_tied_pair(fleet: Fleet, rows: int) -> None:
    model = filled(Tied(tie=False, rows=rows), 3.0, 3.0)
    with torch.no_grad():
        model.head.weight.copy_(model.embed.weight)
    fleet.save("m", [{"model": model}])
    assert ties(fleet) == {}
    back = filled(Tied(tie=True, rows=rows), 0.0, 0.0)
    fleet.load("m", [{"model": back}])
    assert torch.equal(back.head.weight, model.head.weight)


def test_T03_a_tie_across_ranks_holds_on_each(fleet: Fleet) -> None:
    """The first stage has the embedding, the last the head, a third both: one content, whoever holds what."""
    shared = numbered(6, 8)

    def stage(*names: str) -> State:
        part = nn.Module()
        weight = nn.Parameter(shared.clone())
        for name in names:
            part.register_parameter(name, weight)
        return {"model": part}

    fleet.save("m", [stage("embed", "head"), stage("embed"), stage("head")])
    for names in (("embed",), ("head",), ("embed", "head")):
        back = stage("embed", "head")
        with torch.no_grad():
            back["model"].embed.zero_()
        target = {"model": nn.Module()}
        for name in names:
            target["model"].register_parameter(name, back["model"].get_parameter(name))
        fleet.load("m", [target], strict=False)
        assert torch.equal(back["model"].embed, shared)


# --- Strides ------------------------------------------------------------------------------------------

STRIDES: dict[str, Callable[[], torch.Tensor]] = {
    "channels last": lambda: numbered(8, 4, 3, 3).to(memory_format=torch.channels_last),
    "transposed": lambda: numbered(7, 5).t(),
    "expanded": lambda: numbered(1, 5).expand(4, 5),
    "every second": lambda: numbered(10)[::2],
    "of a large one": lambda: numbered(1 << 10, 1 << 9).t()[:, 3:],
    "with an offset": lambda: numbered(40)[7:].as_strided((3, 4), (9, 2)),
    "no elements": lambda: numbered(0, 4).t(),
    "conjugate": lambda: torch.complex(numbered(3, 2), -numbered(3, 2)).conj().t(),
    "imaginary part of it": lambda: torch.complex(numbered(3, 2), numbered(3, 2)).conj().imag,
    "scalar": lambda: numbered(5)[3],
}


@pytest.mark.parametrize("make", STRIDES.values(), ids=STRIDES)
def test_T05_any_stride_is_saved_loaded_and_the_same_content(fleet: Fleet, make: Callable[[], torch.Tensor]) -> None:
    strided = make()
    fleet.save("strided", [{"w": strided}])
    fleet.save("dense", [{"w": strided.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()}])
    assert repr(fleet.entries("strided")) == repr(fleet.entries("dense"))
    (a,), (b,) = (fleet.entries(name).values() for name in ("strided", "dense"))
    assert (a.inline, a.tiles) == (b.inline, b.tiles)
    if 0 not in strided.stride():
        into = make().clone(memory_format=torch.preserve_format)
        into.zero_()
        layout = into.stride()
        fleet.load("dense", [{"w": into}])
        assert torch.equal(into, strided) and into.stride() == layout, "filled where it is"
    assert torch.equal(fleet.whole("strided", "w")["w"], strided)


def test_T05_a_view_in_the_middle_is_filled_and_nothing_beside_it(fleet: Fleet) -> None:
    fleet.save("m", [{"w": numbered(4, 3)}])
    around = torch.full((10, 7), -1.0)
    fleet.load("m", [{"w": around[2:10:2, 1:6:2]}])
    assert torch.equal(around[2:10:2, 1:6:2], numbered(4, 3))
    assert (around == -1).sum() == 70 - 12


# --- Element types ------------------------------------------------------------------------------------

CASTS = [
    (torch.float32, torch.bfloat16), (torch.int64, torch.int32), (torch.float32, torch.float8_e4m3fn),
    (torch.bfloat16, torch.float32), (torch.float64, torch.complex128), (torch.uint8, torch.bool),
    (torch.float16, torch.bfloat16), (torch.int32, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize("rows", [4, 1 << 15], ids=["in line", "in tiles"])
@pytest.mark.parametrize(("recorded", "wanted"), CASTS, ids=[f"{a}-{b}".replace("torch.", "") for a, b in CASTS])
def test_T06_a_cast_is_asked_for_and_told(fleet: Fleet, recorded: torch.dtype, wanted: torch.dtype, rows: int) -> None:
    full = (numbered(rows, 3) % 7).to(recorded)
    names = [str(dtype).removeprefix("torch.") for dtype in (recorded, wanted)]
    fleet.save("m", [{"w": full, "fine": torch.ones(2)}])
    target = torch.full((rows, 3), 1, dtype=torch.uint8).to(wanted)
    before = target.clone()
    fine = torch.zeros(2)
    cause = fleet.refused_load("m", [{"w": target, "fine": fine}])
    assert f"w:~ is {names[1]}, in the checkpoint {names[0]}" in cause and "fine" not in cause
    assert torch.equal(target.view(torch.uint8), before.view(torch.uint8)) and not fine.any(), "nothing was changed"
    (report,) = fleet.load("m", [{"w": target, "fine": fine}], casts=True)
    assert report.casts == (f"w:~: {names[0]} to {names[1]}",)
    assert target.dtype is wanted and torch.equal(target.view(torch.uint8), full.to(wanted).view(torch.uint8))


def test_T06_all_mismatches_of_all_ranks_are_listed(fleet: Fleet) -> None:
    fleet.save("m", [{"a": torch.ones(4), "b": torch.ones(3, dtype=torch.int64), "c": torch.ones(1)}])
    slices = [
        ShardedSlice(torch.zeros(2, dtype=kind), (4,), (at,)) for kind, at in ((torch.float16, 0), (torch.float32, 2))
    ]
    others = [torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int32)]
    cause = fleet.refused_load("m", [{"a": a, "b": b, "c": torch.ones(1)} for a, b in zip(slices, others, strict=True)])
    assert "a:~ is float16" in cause and "b:~ is int32" in cause and "c:~" not in cause


def torch_dtypes() -> list[torch.dtype]:
    return sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


def of_dtype(dtype: torch.dtype, *shape: int) -> torch.Tensor | None:
    """A tensor of any type, from bytes; None if this torch cannot make one."""
    width = max(dtype.itemsize, 1)
    raw = torch.arange(width * torch.Size(shape).numel(), dtype=torch.int64).remainder(2).to(torch.uint8)
    try:
        return raw.view(dtype).reshape(shape)
    except (RuntimeError, TypeError):
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(2, 2), (1 << 9, 1 << 9), (0, 3), ()], ids=str)
def test_T08_every_dtype_of_torch_is_saved_and_loaded_or_refused_by_name(fleet: Fleet, shape: tuple[int, ...]) -> None:
    saved: dict[str, torch.Tensor] = {}
    for dtype in torch_dtypes():
        tensor, name = of_dtype(dtype, *shape), str(dtype).removeprefix("torch.")
        if tensor is None:
            continue
        if name.startswith(("qint", "quint")) or name not in BITS:
            cause = fleet.refused_save("refused", [{"fine": torch.ones(2), name: tensor}])
            assert f"tensor {name}:~ has dtype {dtype}" in cause
        else:
            saved[name] = tensor
    assert {"float32", "bfloat16", "float8_e5m2", "complex64", "bool", "uint16", "int64"} <= saved.keys()
    fleet.save("m", [saved])
    assert {name.partition(":")[0]: entry.dtype for name, entry in fleet.entries("m").items()} == {n: n for n in saved}
    back = {name: of_dtype(getattr(torch, name), *shape) for name in saved}
    for tensor in back.values():
        assert tensor is not None
        if tensor.numel():
            tensor.reshape(-1).view(torch.uint8).zero_()
    fleet.load("m", [back])
    fresh = fleet.whole("m", *saved)
    for name, tensor in saved.items():
        for other in (back[name], fresh[name]):
            assert other.dtype is tensor.dtype and other.shape == tensor.shape
            assert torch.equal(raw(other), raw(tensor)), name


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)


def test_T09_complex_buffers_of_a_model_are_native(fleet: Fleet) -> None:
    def build(value: complex) -> nn.Module:
        model = nn.Module()
        model.register_buffer("freqs", torch.polar(torch.ones(16, 4), numbered(16, 4)) * value)
        model.register_buffer("wide", torch.full((300, 300), 2 - 3j, dtype=torch.complex128) * value)
        return model

    fleet.save("m", [{"model": build(1)}])
    assert {name: entry.dtype for name, entry in fleet.entries("m").items()} == {
        "model:freqs": "complex64", "model:wide": "complex128",
    }  # fmt: skip
    back = build(0)
    fleet.load("m", [{"model": back}])
    assert torch.equal(back.freqs, build(1).freqs) and torch.equal(back.wide, build(1).wide)
    real = {"model": nn.Module()}
    real["model"].register_buffer("freqs", torch.zeros(16, 4))
    real["model"].register_buffer("wide", torch.zeros(300, 300))
    assert "model:freqs is float32, in the checkpoint complex64" in fleet.refused_load("m", [real])
