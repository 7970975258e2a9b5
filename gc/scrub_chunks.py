"""Scrubbing the bytes of packs: sealed chunks are read, opened, and their digests recomputed.

Packs are read front to back in large ranges by a few threads. A chunk's key comes from its digest, which stands in the
manifests; of a chunk that no readable manifest names only the header can be checked.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cairn.core.errors import CairnError, IntegrityError
from cairn.core.ids import ContentId, short
from cairn.core.limits import CHUNK_BYTES_MAX, READ_BYTES_TARGET, READ_GAP_BYTES
from cairn.core.pool import Pool, threads_within_budget
from cairn.core.progress import Progress
from cairn.gc.depth import Depth, Listed
from cairn.gc.places import Damage, Places
from cairn.gc.scrub_manifests import ManifestScrub
from cairn.gc.scrub_packs import PackDirectories
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.chunks import parse_header
from cairn.store.index import Location

# A worker holds one range of sealed chunks and the plaintext of one chunk, twice if it was compressed.
_WORKER_BYTES = READ_BYTES_TARGET + 2 * CHUNK_BYTES_MAX
# Told of each pack that was read: how many of its chunks are bad, and how many nobody names, so that they were not
# opened; of the latter, those that are needed are counted as blind: a page that names them cannot be read now.
Done = Callable[[int, "PackCounts"], None]


@dataclass(slots=True)
class ChunkCounts:
    """What was read: chunks opened, chunks that nobody names, stored bytes."""

    opened: int = 0
    unnamed: int = 0
    bytes_read: int = 0


@dataclass(slots=True)
class PackCounts:
    """Of one pack: ranges left to read, chunks that are bad, that nobody names, and of these what is needed."""

    left: int
    bad: int = 0
    unnamed: int = 0
    blind: int = 0


class ChunkScrub:
    """Reads chunks of packs and notes in `places` which are bad."""

    def __init__(
        self, chunks: ChunkStore, places: Places, manifests: ManifestScrub, counts: ChunkCounts, done: Done
    ) -> None:
        self._chunks = chunks
        self._places = places
        self._manifests = manifests
        self._counts = counts
        self._done = done
        self._open: dict[int, PackCounts] = {}
        self._lock = threading.Lock()

    def run(self, directories: PackDirectories, packs: Iterable[int], depth: Depth, progress: Progress) -> None:
        """Scrub chunks of these packs, pack by pack."""

        def work(jobs: Iterable[Listed]) -> None:
            sealed, plain = memoryview(bytearray(READ_BYTES_TARGET)), memoryview(bytearray(CHUNK_BYTES_MAX))
            for batch in jobs:
                start, end = batch[0][1].offset, batch[-1][1].offset + batch[-1][1].length
                if end - start > len(sealed):
                    sealed = memoryview(bytearray(end - start))
                self._check_batch(batch, sealed[: end - start], plain)
                progress.advance(end - start)

        Pool[Listed](threads_within_budget(_WORKER_BYTES), work).run(self._jobs(directories, packs, depth))

    def _jobs(self, directories: PackDirectories, packs: Iterable[int], depth: Depth) -> Iterator[Listed]:
        for number in packs:
            ranges = list(batches(depth.chosen(directories.chunks(number))))
            with self._lock:
                self._open[number] = PackCounts(len(ranges))
            yield from ranges

    def _check_batch(self, batch: Listed, buffer: memoryview, plain: memoryview) -> None:
        views = self._fetch(batch, buffer)
        counts = PackCounts(1)
        for (identifier, at), view in zip(batch, views, strict=True):
            self._check(identifier, at, view, plain, counts)
        number = batch[0][1].pack
        with self._lock:
            self._counts.opened += len(batch) - counts.unnamed
            self._counts.unnamed += counts.unnamed
            self._counts.bytes_read += sum(len(view) for view in views)
            pack = self._open[number]
            for name in ("bad", "unnamed", "blind"):
                setattr(pack, name, getattr(pack, name) + getattr(counts, name))
            pack.left -= 1
            if not pack.left:
                self._done(number, pack)

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

    def _check(
        self, identifier: ContentId, at: Location, view: memoryview, plain: memoryview, counts: PackCounts
    ) -> None:
        named = self._manifests.pages.digest(identifier)
        what = f"{named[0].name.lower() if named else 'chunk'} {short(identifier)}"
        if named is None:
            counts.unnamed += 1
            counts.blind += self._manifests.keeps(identifier)
        try:
            if len(view) != at.length:
                raise IntegrityError(f"{what} cannot be read")
            if named is not None:
                self._chunks.open(*named, view, what, plain)
            elif parse_header(view, what).id != identifier:
                raise IntegrityError(f"{what} is another chunk than its pack says")
        except IntegrityError as error:
            counts.bad += 1
            self._places.note(Damage(identifier, at, error.message))
        else:
            self._places.mark(identifier, at, bad=False)


def batches(listed: Listed) -> Iterator[Listed]:
    """Runs of a pack's chunks that are read at once: up to the target size, a larger chunk by itself."""
    batch: Listed = []
    for identifier, at in listed:
        if batch:
            (_, first), (_, last) = batch[0], batch[-1]
            far = at.offset - (last.offset + last.length) > READ_GAP_BYTES
            if far or at.offset + at.length - first.offset > READ_BYTES_TARGET:
                yield batch
                batch = []
        batch.append((identifier, at))
    if batch:
        yield batch
