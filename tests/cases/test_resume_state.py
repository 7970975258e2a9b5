"""Faults of resuming: random states, scalers and dataloaders, through the checkpointer and a store."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import cairn
from cairn.core.errors import CairnError, IntegrityError, RefusedError, StateMismatch
from tests.cases.training import Net, Runs, bits, train
from tests.support.ranks import run_ranks

# --- Random states of several ranks --------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What four processes saw; see `rank_jobs.random_states`."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATA", "STATE", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        cairn.create_store(folder / "store")
        return run_ranks(folder / "job", 4, "tests.cases.rank_jobs:random_states", str(folder / "store"), phases=4)


def test_R01_each_rank_draws_what_it_would_have_drawn(ranks: list[dict[str, Any]]) -> None:
    drawn = [one["dp4"] for one in ranks]
    assert all(expected == restored for expected, restored in drawn)
    assert len({str(expected) for expected, _ in drawn}) == 4


def test_R01_random_states_that_claim_to_be_replicas_are_refused(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert "rng:~ differs between ranks" in one["as a tensor"] and one["latest after"] == "None"
        assert "rng:~ differs between ranks" in one["as a value"]


def test_R21_the_key_holds_all_coordinates_of_the_mesh(ranks: list[dict[str, Any]]) -> None:
    drawn = [one["dp2 x tp2"] for one in ranks]
    assert all(expected == restored for expected, restored in drawn)
    assert len({str(expected) for expected, _ in drawn}) == 4
    assert ranks[0]["saved keys"] == ["dp=0,tp=0", "dp=0,tp=1", "dp=1,tp=0", "dp=1,tp=1"]


def test_R10_R22_ranks_whose_state_is_missing_are_an_error_on_all_before_anything_changes(
    ranks: list[dict[str, Any]],
) -> None:
    for one in ranks:
        assert "rank=2" in one["grown"]["error"] or "rank=3" in one["grown"]["error"]
        assert one["grown"]["unchanged"]


def test_R22_derived_seeds_are_the_same_each_time_and_differ_between_ranks(ranks: list[dict[str, Any]]) -> None:
    first, second = ([one["derived"][turn] for one in ranks] for turn in (0, 1))
    assert first == second and len(set(map(str, first))) == 4
    assert [one["derived"][0] for one in ranks[:2]] == [one["dp2"] for one in ranks[:2]], "those saved go on"
    assert [any("derived" in note for note in one["derived"][2]) for one in ranks] == [False, False, True, True]


# --- Random states that are gone ----------------------------------------------------------------


def drawn() -> list[Any]:
    """The next numbers of each global generator."""
    return [torch.rand(3).tolist(), random.random(), np.random.random()]


def test_R10_a_checkpoint_without_random_states(runs: Runs) -> None:
    runs.save({"model": Net()})
    net = Net(seed=1)
    before = bits(dict(net.state_dict()))
    torch.manual_seed(3)
    with pytest.raises(StateMismatch, match="the checkpoint lacks rng"):
        runs.load({"model": net, "rng": cairn.RngState()})
    assert bits(dict(net.state_dict())) == before
    expected = torch.Generator().manual_seed(3).get_state()
    assert torch.equal(torch.get_rng_state(), expected)
    report = runs.load({"model": net, "rng": cairn.RngState()}, strict=False)
    assert report.skipped == ("rng:~",) and torch.equal(torch.get_rng_state(), expected)


class Unreadable:
    """Says of itself that it is this rank's random state."""

    rank_key = "rank=0"

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_rank_states(self, states: Any) -> list[str]:
        raise AssertionError("nobody loads it")


@pytest.mark.parametrize("what", ["nothing", "cut", "another version"])
def test_R10_random_states_that_cannot_be_read(runs: Runs, what: str) -> None:
    whole = cairn.RngState().state_dict()
    cut = {**whole, "generators": {**whole["generators"], "torch": {"kind": "torch.cpu", "state": b"short"}}}
    state = {"nothing": {}, "cut": cut, "another version": {**whole, "version": 99}}[what]
    runs.save({"model": Net(), "rng": Unreadable(state)})
    numbers = [bits(torch.get_rng_state()), random.getstate(), str(np.random.get_state())]
    with pytest.raises(RefusedError, match="random state of rank rank=0"):
        runs.load({"model": Net(), "rng": cairn.RngState()})
    assert numbers == [bits(torch.get_rng_state()), random.getstate(), str(np.random.get_state())]
    assert runs.load({"model": Net()}).not_asked == ("rng",), "to leave it out is the explicit choice, and is told"


def test_R10_random_states_that_are_damaged_in_the_store(runs: Runs) -> None:
    runs.save({"model": Net(), "rng": cairn.RngState()})
    backend: Any = runs.site.backend
    for name in runs.site.names(".pack"):
        damaged = bytearray(backend._objects[name])
        damaged[len(damaged) // 3] ^= 1
        backend._objects[name] = bytes(damaged)
    net = Net(seed=1)
    before = bits(dict(net.state_dict()))
    for strict in (True, False):
        with pytest.raises(IntegrityError):
            runs.load({"model": net, "rng": cairn.RngState()}, strict=strict)
    assert bits(dict(net.state_dict())) == before


# --- Scalers --------------------------------------------------------------------------------------


def test_R30_the_gradient_scaler_is_part_of_the_state(runs: Runs) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7)
    scaler.scale(torch.ones(()))
    runs.save({"model": Net(), "scaler": scaler})
    fresh = torch.amp.GradScaler("cpu", init_scale=2.0)
    runs.load({"model": Net(), "scaler": fresh})
    assert fresh.get_scale() == 256.0 and fresh.state_dict() == scaler.state_dict()
    with pytest.raises(StateMismatch, match="the checkpoint lacks other"):
        runs.load({"model": Net(), "other": torch.amp.GradScaler("cpu")})
    assert runs.load({"model": Net()}).not_asked == ("scaler",)


@pytest.mark.parametrize("state", [None, {}], ids=["None", "empty"])
def test_R30_a_part_that_yields_nothing_is_refused_or_named(runs: Runs, state: Any) -> None:
    class Silent:
        def state_dict(self) -> Any:
            return state

        def load_state_dict(self, state: Any) -> None:
            pass

    try:
        notes = runs.save({"model": Net(), "scaler": Silent()}).notes
    except RefusedError as error:
        notes = [error.message]
    assert any("scaler" in note for note in notes)


class LossScaler:
    """Keeps what it knows in attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.clear()
        self.__dict__.update(state)


def test_R31_every_attribute_of_a_scaler_comes_back(runs: Runs) -> None:
    attributes: dict[str, Any] = {
        "scale": 2.0**-24, "window": 2000, "iter": 10**20, "last_overflow": -1, "tolerance": 0.1, "big": float("inf"),
        "negative zero": -0.0, "flag": True, "none": None, "text": "ä\n", "raw": b"\x00\xff", "pair": (1, [2, (3,)]),
        "found": torch.tensor([0.5, float("nan")]), "by name": {"a": torch.ones(2, dtype=torch.bfloat16), "b": 1},
    }  # fmt: skip
    runs.save({"scaler": LossScaler(**attributes), "plain": {"scaler": attributes}})
    fresh = LossScaler(scale=1.0, window=1)
    state: dict[str, Any] = {"scaler": fresh, "plain": {"scaler": {}}}
    runs.load(state)
    for found in (fresh.__dict__, state["plain"]["scaler"]):
        assert repr(bits(found)) == repr(bits(attributes))
        assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in attributes.items()}


# --- Dataloaders ------------------------------------------------------------------------------------


class Stream(IterableDataset[int]):
    """Numbers, shared out among workers; each remembers its own position."""

    def __init__(self) -> None:
        self.position, self.restored = 0, 0

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        own = range(number, 64, workers)
        start, self.restored = self.restored, 0
        for self.position in range(start + 1, len(own) + 1):
            yield own[self.position - 1]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = self.restored = state["position"]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_R05_two_saves_soon_after_each_other_lose_no_worker(runs: Runs) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        return cairn.StatefulLoader(StatefulDataLoader(Stream(), num_workers=4))

    def take(batches: Any, count: int | None = None) -> list[int]:
        return [int(number) for batch in islice(batches, count) for number in batch]

    whole = take(loader())
    data, seen = loader(), []
    for step, count in enumerate((8, 2, 0)):
        seen += take(iter(data), count)
        runs.save({"data": data}, step)
        data = loader()
        runs.load({"data": data})
    assert seen + take(data) == whole and sorted(whole) == list(range(64))


def test_R27_a_resume_in_the_middle_of_an_epoch_sees_every_sample_once(runs: Runs) -> None:
    def job(seed: int) -> tuple[Net, torch.optim.AdamW, Any]:
        net = Net(seed)
        sampler = cairn.DistributedCursorSampler(64, global_batch=4, rank=0, world_size=1, seed=7)
        return net, torch.optim.AdamW(net.parameters()), sampler

    def epoch(net: Net, optimizer: torch.optim.AdamW, sampler: Any, steps: int | None = None) -> list[int]:
        seen: list[int] = []
        numbers: Any = range(64)
        batches = DataLoader(numbers, batch_size=4, sampler=sampler)
        for batch in islice(batches, steps):
            seen += batch.tolist()
            train(net, optimizer, [int(batch[0]) + random.randrange(100)])
            sampler.advance()
        return seen

    random.seed(5)
    whole = job(0)
    order = epoch(*whole)

    random.seed(5)
    first = job(0)
    seen = epoch(*first, steps=5)
    names = ("model", "optimizer", "data")
    runs.save({**dict(zip(names, first, strict=True)), "rng": cairn.RngState(), "step": 5})
    random.seed(6)
    second = job(1)
    state = {**dict(zip(names, second, strict=True)), "rng": cairn.RngState(), "step": 0}
    runs.load(state)
    seen += epoch(*second)
    assert state["step"] == 5 and seen == order and sorted(seen) == list(range(64))
    assert bits(dict(second[0].state_dict())) == bits(dict(whole[0].state_dict()))


def test_R27_a_cursor_over_other_data_is_refused(runs: Runs) -> None:
    def sampler(size: int) -> Any:
        return cairn.DistributedCursorSampler(size, global_batch=4, rank=0, world_size=1, seed=7)

    runs.save({"model": Net(), "data": sampler(64)})
    with pytest.raises(CairnError, match="dataset_size was 64, is 68"):
        runs.load({"model": Net(seed=1), "data": sampler(68)})


def test_R10_nothing_that_cannot_be_restored_is_passed_over(runs: Runs) -> None:
    class Broken(LossScaler):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError("this version knows no window")

    runs.save({"model": Net(), "scaler": Broken(window=1)})
    for strict in (True, False):
        with pytest.raises(ValueError, match="knows no window"):
            runs.load({"model": Net(), "scaler": Broken()}, strict=strict)
