"""What pins defer: condemned packs and objects that somebody still reads from."""

from collections.abc import Iterable

import numpy as np

from cairn.core.errors import CairnError
from cairn.gc.liveness import has, list_words, union
from cairn.gc.observe import list_pins
from cairn.gc.silence import Silence
from cairn.registry.indexing import locations_of
from cairn.registry.registry import Registry


class Deferral:
    """The pins as of now; to be made once the floor is raised, since later readers see what is gone."""

    def __init__(self, registry: Registry, silence: Silence) -> None:
        self._registry = registry
        live = [pin for pin in list_pins(registry.opened, silence) if not pin.dead]
        self._all = any(pin.record is None for pin in live)
        self._objects = set[bytes]()
        self._words = np.zeros(0, np.uint64)
        for pin in live:
            if pin.record is not None:
                width = 29
                joined = pin.record.objects
                self._objects.update(joined[at : at + width] for at in range(0, len(joined), width))
                try:
                    words = list_words(registry.opened, pin.record.reachability)
                except CairnError:
                    self._all = True  # what it protects cannot be told
                else:
                    self._words = union(self._words, words)

    def packs(self, condemned: Iterable[int]) -> set[int]:
        """Those of some condemned packs that hold a chunk or page of a pinned checkpoint."""
        wanted = set(condemned)
        if self._all or not len(self._words):
            return wanted if self._all else set()
        state, kept = self._registry.state, set[int]()
        for piece in state.pieces:
            if not wanted.isdisjoint(range(piece.first, piece.first + piece.count)):
                found, complete = locations_of(self._registry.opened, state, piece)
                words = np.array([int.from_bytes(one[:8], "big") for one, _ in found], np.uint64)
                kept.update(at.pack for (_, at), held in zip(found, has(self._words, words), strict=True) if held)
                if not complete:
                    kept.update(range(piece.first, piece.first + piece.count))
        return wanted & kept

    def objects(self, condemned: Iterable[bytes]) -> set[bytes]:
        """Those of some condemned objects that belong to a pinned checkpoint."""
        wanted = set(condemned)
        return wanted if self._all else wanted & self._objects
