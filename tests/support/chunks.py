"""A chunk store without a registry: its index is a dictionary that the test fills."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from cairn.core.ids import ContentId, SessionId, StoreId, TenantId
from cairn.store.backends.contract import Backend
from cairn.store.chunkstore import ChunkSave, ChunkStore, StoreAccess
from cairn.store.crypto.tenant import TenantKeys
from cairn.store.index import Location, PackRef
from tests.support.doubles import SeededEntropy


@dataclass
class DictIndex:
    """What a registry's index would say, newest place first, places marked bad last."""

    packs: list[PackRef] = field(default_factory=list)
    places: dict[ContentId, list[Location]] = field(default_factory=dict)
    bad: set[tuple[ContentId, Location]] = field(default_factory=set)

    def locations(self, identifier: ContentId, marked: bool = False) -> list[Location]:
        known = self.places.get(identifier, [])[::-1]
        good = [at for at in known if (identifier, at) not in self.bad]
        return good + ([at for at in known if at not in good] if marked else [])

    def locations_of(self, identifiers: Iterable[ContentId], marked: bool = False) -> list[list[Location]]:
        return [self.locations(identifier, marked) for identifier in identifiers]

    def pack(self, number: int) -> PackRef:
        return self.packs[number]

    def mark(self, identifier: ContentId, location: Location, bad: bool) -> None:
        (self.bad.add if bad else self.bad.discard)((identifier, location))

    def add(self, save: ChunkSave) -> None:
        """Take up what a save has written, as a commit would."""
        first = len(self.packs)
        self.packs.extend(save.written.packs)
        for entry in save.written.entries:
            place = Location(first + entry.pack, entry.offset, entry.length)
            self.places.setdefault(entry.id, []).append(place)


@dataclass
class OpenSession:
    """A session that is open from the start."""

    id: SessionId

    def ensure_open(self) -> SessionId:
        return self.id


def chunk_store(backend: Backend, seed: int = 0) -> ChunkStore:
    """An empty chunk store; equal seeds are one tenant and store."""
    entropy = SeededEntropy(seed)
    keys = TenantKeys.from_secret(TenantId(entropy.token(16)), entropy.token(32))
    return ChunkStore(StoreAccess(backend, StoreId(entropy.token(16)), keys, entropy.token(32), entropy), DictIndex())


def index_of(store: ChunkStore) -> DictIndex:
    """The store's index, as what it is."""
    assert isinstance(store.index, DictIndex)
    return store.index


def begin(store: ChunkStore, session: int = 1) -> ChunkSave:
    """A save in a session of its own."""
    return store.save(OpenSession(SessionId(session.to_bytes(16, "big"))))
