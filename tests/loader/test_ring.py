"""Readers of a host hand each other what they fetch: here threads with one mapping, as processes would."""

import gc
import mmap
import threading
import time
import weakref
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
        self.plans = [with_extents([plan], self.extents, me)[0] for me, plan in enumerate(plans)]
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


def test_nobody_gets_the_place_of_what_is_still_being_fetched() -> None:
    host = Host([EVERY] * 2, 1)
    read_into, gate = host.store.access.backend.read_into, threading.Event()

    def held(name: str, offset: int, target: Any) -> int:
        gate.wait(60)
        return read_into(name, offset, target)

    host.store.access.backend.read_into = held  # type: ignore[method-assign]  # to be held
    one, other = host.reader(0), host.reader(1)
    with one.serving([]), other.serving([]):  # neither is to take anything
        held_back = not one._fits(2) and not other._fits(2)
        gate.set()
    assert held_back


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_used_again_much_later_does_not_hold_up_the_rest(threads: int) -> None:
    host = Host([EVERY] * 2, 4 * LENGTH)
    host.plans = [ReadPlan((*plan.batches, plan.batches[0])) for plan in host.plans]
    host.run(threads=threads)
    assert host.errors == [None, None] and host.all_right()
    again = host.fetched - sum(extent.length for extent in host.extents)
    assert again == 2 * host.extents[0].length


def test_who_is_long_at_other_things_does_not_hold_up_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_STANDSTILL_SECONDS", 0.02)
    monkeypatch.setattr(rings, "SHARED_READ_PATIENCE_SECONDS", 1.0)
    host = Host([EVERY[:30], EVERY[:30], [0, *EVERY[30:]]], 4 * LENGTH)
    first = next(batch for batch in host.plans[2].batches if batch.extent is not None)
    others = [host.plan([number]).batches for number in EVERY[30:]]
    host.plans[2] = ReadPlan((*(batch for one in others for batch in one), first))

    class Slow(dict[int, bytes]):
        def update(self, found: Any) -> None:
            time.sleep(0.04)
            super().update(found)

    host.found[2] = Slow()
    host.run(threads=1)
    assert host.errors == [None] * 3 and host.all_right()
    assert host.fetched == (CHUNKS + 1) * (LENGTH + OVERHEAD_BYTES)


def test_who_has_no_answer_from_the_others_reads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "SHARED_READ_PATIENCE_SECONDS", 0.2)
    host = Host([EVERY] * 3, 100 * LENGTH)
    host.run(0, 1)
    assert host.errors[:2] == [None, None] and host.all_right(0, 1)


def test_what_comes_late_is_waited_for_as_long_as_storage_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that throttles all, say: it must not be asked by each for everything."""
    host = Host([EVERY] * 2, 100 * LENGTH)
    read_into, begun = host.store.access.backend.read_into, time.monotonic()
    hurried = lambda self: time.monotonic() * 500  # noqa: E731  # 0.2 s are 100
    monkeypatch.setattr(SystemClock, "monotonic", hurried)

    def late(name: str, offset: int, target: Any) -> int:
        time.sleep(max(0.0, begun + 0.2 - time.monotonic()))
        return read_into(name, offset, target)

    host.store.access.backend.read_into = late  # type: ignore[method-assign]  # to be late
    host.run()
    assert host.all_right() and host.fetched == sum(extent.length for extent in host.extents)


def test_what_one_thread_is_told_ends_the_whole_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_CHECK_SECONDS", 0.05)
    host = Host([EVERY] * 2, 1)
    told: list[None] = []

    def check() -> None:
        if told or threading.current_thread().name.startswith("cairn-shared"):
            told.append(None)
            raise RankLost("rank 1 gave no sign of life")

    host.run(0, check=check)
    assert isinstance(host.errors[0], RankLost)


def test_threads_that_wait_ask_no_more_often_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(rings, "SHARED_READ_PATIENCE_SECONDS", 0.5)
    asked: list[None] = []
    Host([EVERY] * 2, 100 * LENGTH).run(0, threads=4, check=lambda: asked.append(None))
    assert 2 <= len(asked) <= 8


def test_a_fault_of_a_fetching_thread_ends_the_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "SHARED_READ_PATIENCE_SECONDS", 1000.0)
    host = Host([EVERY] * 2, 1)
    fits = SharedReads._fits

    def faulty(self: SharedReads, number: int) -> bool:
        if threading.current_thread().name.startswith("cairn-shared"):
            raise MemoryError
        return fits(self, number)

    monkeypatch.setattr(SharedReads, "_fits", faulty)
    host.run()
    assert host.errors == [None, None] and host.all_right()


def test_who_fails_lets_nobody_wait() -> None:
    host = Host([EVERY] * 3, 2 * LENGTH)

    class Broken(dict[int, bytes]):
        def update(self, *_: Any) -> None:
            raise OSError("no memory")

    host.found[0] = Broken()
    host.run()
    assert isinstance(host.errors[0], OSError) and host.all_right(1, 2)


def test_a_thread_that_fails_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "SHARED_READ_PATIENCE_SECONDS", 1000.0)
    host = Host([EVERY] * 3, 1)

    class Broken(dict[int, bytes]):
        def update(self, found: Any) -> None:
            if 5 in found:
                raise OSError("no memory")

    host.found[0] = Broken()
    host.run(threads=3)
    assert isinstance(host.errors[0], OSError) and host.all_right(1, 2)


@pytest.mark.parametrize("allowed", [0, 2])
def test_where_threads_are_scarce_they_are_left_to_who_reads(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host([EVERY] * 2, 100 * LENGTH)
    start = threading.Thread.start

    def scarce(self: threading.Thread) -> None:
        if self.name.startswith("cairn-shared") and int(self.name[-1]) >= allowed:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    host.run()
    assert host.errors == [None, None] and host.all_right()


def test_who_is_interrupted_while_others_take_what_it_fetched_ends_the_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host([EVERY] * 2, 1)
    reader, join, interrupts = host.reader(0), rings._join, [KeyboardInterrupt()]

    def interrupted(threads: list[threading.Thread]) -> None:
        if interrupts:
            raise interrupts.pop()
        join(threads)

    monkeypatch.setattr(rings, "_join", interrupted)
    with pytest.raises(KeyboardInterrupt), reader.serving([]):
        pass
    assert reader._ended[0] and not any(one.name.startswith("cairn-shared") for one in threading.enumerate())


def test_a_load_that_failed_holds_no_memory() -> None:
    host = Host([EVERY] * 2, 1)

    def fail(*_: object) -> None:
        raise OSError("no memory")

    host.store.open = fail  # type: ignore[method-assign, assignment]  # to fail
    gc.disable()
    try:
        host.run()
        assert all(isinstance(error, OSError) for error in host.errors)
        memory, host.memory, host.errors, host.readers = weakref.ref(host.memory), mmap.mmap(-1, 1), [], []
        assert memory() is None
    finally:
        gc.enable()


def test_a_small_load_has_a_small_ring() -> None:
    host = Host([EVERY] * 2, 100 * CHUNKS * LENGTH)
    assert host.layout.nbytes < CHUNKS * (LENGTH + 200) + 3 * mmap.PAGESIZE


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
