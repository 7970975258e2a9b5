"""The global cursor: one order of samples, whoever shares it and however often training stops."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from cairn.core.errors import RefusedError, UsageError
from cairn.manifests.values import decode_value, encode_value
from cairn.training.cursor import shuffled
from cairn.training.dataloader import DistributedCursorSampler, GlobalCursor


def sampler(size: int, batch: int, *, rank: int = 0, world: int = 1, seed: int = 7, **more: Any) -> Any:
    return DistributedCursorSampler(size, global_batch=batch, rank=rank, world_size=world, seed=seed, **more)


def loader_of(one: Any, batch: int, **more: Any) -> DataLoader[Any]:
    return DataLoader(list(range(one.dataset_size)), batch_size=batch, sampler=one, **more)  # type: ignore[arg-type]  # a list is a dataset


def stored(state: Any) -> Any:
    return decode_value(encode_value(state, "a cursor"), "a cursor")


def resumed(state: Any, size: int, batch: int, **more: Any) -> Any:
    fresh = sampler(size, batch, **more)
    fresh.load_state_dict(stored(state))
    return fresh


def epoch(one: Any, batch: int = 1, steps: int | None = None) -> list[int]:
    """Trains one epoch, or `steps` steps of it, with a batch a step; what it saw."""
    seen: list[int] = []
    for samples in islice(loader_of(one, batch), steps):
        seen += samples.tolist()
        one.advance()
    return seen


# --- End of an epoch ---------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("exhaust", [False, True], ids=["before StopIteration", "after StopIteration"])
@pytest.mark.parametrize("workers", [0, 2])
def test_R24_the_next_epoch_is_whole_after_a_save_at_the_end(shuffle: bool, exhaust: bool, workers: int) -> None:
    unbroken = sampler(10, 1, shuffle=shuffle)
    first, second = epoch(unbroken), epoch(unbroken)
    assert sorted(first) == sorted(second) == list(range(10))
    one = sampler(10, 1, shuffle=shuffle)
    batches = iter(loader_of(one, 1, num_workers=workers))
    for _ in range(10):
        next(batches)
        one.advance()
    if exhaust:
        assert next(batches, None) is None
    state = one.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 0)
    assert epoch(resumed(state, 10, 1, shuffle=shuffle)) == second
    assert epoch(one) == second


def test_R25_epochs_after_a_resume_are_whole_with_persistent_workers() -> None:
    unbroken = sampler(12, 1)
    expected = [epoch(unbroken) for _ in range(3)]
    one = sampler(12, 1)
    epoch(one, steps=8)
    fresh = resumed(one.state_dict(), 12, 1)
    loader = loader_of(fresh, 1, num_workers=2, persistent_workers=True)
    for want in [expected[0][8:], *expected[1:]]:
        seen = []
        for batch in loader:
            seen += batch.tolist()
            fresh.advance()
        assert seen == want


# --- Order of calls ----------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "begun"), [(0, True), (2, True), (2, False)])
def test_R26_an_iterator_made_before_a_load_raises(workers: int, begun: bool) -> None:
    source = sampler(64, 4)
    epoch(source, batch=4, steps=5)
    one = sampler(64, 4)
    batches = iter(loader_of(one, 4, num_workers=workers))
    if begun:
        next(batches)
    one.load_state_dict(source.state_dict())
    with pytest.raises(RefusedError, match="this iterator is stale"):
        next(batches)
    assert one.state_dict() == source.state_dict(), "a later save keeps the loaded position"
    assert epoch(one, batch=4) == epoch(source, batch=4)


def test_R26_an_iterator_that_has_not_asked_the_sampler_yet_begins_at_the_loaded_position() -> None:
    source = sampler(64, 4)
    epoch(source, batch=4, steps=5)
    one = sampler(64, 4)
    batches = iter(loader_of(one, 4))
    one.load_state_dict(source.state_dict())
    assert next(batches).tolist() == epoch(source, batch=4, steps=1)


def test_R26_what_was_prefetched_before_a_load_cannot_be_counted() -> None:
    source = sampler(64, 4)
    epoch(source, batch=4, steps=5)
    one = sampler(64, 4)
    prefetched = iter(loader_of(one, 4, num_workers=2, prefetch_factor=16))
    next(prefetched)
    one.load_state_dict(source.state_dict())
    next(prefetched)  # the sampler is not asked any more, but training on it is noticed
    with pytest.raises(RefusedError, match="data of 0 steps was dealt out"):
        one.advance()
    assert one.state_dict() == source.state_dict()


def test_R26_an_exhausted_iterator_stays_stale() -> None:
    one = sampler(4, 2)
    indices = iter(one)
    assert len(list(islice(indices, 4))) == 4
    one.load_state_dict(one.state_dict())
    with pytest.raises(RefusedError, match="stale"):
        next(indices)


def test_more_steps_than_were_dealt_out_are_refused() -> None:
    one = sampler(64, 4)
    batches = iter(loader_of(one, 2))
    next(batches)
    one.advance()
    with pytest.raises(RefusedError, match=r"after 4 samples: .* data of 0 steps"):
        one.advance()
    next(batches), next(batches)
    one.advance()
    assert one.consumed == 8


def test_iter_deals_out_again_what_is_not_completed() -> None:
    one = sampler(64, 4)
    first = list(islice(iter(loader_of(one, 4, num_workers=2)), 3))
    one.advance(2)
    assert epoch(one, batch=4, steps=1) == first[2].tolist()


def test_R27_both_parts_of_a_broken_epoch_are_all_samples_once() -> None:
    whole = epoch(sampler(64, 4), batch=4)
    one = sampler(64, 4)
    first = epoch(one, batch=4, steps=5)
    assert len(first) == 20
    rest = epoch(resumed(one.state_dict(), 64, 4), batch=4)
    assert sorted(first + rest) == list(range(64))
    assert first + rest == whole != sorted(whole)


def test_R28_the_epoch_survives_skipped_batches_and_a_resume() -> None:
    unbroken = sampler(64, 4)
    epochs = [epoch(unbroken, batch=4) for _ in range(5)]
    one = sampler(64, 4)
    one.set_epoch(3)
    one.skip(5)
    state = one.state_dict()
    assert (state["epoch"], state["consumed"]) == (3, 20)
    for again in (one, resumed(state, 64, 4)):
        again.set_epoch(3)
        assert epoch(again, batch=4) == epochs[3][20:]
        assert again.epoch == 4
        again.set_epoch(4)
        assert epoch(again, batch=4) == epochs[4]


def test_R28_a_loop_that_begins_at_epoch_0_again_is_refused() -> None:
    one = sampler(64, 4)
    one.set_epoch(3)
    fresh = resumed(one.state_dict(), 64, 4)
    with pytest.raises(RefusedError, match=r"stands in epoch 3; set_epoch\(0\) would repeat data"):
        fresh.set_epoch(0)


def test_set_epoch_leaves_the_rest_of_an_epoch() -> None:
    one = sampler(64, 4)
    indices = iter(one)
    next(indices)
    one.set_epoch(1)
    with pytest.raises(RefusedError, match="stale"):
        next(indices)
    assert (one.epoch, one.consumed) == (1, 0)


# --- Other numbers of ranks ---------------------------------------------------------------------


def unbroken_order(cursor: GlobalCursor) -> Iterator[int]:
    number = 0
    while True:
        yield from cursor.samples(number // cursor.epoch_steps, number % cursor.epoch_steps).tolist()
        number += 1


def train(ranks: list[Any], steps: int) -> list[int]:
    """Runs `steps` steps on all ranks together; the samples in the order of their shares."""
    seen: list[int] = []
    todo = steps
    while todo:
        shares = [list(islice(one, todo * (one.global_batch // len(ranks)))) for one in ranks]
        first = ranks[0]
        done = min(todo, first.epoch_steps - first.consumed // first.global_batch)
        size = first.global_batch // len(ranks)
        for step in range(done):
            seen += [index for share in shares for index in share[step * size : (step + 1) * size]]
        for one in ranks:
            one.advance(done)
        todo -= done
    return seen


@settings(max_examples=60)
@given(
    size=st.integers(12, 90),
    seed=st.integers(0, (1 << 64) - 1),
    shuffle=st.booleans(),
    parts=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 9)), min_size=1, max_size=6),
)
def test_the_order_is_the_same_however_ranks_share_it(
    size: int, seed: int, shuffle: bool, parts: list[tuple[int, int]]
) -> None:
    state, seen = None, []
    for world, steps in parts:
        ranks = [sampler(size, 12, rank=r, world=world, seed=seed, shuffle=shuffle) for r in range(world)]
        for one in ranks:
            if state is not None:
                one.load_state_dict(state)
        seen += train(ranks, steps)
        states = [stored(one.state_dict()) for one in ranks]
        assert all(one == states[0] for one in states), "a replicated state is the same on every rank"
        state = states[0]
    whole = GlobalCursor(size, global_batch=12, seed=seed, shuffle=shuffle)
    assert seen == list(islice(unbroken_order(whole), len(seen)))
    assert len(seen) == 12 * sum(steps for _, steps in parts)


@settings(max_examples=30)
@given(size=st.integers(1, 200), batch=st.integers(1, 40), number=st.integers(0, 3), drop_last=st.booleans())
def test_an_epoch_holds_every_sample_once(size: int, batch: int, number: int, drop_last: bool) -> None:
    if drop_last and size < batch:
        with pytest.raises(UsageError, match="do not fill one batch"):
            GlobalCursor(size, global_batch=batch, seed=1)
        return
    cursor = GlobalCursor(size, global_batch=batch, seed=1, drop_last=drop_last)
    seen = [index for step in range(cursor.epoch_steps) for index in cursor.samples(number, step).tolist()]
    assert len(set(seen)) == len(seen) == (size - size % batch if drop_last else size)


def test_numbers_that_do_not_divide_are_named() -> None:
    with pytest.raises(UsageError, match="5 ranks cannot share a global batch of 12 equally"):
        sampler(64, 12, world=5)
    with pytest.raises(UsageError, match="64 samples in batches of 12 leave a last step of 4, which 3 ranks"):
        sampler(64, 12, world=3, drop_last=False)
    assert [len(sampler(64, 12, world=w)) for w in (1, 4)] == [60, 15]
    shares = [list(sampler(64, 12, rank=r, world=2, shuffle=False, drop_last=False)) for r in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(64)) and shares[1][-2:] == [62, 63]


def test_another_global_batch_is_taken_up_where_it_divides() -> None:
    one = sampler(96, 12)
    epoch(one, batch=12, steps=3)
    state, rest = one.state_dict(), epoch(one, batch=12)
    with pytest.raises(RefusedError, match="global_batch was 12, is 18"):
        resumed(state, 96, 18)
    with pytest.raises(RefusedError, match="consumed 36 samples, which is not a multiple of the global batch 24"):
        resumed(state, 96, 24, allow={"global_batch"})
    other = resumed(state, 96, 18, allow={"global_batch"})
    assert epoch(other, batch=18) == rest[:54] and math.ceil(96 / 18) == 6
    assert (other.epoch, other.consumed) == (1, 0)


def test_a_cursor_over_other_data_is_refused_with_all_differences() -> None:
    one = sampler(64, 4)
    with pytest.raises(
        RefusedError, match=r"dataset_size was 64, is 65; .*seed was 7, is 8; .*drop_last was True"
    ) as e:
        resumed(one.state_dict(), 65, 4, seed=8, drop_last=False)
    assert "global_batch was" not in e.value.message
    with pytest.raises(RefusedError, match="shuffle was True, is False"):
        resumed(one.state_dict(), 64, 4, shuffle=False)


@pytest.mark.parametrize(
    "change",
    [{"epoch": -1}, {"epoch": "1"}, {"consumed": 65}, {"consumed": True}, {"consumed": 3}, {"form": "x"}, None],
)
def test_a_malformed_state_is_refused_and_changes_nothing(change: dict[str, Any] | None) -> None:
    one = sampler(64, 4)
    indices = iter(one)
    with pytest.raises(RefusedError):
        one.load_state_dict(None if change is None else {**one.state_dict(), **change})
    next(indices)
    assert (one.epoch, one.consumed) == (0, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: sampler(0, 4),
        lambda: sampler(64, 4, seed=-1),
        lambda: sampler(64, 4, rank=2, world=2),
        lambda: sampler(64, 4, allow={"seed"}),
        lambda: sampler(64, 4).skip(-1),
        lambda: sampler(64, 4).advance(-1),
    ],
)
def test_senseless_arguments_are_refused(call: Any) -> None:
    with pytest.raises(UsageError):
        call()


def test_the_order_is_fixed_for_ever() -> None:
    assert shuffled(10, 7, 0).tolist() == [2, 5, 0, 8, 7, 6, 1, 9, 3, 4]
    assert shuffled(10, 7, 1).tolist() == [4, 9, 6, 1, 0, 8, 7, 5, 3, 2]
    assert not np.array_equal(shuffled(1000, 7, 0), shuffled(1000, 8, 0))
