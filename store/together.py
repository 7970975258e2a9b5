"""Reading content that lies together: neighbours in a pack come with one request."""

from collections.abc import Sequence

from cairn.core.errors import IntegrityError, ObjectNotFound, StorageError
from cairn.core.ids import Digest
from cairn.core.limits import READ_BYTES_TARGET
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.tenant import ContentType
from cairn.store.index import Location


def read_together(chunks: ChunkStore, kind: ContentType, digests: Sequence[Digest]) -> dict[Digest, bytes]:
    """Content by digest; what cannot be had with its neighbours is read for itself, from any place there is.

    Raises:
        MissingData, IntegrityError: see `ChunkStore.read`.
    """
    keys, places = chunks.access.keys.of(kind), list[tuple[Location, Digest]]()
    known = chunks.index.locations_of(keys.content_ids(digests))
    for digest, found_at in zip(digests, known, strict=True):
        places += [(at, digest) for at in found_at[:1]]
    found: dict[Digest, bytes] = {}
    for run in _runs(sorted(places, key=lambda place: (place[0].pack, place[0].offset))):
        found.update(_opened(chunks, kind, run))
    return {digest: found[digest] if digest in found else chunks.read(kind, digest) for digest in digests}


def _runs(places: list[tuple[Location, Digest]]) -> list[list[tuple[Location, Digest]]]:
    """Cut places where the next does not begin at the end of the one before."""
    runs: list[list[tuple[Location, Digest]]] = []
    size = 0
    for place in places:
        at, last = place[0], runs[-1][-1][0] if runs else None
        if last and (last.pack, last.offset + last.length) == (at.pack, at.offset) and size < READ_BYTES_TARGET:
            runs[-1].append(place)
        else:
            runs.append([place])
            size = 0
        size += at.length
    return runs


def _opened(chunks: ChunkStore, kind: ContentType, run: list[tuple[Location, Digest]]) -> dict[Digest, bytes]:
    """Content of a run; what fails authentication is left out, and so is all where storage fails."""
    first, last, found = run[0][0], run[-1][0], dict[Digest, bytes]()
    try:
        length = last.offset + last.length - first.offset
        stored = memoryview(chunks.access.backend.read(chunks.index.pack(first.pack).name, first.offset, length))
    except (ObjectNotFound, StorageError):
        return found
    for at, digest in run:
        sealed = stored[at.offset - first.offset : at.offset - first.offset + at.length]
        try:
            found[digest] = bytes(chunks.open(kind, digest, sealed, "a chunk among others"))
        except IntegrityError:
            continue
    return found
