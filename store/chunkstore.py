"""The chunk store: each distinct content is stored once.

Writing, per chunk: digest -> known? -> encode -> seal -> pack. A `ChunkWriter` belongs to one thread and owns one
open pack; any number of them, in any number of processes, may write into one store at once. Hashing, sealing
and writing release the GIL; a chunk is copied once, by encryption into the pack's buffer.
"""

import mmap
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cairn.core.buffers import Buffer
from cairn.core.clock import Clock, Entropy
from cairn.core.errors import CairnError, IntegrityError, MissingData, ObjectNotFound, StorageError
from cairn.core.ids import OBJECT_RANDOM_BYTES, ContentId, Digest, SessionId, StoreId, short
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_TARGET
from cairn.store import codec, pack
from cairn.store.backends.contract import Backend
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.chunks import OVERHEAD_BYTES, open_into, parse_header, seal_into
from cairn.store.crypto.tenant import ContentType, TenantKeys, held
from cairn.store.fills import fill_digest, fill_of
from cairn.store.index import Location, PackRef, PieceEntry
from cairn.store.pack import PackedChunk
from cairn.store.written import WriteCounts, WriteSeconds, Written

# Every that many chunks of a pack one is opened and compared before the pack leaves memory.
_VERIFY_EVERY = 64


class Index(Protocol):
    """Where known content lies, as of one position of the log."""

    def locations(self, identifier: ContentId, marked: bool = False) -> list[Location]:
        """Places in packs that are in force, best first; with `marked` also those whose bytes failed before, last."""
        ...

    def locations_of(self, identifiers: Iterable[ContentId], marked: bool = False) -> list[list[Location]]:
        """As `locations`, of many: one after the other."""
        ...

    def pack(self, number: int) -> PackRef:
        """Name and size of a numbered pack."""
        ...

    def mark(self, identifier: ContentId, location: Location, bad: bool) -> None:
        """Note that a place's bytes failed, or are good again."""
        ...


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """What reading and writing content needs.

    Args:
        content: None for who may move sealed content, and neither open nor make any.
    """

    backend: Backend
    store: StoreId
    content: TenantKeys | None
    k_index: bytes = field(repr=False)
    entropy: Entropy

    @property
    def keys(self) -> TenantKeys:
        """The tenant's content keys.

        Raises:
            NotAllowed: they were not given to this user.
        """
        return held(self.content, "the content keys of the tenant", "reader")


class ChunkStore:
    """Content of one store."""

    def __init__(self, access: StoreAccess, index: Index) -> None:
        self.access = access
        self.index = index

    def read(self, kind: ContentType, digest: Digest) -> bytes:
        """Read, authenticate and recompute the digest of one chunk or page, trying every known place.

        Raises:
            MissingData: no place is known or left.
            IntegrityError: every place is damaged.
        """
        filled = fill_of(digest)
        if filled is not None:
            raise ValueError("a fill has no stored chunk")
        identifier = self.access.keys.of(kind).content_id(digest)
        failure: CairnError | None = None
        for location in self.index.locations(identifier, marked=True):
            name = self.index.pack(location.pack).name
            try:
                sealed = self.access.backend.read(name, location.offset, location.length)
                data = bytes(self.open(kind, digest, memoryview(sealed), f"chunk {short(identifier)} in {name}"))
            except (IntegrityError, ObjectNotFound) as error:
                self.index.mark(identifier, location, bad=True)
                failure = error
            except StorageError as error:  # a bad sector, say: the next place may do
                failure = error
            else:
                self.index.mark(identifier, location, bad=False)
                return data
        if isinstance(failure, StorageError):
            raise failure
        if failure is not None:
            raise IntegrityError(
                f"{kind.name.lower()} {short(identifier)} cannot be read: {failure}",
                hint="run 'cairn verify --full' to see what is affected",
            )
        raise MissingData(
            f"{kind.name.lower()} {short(identifier)} is in no pack that is in force",
            hint="run 'cairn verify --full' to see what is affected",
        )

    def content(self, digest: Digest, length: int) -> bytes:
        """One chunk's plaintext, a fill's included; `length` is that of a fill."""
        filled = fill_of(digest)
        return bytes((filled,)) * length if filled is not None else self.read(ContentType.CHUNK, digest)

    def open(
        self,
        kind: ContentType,
        digest: Digest,
        sealed: memoryview,
        what: str,
        target: memoryview | None = None,
        recompute: bool = True,
    ) -> Buffer:
        """Open a sealed chunk and recompute its digest.

        Args:
            target: where to decrypt to, at least as long as the plaintext; the result is then a slice of it
                unless the chunk was compressed.
            recompute: without, only what was sealed is authenticated: a writer's own fault goes unseen.

        Raises:
            IntegrityError: damaged, or other content than the digest says.
        """
        header = parse_header(sealed, what)
        if header.type is not kind:
            raise IntegrityError(f"{what} is a {header.type.name.lower()}, not a {kind.name.lower()}")
        length = len(sealed) - OVERHEAD_BYTES
        plain = target[:length] if target is not None and len(target) >= length else memoryview(bytearray(length))
        open_into(self.access.keys, header, digest, sealed, plain, what)
        data = codec.decode(header.codec, plain, header.raw_length, what)
        if recompute and self.access.keys.of(kind).digest(data) != digest:
            raise IntegrityError(f"{what} holds other bytes than its digest says: its writer was faulty")
        return data

    def save(
        self, session: "ObjectNamer", policy: CodecPolicy = CodecPolicy.RAW, clock: Clock | None = None
    ) -> "ChunkSave":
        """Start putting content into packs of a session; with a clock, writers' times are taken."""
        return ChunkSave(self, session, policy, clock)


class ObjectNamer(Protocol):
    """Hands out the session under which new objects lie, opening it on first use."""

    def ensure_open(self) -> SessionId:
        """The session's id; its object exists when this returns."""
        ...


class ChunkSave:
    """One save's view of the chunk store: what it knows, relies on and has written."""

    def __init__(
        self, chunks: ChunkStore, session: ObjectNamer, policy: CodecPolicy, clock: Clock | None = None
    ) -> None:
        self.chunks = chunks
        self.now = clock.monotonic if clock is not None else _no_time
        self.session = session
        self.policy = policy
        self.written = Written()
        # Store what is known as well: what is known may be damaged.
        self.anew = False
        # Told of each pack that is durable.
        self.uploaded: Callable[[PackRef, Sequence[PackedChunk]], None] | None = None
        self._lock = threading.Lock()
        self._claimed: set[ContentId] = set()
        self._packs_checked: dict[int, bool] = {}

    def writer(self) -> "ChunkWriter":
        """A writer for the calling thread."""
        return ChunkWriter(self)

    def claim(self, identifier: ContentId) -> bool:
        """Whether the caller is to store this content; False if it is stored or another writer is at it."""
        with self._lock:
            if identifier in self._claimed:
                return False
            self._claimed.add(identifier)
        return not self.rely(identifier)

    def claimed(self, identifier: ContentId) -> bool:
        """Whether this save has stored, or is storing, this content itself."""
        return identifier in self._claimed

    def rely(self, identifier: ContentId) -> bool:
        """Whether the store holds this content already; the save then relies on the pack that has it."""
        while not self.anew:
            chunks = self.chunks
            found = next((at.pack for at in chunks.index.locations(identifier) if self._present(at)), None)
            with self._lock:
                if chunks is self.chunks:
                    if found is not None:
                        self.written.relied.add(found)
                    return found is not None
        return False

    def relied(self) -> set[int]:
        """Numbers of the packs that the save relies on so far."""
        with self._lock:
            return set(self.written.relied)

    def continue_on(self, chunks: ChunkStore, in_force: Callable[[int], bool]) -> bool:
        """Look up hits in a newer index from here on; False, and nothing changes, if one so far is not good there."""
        with self._lock:
            if not all(in_force(number) for number in self.written.relied):
                return False
            self.chunks = chunks
            return True

    def _present(self, location: Location) -> bool:
        """Whether the pack is there at its full size; asked once a pack and save."""
        present = self._packs_checked.get(location.pack)
        if present is None:
            ref = self.chunks.index.pack(location.pack)
            try:
                present = self.chunks.access.backend.size(ref.name) == ref.size
            except ObjectNotFound:
                present = False
            self._packs_checked[location.pack] = present
        return present

    def take_over(self, ref: PackRef, chunks: Sequence[PackedChunk]) -> None:
        """Count a durable pack of the same session, uploaded before the writer was interrupted, as this save's."""
        with self._lock:
            self._claimed.update(chunk.id for chunk in chunks)
        self.publish_pack(ref, chunks)

    def publish_pack(self, ref: PackRef, chunks: Sequence[PackedChunk]) -> None:
        """Record a pack that is durable now."""
        with self._lock:
            number = len(self.written.packs)
            self.written.packs.append(ref)
            self.written.entries.extend(PieceEntry(chunk.id, number, chunk.offset, chunk.length) for chunk in chunks)

    def count(self, counts: WriteCounts, seconds: WriteSeconds | None = None) -> None:
        """Add a writer's counts and times."""
        with self._lock:
            self.written.counts.add(counts)
            if seconds is not None:
                self.written.seconds.add(seconds)


def _no_time() -> float:
    return 0.0


class ChunkWriter:
    """Puts chunks into packs; one a thread. Use as a context manager: leaving it uploads the open pack."""

    def __init__(self, save: ChunkSave) -> None:
        self._save = save
        self._access = save.chunks.access
        self._buffer: mmap.mmap | None = None
        self._used = 0
        self._chunks: list[PackedChunk] = []
        self._samples: list[tuple[ContentType, Digest, PackedChunk]] = []
        self._target_bytes = PACK_BYTES_TARGET
        self.counts = WriteCounts()
        self.seconds = WriteSeconds()

    def put(self, kind: ContentType, data: Buffer, width: int = 1) -> Digest:
        """Store a chunk or page unless its content is known; returns its digest.

        Args:
            data: at most `CHUNK_BYTES_MAX` bytes; not kept after return.
            width: bytes of an element, for the codec.
        """
        length = len(data)
        if length > CHUNK_BYTES_MAX:
            raise ValueError(f"a chunk of {length} bytes is over the limit of {CHUNK_BYTES_MAX}")
        begun = self._save.now()
        filled = fill_digest(data) if kind is ContentType.CHUNK else None
        if filled is not None:
            self._count_reused(length)
            return filled
        keys = self._access.keys.of(kind)
        digest = keys.digest(data)
        self.seconds.digest += self._save.now() - begun
        if not self._save.claim(keys.content_id(digest)):
            self._count_reused(length)
            return digest
        begun = self._save.now()
        code, encoded = codec.encode(self._save.policy, data, width)
        self.seconds.encode += self._save.now() - begun
        self._append(kind, digest, code, length, encoded)
        return digest

    def digest(self, kind: ContentType, data: Buffer) -> Digest:
        """What `put` would return; nothing is stored."""
        filled = fill_digest(data) if kind is ContentType.CHUNK else None
        return self._access.keys.of(kind).digest(data) if filled is None else filled

    def _count_reused(self, length: int) -> None:
        self.counts.chunks_reused += 1
        self.counts.bytes_reused += length

    def _append(self, kind: ContentType, digest: Digest, code: int, raw_length: int, encoded: Buffer) -> None:
        buffer = self._room(len(encoded) + OVERHEAD_BYTES)
        begun = self._save.now()
        with memoryview(buffer) as whole, whole[self._used :] as target:
            stored = seal_into(self._access.keys, kind, digest, code, raw_length, encoded, target, self._access.entropy)
        self.seconds.seal += self._save.now() - begun
        chunk = PackedChunk(self._access.keys.of(kind).content_id(digest), self._used, stored)
        if len(self._chunks) % _VERIFY_EVERY == 0:
            self._samples.append((kind, digest, chunk))
        self._add(chunk, raw_length)

    def adopt(self, identifier: ContentId, sealed: Buffer) -> bool:
        """Store a sealed chunk or page of this tenant as it is, unless it is known; the caller has authenticated it."""
        length, raw_length = len(sealed), parse_header(sealed, "a chunk").raw_length
        if not self._save.claim(identifier):
            self._count_reused(raw_length)
            return False
        buffer = self._room(length)
        buffer[self._used : self._used + length] = sealed
        self._add(PackedChunk(identifier, self._used, length), raw_length)
        return True

    def keep_together(self, length: int) -> None:
        """Begin a new pack if the open one, being more than half full, has no room for so many bytes of content."""
        if self._target_bytes // 2 < self._used and self._used + length > self._target_bytes:
            self.flush()

    def _room(self, length: int) -> mmap.mmap:
        """The open pack's buffer, with room for so many more bytes."""
        if self._chunks and self._used + length > self._target_bytes:
            self.flush()
        if self._buffer is None:
            # Anonymous memory: unused pages cost nothing. Kept for the next pack, since each fresh page costs a fault.
            self._buffer = mmap.mmap(-1, self._target_bytes + CHUNK_BYTES_MAX + OVERHEAD_BYTES)
        if not self._used:
            self._buffer[: len(pack.HEADER)] = pack.HEADER
            self._used = len(pack.HEADER)
        return self._buffer

    def _add(self, chunk: PackedChunk, raw_length: int) -> None:
        self._chunks.append(chunk)
        self._used += chunk.length
        self.counts.chunks_new += 1
        self.counts.bytes_new += raw_length
        self.counts.bytes_stored += chunk.length

    def flush(self) -> None:
        """Upload the open pack; durable when this returns."""
        if self._buffer is None or not self._chunks:
            return
        begun = self._save.now()
        session = self._save.session.ensure_open()
        random = self._access.entropy.token(OBJECT_RANDOM_BYTES)
        tail = pack.seal_footer(self._access.k_index, self._access.store, self._chunks, self._access.entropy)
        ref = PackRef(session, random, self._used + len(tail))
        with memoryview(self._buffer) as whole, whole[: self._used] as sealed:
            self._check_samples(sealed)
            self._access.backend.create(ref.name, [sealed, tail])
        if self._save.uploaded is not None:
            self._save.uploaded(ref, self._chunks)
        self._save.publish_pack(ref, self._chunks)
        self.seconds.store += self._save.now() - begun
        self._used, self._chunks, self._samples = 0, [], []

    def _check_samples(self, sealed: memoryview) -> None:
        """Open a sample again before the pack leaves memory: a bad bit in RAM must not become a checkpoint."""
        for kind, digest, chunk in self._samples:
            with sealed[chunk.offset : chunk.offset + chunk.length] as one:
                self._save.chunks.open(kind, digest, one, f"chunk {short(chunk.id)} in memory")

    def __enter__(self) -> "ChunkWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.flush()
            self._save.count(self.counts, self.seconds)
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None
