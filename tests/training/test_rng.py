"""Random generators of a rank: the next draw after a restore is the one it would have been."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from cairn.core.errors import RefusedError, UsageError
from cairn.manifests.values import decode_value, encode_value
from cairn.training import rng
from cairn.training.perrank import PerRank, RankPlace, default_rank_key
from cairn.training.rng import RngState


@pytest.fixture(autouse=True)
def _generators_as_before() -> Iterator[None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)


def draws(count: int = 3) -> list[Any]:
    """From all global generators; the odd number of normals leaves a second one waiting in python and numpy."""
    return [
        [random.random() for _ in range(count)],
        [random.gauss(0, 1) for _ in range(count)],
        np.random.standard_normal(count).tolist(),
        np.random.randint(1 << 30, size=count).tolist(),
        torch.randn(count).tolist(),
        torch.randint(1 << 30, (count,)).tolist(),
    ]


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def stored(state: Any) -> Any:
    """As it comes back from a checkpoint."""
    return decode_value(encode_value(state, "a random state"), "a random state")


def saved_on(coordinates: list[dict[str, int]]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """States of ranks that are simulated one after another, and what each would draw next."""
    states, following = {}, {}
    for number, place in enumerate(coordinates):
        seed_all(number + 1)
        torch.rand(10)
        draws()
        state = RngState(coordinates=place)
        states[state.rank_key] = stored(state.state_dict())
        following[state.rank_key] = draws()
    return states, following


DP4 = [{"dp": i} for i in range(4)]
DP2_TP2 = [{"dp": i, "tp": j} for i in range(2) for j in range(2)]


@pytest.mark.parametrize("places", [DP4, DP2_TP2], ids=["dp4", "dp2 tp2"])
def test_R01_R21_each_rank_draws_what_it_would_have_drawn(places: list[dict[str, int]]) -> None:
    states, following = saved_on(places)
    assert len(states) == 4
    for place in reversed(places):
        seed_all(99)
        state = RngState(coordinates=place)
        assert state.load_rank_states(states) == []
        assert draws() == following[state.rank_key]
    assert len({repr(following[key]) for key in following}) == 4


def test_R21_the_key_holds_all_coordinates_in_one_order() -> None:
    assert RngState(coordinates={"tp": 1, "dp": 0}).rank_key == "dp=0,tp=1"
    assert RngState(coordinates={"dp": 0, "tp": 1}).rank_key == "dp=0,tp=1"
    assert RngState().rank_key == default_rank_key() == "rank=0"
    assert isinstance(RngState(), PerRank)


def test_R10_a_missing_state_is_an_error_that_names_what_was_saved() -> None:
    states, _ = saved_on(DP4)
    del states["dp=1"]
    before = torch.get_rng_state()
    with pytest.raises(RefusedError, match=r"no random state of rank dp=1 .* dp=0; dp=2; dp=3") as caught:
        RngState(coordinates={"dp": 1}).load_rank_states(states)
    assert "missing='derive'" in caught.value.hint
    assert torch.equal(torch.get_rng_state(), before)
    (note,) = RngState(coordinates={"dp": 1}, missing="derive").load_rank_states(states)
    assert "dp=1" in note


def corrupt(state: dict[str, Any], name: str, field: str, value: Any) -> dict[str, Any]:
    generators = {**state["generators"], name: {**state["generators"][name], field: value}}
    return {**state, "generators": generators}


@pytest.mark.parametrize("missing", ["error", "derive"])
@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("torch", "state", b"short"),
        ("torch", "state", bytes(5056)),
        ("torch", "kind", "torch.cuda"),
        ("numpy", "state", {"bit_generator": "PCG64"}),
        ("numpy", "state", None),
        ("python", "version", 9),
        ("python", "words", {"dtype": "<u4", "bytes": b""}),
        ("python", "gauss", "much"),
    ],
)
def test_R10_a_corrupt_state_is_an_error_and_changes_no_generator(
    name: str, field: str, value: Any, missing: Any
) -> None:
    states, _ = saved_on(DP4[:1])
    seed_all(5)
    before = RngState().state_dict()
    with pytest.raises(RefusedError, match=f"does not fit generator {name}"):
        bad = corrupt(states["dp=0"], name, field, value)
        RngState(coordinates={"dp": 0}, missing=missing).load_rank_states({"dp=0": bad})
    assert RngState().state_dict() == before


@pytest.mark.parametrize("state", [None, {}, {"version": 2}, {"version": 1}, {"version": 1, "generators": 3}])
def test_R10_a_malformed_state_is_an_error(state: Any) -> None:
    with pytest.raises(RefusedError, match="random state of rank rank=0"):
        RngState().load_rank_states({"rank=0": state})


def test_R22_more_ranks_than_saved_are_an_error_or_get_derived_seeds() -> None:
    states, following = saved_on(DP4[:2])
    with pytest.raises(RefusedError, match="rank dp=2"):
        RngState(coordinates={"dp": 2}).load_rank_states(states)
    drawn = []
    for seed, turned in ((0, False), (1, True)):
        for place in DP4:
            seed_all(seed)
            order = dict(reversed(states.items())) if turned else states
            notes = RngState(coordinates=place, missing="derive").load_rank_states(order)
            assert bool(notes) == (place["dp"] >= 2)
            drawn.append(draws())
    assert drawn[:4] == drawn[4:], "derived seeds depend on the checkpoint alone"
    assert drawn[:2] == list(following.values())
    assert len({repr(d) for d in drawn}) == 4
    other, _ = saved_on(DP4[1:3])
    RngState(coordinates={"dp": 0}, missing="derive").load_rank_states(other)
    assert draws() not in drawn


def test_R22_nothing_is_derived_from_nothing() -> None:
    with pytest.raises(RefusedError, match="saved are those of none"):
        RngState(missing="derive").load_rank_states({})


def test_fewer_ranks_than_saved_are_noted(fake_job: Any) -> None:
    states, _ = saved_on([{"dp": i} for i in range(6)])
    fake_job(0, 4)
    (note,) = RngState(coordinates={"dp": 0}).load_rank_states(states)
    assert note.startswith("6 random states were saved")


GIVEN: dict[str, Any] = {
    "mt": lambda seed: random.Random(seed),
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    "legacy": lambda seed: np.random.RandomState(seed),
    **{
        name: lambda seed, name=name: np.random.Generator(getattr(np.random, name)(seed))
        for name in ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]
    },
}


def draw_given(generators: dict[str, Any]) -> list[Any]:
    drawn = []
    for generator in generators.values():
        match generator:
            case random.Random():
                drawn.append([generator.gauss(0, 1), generator.random()])
            case torch.Generator():
                drawn.append(torch.randn(3, generator=generator).tolist())
            case _:
                # A 32-bit draw leaves half a word behind in numpy's generators.
                whole = getattr(generator, "integers", None) or generator.randint
                drawn.append([int(whole(1 << 31)), *generator.standard_normal(3).tolist()])
    return drawn


@pytest.mark.parametrize("derive", [False, True])
def test_generators_of_the_caller_go_on_too(derive: bool) -> None:
    made = {name: make(3) for name, make in GIVEN.items()}
    draw_given(made)
    states = {"dp=0": stored(RngState(generators=made, coordinates={"dp": 0}).state_dict())}
    expected = draw_given(made)
    results = []
    for seed in (8, 9):
        fresh = {name: make(seed) for name, make in GIVEN.items()}
        place = {"dp": 1 if derive else 0}
        RngState(generators=fresh, coordinates=place, missing="derive").load_rank_states(states)
        results.append(draw_given(fresh))
    assert results[0] == results[1]
    assert (results[0] == expected) is not derive


def test_generators_that_differ_in_name_or_kind_are_refused() -> None:
    saved = {"rank=0": RngState(generators={"a": random.Random(1), "b": torch.Generator()}).state_dict()}
    with pytest.raises(RefusedError, match=r"not saved: given:c; saved, but not here: given:b"):
        RngState(generators={"a": random.Random(), "c": torch.Generator()}).load_rank_states(saved)
    with pytest.raises(RefusedError, match="does not fit generator given:a"):
        RngState(generators={"a": np.random.RandomState(), "b": torch.Generator()}).load_rank_states(saved)


@pytest.mark.parametrize("bad", [random.SystemRandom(), object(), 3])
def test_what_has_no_state_is_refused_at_once(bad: Any) -> None:
    with pytest.raises(UsageError, match="generator x"):
        RngState(generators={"x": bad})
    with pytest.raises(UsageError, match="missing='perhaps'"):
        RngState(missing="perhaps")  # type: ignore[arg-type]  # what a caller without type checks does


def test_saving_draws_nothing_and_holds_no_tensor() -> None:
    seed_all(4)
    expected = draws()
    seed_all(4)
    state = RngState(generators={"g": np.random.default_rng(1)}).state_dict()
    assert draws() == expected
    encode_value(state, "a random state")

    def leaves(value: Any) -> Iterator[Any]:
        yield from (leaf for item in value.values() for leaf in leaves(item)) if isinstance(value, dict) else [value]

    assert {type(leaf) for leaf in leaves(state)} <= {int, float, str, bytes, bool, type(None)}


# --- CUDA, with generators of the CPU in the place of devices. ---------------------------------


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Any:
    def present(count: int, current: int, seed: int = 0) -> list[torch.Generator]:
        generators = [torch.Generator().manual_seed(seed + i) for i in range(count)]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.setattr(torch.cuda, "default_generators", tuple(generators))
        return generators

    return present


def test_cuda_each_visible_device_goes_on(devices: Any) -> None:
    made = devices(2, 1, seed=50)
    states = {"rank=0": stored(RngState().state_dict())}
    expected = draw_given(dict(enumerate(made)))
    fresh = devices(2, 1)
    assert RngState().load_rank_states(states) == []
    assert draw_given(dict(enumerate(fresh))) == expected


def test_cuda_absent_on_one_side_is_refused(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without = {"rank=0": RngState().state_dict()}
    devices(1, 0)
    with_cuda = {"rank=0": RngState().state_dict()}
    with pytest.raises(RefusedError, match="not saved: cuda:0"):
        RngState().load_rank_states(without)
    monkeypatch.undo()
    if not torch.cuda.is_available():
        with pytest.raises(RefusedError, match="saved, but not here: cuda:0"):
            RngState().load_rank_states(with_cuda)


def philox(seed: int, offset: int) -> dict[str, Any]:
    return {"kind": "torch.cuda", "state": seed.to_bytes(8, "little") + offset.to_bytes(8, "little")}


def test_cuda_the_current_device_may_have_another_index(devices: Any) -> None:
    saved = {f"cuda:{i}": philox(7, 40 if i == 3 else 0) for i in range(8)}
    here = {f"cuda:{i}": g for i, g in enumerate(devices(4, 1))}
    notes: list[str] = []
    placed = rng.on_device({"torch": philox(1, 1), **saved}, 3, here, 1, notes)
    assert placed["cuda:1"] == saved["cuda:3"] and placed.keys() == {"torch", *here}
    assert notes == ["the random state of cuda:3 went to cuda:1, the current device here"]
    with pytest.raises(RefusedError, match="drawn on cuda:5 besides the current device cuda:3"):
        rng.on_device({**saved, "cuda:5": philox(7, 4)}, 3, here, 1, notes)
    with pytest.raises(RefusedError, match="cuda:None, is missing"):
        rng.on_device(saved, None, here, 1, notes)


# --- Trackers ----------------------------------------------------------------------------------


class Megatron:
    """As `CudaRNGStatesTracker`: named states, put back all at once."""

    def __init__(self, seed: int) -> None:
        self.states = {"model-parallel-rng": torch.Generator().manual_seed(seed).get_state()}

    def get_states(self) -> dict[str, torch.Tensor]:
        return {name: state.clone() for name, state in self.states.items()}

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self.states = states


def test_a_tracker_of_named_states_goes_on() -> None:
    saved = {"rank=0": stored(RngState(generators={"megatron": Megatron(1)}).state_dict())}
    fresh = Megatron(2)
    RngState(generators={"megatron": fresh}).load_rank_states(saved)
    assert torch.equal(fresh.states["model-parallel-rng"], Megatron(1).states["model-parallel-rng"])
    with pytest.raises(RefusedError, match="given:megatron holds states of its own"):
        RngState(coordinates={"dp": 1}, generators={"megatron": fresh}, missing="derive").load_rank_states(saved)


def test_dtensor_states_of_its_own_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import _random

    monkeypatch.setattr(_random, "_rng_tracker", SimpleNamespace(rng_states={"parallel-rng": torch.arange(16).byte()}))
    saved = {"rank=0": stored(RngState().state_dict())}
    tracker = SimpleNamespace(rng_states={"parallel-rng": torch.zeros(16).byte()})
    monkeypatch.setattr(_random, "_rng_tracker", tracker)
    RngState().load_rank_states(saved)
    assert tracker.rng_states["parallel-rng"].tolist() == list(range(16))


def test_dtensor_tracker_is_made_before_it_would_copy_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import _random

    monkeypatch.setattr(_random, "_rng_tracker", SimpleNamespace())
    saved = {"rank=0": RngState().state_dict()}
    monkeypatch.setattr(_random, "_rng_tracker", None)
    with pytest.raises(RefusedError, match="copying the state of rank 0") as caught:
        RngState().load_rank_states(saved)
    assert "mesh=" in caught.value.hint


def test_dtensor_tracker_is_made_for_the_mesh_without_copying(fake_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import _random

    fake_job(1, 4)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    monkeypatch.setattr(_random, "_rng_tracker", SimpleNamespace())
    saved = {"dp=1": RngState(mesh=mesh).state_dict()}
    monkeypatch.setattr(_random, "_rng_tracker", None)
    with pytest.raises(RefusedError, match="tracker cannot be made"):  # torch has none for the CPU
        RngState(mesh=mesh).load_rank_states(saved)
    made: list[Any] = []
    monkeypatch.setattr(_random, "OffsetBasedRNGTracker", lambda *args, **more: made.append((args, more)) or "made")
    RngState(mesh=mesh).load_rank_states(saved)
    assert made == [((mesh,), {"run_state_sync": False})] and _random._rng_tracker == "made"


# --- Meshes ------------------------------------------------------------------------------------


@pytest.fixture
def fake_job() -> Iterator[Any]:
    """Makes `torch.distributed` believe that this is rank `r` of `n`."""

    def begin(rank: int, world_size: int) -> None:
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_mesh_gives_the_key(fake_job: Any) -> None:
    fake_job(3, 4)
    assert RngState().rank_key == "rank=3"
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp"))
    assert RngState(mesh=mesh).rank_key == "dp=1,tp=1"
    assert RankPlace(mesh=mesh).ranks == 4
    assert RngState(mesh=init_device_mesh("cpu", (2, 2))).rank_key == "dim0=1,dim1=1"
    with pytest.raises(RefusedError, match="2 of 4 ranks: two ranks would get the same key"):
        RngState(mesh=mesh["dp"])


@pytest.mark.parametrize("coordinates", [{}, {"": 1}, {"a=b": 1}, {"a,b": 1}])
def test_names_that_would_blur_keys_are_refused(coordinates: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="cannot stand in a rank's key"):
        RngState(coordinates=coordinates)
