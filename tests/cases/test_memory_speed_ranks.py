"""Faults of memory and speed of several ranks: what they read, what they say to each other."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import cairn
from cairn.core.clock import SystemClock
from cairn.training.agreement import exchange
from cairn.training.ranks import Ranks
from tests.cases.training import Net
from tests.support.stores import new_site
from tests.support.threads import ThreadRendezvous, run_threads

MIB = 1 << 20


class Counting(ThreadRendezvous):
    """Counts the bytes that a rank leaves and takes, signs of life aside."""

    left = taken = 0

    def put(self, key: str, value: bytes) -> None:
        if not key.startswith("beat/"):
            self.left += len(key) + len(value)
        super().put(key, value)

    def peek(self, key: str) -> bytes | None:
        value = super().peek(key)
        if value is not None and not key.startswith("beat/"):
            self.taken += len(value)
        return value


class Waits(BaseException):
    """A rank has nothing to do but to wait."""


class WaitingClock(SystemClock):
    """Stops a rank that begins to wait, so that one thread can play all of them."""

    def sleep(self, seconds: float) -> None:
        raise Waits


@pytest.mark.parametrize("structures", [1, 8], ids=["all alike", "eight stages"])
def test_M13_three_thousand_ranks_agree_in_small_messages(structures: int) -> None:
    count, values = 3000, dict[str, bytes]()
    views = [Counting(rank, count, values) for rank in range(count)]
    clock = WaitingClock()

    def agree(rank: int) -> dict[int, tuple[int, int]]:
        stage = rank % structures
        names = range(stage << 40, (stage << 40) + 400)
        return exchange(Ranks(views[rank], clock), "save/1", list(names), 60)

    begun = time.perf_counter()
    for rank in range(1, count):
        with pytest.raises(Waits):
            agree(rank)
    found = agree(0)
    assert set(found.values()) == {(0, count // structures)}
    for rank in (1, count // 2, count - 1):
        assert set(agree(rank).values()) == {(rank // structures, count // structures)}
    seconds = time.perf_counter() - begun
    most = max(view.left for view in views[1:]), max(view.taken for view in views[1:])
    print(f"{structures} structures: a rank leaves {most[0]} bytes, takes {most[1]}; {seconds:.1f} s for one thread")
    assert most[0] < 8 << 10 and most[1] < 64 << 10
    assert views[0].left < 64 << 10 and views[0].taken < 64 * count + (128 << 10)


def test_M13_M21_messages_do_not_grow_with_the_state(tmp_path: Path) -> None:
    """What a save takes goes through the store; the rendezvous sees where it lies."""
    site = new_site(tmp_path / "home", clock=SystemClock())

    def traffic(tensors: int) -> int:
        def one(rendezvous: ThreadRendezvous) -> int:
            view = Counting(rendezvous.rank, rendezvous.ranks, rendezvous._values)
            registry = site.registry()
            state = {"w": {str(n): torch.full((100,), float(n)) for n in range(tensors)}, "model": Net()}
            try:
                with cairn.Checkpointer(registry, f"m{tensors}", rendezvous=view) as checkpointer:
                    checkpointer.save(1, state, blocking=True)
                    agreed = view.left + view.taken
                    checkpointer.save(2, state, blocking=True)
                    checkpointer.load(state)
                    return view.left + view.taken - agreed
            finally:
                registry.close()

        return max(n for n in run_threads(4, one) if isinstance(n, int))

    few, many = traffic(10), traffic(300)
    assert few < 4 << 10 and many < few + 512


def test_M21_each_rank_reads_about_its_share(tmp_path: Path) -> None:
    site = new_site(tmp_path / "home", clock=SystemClock())
    whole = {f"w{n}": torch.randn(2048, 1024, generator=torch.Generator().manual_seed(n)) for n in range(4)}

    def state(rank: int, ranks: int, *, empty: bool = False) -> dict[str, Any]:
        rows = 2048 // ranks
        parts = {name: tensor[rank * rows :][:rows].clone() for name, tensor in whole.items()}
        if empty:
            parts = {name: torch.zeros_like(part) for name, part in parts.items()}
        return {"model": {n: cairn.ShardedSlice(p, (2048, 1024), (rank * rows, 0)) for n, p in parts.items()}}

    def save(rendezvous: ThreadRendezvous) -> int:
        registry = site.registry()
        with cairn.Checkpointer(registry, "m", rendezvous=rendezvous) as checkpointer:
            handle = checkpointer.save(1, state(rendezvous.rank, rendezvous.ranks), blocking=True)
        registry.close()
        return handle.stages.bytes_captured

    def load(rendezvous: ThreadRendezvous) -> int:
        registry = site.registry(cold=True)
        own = state(rendezvous.rank, rendezvous.ranks, empty=True)
        with cairn.Checkpointer(registry, "m", rendezvous=rendezvous) as checkpointer:
            report = checkpointer.load(own, resume=False)
        registry.close()
        expected = state(rendezvous.rank, rendezvous.ranks)
        for name, piece in own["model"].items():
            assert torch.equal(piece.tensor, expected["model"][name].tensor)
        assert report is not None
        return report.bytes_read

    assert run_threads(2, save) == [16 * MIB] * 2
    for ranks in (1, 2, 8):
        read = run_threads(ranks, load)
        assert all(isinstance(n, int) and n < 1.1 * 32 * MIB / ranks for n in read), read
