"""Bringing content from one store of a tenant to another: only what is missing there, and sealed as it is.

The client knows both indexes, so asking what is missing costs no request but one listing of each session folder that
is relied on. Every chunk is authenticated on the way: damage does not travel.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from cairn.core.errors import IntegrityError, ObjectNotFound, StorageError
from cairn.core.ids import ContentId, Digest
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_TARGET, READ_BYTES_TARGET, TRANSFERS_AT_ONCE
from cairn.core.pool import Pool, threads_within_budget
from cairn.core.progress import Progress
from cairn.registry.contents import Named
from cairn.registry.presence import PackPresence
from cairn.registry.registry import Registry
from cairn.store.chunkstore import ChunkSave, ChunkWriter
from cairn.store.crypto.tenant import ContentType
from cairn.store.index import Location
from cairn.store.ranges import Range, join_ranges

# Content that is asked for, planned and sorted together: enough to read packs in long runs.
_BATCH = 8192
# What one worker holds at most: an open pack, a range, a chunk.
_WORKER_BYTES = PACK_BYTES_TARGET + READ_BYTES_TARGET + CHUNK_BYTES_MAX


class _Part(msgspec.Struct, frozen=True, gc=False):
    kind: ContentType
    digest: Digest
    id: ContentId
    location: Location


class _Job(msgspec.Struct, frozen=True):
    range: Range | None
    parts: tuple[_Part, ...]


class Transfer:
    """Content on its way from one store to another.

    Attributes:
        reachable: ids of all that was asked for.
    """

    def __init__(
        self, source: Registry, target: Registry, save: ChunkSave, progress: Progress, doubt: bool = False
    ) -> None:
        """Nothing happens yet.

        Args:
            doubt: read in the target what it is said to have, and bring what cannot be read.
        """
        self._source, self._target, self._save, self._progress = source, target, save, progress
        self._doubt = doubt
        self._index = target.index()
        self._known = self._index.known_packs()
        self._packs = PackPresence(target.opened.backend, self._index)
        self.reachable: set[ContentId] = set()

    def bring(self, named: Iterable[Named]) -> None:
        """Store in the target what it lacks; durable when this returns.

        Raises:
            MissingData, IntegrityError: the source lacks it, or holds it damaged everywhere.
        """
        threads = threads_within_budget(_WORKER_BYTES, TRANSFERS_AT_ONCE)
        Pool[_Job](threads, self._work).run(self._jobs(iter(named)))

    # --- what is missing --------------------------------------------------------------------------

    def _jobs(self, named: Iterator[Named]) -> Iterator[_Job]:
        keys = self._source.opened.keys
        name = {kind: keys.of(kind).content_id for kind in ContentType}
        while batch := list(islice(named, _BATCH)):
            fresh = {name[one.kind](one.digest): one for one in batch}
            ids = [identifier for identifier in fresh if identifier not in self.reachable]
            self.reachable.update(ids)
            missing = self._missing(ids, fresh)
            places = self._source.index().locations_of(missing, marked=True)
            parts = [
                _Part(
                    fresh[identifier].kind,
                    fresh[identifier].digest,
                    identifier,
                    found[0] if found else Location(-1, 0, 0),
                )
                for identifier, found in zip(missing, places, strict=True)
            ]
            yield from _cut(sorted(parts, key=_order))

    def _missing(self, ids: list[ContentId], fresh: dict[ContentId, Named]) -> list[ContentId]:
        ids = ids if self._doubt else self._unknown(ids)
        unsound = self._unsound(ids, fresh) if self._doubt else set()
        missing = []
        for identifier, found in zip(ids, self._index.locations_of(ids), strict=True):
            pack = next((at.pack for at in found if self._packs.has(at.pack)), None)
            if pack is not None and identifier not in unsound:
                self._save.written.relied.add(pack)
            elif not self._save.claimed(identifier):
                missing.append(identifier)
        return missing

    def _unknown(self, ids: list[ContentId]) -> list[ContentId]:
        """Ids that no long piece places in a pack that is there; the packs of the others are relied on."""
        packs = self._known.find(ids)
        there = {one for one in set(packs) if self._index.is_in_force(one) and self._packs.has(one)}
        self._save.written.relied |= there
        return [identifier for identifier, pack in zip(ids, packs, strict=True) if pack not in there]

    def _unsound(self, ids: list[ContentId], fresh: dict[ContentId, Named]) -> set[ContentId]:
        """Ids that the target cannot read: many are read at once, as each is a request."""
        found = set[ContentId]()

        def work(jobs: Iterable[ContentId]) -> None:
            found.update(identifier for identifier in jobs if not self._is_sound(*fresh[identifier]))

        Pool[ContentId](threads_within_budget(2 * CHUNK_BYTES_MAX, TRANSFERS_AT_ONCE), work).run(ids)
        return found

    def _is_sound(self, kind: ContentType, digest: Digest) -> bool:
        """Whether the target can read it; a place that fails is marked, so that it is not relied on."""
        try:
            self._target.chunks().read(kind, digest)
        except (IntegrityError, ObjectNotFound):
            return False
        return True

    # --- sending ----------------------------------------------------------------------------------

    def _work(self, jobs: Iterable[_Job]) -> None:
        buffer, plain = memoryview(bytearray(READ_BYTES_TARGET)), memoryview(bytearray(CHUNK_BYTES_MAX))
        with self._save.writer() as writer:
            for job in jobs:
                view = self._read(job.range, buffer)
                for part in job.parts:
                    self._send(writer, part, job.range, view, plain)
                    self._progress.advance(part.location.length)

    def _read(self, wanted: Range | None, buffer: memoryview) -> memoryview:
        if wanted is None:
            return buffer[:0]
        view = buffer[: wanted.length] if wanted.length <= len(buffer) else memoryview(bytearray(wanted.length))
        source = self._source
        try:
            count = source.opened.backend.read_into(source.index().pack(wanted.pack).name, wanted.offset, view)
        except (ObjectNotFound, StorageError):
            count = 0
        return view[:count]

    def _send(
        self, writer: ChunkWriter, part: _Part, wanted: Range | None, view: memoryview, plain: memoryview
    ) -> None:
        chunks = self._source.chunks()
        if wanted is not None:
            at = part.location.offset - wanted.offset
            sealed = view[at : at + part.location.length]
            try:
                chunks.open(part.kind, part.digest, sealed, "a chunk", plain)
            except IntegrityError:
                chunks.index.mark(part.id, part.location, bad=True)
            else:
                writer.adopt(part.id, sealed)
                return
        # Looks in every place, and says what is wrong with all of them.
        writer.put(part.kind, chunks.read(part.kind, part.digest))


def _order(part: _Part) -> tuple[int, int]:
    return part.location.pack, part.location.offset


def _cut(parts: list[_Part]) -> Iterator[_Job]:
    """Jobs of one range each; what the index has no place for comes first, part by part."""
    placed = [part for part in parts if part.location.pack >= 0]
    yield from (_Job(None, (part,)) for part in parts if part.location.pack < 0)
    places = [(part.location.pack, part.location.offset, part.location.length) for part in placed]
    at = 0
    for wanted in join_ranges(places, most=READ_BYTES_TARGET):
        end = at
        while end < len(placed) and _within(placed[end].location, wanted):
            end += 1
        yield _Job(wanted, tuple(placed[at:end]))
        at = end


def _within(location: Location, wanted: Range) -> bool:
    return location.pack == wanted.pack and location.offset + location.length <= wanted.offset + wanted.length
