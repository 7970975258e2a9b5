"""Carrying out a read plan: fetch, open, deliver."""

from collections.abc import Callable, Iterable, Sequence

from cairn.core.errors import IntegrityError, ObjectNotFound, StorageError
from cairn.core.ids import short
from cairn.core.pool import Pool
from cairn.loader.plan import Batch, Delivery, Part, ReadPlan
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.tenant import ContentType
from cairn.store.fills import fill_of

Deliver = Callable[[int, Sequence[memoryview]], None]


def execute(plan: ReadPlan, chunks: ChunkStore, deliver: Deliver, threads: int) -> None:
    """Read everything that a plan names, on some threads.

    Every chunk is authenticated and its digest recomputed before it is delivered; one that fails in the planned
    place is read from any other place that the index knows.

    Args:
        deliver: called with a group's key and its chunks' plaintexts, in any order and from any thread; the
            buffers are reused after it returns.

    Raises:
        IntegrityError: a chunk is damaged everywhere; groups delivered before stay delivered.
    """
    Pool[Batch](threads, lambda batches: _work(batches, chunks, deliver)).run(plan.batches)


def _work(batches: Iterable[Batch], chunks: ChunkStore, deliver: Deliver) -> None:
    sealed, plain = memoryview(bytearray()), memoryview(bytearray())
    for batch in batches:
        sealed = _at_least(sealed, sum(r.length for r in batch.ranges))
        fetched = _fetch(batch, chunks, sealed)
        for delivery in batch.deliveries:
            plain = _at_least(plain, delivery.group.length)
            deliver(delivery.group.key, _open_group(delivery, fetched, chunks, plain))


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


def _open_group(
    delivery: Delivery, fetched: Sequence[memoryview], chunks: ChunkStore, plain: memoryview
) -> list[memoryview]:
    opened, at = [], 0
    for part in delivery.parts:
        target = plain[at : at + part.wanted.length]
        opened.append(_open_part(part, fetched, chunks, target))
        at += part.wanted.length
    return opened


def _open_part(part: Part, fetched: Sequence[memoryview], chunks: ChunkStore, target: memoryview) -> memoryview:
    wanted, location = part.wanted, part.location
    if location is None:
        fill = fill_of(wanted.digest)
        assert fill is not None
        target[:] = bytes((fill,)) * wanted.length
        return target
    sealed = fetched[part.range][part.at : part.at + location.length]
    identifier = chunks.access.keys.chunk.content_id(wanted.digest)
    try:
        data = memoryview(chunks.open(ContentType.CHUNK, wanted.digest, sealed, f"chunk {short(identifier)}", target))
    except IntegrityError:
        chunks.index.mark(identifier, location, bad=True)
        data = memoryview(chunks.read(ContentType.CHUNK, wanted.digest))
    if len(data) != wanted.length:
        raise IntegrityError(
            f"chunk {short(identifier)} has {len(data)} bytes where the manifest wants {wanted.length}"
        )
    return data


def _at_least(buffer: memoryview, length: int) -> memoryview:
    return buffer if len(buffer) >= length else memoryview(bytearray(length))
