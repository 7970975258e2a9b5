"""Copying what is needed of half-empty packs into new ones, sealed as it is: no content key takes part."""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from cairn.core.errors import IntegrityError, ObjectNotFound
from cairn.core.ids import ContentId, short
from cairn.core.limits import PACK_BYTES_TARGET, READ_BYTES_TARGET, TRANSFERS_AT_ONCE
from cairn.core.pool import Pool, threads_within_budget
from cairn.core.progress import Progress
from cairn.gc.liveness import Array, Needed, Stored
from cairn.registry.opened import OpenStore
from cairn.registry.session import Session
from cairn.registry.state import State
from cairn.store.chunkstore import ChunkSave, ChunkStore, ChunkWriter
from cairn.store.crypto.chunks import parse_header
from cairn.store.index import Location, PackRef
from cairn.store.ranges import Range, join_ranges

_WORKER_BYTES = PACK_BYTES_TARGET + READ_BYTES_TARGET


class _Places(msgspec.Struct, frozen=True):
    """What is needed of one pack, by offset."""

    pack: int
    ids: list[ContentId]
    offsets: list[int]
    lengths: list[int]


class _Nowhere:
    """An index that knows nothing, so that everything is stored anew."""

    def locations(self, identifier: ContentId, marked: bool = False) -> list[Location]:
        return []

    def locations_of(self, identifiers: Iterable[ContentId], marked: bool = False) -> list[list[Location]]:
        return [[] for _ in identifiers]

    def pack(self, number: int) -> PackRef:
        raise AssertionError(f"pack {number} of an empty index")

    def mark(self, identifier: ContentId, location: Location, bad: bool) -> None:
        """Nothing to note."""


class Repacked(msgspec.Struct):
    """What was copied, and packs that could not be read, with the reason."""

    save: ChunkSave
    copied: set[bytes]
    unreadable: dict[int, str]


def repack(
    opened: OpenStore, session: Session, state: State, packs: list[int], stored: Stored, needed: Needed,
    progress: Progress,
) -> Repacked:  # fmt: skip
    """Copy the needed part of packs; what is returned holds the new packs, all durable."""
    save = ChunkStore(opened.access, _Nowhere()).save(session)
    done = Repacked(save, set(), {})
    progress.stage("repack")

    def work(jobs: Iterable[_Places]) -> None:
        with save.writer() as writer:
            for places in jobs:
                name = state.pack(places.pack).name
                try:
                    _copy(opened, name, places, writer, progress)
                except (IntegrityError, ObjectNotFound) as error:
                    done.unreadable[places.pack] = error.message
                else:
                    done.copied.update(places.ids)

    jobs = _places_of(packs, stored, stored.needed_rows(needed))
    Pool[_Places](threads_within_budget(_WORKER_BYTES, TRANSFERS_AT_ONCE), work).run(jobs)
    return done


def _places_of(packs: list[int], stored: Stored, rows: Array) -> Iterator[_Places]:
    wanted = np.flatnonzero(rows & np.isin(stored.packs, packs))
    order = wanted[np.lexsort((stored.offsets[wanted], stored.packs[wanted]))]
    starts = np.flatnonzero(np.diff(stored.packs[order], prepend=-1))
    for some in np.split(order, starts[1:]):
        if len(some):
            joined = stored.ids[some].tobytes()
            ids = [ContentId(joined[at : at + 32]) for at in range(0, len(joined), 32)]
            yield _Places(int(stored.packs[some[0]]), ids, stored.offsets[some].tolist(), stored.lengths[some].tolist())


def _copy(opened: OpenStore, name: str, places: _Places, writer: ChunkWriter, progress: Progress) -> None:
    at = 0
    rows = list(zip(places.ids, places.offsets, places.lengths, strict=True))
    triples = [(places.pack, offset, length) for _, offset, length in rows]
    for one in join_ranges(triples, READ_BYTES_TARGET):
        data = _read(opened, name, one)
        while at < len(rows) and rows[at][1] + rows[at][2] <= one.offset + one.length:
            identifier, offset, length = rows[at]
            sealed = data[offset - one.offset : offset - one.offset + length]
            if parse_header(sealed, f"chunk {short(identifier)} in {name}").id != identifier:
                raise IntegrityError(f"{name} holds another chunk than {short(identifier)} at byte {offset}")
            writer.adopt(identifier, sealed)
            progress.advance(length)
            at += 1


def _read(opened: OpenStore, name: str, one: Range) -> memoryview:
    data = opened.backend.read(name, one.offset, one.length)
    if len(data) != one.length:
        raise IntegrityError(f"{name} is shorter than the index says")
    return memoryview(data)
