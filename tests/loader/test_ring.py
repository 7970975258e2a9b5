"""Readers of a host hand each other what they fetch: here threads with one mapping, as processes would."""

import mmap
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cairn.core.clock import SystemClock
from cairn.core.errors import IntegrityError, RankLost
from cairn.loader import ring as rings
from cairn.loader.execute import execute
from cairn.loader.plan import Group, ReadPlan, Wanted, plan_reads
from cairn.loader.ring import Layout, Ring, SharedReads
from cairn.loader.sharing import encode_wants, shared_extents, with_extents
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto.chunks import OVERHEAD_BYTES
from cairn.store.crypto.tenant import ContentType
from tests.support.chunks import begin, chunk_store, index_of

CHUNKS, LENGTH = 48, 20_000
CONTENTS = [number.to_bytes(2, "big") * (LENGTH // 2) for number in range(1, CHUNKS + 1)]


class Host:
    """Readers of one store on one host, each of which wants some of its chunks, in some order."""

    def __init__(self, wants: list[list[int]], ring_bytes: int, extent_bytes: int = LENGTH) -> None:
        self.store = chunk_store(MemoryBackend())
        save = begin(self.store)
        with save.writer() as writer:
            self.chunks = [Wanted(writer.put(ContentType.CHUNK, data), LENGTH) for data in CONTENTS]
        index_of(self.store).add(save)
        self.wants = wants
        plans = [self.plan(numbers) for numbers in wants]
        self.extents = shared_extents([encode_wants([plan]) for plan in plans], extent_bytes)
        self.layout = Layout(self.extents, len(wants), ring_bytes)
        self.memory = mmap.mmap(-1, self.layout.nbytes)
        self.plans = [with_extents(plan, self.extents) for plan in plans]
        self.fetched = 0
        self.found: list[dict[int, bytes]] = [{} for _ in wants]
        self.errors: list[BaseException | None] = [None] * len(wants)
        self.readers: list[SharedReads] = []
        self._lock = threading.Lock()
        read_into = self.store.access.backend.read_into

        def counted(name: str, offset: int, target: Any) -> int:
            with self._lock:
                self.fetched += len(target)
            return read_into(name, offset, target)

        self.store.access.backend.read_into = counted  # type: ignore[method-assign]  # to be counted

    def plan(self, numbers: list[int]) -> ReadPlan:
        """Reads of some chunks, in this order."""
        groups = [Group(number, (self.chunks[number],)) for number in numbers]
        whole = plan_reads(groups, self.store.index, self.store.access.keys.chunk)
        (batch,) = whole.batches if groups else (None,)
        if batch is None:
            return whole
        order = {number: at for at, number in enumerate(numbers)}
        deliveries = sorted(batch.deliveries, key=lambda one: order[one.group.key])
        return ReadPlan((type(batch)(batch.ranges, tuple(deliveries)),))

    def reader(self, me: int, check: Callable[[], None] = lambda: None) -> SharedReads:
        """One side of the ring."""
        return SharedReads(Ring(self.extents, self.layout, self.memory, me), self.store, SystemClock(), check)

    def read(self, me: int, threads: int = 2, **options: Any) -> None:
        """What one reader does."""
        reader = self.reader(me, **options)
        self.readers.append(reader)
        found = self.found[me]
        try:
            with reader.serving([self.plans[me]]):
                deliver = lambda key, views: found.update({key: bytes(views[0])})  # noqa: E731
                execute(self.plans[me], self.store, deliver, threads, shared=reader)
        except BaseException as error:
            self.errors[me] = error

    def run(self, *readers: int, **options: Any) -> None:
        """Let some readers read, all of them if none is named; fails if they do not end."""
        names = readers or range(len(self.wants))
        workers = [threading.Thread(target=self.read, args=(n,), kwargs=options, daemon=True) for n in names]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert not any(worker.is_alive() for worker in workers), "readers wait for each other for ever"

    def all_right(self, *readers: int) -> bool:
        """Whether these readers have what they wanted."""
        names = readers or range(len(self.wants))
        return all(self.found[n] == {want: CONTENTS[want] for want in self.wants[n]} for n in names)


EVERY = list(range(CHUNKS))


@pytest.mark.parametrize("ring_bytes", [1, 5 * LENGTH, 100 * LENGTH])
@pytest.mark.parametrize("threads", [1, 3])
def test_replicas_fetch_one_copy_through_a_ring_of_any_size(ring_bytes: int, threads: int) -> None:
    host = Host([EVERY] * 3, ring_bytes)
    host.run(threads=threads)
    assert host.errors == [None] * 3 and host.all_right()
    once = sum(extent.length for extent in host.extents)
    assert host.fetched == once == sum(one.bytes_fetched for one in host.readers)
    assert sum(one.bytes_fetched + one.bytes_taken for one in host.readers) == 3 * once


def test_readers_that_have_some_in_common_fetch_that_once() -> None:
    host = Host([EVERY[:30], EVERY[20:40], EVERY[25:], []], 100 * LENGTH)
    host.run()
    assert host.errors == [None] * 4 and host.all_right()
    alone = sum(plan.bytes_fetched for plan in host.plans)
    assert host.fetched == alone + sum(extent.length for extent in host.extents) == CHUNKS * (LENGTH + OVERHEAD_BYTES)


def test_readers_with_contrary_orders_never_wait_for_each_other_for_ever() -> None:
    host = Host([EVERY, EVERY], 3 * LENGTH)
    host.plans[1] = ReadPlan(host.plans[1].batches[::-1])
    host.run(threads=1)
    assert host.errors == [None, None] and host.all_right()


def test_who_has_no_answer_from_the_others_reads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "SHARED_READ_PATIENCE_SECONDS", 0.2)
    host = Host([EVERY] * 3, 100 * LENGTH)
    host.run(0, 1)
    assert host.errors[:2] == [None, None] and host.all_right(0, 1)


def test_a_reader_that_is_told_of_a_failure_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_CHECK_SECONDS", 0.05)
    host = Host([EVERY] * 2, 100 * LENGTH)

    def check() -> None:
        raise RankLost("rank 1 gave no sign of life")

    host.run(0, check=check)
    assert isinstance(host.errors[0], RankLost)


def test_who_fails_lets_nobody_wait() -> None:
    host = Host([EVERY] * 3, 2 * LENGTH)

    class Broken(dict[int, bytes]):
        def update(self, *_: Any) -> None:
            raise OSError("no memory")

    host.found[0] = Broken()
    host.run()
    assert isinstance(host.errors[0], OSError) and host.all_right(1, 2)


@pytest.mark.parametrize("harm", ["error", "short"])
def test_what_its_owner_cannot_fetch_everybody_tries_alone(harm: str) -> None:
    host = Host([EVERY] * 2, 100 * LENGTH)
    read_into = host.store.access.backend.read_into

    def harmed(name: str, offset: int, target: Any) -> int:
        if threading.current_thread().name.startswith("cairn-shared"):
            if harm == "error":
                raise ValueError("a connection of this rank alone is broken")
            return 10
        return read_into(name, offset, target)

    host.store.access.backend.read_into = harmed  # type: ignore[method-assign]  # to be harmed
    host.run()
    assert host.errors == [None, None] and host.all_right()


def test_other_bytes_in_the_ring_are_noticed_and_read_anew() -> None:
    host = Host([EVERY] * 2, 100 * LENGTH)
    first = host.reader(0)
    extent = host.extents[3]
    first._states[3] = rings._HERE
    assert bytes(first._place(3)) == bytes(extent.length)
    host.run()
    assert host.errors == [None, None] and host.all_right()


def test_damage_in_storage_is_an_error_for_every_reader() -> None:
    host = Host([EVERY] * 2, 100 * LENGTH)
    backend = host.store.access.backend
    assert isinstance(backend, MemoryBackend)
    (name,) = [ref.name for ref in index_of(host.store).packs]
    data = bytearray(backend.read(name))
    data[5 * LENGTH] ^= 1
    backend.delete(name)
    backend.create(name, [bytes(data)])
    host.run()
    assert all(isinstance(error, IntegrityError) for error in host.errors)
