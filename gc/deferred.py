"""What pins defer: condemned packs and objects that somebody still reads from."""

from collections.abc import Iterable

import numpy as np

from cairn.core.errors import CairnError
from cairn.gc.liveness import columns_of_piece, has, list_words, union, words_of_ids
from cairn.gc.observe import list_pins
from cairn.gc.silence import Silence
from cairn.registry.registry import Registry
from cairn.registry.state import split_keys


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
                keys = split_keys(pin.record.objects)
                self._objects.update(keys or ())
                self._all = self._all or keys is None  # what it protects cannot be told
                try:
                    words = list_words(registry.opened, pin.record.reachability)
                except CairnError:
                    self._all = True  # likewise
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
                (ids, packs, _, _), complete = columns_of_piece(self._registry.opened, state, piece)
                kept.update(packs[has(self._words, words_of_ids(ids))].tolist())
                if not complete:
                    kept.update(range(piece.first, piece.first + piece.count))
        return wanted & kept

    def objects(self, condemned: Iterable[bytes]) -> set[bytes]:
        """Those of some condemned objects that belong to a pinned checkpoint."""
        wanted = set(condemned)
        return wanted if self._all else wanted & self._objects
