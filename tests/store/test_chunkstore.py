"""The chunk store: each distinct content once, nothing relied upon that is not there, nothing untrue returned."""

import random
import threading
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

import pytest

from cairn.core.errors import IntegrityError, MissingData, StorageError, StorageFull
from cairn.core.ids import Digest
from cairn.core.limits import CHUNK_BYTES_MAX
from cairn.store import chunkstore, codec
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Corrupt, Fail, FaultyBackend
from cairn.store.backends.memory import MemoryBackend
from cairn.store.backends.posix import PosixBackend
from cairn.store.chunkstore import ChunkSave, ChunkStore
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.chunks import OVERHEAD_BYTES, seal_into
from cairn.store.crypto.tenant import ContentType
from cairn.store.pack import read_footer
from tests.support.chunks import OpenSession, begin, chunk_store, index_of

CHUNK, PAGE = ContentType.CHUNK, ContentType.PAGE
DRAW = random.Random(4)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def store(backend: MemoryBackend) -> ChunkStore:
    return chunk_store(backend)


def put_all(store: ChunkStore, contents: Sequence[bytes], session: int = 1) -> tuple[ChunkSave, list[Digest]]:
    """One save of one writer, taken up by the index."""
    save = begin(store, session)
    with save.writer() as writer:
        digests = [writer.put(CHUNK, data) for data in contents]
    index_of(store).add(save)
    return save, digests


def replace_object(backend: Backend, name: str, data: bytes) -> None:
    backend.delete(name)
    backend.create(name, [data])


# --- Writing ----------------------------------------------------------------------------------


def test_content_comes_back_and_is_stored_once(store: ChunkStore, backend: MemoryBackend) -> None:
    contents = [b"a", b"ab" * 3000, DRAW.randbytes(1 << 20), b"a", b"ab" * 3000]
    save, digests = put_all(store, contents)
    assert [store.read(CHUNK, digest) for digest in digests[1:3]] == contents[1:3]
    counts = save.written.counts
    assert (counts.chunks_new, counts.chunks_reused) == (2, 3)  # b"a" is a fill
    assert counts.bytes_new == 6000 + (1 << 20)
    assert counts.bytes_stored == counts.bytes_new + 2 * OVERHEAD_BYTES
    again, same = put_all(store, contents, session=2)
    assert same == digests
    assert (again.written.packs, again.written.counts.chunks_new) == ([], 0)
    assert again.written.relied == {0}
    assert len(list(backend.list())) == 1


def test_what_is_to_lie_together_begins_a_pack_where_there_is_no_room(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunkstore, "PACK_BYTES_TARGET", 10_000)
    for used, together, packs in [(6000, 6000, 2), (4000, 6500, 2), (6000, 3000, 1), (0, 20_000, 1)]:
        save = begin(store)
        with save.writer() as writer:
            if used:
                writer.put(CHUNK, DRAW.randbytes(used))
            writer.keep_together(together)
            held = len(save.written.packs)
            writer.put(CHUNK, DRAW.randbytes(together))
        # More than half of a pack is worth being a pack; less goes on, and is cut where it is full.
        assert held == (used == 6000 and together == 6000), (used, together)
        assert len(save.written.packs) == packs, (used, together)


def test_equal_bytes_as_chunk_and_as_page_are_two_contents(store: ChunkStore) -> None:
    save = begin(store)
    with save.writer() as writer:
        chunk, page = writer.put(CHUNK, b"some bytes"), writer.put(PAGE, b"some bytes")
    index_of(store).add(save)
    assert chunk != page
    assert store.read(CHUNK, chunk) == store.read(PAGE, page) == b"some bytes"
    for kind, digest in ((PAGE, chunk), (CHUNK, page)):
        with pytest.raises(MissingData):
            store.read(kind, digest)


def test_fills_are_not_stored_but_a_page_of_one_byte_is(store: ChunkStore, backend: MemoryBackend) -> None:
    save = begin(store)
    with save.writer() as writer:
        for byte in (0, 7, 255):
            writer.put(CHUNK, bytes([byte]) * 100_000)
        assert list(backend.list()) == []
        page = writer.put(PAGE, bytes(5))
        empty = writer.put(CHUNK, b"")
    index_of(store).add(save)
    assert store.read(PAGE, page) == bytes(5)
    assert store.read(CHUNK, empty) == b""
    assert save.written.counts.chunks_new == 2


def test_a_chunk_over_the_limit_is_refused(store: ChunkStore) -> None:
    with begin(store).writer() as writer, pytest.raises(ValueError, match="over the limit"):
        writer.put(CHUNK, bytes(CHUNK_BYTES_MAX + 1))


def test_a_full_pack_is_followed_by_another(
    store: ChunkStore, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunkstore, "PACK_BYTES_TARGET", 10_000)
    contents = [DRAW.randbytes(length) for length in (3000, 3000, 3000, 3000, 20_000, 100, 9_900, 3000)]
    save, digests = put_all(store, contents)
    assert [pack.size > 10_500 for pack in save.written.packs] == [False, False, True, False, False, False]
    assert [store.read(CHUNK, digest) for digest in digests] == contents
    access = store.access
    for number, pack in enumerate(save.written.packs):
        listed = [(c.id, c.offset, c.length) for c in read_footer(backend, pack.name, access.k_index, access.store)]
        assert listed == [(e.id, e.offset, e.length) for e in save.written.entries if e.pack == number]
        assert backend.size(pack.name) == pack.size


def test_threads_with_the_same_and_with_other_chunks_store_each_distinct_one_once(store: ChunkStore) -> None:
    shared = [DRAW.randbytes(2000 + number) for number in range(60)]
    own = {number: [DRAW.randbytes(1500 + number) for _ in range(10)] for number in range(6)}
    save = begin(store)
    found: dict[int, dict[Digest, bytes]] = {}
    start = threading.Barrier(6)

    def work(number: int) -> None:
        order = shared + own[number]
        random.Random(number).shuffle(order)
        start.wait()
        with save.writer() as writer:
            found[number] = {writer.put(CHUNK, data): data for data in order}

    threads = [threading.Thread(target=work, args=(number,)) for number in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    index_of(store).add(save)
    ids = [entry.id for entry in save.written.entries]
    assert len(ids) == len(set(ids)) == 60 + 6 * 10
    assert (save.written.counts.chunks_new, save.written.counts.chunks_reused) == (120, 5 * 60)
    for digest, data in (pair for each in found.values() for pair in each.items()):
        assert store.read(CHUNK, digest) == data


def _write_in_process(root: Path, number: int, pipe: object) -> None:
    store = chunk_store(PosixBackend(root))
    contents = [bytes([0, at]) * 1000 for at in range(40)] + [bytes([number, at]) * 1000 for at in range(10)]
    save, _ = put_all(store, contents, session=number)
    pipe.send(save.written)  # type: ignore[attr-defined]  # a pipe's end


def test_processes_write_into_one_folder_at_once(tmp_path: Path) -> None:
    context = get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(3)]
    started = [
        context.Process(target=_write_in_process, args=(tmp_path, number, end))
        for number, (_, end) in enumerate(ends, 1)
    ]
    for process in started:
        process.start()
    store = chunk_store(PosixBackend(tmp_path))
    for (receiver, _), process in zip(ends, started, strict=True):
        save = begin(store)
        save.written = receiver.recv()
        process.join()
        assert process.exitcode == 0
        index_of(store).add(save)
    for first in range(4):
        for at in range(40 if first == 0 else 10):
            data = bytes([first, at]) * 1000
            if first != at:  # else one repeated byte
                assert store.read(CHUNK, store.access.keys.chunk.digest(data)) == data


# --- Before a pack leaves memory --------------------------------------------------------------


def test_a_bit_that_flips_in_memory_is_caught_before_the_upload(
    store: ChunkStore, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seal_badly(*arguments: object) -> int:
        stored = seal_into(*arguments)  # type: ignore[arg-type]  # passed on as they come
        target = arguments[6]
        assert isinstance(target, memoryview)
        target[stored - 20] ^= 4
        return stored

    monkeypatch.setattr(chunkstore, "seal_into", seal_badly)
    save = begin(store)
    with pytest.raises(IntegrityError, match="in memory"), save.writer() as writer:
        writer.put(CHUNK, b"abc" * 100)
    assert list(backend.list()) == []
    assert (save.written.packs, save.written.entries) == ([], [])


def test_an_encoder_that_errs_is_caught_before_the_upload(
    store: ChunkStore, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "encode", lambda policy, data, width: (0, bytes(len(data))))
    with pytest.raises(IntegrityError, match="faulty"), begin(store).writer() as writer:
        writer.put(CHUNK, b"abc" * 100)
    assert list(backend.list()) == []


def test_a_pack_that_cannot_be_written_is_not_listed() -> None:
    store = chunk_store(FaultyBackend(MemoryBackend(), [Fail(op="create", error=StorageFull)]))
    save = begin(store)
    with pytest.raises(StorageFull), save.writer() as writer:
        writer.put(CHUNK, b"abc" * 100)
    assert (save.written.packs, save.written.entries, save.written.counts.chunks_new) == ([], [], 0)


# --- Relying on what is there -----------------------------------------------------------------


@pytest.mark.parametrize("defect", ["missing", "short", "long"])
def test_H05_content_of_a_missing_or_short_pack_is_stored_anew(
    store: ChunkStore, backend: MemoryBackend, defect: str
) -> None:
    contents = [DRAW.randbytes(500), DRAW.randbytes(600)]
    first, digests = put_all(store, contents)
    name = first.written.packs[0].name
    data = backend.read(name)
    backend.delete(name)
    if defect != "missing":
        backend.create(name, [data[:-1] if defect == "short" else data + b"\0"])
    second, _ = put_all(store, contents, session=2)
    assert (second.written.relied, second.written.counts.chunks_new) == (set(), 2)
    assert [store.read(CHUNK, digest) for digest in digests] == contents


def test_presence_is_asked_once_a_pack_and_save() -> None:
    backend = FaultyBackend(MemoryBackend())
    store = chunk_store(backend)
    contents = [DRAW.randbytes(100) for _ in range(20)]
    put_all(store, contents)
    before = len(backend.calls)
    put_all(store, contents, session=2)
    assert [call.op for call in backend.calls[before:]] == ["size"]


def test_a_place_that_failed_leads_to_a_new_upload_which_heals_reading(
    store: ChunkStore, backend: MemoryBackend
) -> None:
    data = DRAW.randbytes(700)
    first, (digest,) = put_all(store, [data])
    name = first.written.packs[0].name
    stored = bytearray(backend.read(name))
    stored[200] ^= 1
    replace_object(backend, name, bytes(stored))
    with pytest.raises(IntegrityError):
        store.read(CHUNK, digest)
    second, _ = put_all(store, [data], session=2)
    assert (second.written.counts.chunks_new, second.written.relied) == (1, set())
    assert store.read(CHUNK, digest) == data
    third, _ = put_all(store, [data], session=3)
    assert third.written.relied == {1}


# --- Reading ----------------------------------------------------------------------------------


def test_X07_swapped_chunks_of_a_pack_are_refused(store: ChunkStore, backend: MemoryBackend) -> None:
    save, digests = put_all(store, [DRAW.randbytes(300), DRAW.randbytes(300)])
    (pack,), (one, other) = save.written.packs, sorted(save.written.entries, key=lambda entry: entry.offset)
    data = backend.read(pack.name)
    middle, end = other.offset, other.offset + other.length
    replace_object(backend, pack.name, data[: one.offset] + data[middle:end] + data[one.offset : middle] + data[end:])
    for digest in digests:
        with pytest.raises(IntegrityError, match="another chunk"):
            store.read(CHUNK, digest)


def test_any_good_place_is_enough_and_the_bad_one_is_remembered(store: ChunkStore, backend: MemoryBackend) -> None:
    data = DRAW.randbytes(400)
    first, (digest,) = put_all(store, [data])
    index = index_of(store)
    lone, index.places = index.places, {}
    second, _ = put_all(store, [data], session=2)
    for identifier, places in lone.items():
        index.places[identifier] = places + index.places[identifier]
    backend.delete(second.written.packs[0].name)
    assert store.read(CHUNK, digest) == data
    assert {at.pack for _, at in index.bad} == {1}
    backend.delete(first.written.packs[0].name)
    with pytest.raises(IntegrityError, match="cannot be read"):
        store.read(CHUNK, digest)


def test_a_place_that_reads_well_again_is_good_again(backend: MemoryBackend) -> None:
    store = chunk_store(FaultyBackend(backend, [Corrupt(op="read", call=1, bit=999)]))
    data = DRAW.randbytes(400)
    _, (digest,) = put_all(store, [data])
    with pytest.raises(IntegrityError):
        store.read(CHUNK, digest)
    assert index_of(store).bad
    assert store.read(CHUNK, digest) == data
    assert not index_of(store).bad


def test_storage_that_fails_is_no_damage(backend: MemoryBackend) -> None:
    store = chunk_store(FaultyBackend(backend, [Fail(op="read")]))
    _, (digest,) = put_all(store, [DRAW.randbytes(400)])
    with pytest.raises(StorageError):
        store.read(CHUNK, digest)
    assert not index_of(store).bad


def test_unknown_content_is_missing_and_a_fill_is_not_asked_for(store: ChunkStore) -> None:
    with pytest.raises(MissingData, match="no pack"):
        store.read(CHUNK, Digest(b"\1" * 32))
    with pytest.raises(ValueError, match="fill"):
        store.read(CHUNK, Digest(bytes(31) + b"\7"))


@pytest.mark.parametrize("room", [None, 0, 99, 1 << 16])
@pytest.mark.parametrize("policy", CodecPolicy)
def test_a_target_of_any_size_will_do(
    store: ChunkStore, backend: MemoryBackend, policy: CodecPolicy, room: int | None
) -> None:
    data = b"0123456789" * 500
    save = store.save(OpenSession(begin(store).session.ensure_open()), policy)
    with save.writer() as writer:
        digest = writer.put(CHUNK, data, width=4)
    (entry,), (pack,) = save.written.entries, save.written.packs
    sealed = memoryview(backend.read(pack.name, entry.offset, entry.length))
    target = None if room is None else memoryview(bytearray(room))
    assert bytes(store.open(CHUNK, digest, sealed, "it", target)) == data
    assert (entry.length < 1000) == (policy is CodecPolicy.ZSTD)
