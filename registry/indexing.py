"""The index in force: what index pieces (or, failing them, pack footers) say about the packs of a state."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
from blake3 import blake3

from cairn.core.errors import BadName, IntegrityError, ObjectNotFound
from cairn.core.ids import ContentId, parse_object_name
from cairn.core.limits import INDEX_ROWS_MAX, KNOWN_BYTES_MAX, SEALED_OBJECT_BYTES_MAX
from cairn.registry.entries import ObjectRef
from cairn.registry.numbers import within
from cairn.registry.opened import OpenStore
from cairn.registry.state import PACK_RECORD_BYTES, Piece, State, pack_records
from cairn.store.cache import Cache
from cairn.store.crypto.objects import ObjectKind, open_object
from cairn.store.index import (
    ENTRY_BYTES,
    KnownPacks,
    Location,
    PackRef,
    check_piece,
    decode_piece,
    pack_table,
    without_first_packs,
)
from cairn.store.pack import read_footer


class StateIndex:
    """The index as of one state: the cache's locations, seen through the packs in force."""

    def __init__(self, state: State, cache: Cache) -> None:
        self._state = state
        self._cache = cache

    def locations(self, identifier: ContentId, marked: bool = False) -> list[Location]:
        """Places in packs that are in force and not condemned, best first."""
        return self._in_force(self._cache.locations(identifier, marked))

    def locations_of(self, identifiers: Iterable[ContentId], marked: bool = False) -> list[list[Location]]:
        """As `locations`, of many."""
        found = self._cache.locations_of(identifiers, marked)
        return [self._in_force(places) for places in found]

    def known_packs(self) -> KnownPacks:
        """Packs of what long pieces list, for asking about many ids; what it does not know may still be known."""
        return KnownPacks(self._cache.blocks(KNOWN_BYTES_MAX))

    def is_in_force(self, number: int) -> bool:
        """Whether a pack is in force and not condemned."""
        return self._state.in_force(number)

    def _in_force(self, places: list[Location]) -> list[Location]:
        state = self._state
        if state.condemned or state.swept:
            return [at for at in places if state.in_force(at.pack)]
        return [at for at in places if at.pack < state.pack_count]

    def pack(self, number: int) -> PackRef:
        """Name and size of a pack."""
        return self._state.pack(number)

    def mark(self, identifier: ContentId, location: Location, bad: bool) -> None:
        """Note that a place's bytes failed, or are good again."""
        self._cache.mark(identifier, location, bad)


def read_object(opened: OpenStore, ref: ObjectRef, kind: str) -> bytes:
    """Stored bytes of an object that an entry names.

    Raises:
        IntegrityError: absent, or not the bytes that the entry's hash speaks for.
    """
    name = ref.object_name(kind)
    if ref.size > SEALED_OBJECT_BYTES_MAX:
        raise IntegrityError(f"{name} of {ref.size} bytes is over the limit of {SEALED_OBJECT_BYTES_MAX}")
    try:
        data = opened.backend.read(name, 0, ref.size + 1)
    except ObjectNotFound:
        raise IntegrityError(f"{name} is missing") from None
    if len(data) != ref.size or blake3(data).digest() != ref.hash:
        raise IntegrityError(f"{name} holds other bytes than were committed")
    return data


def piece_locations(opened: OpenStore, state: State, piece: Piece) -> list[tuple[ContentId, Location]]:
    """What one index piece says, in the state's pack numbers.

    Raises:
        IntegrityError: the piece is missing, damaged, or lists other packs than its commit.
    """
    plain, what = piece_plain(opened, state, piece)
    _, entries = decode_piece(plain, what)
    return [(e.id, Location(piece.first + e.pack, e.offset, e.length)) for e in entries]


def piece_plain(opened: OpenStore, state: State, piece: Piece) -> tuple[bytes, str]:
    """Plaintext of a piece and what to call it; its packs are those of its commit, the rest is unchecked.

    Raises:
        IntegrityError: it is missing, damaged, or lists other packs.
    """
    what = f"index piece {piece.object.object_name('index')}"
    sealed = read_object(opened, piece.object, "index")
    plain = open_object(opened.secrets.k_index, opened.store, ObjectKind.INDEX_PIECE, sealed, what)
    own = slice(piece.first * PACK_RECORD_BYTES, (piece.first + piece.count) * PACK_RECORD_BYTES)
    if pack_table(plain, what) != state.packs[own]:
        raise IntegrityError(f"{what} lists other packs than its commit")
    return plain, what


def locations_of(opened: OpenStore, state: State, piece: Piece) -> tuple[list[tuple[ContentId, Location]], bool]:
    """What a piece says, or where it is damaged the footers of its packs; and whether nothing is lacking."""
    try:
        return piece_locations(opened, state, piece), True
    except IntegrityError:
        pass
    found: list[tuple[ContentId, Location]] = []
    complete = True
    for number in range(piece.first, piece.first + piece.count):
        if within(state.swept, number):
            continue
        try:
            chunks = read_footer(opened.backend, state.pack(number).name, opened.secrets.k_index, opened.store)
        except (IntegrityError, ObjectNotFound):
            complete = False
        else:
            found.extend((chunk.id, Location(number, chunk.offset, chunk.length)) for chunk in chunks)
    return found, complete


class Found(msgspec.Struct):
    """What pieces say: entries, and long pieces as they are, by the number of their first pack.

    Args:
        complete: nothing is lacking.
    """

    entries: list[tuple[ContentId, Location]] = []
    pieces: dict[int, bytes] = {}
    complete: bool = True


def found_in(opened: OpenStore, state: State, known: int) -> Found:
    """What the cache is to know of packs from the number `known` on.

    A piece that came into the place of others may list some that are known; these are left out, for the cache would
    search two long pieces that begin with the same pack as if they were one.
    """
    found = Found()
    for piece in state.pieces:
        old = max(known - piece.first, 0)
        if old >= piece.count:
            continue
        if piece.object.size > INDEX_ROWS_MAX * ENTRY_BYTES:
            with suppress(IntegrityError):
                plain, what = piece_plain(opened, state, piece)
                check_piece(plain, what)
                found.pieces[piece.first + old] = without_first_packs(plain, old) if old else plain
                continue
        entries, complete = locations_of(opened, state, piece)
        found.entries += [one for one in entries if one[1].pack >= known] if old else entries
        found.complete = found.complete and complete
    return found


def salvage_packs(opened: OpenStore, state: State) -> Iterator[tuple[ContentId, Location]]:
    """Locations in stored packs that the state does not name, which get numbers after its last.

    For reading only, while the log is damaged: the entry that named them may be the one that is lost.
    """
    known = {state.pack(number).key for number in range(state.pack_count)}
    for listed in opened.backend.list("objects"):
        try:
            session, random, kind = parse_object_name(listed.name)
        except BadName:
            continue  # nothing of ours
        if kind != "pack" or session + random in known:
            continue
        with suppress(IntegrityError, ObjectNotFound):
            chunks = read_footer(opened.backend, listed.name, opened.secrets.k_index, opened.store)
            number = state.pack_count
            state.packs += pack_records([PackRef(session, random, listed.size)])
            for chunk in chunks:
                yield chunk.id, Location(number, chunk.offset, chunk.length)
