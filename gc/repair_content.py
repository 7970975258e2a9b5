"""Repairing content: chunks and pages that are damaged, lost, or lie in a damaged pack, are stored anew."""

import threading
from collections.abc import Iterable, Iterator, Mapping

from cairn.core.errors import CairnError, IntegrityError
from cairn.core.ids import ContentId, short
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_TARGET, TRANSFERS_AT_ONCE
from cairn.core.pool import Pool, threads_within_budget
from cairn.core.progress import Progress
from cairn.gc.remark import several, size
from cairn.gc.scrub import Scrub
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.store.chunkstore import ChunkSave, ChunkStore
from cairn.store.crypto.chunks import parse_header
from cairn.store.index import Location, PackRef

HERE = "this store"
_WORKER_BYTES = PACK_BYTES_TARGET + 2 * CHUNK_BYTES_MAX
# A place in some store: which, the pack, where in it.
_Place = tuple[str, OpenStore, PackRef, Location]


class ContentRepair:
    """What one round brings."""

    def __init__(self, registry: Registry, scrub: Scrub, sources: Mapping[str, Registry]) -> None:
        self._registry, self._scrub, self._sources = registry, scrub, sources
        self._chunks = ChunkStore(registry.opened.access, scrub.places)
        # Chunks and stored bytes by what they take the place of, and the store that they come from.
        self._told: dict[tuple[str, str], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def bring(self, save: ChunkSave, progress: Progress) -> set[ContentId]:
        """Store anew what is in reach; returns its ids. All packs are durable when this returns."""
        wanted = self._wanted()
        brought = set[ContentId]()

        def work(jobs: Iterable[ContentId]) -> None:
            with save.writer() as writer:
                for identifier in jobs:
                    found = self._find(identifier)
                    if found is None:
                        continue
                    source, sealed = found
                    writer.adopt(identifier, sealed)
                    progress.advance(len(sealed))
                    with self._lock:
                        brought.add(identifier)
                        key = wanted[identifier], source
                        count, total = self._told.get(key, (0, 0))
                        self._told[key] = count + 1, total + len(sealed)

        Pool[ContentId](threads_within_budget(_WORKER_BYTES, TRANSFERS_AT_ONCE), work).run(wanted)
        return brought

    def told(self) -> list[tuple[str, str, str]]:
        """Object, what was brought in its place, and from where."""
        return [
            (name, f"{several(count, 'chunk or page', 'chunks and pages')}, {size(total)}", source)
            for (name, source), (count, total) in sorted(self._told.items())
        ]

    def _wanted(self) -> dict[ContentId, str]:
        """What is to be stored anew, in the order of its places, with the pack in which it is bad."""
        scrub = self._scrub
        hurt = {damage.at.pack for damage in scrub.places.damages()} | scrub.directories.flawed.keys()
        found: dict[ContentId, str] = {}
        for number in sorted(hurt):
            held = scrub.directories.flawed.get(number)
            if number not in scrub.directories.flawed:
                held = [identifier for identifier, _ in scrub.directories.chunks(number)]
            name = scrub.state.pack(number).name
            for identifier in held or ():
                if scrub.manifests.keeps(identifier) and not scrub.superseded.serves_better(identifier, number):
                    found.setdefault(identifier, name)
        for identifier in sorted(scrub.manifests.unplaced):
            found.setdefault(identifier, "")
        return found

    def _find(self, identifier: ContentId) -> tuple[str, bytes] | None:
        """Good sealed bytes, and the store that has them."""
        named = self._scrub.manifests.pages.digest(identifier)
        for source, opened, pack, at in self._places(identifier):
            what = f"chunk {short(identifier)} in {pack.name}"
            try:
                sealed = opened.backend.read(pack.name, at.offset, at.length)
                if named is not None:
                    self._chunks.open(*named, memoryview(sealed), what)
                elif source != HERE or parse_header(sealed, what).id != identifier:
                    # Nobody here names it, so its bytes cannot be opened; it may be moved, but not brought.
                    raise IntegrityError(f"{what} cannot be opened")
            except CairnError as error:
                if error.retryable:
                    raise
                continue
            return source, sealed
        return None

    def _places(self, identifier: ContentId) -> Iterator[_Place]:
        places = self._scrub.places
        for at in places.locations(identifier):
            yield HERE, self._registry.opened, places.pack(at.pack), at
        for source, registry in self._sources.items():
            index = registry.index()
            for at in index.locations(identifier, marked=True):
                yield source, registry.opened, index.pack(at.pack), at
