"""Scrubbing the bytes of packs: every sealed chunk is read, opened, and its digest recomputed.

Packs are read front to back in large ranges by a few threads. A chunk's key comes from its digest, which stands in the
manifests; of a chunk that no readable manifest names only the header can be checked.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cairn.core.errors import CairnError, IntegrityError
from cairn.core.ids import ContentId, Digest, short
from cairn.core.limits import CHUNK_BYTES_MAX, READ_BYTES_TARGET
from cairn.core.pool import Pool, threads_within_budget
from cairn.core.progress import Progress
from cairn.gc.places import Damage, Places
from cairn.gc.scrub_packs import Listed, PackDirectories
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.chunks import parse_header
from cairn.store.crypto.tenant import ContentType
from cairn.store.index import Location

# A worker holds one range of sealed chunks and the plaintext of one chunk, twice if it was compressed.
_WORKER_BYTES = READ_BYTES_TARGET + 2 * CHUNK_BYTES_MAX
DigestOf = Callable[[ContentId], tuple[ContentType, Digest] | None]


@dataclass(slots=True)
class ChunkCounts:
    """What was read: chunks opened, chunks that nobody names, stored bytes."""

    opened: int = 0
    unnamed: int = 0
    bytes_read: int = 0


class ChunkScrub:
    """Reads every chunk of some packs and notes in `places` which are bad."""

    def __init__(self, chunks: ChunkStore, places: Places, digest_of: DigestOf, progress: Progress) -> None:
        self._chunks = chunks
        self._places = places
        self._digest_of = digest_of
        self._progress = progress
        self._counts = ChunkCounts()
        self._lock = threading.Lock()

    def run(self, directories: PackDirectories, packs: Iterable[int]) -> ChunkCounts:
        """Scrub the chunks of these packs."""
        threads = threads_within_budget(_WORKER_BYTES)
        jobs = (batch for number in packs for batch in batches(directories.chunks(number)))
        Pool[Listed](threads, self._work).run(jobs)
        return self._counts

    def _work(self, jobs: Iterable[Listed]) -> None:
        sealed, plain = memoryview(bytearray(READ_BYTES_TARGET)), memoryview(bytearray(CHUNK_BYTES_MAX))
        for batch in jobs:
            start, end = batch[0][1].offset, batch[-1][1].offset + batch[-1][1].length
            if end - start > len(sealed):
                sealed = memoryview(bytearray(end - start))
            views = self._fetch(batch, sealed[: end - start])
            for (identifier, at), view in zip(batch, views, strict=True):
                self._check(identifier, at, view, plain)
            self._progress.advance(end - start)
            with self._lock:
                self._counts.bytes_read += sum(len(view) for view in views)

    def _fetch(self, batch: Listed, buffer: memoryview) -> Sequence[memoryview]:
        """The batch's sealed chunks, short where they cannot be read; a bad sector costs one chunk, not the range."""
        start = batch[0][1].offset
        count = self._read(batch[0][1].pack, start, buffer)
        views = []
        for _, at in batch:
            view = buffer[at.offset - start : at.offset - start + at.length]
            missing = at.offset - start + at.length - count
            views.append(view if missing <= 0 else view[: self._read(at.pack, at.offset, view)])
        return views

    def _read(self, number: int, offset: int, target: memoryview) -> int:
        try:
            return self._chunks.access.backend.read_into(self._places.pack(number).name, offset, target)
        except CairnError as error:
            if error.retryable:
                raise
            return 0

    def _check(self, identifier: ContentId, at: Location, view: memoryview, plain: memoryview) -> None:
        named = self._digest_of(identifier)
        what = f"{named[0].name.lower() if named else 'chunk'} {short(identifier)}"
        try:
            if len(view) != at.length:
                raise IntegrityError(f"{what} cannot be read")
            if named is not None:
                self._chunks.open(*named, view, what, plain)
            elif parse_header(view, what).id != identifier:
                raise IntegrityError(f"{what} is another chunk than its pack says")
        except IntegrityError as error:
            self._places.note(Damage(identifier, at, error.message))
        else:
            self._places.mark(identifier, at, bad=False)
        with self._lock:
            self._counts.opened += named is not None
            self._counts.unnamed += named is None


def batches(listed: Listed) -> Iterator[Listed]:
    """Runs of a pack's chunks that are read at once: up to the target size, a larger chunk by itself."""
    batch: Listed = []
    for identifier, at in listed:
        if batch and at.offset + at.length - batch[0][1].offset > READ_BYTES_TARGET:
            yield batch
            batch = []
        batch.append((identifier, at))
    if batch:
        yield batch
