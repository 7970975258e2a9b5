"""Carrying out a plan: what is delivered is true, and what cannot be delivered stops everything."""

import random
import threading
from collections.abc import Callable, Iterable, Sequence

import pytest

from cairn.core.errors import CairnError, IntegrityError
from cairn.core.ids import Digest
from cairn.core.pool import Pool
from cairn.loader.execute import execute
from cairn.loader.plan import Group, Wanted, plan_reads
from cairn.store.backends.faults import Corrupt, Fail, FaultyBackend
from cairn.store.backends.memory import MemoryBackend
from cairn.store.chunkstore import ChunkStore
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.tenant import ContentType
from tests.support.chunks import OpenSession, begin, chunk_store, index_of

DRAW = random.Random(6)
CONTENTS = [DRAW.randbytes(length) for length in (300, 5000, 70_000, 69, 1 << 20, 400)] + [b"\7" * 900, b"abcd" * 3000]


def stored(store: ChunkStore, session: int = 1, policy: CodecPolicy = CodecPolicy.RAW) -> list[Group]:
    """Store the contents; one group of them all, and one each."""
    save = store.save(OpenSession(begin(store, session).session.ensure_open()), policy)
    with save.writer() as writer:
        wanted = [Wanted(writer.put(ContentType.CHUNK, data, 4), len(data)) for data in CONTENTS]
    index_of(store).add(save)
    return [Group(0, tuple(wanted)), *(Group(number, (one,)) for number, one in enumerate(wanted, 1))]


def read(store: ChunkStore, groups: Sequence[Group], threads: int = 3) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    plan = plan_reads(groups, store.index, store.access.keys.chunk)
    execute(plan, store, lambda key, views: found.update({key: [bytes(view) for view in views]}), threads)
    return found


def expected() -> dict[int, list[bytes]]:
    return {0: CONTENTS, **{number: [data] for number, data in enumerate(CONTENTS, 1)}}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("policy", CodecPolicy)
def test_every_group_is_delivered_as_it_was(threads: int, policy: CodecPolicy) -> None:
    store = chunk_store(MemoryBackend())
    assert read(store, stored(store, policy=policy), threads) == expected()


def test_a_damaged_place_is_made_up_for_by_another_and_remembered() -> None:
    backend = FaultyBackend(MemoryBackend(), [Corrupt(op="read_into", bit=800_001)])
    store = chunk_store(backend)
    stored(store)
    lone = dict(index_of(store).places)
    index_of(store).places = {}
    groups = stored(store, session=2)
    for identifier, places in index_of(store).places.items():
        places[:0] = lone[identifier]
    assert read(store, groups) == expected()
    assert len(index_of(store).bad) >= 1


def test_a_lost_pack_is_made_up_for_by_another() -> None:
    store = chunk_store(MemoryBackend())
    stored(store)
    lone = dict(index_of(store).places)
    index_of(store).places = {}
    groups = stored(store, session=2)
    for identifier, places in index_of(store).places.items():
        places[:0] = lone[identifier]
    store.access.backend.delete(index_of(store).packs[1].name)
    assert read(store, groups) == expected()


@pytest.mark.parametrize("harm", ["lost", "short", "changed"])
def test_damage_everywhere_ends_with_an_error(harm: str) -> None:
    store = chunk_store(MemoryBackend())
    groups = stored(store)
    backend, name = store.access.backend, index_of(store).packs[0].name
    data = backend.read(name)
    backend.delete(name)
    if harm != "lost":
        backend.create(name, [data[:9000] if harm == "short" else data[:9000] + b"\xff\x00" + data[9002:]])
    with pytest.raises(IntegrityError):
        read(store, groups)


def test_storage_that_fails_ends_with_its_own_error() -> None:
    store = chunk_store(FaultyBackend(MemoryBackend(), [Fail(op="read_into"), Fail(op="read")]))
    groups = stored(store)
    with pytest.raises(CairnError, match="a fault was injected"):
        read(store, groups)


@pytest.mark.parametrize("claimed", [299, 301, 0, 5000])
def test_a_manifest_that_lies_about_a_length_is_refused(claimed: int) -> None:
    store = chunk_store(MemoryBackend())
    digest = stored(store)[1].chunks[0].digest
    with pytest.raises(IntegrityError, match="where the manifest wants"):
        read(store, [Group(0, (Wanted(digest, claimed),))])


def test_a_manifest_that_swaps_digests_gets_what_it_names() -> None:
    """Digests are the truth; names of chunks in a group are not checked against each other."""
    store = chunk_store(MemoryBackend())
    groups = stored(store)
    swapped = Group(0, (groups[2].chunks[0], groups[1].chunks[0]))
    assert read(store, [swapped]) == {0: [CONTENTS[1], CONTENTS[0]]}
    with pytest.raises(CairnError):
        read(store, [Group(0, (Wanted(Digest(b"\1" * 32), 5),))])


def test_an_error_in_delivery_stops_all_and_is_raised() -> None:
    store = chunk_store(MemoryBackend())
    groups = stored(store)
    plan = plan_reads(groups, store.index, store.access.keys.chunk)

    def deliver(key: int, views: Sequence[memoryview]) -> None:
        raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space"):
        execute(plan, store, deliver, 3)


# --- The pool ---------------------------------------------------------------------------------


def test_the_pool_does_each_job_once_and_ends_its_threads() -> None:
    done: list[int] = []
    Pool[int](4, done.extend).run(range(500))
    assert sorted(done) == list(range(500))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cairn-worker")]


def failing(where: str) -> tuple[Callable[[Iterable[int]], None], Iterable[int]]:
    def work(jobs: Iterable[int]) -> None:
        for job in jobs:
            if where == "work" and job == 3:
                raise KeyError("work")

    def jobs() -> Iterable[int]:
        for number in range(100_000):
            if where == "jobs" and number == 50:
                raise KeyError("jobs")
            yield number

    return work, jobs()


@pytest.mark.parametrize("where", ["work", "jobs"])
def test_the_first_error_ends_the_pool(where: str) -> None:
    work, jobs = failing(where)
    with pytest.raises(KeyError, match=where):
        Pool[int](3, work).run(jobs)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cairn-worker")]


def test_an_interrupt_while_the_last_jobs_run_ends_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    release, ended = threading.Event(), []

    def work(jobs: Iterable[int]) -> None:
        for _ in jobs:
            release.wait(5)
        ended.append(True)

    real = threading.Thread.join
    interrupts = [True]

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if interrupts.pop() if interrupts else False:
            raise KeyboardInterrupt
        release.set()
        real(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(KeyboardInterrupt):
        Pool[int](2, work).run(range(2))
    left = [thread for thread in threading.enumerate() if thread.name.startswith("cairn-worker")]
    release.set()
    for thread in left:
        real(thread)
    assert left == [], "workers went on after the caller was told that all is over"
