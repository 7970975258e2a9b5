"""Logical shards, rank-local states, and torchdata's loader."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler, Sampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from cairn.core.errors import RefusedError, UsageError
from cairn.training.dataloader import DistributedCursorSampler, LogicalShards, RankLocal, StatefulLoader
from cairn.training.perrank import PerRank

pytestmark = [
    # Four workers are what the fault needs, however few processors there are.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata 0.11 calls it, torch 2.13 deprecates it.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


# --- torchdata ---------------------------------------------------------------------------------


class Stream(IterableDataset[int]):
    """Numbers, shared out among workers; each remembers its own position."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.position = 0
        self.restored: int | None = None

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        own = range(number, self.size, workers)
        start, self.restored = self.restored or 0, None
        for self.position in range(start + 1, len(own) + 1):
            yield own[self.position - 1]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = self.restored = state["position"]


class Bare(IterableDataset[int]):
    """Numbers, without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(64))


MAP = list(range(64))


def make(dataset: Any = MAP, workers: int = 4, **more: Any) -> StatefulLoader:
    if dataset is MAP and not more.keys() & {"sampler", "batch_sampler"}:
        more = {"shuffle": True, "generator": torch.Generator().manual_seed(7), **more}
    return StatefulLoader(StatefulDataLoader(dataset, num_workers=workers, **more))


def take(batches: Any, count: int | None = None) -> list[int]:
    return [int(number) for batch in islice(batches, count) for number in batch]


def again(state: Any, *arguments: Any, **more: Any) -> StatefulLoader:
    loader = make(*arguments, **more)
    assert loader.load_rank_states({"rank=0": state}) == []
    return loader


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("workers", [4, 0])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_R05_a_save_soon_after_a_resume_is_complete(kind: str, workers: int, every: int) -> None:
    def fresh() -> tuple[Any, int]:
        return (MAP if kind == "map" else Stream(64)), workers

    more = {"snapshot_every_n_steps": every} if workers else {}
    whole = take(make(*fresh(), **more))
    assert sorted(whole) == MAP
    first = make(*fresh(), **more)
    seen = take(iter(first), 8)
    second = again(first.state_dict(), *fresh(), **more)
    seen += take(iter(second), 2)
    third = again(second.state_dict(), *fresh(), **more)
    at_once = third.state_dict()
    assert seen + take(third) == whole
    assert seen + take(again(at_once, *fresh(), **more)) == whole, "a save before the first batch"


def without_worker(state: dict[str, Any], name: str) -> dict[str, Any]:
    snapshot = state["state"]["_snapshot"]
    workers = {key: worker for key, worker in snapshot["_worker_snapshots"].items() if key != name}
    return {**state, "state": {**state["state"], "_snapshot": {**snapshot, "_worker_snapshots": workers}}}


def test_R05_a_state_without_a_worker_is_refused() -> None:
    loader = make(Stream(64))
    take(iter(loader), 8)
    state = loader.state_dict()
    with pytest.raises(RefusedError, match="saved state is incomplete: nothing of worker_2"):
        again(without_worker(state, "worker_2"), Stream(64))
    with pytest.raises(RefusedError, match=r"not laid out as in torchdata 0\.11"):
        again({**state, "state": {}}, Stream(64))


class Shuffled(Sampler[list[int]]):
    """Batches in another order each time, without a state."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[int(i)] for i in torch.randperm(64)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "more", "lacks"),
    [
        (Bare(), {}, r"no position of the iterable dataset in worker_0"),
        (MAP, {"sampler": RandomSampler(MAP)}, "no position of the sampler RandomSampler"),
        (MAP, {"batch_sampler": Shuffled()}, "no position of the sampler Shuffled"),
    ],
    ids=["iterable", "sampler", "batch sampler"],
)
def test_R05_R27_what_has_no_position_is_refused_at_save(
    dataset: Any, more: dict[str, Any], lacks: str, workers: int
) -> None:
    loader = make(dataset, workers, **more)
    take(iter(loader), 2)
    with pytest.raises(RefusedError, match=lacks):
        loader.state_dict()


@pytest.mark.filterwarnings("ignore:using in_order=False")
def test_R05_batches_out_of_order_are_refused_at_save() -> None:
    loader = make(workers=2, in_order=False)
    take(iter(loader), 2)
    with pytest.raises(RefusedError, match="in_order=False"):
        loader.state_dict()


def test_R27_a_resume_keeps_the_order_of_the_epoch() -> None:
    one = make(workers=0)
    first = take(iter(one), 20)
    rest = take(again(one.state_dict(), workers=0, generator=torch.Generator().manual_seed(9)))
    assert sorted(first + rest) == MAP
    assert first + rest == take(make(workers=0))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("exhaust", [False, True], ids=["before StopIteration", "after StopIteration"])
def test_R24_the_next_epoch_is_whole_after_a_save_at_the_end(exhaust: bool, workers: int) -> None:
    ten: Any = list(range(10))
    one = make(ten, workers)
    batches = iter(one)
    assert take(batches, 10) == ten
    if exhaust:
        assert next(batches, None) is None
    state = one.state_dict()
    fresh = again(state, ten, workers)
    assert str(fresh.state_dict()) == str(state), "kept exactly until it is taken up"
    if not exhaust:
        assert take(fresh) == [], "nothing is left of the old epoch"
    assert take(fresh) == take(fresh) == ten


def test_R25_epochs_after_a_resume_are_whole_with_persistent_workers() -> None:
    for dataset in (list(range(12)), Stream(12)):
        one = make(dataset, 2)
        assert len(take(iter(one), 8)) == 8
        fresh = again(one.state_dict(), dataset, 2, persistent_workers=True)
        assert take(fresh) == [8, 9, 10, 11]
        assert take(fresh) == take(fresh) == list(range(12))


@pytest.mark.parametrize("workers", [0, 2])
def test_R26_an_iterator_made_before_a_load_raises(workers: int) -> None:
    source = make(Stream(64), workers)
    seen = take(iter(source), 5)
    state = source.state_dict()
    one = make(Stream(64), workers)
    batches = iter(one)
    one.load_rank_states({"rank=0": state})
    with pytest.raises(RefusedError, match="stale"):
        next(batches)
    assert str(one.state_dict()) == str(state), "a later save keeps the loaded position"
    assert seen + take(one) == take(make(Stream(64), workers))


def test_R28_the_epoch_of_the_sampler_is_part_of_the_state() -> None:
    def loader() -> tuple[Any, StatefulLoader]:
        order: Any = DistributedSampler(MAP, num_replicas=2, rank=1, seed=7)  # type: ignore[arg-type]  # a list is a dataset
        return order, make(sampler=order, workers=0)

    order, one = loader()
    order.set_epoch(3)
    first = take(iter(one), 5)
    fresh_order, fresh = loader()
    fresh.load_rank_states({"rank=0": one.state_dict()})
    assert fresh_order.epoch == 3
    rest = take(fresh)
    order.set_epoch(3)
    assert first + rest == take(one)


def test_a_loader_with_other_workers_is_refused() -> None:
    one = make(workers=2)
    take(iter(one), 2)
    with pytest.raises(RefusedError, match="saved with 2 workers and now has 0"):
        again(one.state_dict(), workers=0)


def test_a_cursor_is_not_for_this_loader() -> None:
    cursor = DistributedCursorSampler(64, global_batch=1, rank=0, world_size=1, seed=1)
    with pytest.raises(UsageError, match="a cursor counts completed steps"):
        make(sampler=cursor)
    with pytest.raises(UsageError, match="no state of form global_cursor"):
        StatefulLoader(StatefulDataLoader(MAP), form="global_cursor")  # type: ignore[arg-type]  # a list is a dataset
    assert len(make()) == 64


# --- Rank-local --------------------------------------------------------------------------------


class Counter:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {"seen": [0]}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def counters(count: int, name: str = "dp") -> list[tuple[Counter, RankLocal]]:
    made = [Counter() for _ in range(count)]
    return [(one, RankLocal(one, coordinates={name: i}, ranks=count)) for i, one in enumerate(made)]


def test_rank_local_states_come_back_on_an_equal_job() -> None:
    saved = {}
    for number, (one, local) in enumerate(counters(4)):
        one.state["seen"].append(number)
        saved[local.rank_key] = local.state_dict()
        one.state["seen"].append("later")
    assert isinstance(local, PerRank)
    for number, (one, local) in enumerate(counters(4)):
        assert local.load_rank_states(saved) == []
        assert one.state == {"seen": [0, number]}


@pytest.mark.parametrize(("count", "name"), [(3, "dp"), (5, "dp"), (4, "tp")])
def test_rank_local_states_are_refused_on_another_job(count: int, name: str) -> None:
    saved = {local.rank_key: local.state_dict() for _, local in counters(4)}
    for one, local in counters(count, name):
        with pytest.raises(RefusedError, match=rf"{local.rank_key} of {count}, .* 4 ranks: dp=0; dp=1; dp=2; dp=3"):
            local.load_rank_states(saved)
        assert one.state == {"seen": [0]}


def test_rank_local_states_know_their_number_of_ranks() -> None:
    with pytest.raises(UsageError, match="how many ranks"):
        RankLocal(Counter(), coordinates={"dp": 0})
    assert RankLocal(Counter()).rank_key == "rank=0"


def test_a_state_of_another_form_is_refused() -> None:
    with pytest.raises(RefusedError, match="is not rank_local"):
        RankLocal(Counter()).load_rank_states({"rank=0": {"form": "logical_shards", "state": {}}})


# --- Logical shards ----------------------------------------------------------------------------

NAMES = [f"data-{i}.bin" for i in range(7)]


def sharded(world: int, names: list[str] = NAMES, replicas: int = 1) -> list[LogicalShards]:
    places = [(rank, {"dp": rank, "tp": tp}) for rank in range(world) for tp in range(replicas)]
    return [LogicalShards(names, rank=rank, world_size=world, coordinates=place) for rank, place in places]


def states_of(ranks: list[LogicalShards]) -> dict[str, Any]:
    return {one.rank_key: one.state_dict() for one in ranks}


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2), st.integers(0, 50)), min_size=1, max_size=5))
def test_shards_are_dealt_out_anew_with_their_positions(jobs: list[tuple[int, int, int]]) -> None:
    expected = dict.fromkeys(NAMES, 0)
    saved: dict[str, Any] = {}
    for world, replicas, reads in jobs:
        ranks = sharded(world, replicas=replicas)
        for one in ranks:
            if saved:
                one.load_rank_states(saved)
        owned = {shard: position for one in ranks for shard, position in one.positions.items()}
        assert owned == expected
        for number in range(reads):
            shard = NAMES[number * number % len(NAMES)]
            expected[shard] += number
            for one in ranks:
                if shard in one.positions:
                    one.advance(shard, number)
        saved = states_of(ranks)


def test_shards_say_when_they_were_dealt_out_anew() -> None:
    saved = states_of(sharded(4))
    assert sharded(4)[0].load_rank_states(saved) == []
    assert sharded(3)[0].load_rank_states(saved) == ["7 shards of 4 saved ranks were dealt out anew"]


def test_shards_that_differ_are_refused_by_name() -> None:
    saved = states_of(sharded(4))
    (one,) = sharded(1, [*NAMES[1:], "new.bin"])
    with pytest.raises(RefusedError, match=r"not saved: new\.bin; not known here: data-0\.bin"):
        one.load_rank_states(saved)
    del saved["dp=2,tp=0"]
    with pytest.raises(RefusedError, match=r"not saved: data-2\.bin, data-6\.bin; not known here: none"):
        sharded(1)[0].load_rank_states(saved)
    with pytest.raises(UsageError, match=r"a\.bin are named more than once"):
        sharded(1, ["a.bin", "a.bin"])


def test_ranks_that_share_a_shard_must_agree() -> None:
    ranks = sharded(2, replicas=2)
    ranks[0].advance("data-0.bin", 3)
    with pytest.raises(RefusedError, match=r"data-0\.bin stands at 0 on rank dp=0,tp=1, at 3 on another"):
        sharded(1)[0].load_rank_states(states_of(ranks))
    with pytest.raises(UsageError, match=r"data-1\.bin is not this rank's"):
        ranks[0].advance("data-1.bin")


def test_epochs_of_shards_go_together() -> None:
    ranks = sharded(2)
    ranks[0].advance("data-0.bin", 3)
    ranks[0].set_epoch(0)
    assert ranks[0].positions["data-0.bin"] == 3
    ranks[0].set_epoch(1)
    assert ranks[0].positions["data-0.bin"] == 0
    with pytest.raises(RefusedError, match=r"epochs \[0, 1\]"):
        sharded(1)[0].load_rank_states(states_of(ranks))
    ranks[1].set_epoch(1)
    (one,) = sharded(1)
    one.load_rank_states(states_of(ranks))
    assert one.epoch == 1
    with pytest.raises(RefusedError, match=r"set_epoch\(0\) would repeat data"):
        one.set_epoch(0)
    with pytest.raises(RefusedError, match="epochs none"):
        one.load_rank_states({})
    with pytest.raises(RefusedError, match="not one of logical shards"):
        one.load_rank_states({"rank=0": {"form": "logical_shards", "epoch": 0}})
