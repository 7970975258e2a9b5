"""Group S, beside the weights: ties and placeholders, stacked and separate content, odd optimizer state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from cairn.store.codec import CodecPolicy
from tests.cases.slices import along, at, chunked, numbered, wrong
from tests.support.threads import Fleet, on_each

State = dict[str, Any]


def module(**tensors: torch.Tensor) -> nn.Module:
    """A module of these parameters; the same one under two names is tied."""
    built = nn.Module()
    known: dict[int, nn.Parameter] = {}
    for name, tensor in tensors.items():
        own = tensor if isinstance(tensor, nn.Parameter) else known.setdefault(id(tensor), nn.Parameter(tensor))
        built.register_parameter(name, own)
    return built


def ties(fleet: Fleet, model: str) -> dict[str, str | None]:
    """What each tensor of a checkpoint says that it is tied to."""
    return {name: entry.tied_to and str(entry.tied_to) for name, entry in fleet.entries(model).items()}


def test_S30_placeholders_without_bytes_are_tied_to_nothing(fleet: Fleet) -> None:
    shared = nn.Parameter(numbered(4, 3))

    def build() -> nn.Module:
        empty = {f"empty{n}": nn.Parameter(torch.empty(0)) for n in range(3)}
        views = {f"view{n}": nn.Parameter(torch.zeros(5)[:0]) for n in range(2)}
        return module(**empty, embed=shared, **views, head=shared, other=torch.empty(0, 3))

    fleet.save("m", [{"model": build()}])
    found = ties(fleet, "m")
    assert {name: tie for name, tie in found.items() if tie} == {"model:head": "model:embed"}
    assert len(found) == 8, "each has its own entry"
    fleet.load("m", [{"model": build()}])


def test_S30_ranks_without_elements_tie_nothing(fleet: Fleet) -> None:
    """Two parameters of one row on four ranks: three ranks hold empty shards at whatever address."""

    def states(filled: bool) -> list[State]:
        def rank(n: int) -> State:
            mesh = init_device_mesh("cpu", (4,))
            built = nn.Module()
            for number, name in enumerate(("a", "b")):
                full = torch.full((1, 3), number + 1.0) * filled
                local = full if n == 0 else torch.empty(0, 3)
                dtensor = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(1, 3), stride=(3, 1))
                built.register_parameter(name, nn.Parameter(dtensor))
            return {"model": built}

        return on_each(4, rank)

    fleet.save("m", states(True))
    assert set(ties(fleet, "m").values()) == {None}
    back = states(False)
    fleet.load("m", back)
    assert [back[0]["model"].get_parameter(name)._local_tensor[0, 0].item() for name in "ab"] == [1.0, 2.0]


def test_S31_an_empty_local_part_of_a_full_tensor_is_refused(fleet: Fleet) -> None:
    """Freed by its framework, or never filled: the layout says that this rank has rows, its memory says none."""

    def state(rank: int) -> State:
        mesh = init_device_mesh("cpu", (2,))
        local = torch.empty(0) if rank == 1 else torch.ones(4, 3)
        return {"w": DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(8, 3), stride=(3, 1))}

    cause = fleet.refused_save("m", on_each(2, state))
    assert "tensor w:~: its local tensor has shape (0,)" in cause


def test_S31_frozen_parameters_of_size_zero_are_refused(fleet: Fleet) -> None:
    frozen, trained = numbered(4, 3), numbered(2, 2)
    gathered = {"model": module(frozen=frozen.clone(), also=frozen + 1, trained=trained)}
    freed = {"model": module(frozen=torch.empty(0), also=torch.empty(0), trained=trained)}
    for part in (gathered["model"], freed["model"]):
        part.get_parameter("frozen").requires_grad_(False)
        part.get_parameter("also").requires_grad_(False)
    cause = fleet.refused_save("m", [gathered, freed])
    assert "model:frozen is float32[4, 3] on rank 0 and float32[0] on rank 1" in cause and "model:also" in cause
    fleet.save("gathered", [gathered])
    cause = fleet.refused_load("gathered", [freed])
    assert "model:frozen has shape [0], in the checkpoint [4, 3]" in cause and "model:also" in cause
    fleet.save("freed", [freed])
    assert "model:frozen has shape [4, 3], in the checkpoint [0]" in fleet.refused_load("freed", [gathered])
    assert torch.equal(gathered["model"].get_parameter("frozen"), frozen)


# --- Layouts of content -------------------------------------------------------------------------------

STACKED = numbered(4, 3, 2)
FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "stacked": lambda full: full.clone(),
    "a list": lambda full: [one.clone() for one in full],
    "a dict": lambda full: {str(n): one.clone() for n, one in enumerate(full)},
    "by numbers": lambda full: {n: one.clone() for n, one in enumerate(full)},
    "flat": lambda full: full.reshape(-1).clone(),
}


def equal(a: Any, b: Any) -> bool:
    """Whether two trees have the same types, keys and tensors."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b)


@pytest.mark.parametrize("form", FORMS)
def test_S38_a_checkpoint_says_itself_how_its_content_is_laid_out(fleet: Fleet, form: str) -> None:
    fleet.save("m", [{"layers": FORMS[form](STACKED)}])
    assert equal(fleet.whole("m", "layers")["layers"], FORMS[form](STACKED))
    for other, make in FORMS.items():
        target = {"layers": make(torch.zeros_like(STACKED))}
        if other == form:
            fleet.load("m", [target])
            assert equal(target["layers"], make(STACKED))
        elif {form, other} == {"a list", "by numbers"}:
            continue  # the same names: the test below
        else:
            cause = fleet.refused_load("m", [target])
            assert "do not fit" in cause and "layers:" in cause, other
            assert equal(target["layers"], make(torch.zeros_like(STACKED))), "nothing was changed"


def test_S38_the_kind_of_a_container_is_the_checkpoints(fleet: Fleet) -> None:
    fleet.save("list", [{"layers": FORMS["a list"](STACKED)}])
    target = {"layers": FORMS["by numbers"](torch.zeros_like(STACKED))}
    fleet.load("list", [target])
    assert equal(target["layers"], FORMS["a list"](STACKED))


def test_S38_no_option_of_the_writer_changes_what_a_checkpoint_says(fleet: Fleet) -> None:
    full = numbered(16, 1 << 14)
    ways: dict[str, State] = {
        "default": {}, "overlap": {"capture": "overlap"}, "encoded": {"codec": CodecPolicy.ZSTD},
        "unchecked": {"check_replicas_every": 0},
    }  # fmt: skip
    contents = {}
    for way, options in ways.items():
        for ranks in (1, 2):
            states = [{"w": one, "b": torch.ones(3)} for one in along(full, chunked(16, ranks))]
            fleet.save(f"{way} {ranks}", states, **options)
            contents[way, ranks] = repr(sorted(fleet.entries(f"{way} {ranks}").items()))
            assert torch.equal(fleet.whole(f"{way} {ranks}", "w")["w"], full)
    assert len(set(contents.values())) == 1


# --- Optimizer state of other shapes ------------------------------------------------------------------


class EightBit(torch.optim.Optimizer):
    """State as in 8-bit optimizers: codes like the parameter, a codebook for all, one scale a block of 256."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        raise AssertionError("saving and loading never step")


BLOCK, COLUMNS = 256, 64


def quantized(ranks: int, rows: int, filled: bool, scales: bool = True) -> list[State]:
    """A parameter of `rows` rows cut by rows, with its 8-bit state, on each rank."""
    weight, codes = numbered(rows, COLUMNS), (numbered(rows, COLUMNS) % 251).to(torch.uint8)
    absmax = numbered(rows * COLUMNS // BLOCK) + 0.5

    def state(rank: int) -> State:
        mesh = init_device_mesh("cpu", (ranks,))
        step = rows // ranks

        def cut(full: torch.Tensor) -> DTensor:
            local = full[rank * step : (rank + 1) * step].clone() * filled
            return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)

        parameter = nn.Parameter(cut(weight))
        built = nn.Module()
        built.register_parameter("w", parameter)
        optimizer = EightBit([parameter])
        blocks = len(absmax) // ranks
        scale = at(absmax, ((rank * blocks,), (blocks,)), filled)
        optimizer.state[parameter] = {
            "step": 9 * filled, "state1": cut(codes), "qmap1": torch.linspace(-1, 1, 256) * filled,
            "absmax1": scale if scales else scale.tensor,
        }  # fmt: skip
        return {"model": built, "optimizer": optimizer}

    return on_each(ranks, state)


def test_S41_only_what_is_cut_like_the_parameter_is_cut(fleet: Fleet) -> None:
    rows = 64
    fleet.save("m", quantized(4, rows, True))
    blocks = rows * COLUMNS // BLOCK
    shapes = {name: entry.shape for name, entry in fleet.entries("m").items()}
    state = "optimizer:state/w/"
    assert shapes == {
        "model:w": (rows, COLUMNS),
        f"{state}state1": (rows, COLUMNS),
        f"{state}qmap1": (256,),
        f"{state}absmax1": (blocks,),
    }
    for ranks in (1, 2, 8, 4):
        targets, twins = quantized(ranks, rows, False), quantized(ranks, rows, True)
        fleet.load("m", targets)
        for target, twin in zip(targets, twins, strict=True):
            (mine,), (its,) = (list(one["optimizer"].state.values()) for one in (target, twin))
            assert mine["step"] == 9 and mine["state1"].dtype == torch.uint8
            assert torch.equal(mine["state1"]._local_tensor, its["state1"]._local_tensor)
            assert torch.equal(mine["qmap1"], its["qmap1"])
            assert not wrong([mine["absmax1"]], numbered(blocks) + 0.5)


def test_S41_a_codebook_as_long_as_its_parameter_is_still_whole(fleet: Fleet) -> None:
    """Shape alone decides nothing where the optimizer holds the state: 256 rows, and 256 entries of the codebook."""

    def states(filled: bool) -> list[State]:
        found = quantized(2, 256, filled)
        for state in found:
            (held,) = state["optimizer"].state.values()
            held["qmap1"] = torch.linspace(-1, 1, 256 * COLUMNS).reshape(256, COLUMNS) * filled
        return found

    fleet.save("m", states(True))
    targets = states(False)
    fleet.load("m", targets)
    for target in targets:
        (held,) = target["optimizer"].state.values()
        assert torch.equal(held["qmap1"], torch.linspace(-1, 1, 256 * COLUMNS).reshape(256, COLUMNS))


def test_S41_scales_of_a_rank_that_are_not_declared_as_such_are_refused(fleet: Fleet) -> None:
    cause = fleet.refused_save("m", quantized(2, 16, True, scales=False))
    assert "absmax1 differs between ranks 0 and 1" in cause and "qmap1" not in cause


def test_S41_state_that_an_optimizer_does_not_hold_yet_is_made_as_it_was_saved(fleet: Fleet) -> None:
    """Of a cut bias of 256 numbers, the moment is cut and the codebook of 256 numbers is whole."""

    def states(filled: bool) -> list[State]:
        def rank(number: int) -> State:
            mesh = init_device_mesh("cpu", (2,))
            cut = numbered(256)[number * 128 : (number + 1) * 128].clone() * filled
            built = nn.Module()
            built.register_parameter("b", nn.Parameter(DTensor.from_local(cut, mesh, [Shard(0)], run_check=False)))
            optimizer = EightBit(built.parameters())
            if filled:
                moment = DTensor.from_local(cut * 2, mesh, [Shard(0)], run_check=False)
                optimizer.state[built.b] = {"state1": moment, "qmap1": torch.linspace(-1, 1, 256)}
            return {"model": built, "optimizer": optimizer}

        return on_each(2, rank)

    fleet.save("m", states(True))
    targets = states(False)
    fleet.load("m", targets)
    for number, target in enumerate(targets):
        (held,) = target["optimizer"].state.values()
        assert torch.equal(held["state1"]._local_tensor, numbered(256)[number * 128 : (number + 1) * 128] * 2)
        assert not isinstance(held["qmap1"], DTensor) and torch.equal(held["qmap1"], torch.linspace(-1, 1, 256))
