"""A store by its place: what may travel to another process, which opens the store with keys of its own user."""

from pathlib import Path

import msgspec

from cairn.registry.registry import Registry
from cairn.registry.stores import open_store


class _Place(msgspec.Struct, frozen=True):
    location: str
    key_file: Path | None


class StorePlace:
    """Where a store is, and its registry from the first use on. Pickled, it is the place alone.

    Args:
        store: a path, a URL, or an opened store, which then stays its opener's to close. A store that was opened with a
            passphrase is opened elsewhere by `CAIRN_PASSPHRASE`.
    """

    def __init__(self, store: str | Path | Registry) -> None:
        self._registry = store if isinstance(store, Registry) else None
        if isinstance(store, Registry):
            self._place = _Place(_absolute(store.opened.backend.url), store.opened.key_file)
        else:
            self._place = _Place(_absolute(str(store)), None)
        self._own = self._registry is None

    def registry(self) -> Registry:
        """The opened store.

        Raises:
            NotAStore, NotAllowed: see `open_store`.
        """
        if self._registry is None:
            self._registry = open_store(self._place.location, key_file=self._place.key_file)
        return self._registry

    def close(self) -> None:
        """Close the store if it was opened here; the next use opens it again."""
        if self._own and self._registry is not None:
            self._registry.close()
            self._registry = None

    def __getstate__(self) -> _Place:
        return self._place

    def __setstate__(self, place: _Place) -> None:
        self._place, self._registry, self._own = place, None, True


def _absolute(location: str) -> str:
    return location if "://" in location else str(Path(location).absolute())
