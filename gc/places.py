"""Places: where content lies by what the store itself says, and which of these places are bad.

The index is built anew from pieces and footers, in a temporary cache: a scrub trusts nothing that this machine
remembers. What is learnt about a place is passed on to the machine's own index, so that new content is not
deduplicated against bad bytes.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from cairn.core.ids import ContentId, short
from cairn.registry.indexing import StateIndex
from cairn.registry.state import State
from cairn.store.cache import Cache
from cairn.store.index import Location, PackRef


@dataclass(frozen=True, slots=True)
class Damage:
    """A place whose bytes are not what they should be; `why` says so in a sentence, empty where there are no bytes."""

    id: ContentId
    at: Location
    why: str = ""


class Places:
    """An index (see `store.chunkstore.Index`) over the packs in force of one state. Safe for threads."""

    def __init__(self, state: State, local: StateIndex, known: Iterable[Damage] = ()) -> None:
        """Nothing has a place yet.

        Args:
            known: bad places that were found in another state of the same store.
        """
        self._cache = Cache(None, b"scrub")
        self._found = StateIndex(state, self._cache)
        self._local = local
        self._steps = 0
        self._bad = {(one.id, one.at): one.why for one in known if state.in_force(one.at.pack)}
        self._lock = threading.Lock()

    def add(self, entries: list[tuple[ContentId, Location]]) -> None:
        """Take the places that one piece, or one footer, lists."""
        self._cache.advance(self._steps - 1, self._steps, b"", entries)
        self._steps += 1

    def locations(self, identifier: ContentId, marked: bool = False) -> list[Location]:
        """Places in packs that are in force; with `marked` also the bad ones, last."""
        places = self._found.locations(identifier)
        with self._lock:
            bad = [at for at in places if (identifier, at) in self._bad]
        return [at for at in places if at not in bad] + (bad if marked else [])

    def locations_of(self, identifiers: Iterable[ContentId], marked: bool = False) -> list[list[Location]]:
        """As `locations`, of many."""
        return [self.locations(identifier, marked) for identifier in identifiers]

    def pack(self, number: int) -> PackRef:
        """Name and size of a pack."""
        return self._found.pack(number)

    def mark(self, identifier: ContentId, location: Location, bad: bool) -> None:
        """Note that a place's bytes failed, or are good again."""
        if bad:
            with self._lock:
                known = (identifier, location) in self._bad
            if not known:
                self.note(Damage(identifier, location, f"{short(identifier)} does not open"))
        elif location not in self._local.locations(identifier) and location in self._local.locations(identifier, True):
            self._local.mark(identifier, location, bad=False)

    def note(self, damage: Damage) -> None:
        """Note a bad place; the last reason counts. The machine's index sees by a pack's size that bytes are gone."""
        with self._lock:
            self._bad[damage.id, damage.at] = damage.why
        if damage.why:
            self._local.mark(damage.id, damage.at, bad=True)

    def damages(self) -> list[Damage]:
        """All bad places, by pack and offset."""
        with self._lock:
            found = [Damage(identifier, at, why) for (identifier, at), why in self._bad.items()]
        return sorted(found, key=lambda damage: (damage.at.pack, damage.at.offset))

    def serves(self, identifier: ContentId) -> bool:
        """Whether any place of a content id is not known to be bad."""
        return bool(self.locations(identifier))

    def known_here(self, identifier: ContentId) -> bool:
        """Whether the machine's own index has any place of a content id."""
        return bool(self._local.locations(identifier, marked=True))

    def close(self) -> None:
        """Remove the temporary index."""
        self._cache.close()
