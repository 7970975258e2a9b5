"""Whether what a state names lies in the storage at its full size, asked without reading content."""

from cairn.core.errors import IntegrityError, ObjectNotFound
from cairn.registry.indexing import StateIndex
from cairn.registry.opened import OpenStore
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.state import Checkpoint
from cairn.store.backends.contract import Backend

# Ids that are looked up together: enough to share a transaction, few enough not to matter.
_BATCH = 8192


class PackPresence:
    """Which packs are there at their full size; a session's packs are listed once."""

    def __init__(self, backend: Backend, index: StateIndex) -> None:
        self._backend, self._index = backend, index
        self._sizes: dict[bytes, dict[str, int]] = {}
        self._present: dict[int, bool] = {}

    def has(self, number: int) -> bool:
        """Whether a pack is there."""
        present = self._present.get(number)
        if present is None:
            ref = self._index.pack(number)
            sizes = self._sizes.get(ref.session)
            if sizes is None:
                listed = self._backend.list(ref.name.rpartition("/")[0])
                sizes = self._sizes[ref.session] = {one.name: one.size for one in listed}
            present = self._present[number] = sizes.get(ref.name) == ref.size
        return present


def is_whole(registry: Registry, checkpoint: Checkpoint, packs: PackPresence) -> bool:
    """Whether a checkpoint's manifest, and a pack for everything that it needs, are there at their full size.

    Bytes are not read, but for the reachability list. One that is here in part is not whole.
    """
    if checkpoint.partial or not _manifest_is_there(registry.opened, checkpoint):
        return False
    try:
        ids = read_reachability(registry.opened, checkpoint)
    except IntegrityError:
        return False
    index = registry.index()
    return all(
        any(packs.has(place.pack) for place in places)
        for at in range(0, len(ids), _BATCH)
        for places in index.locations_of(ids[at : at + _BATCH])
    )


def _manifest_is_there(opened: OpenStore, checkpoint: Checkpoint) -> bool:
    objects = [(checkpoint.body, "body"), *((root.object, "root") for root in checkpoint.roots)]
    try:
        return all(opened.backend.size(ref.object_name(kind)) == ref.size for ref, kind in objects)
    except ObjectNotFound:
        return False
