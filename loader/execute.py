"""Carrying out a read plan: fetch, open, deliver."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cairn.core.errors import IntegrityError, ObjectNotFound, StorageError
from cairn.core.ids import short
from cairn.core.limits import REMOTE_READS_AT_ONCE
from cairn.core.pool import Pool, threads_within_budget
from cairn.loader.plan import Batch, Delivery, Part, ReadPlan
from cairn.loader.ring import SharedReads
from cairn.store.backends.contract import Lender, waits
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.tenant import ContentType
from cairn.store.fills import fill_of

Deliver = Callable[[int, Sequence[memoryview]], None]
Place = Callable[[int], memoryview | None]


def nowhere(key: int) -> memoryview | None:
    """No group has a place of its own: all are delivered in scratch memory."""
    return None


@dataclass(frozen=True, slots=True)
class _Work:
    chunks: ChunkStore
    deliver: Deliver
    place: Place
    recompute: bool
    shared: SharedReads | None


def reading_threads(chunks: ChunkStore, worker_bytes: int) -> int:
    """How many threads read well from a store, within the memory budget."""
    return threads_within_budget(worker_bytes, REMOTE_READS_AT_ONCE if waits(chunks.access.backend) else None)


def execute(
    plan: ReadPlan,
    chunks: ChunkStore,
    deliver: Deliver,
    threads: int,
    place: Place = nowhere,
    recompute: bool = True,
    shared: SharedReads | None = None,
) -> None:
    """Read everything that a plan names, on some threads.

    Every chunk is authenticated before it is delivered; one that fails in the planned
    place is read from any other place that the index knows.

    Args:
        deliver: called with a group's key and its chunks' plaintexts, in any order and from any thread; the
            buffers are reused after it returns.
        place: where a group's content belongs, as one run of bytes, or None. It is decrypted there; what fails
            authentication may leave any bytes behind.
        recompute: whether digests are recomputed, beside the authentication of what was stored.
        shared: where the plan's extents come from; it has begun.

    Raises:
        IntegrityError: a chunk is damaged everywhere; groups delivered before stay delivered.
    """
    work = _Work(chunks, deliver, place, recompute, shared)

    def run(batches: Iterable[Batch]) -> None:
        try:
            _work(batches, work)
        except BaseException:
            if shared is not None:  # the pool waits for its other threads, which may wait for what this one has taken
                shared.end()
            raise

    Pool[Batch](threads, run).run(plan.batches)


def _work(batches: Iterable[Batch], work: _Work) -> None:
    sealed, plain = memoryview(bytearray()), memoryview(bytearray())
    for batch in batches:
        fetched = _taken(batch, work.shared) or _lent(batch, work.chunks)
        if fetched is None:
            sealed = _at_least(sealed, sum(r.length for r in batch.ranges))
            fetched = _fetch(batch, work.chunks, sealed)
        for delivery in batch.deliveries:
            target = work.place(delivery.group.key)
            if target is None:
                target = plain = _at_least(plain, delivery.group.length)
            work.deliver(delivery.group.key, _open_group(delivery, fetched, work, target))
        if work.shared is not None:
            work.shared.done(batch.extent)


def _taken(batch: Batch, shared: SharedReads | None) -> list[memoryview] | None:
    """The batch's extent from memory that readers share; None if it has none, or is to be fetched after all."""
    if shared is None or batch.extent is None:
        return None
    view = shared.take(batch.extent)
    if view is None:
        shared.fetched_alone(batch.ranges[0].length)
        return None
    return [view]


def _lent(batch: Batch, chunks: ChunkStore) -> list[memoryview] | None:
    """The batch's ranges where they lie, if the backend can lend them all."""
    backend, views = chunks.access.backend, []
    if not isinstance(backend, Lender):
        return None
    for one in batch.ranges:
        try:
            view = backend.lend(chunks.index.pack(one.pack).name, one.offset, one.length)
        except (ObjectNotFound, StorageError):
            return None
        if view is None:
            return None
        views.append(view)
    return views


def _fetch(batch: Batch, chunks: ChunkStore, buffer: memoryview) -> list[memoryview]:
    """The batch's ranges; one that cannot be read whole comes back short, and its chunks are sought elsewhere."""
    views, at = [], 0
    for one in batch.ranges:
        view = buffer[at : at + one.length]
        name = chunks.index.pack(one.pack).name
        try:
            count = chunks.access.backend.read_into(name, one.offset, view)
        except (ObjectNotFound, StorageError):
            count = 0
        views.append(view[:count])
        at += one.length
    return views


def _open_group(delivery: Delivery, fetched: Sequence[memoryview], work: _Work, plain: memoryview) -> list[memoryview]:
    opened, at = [], 0
    for part in delivery.parts:
        target = plain[at : at + part.wanted.length]
        opened.append(_open_part(part, fetched, work, target))
        at += part.wanted.length
    return opened


def _open_part(part: Part, fetched: Sequence[memoryview], work: _Work, target: memoryview) -> memoryview:
    wanted, location, chunks = part.wanted, part.location, work.chunks
    if location is None:
        fill = fill_of(wanted.digest)
        assert fill is not None
        target[:] = bytes((fill,)) * wanted.length
        return target
    sealed = fetched[part.range][part.at : part.at + location.length]
    try:
        data = memoryview(chunks.open(ContentType.CHUNK, wanted.digest, sealed, "a chunk", target, work.recompute))
    except IntegrityError:
        chunks.index.mark(chunks.access.keys.chunk.content_id(wanted.digest), location, bad=True)
        data = memoryview(chunks.read(ContentType.CHUNK, wanted.digest))  # and says what is wrong with all places
    if len(data) != wanted.length:
        name = short(chunks.access.keys.chunk.content_id(wanted.digest))
        raise IntegrityError(f"chunk {name} has {len(data)} bytes where the manifest wants {wanted.length}")
    return data


def _at_least(buffer: memoryview, length: int) -> memoryview:
    return buffer if len(buffer) >= length else memoryview(bytearray(length))
