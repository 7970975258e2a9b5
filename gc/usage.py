"""What a store holds and costs."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from cairn.core.errors import CairnError, IntegrityError, NotAllowed, ObjectNotFound
from cairn.core.ids import ContentId
from cairn.gc.roots import Root, deleted_checkpoints, live_checkpoints, named_objects, packs_in_force
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.indexing import locations_of
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.session import open_sessions, read_session
from cairn.registry.state import State, name_of_key
from cairn.store.crypto.components import ComponentClass


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session whose object exists; `epoch` is None where the object is damaged."""

    id: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts and bytes of one store. All bytes are stored ones, `bytes_logical` excepted.

    `bytes_packs`, `bytes_other`, `bytes_pending` and `leftover_bytes` are all that is stored.

    Args:
        packs, bytes_packs: packs in force and their size.
        bytes_other: all other objects that are needed: log and shortcuts, keys, sessions, manifests, index.
        chunks: distinct chunks and pages that checkpoints need.
        bytes_logical: plaintext bytes of all checkpoints, each counted as if it stood alone.
        bytes_reachable: sealed chunks and pages that checkpoints need, one copy of each.
        bytes_restorable: of the rest, what deleted checkpoints need that can still be restored.
        bytes_unreferenced: sealed chunks and pages in packs in force that no checkpoint needs, and second copies.
        bytes_pending: what is condemned and waits to be deleted.
        leftover_objects, leftover_bytes: objects that no entry names, which interrupted writers left.
        unreadable: why some checkpoints could not be counted; then `bytes_unreferenced` may hold what they need.
    """

    models: int
    checkpoints: int
    log_entries: int
    packs: int
    bytes_packs: int
    bytes_other: int
    chunks: int
    bytes_logical: int
    bytes_reachable: int
    bytes_restorable: int
    bytes_unreferenced: int
    bytes_pending: int
    leftover_objects: int
    leftover_bytes: int
    sessions: tuple[OpenSession, ...]
    unreadable: tuple[str, ...] = field(default=())

    @property
    def bytes_reclaimable(self) -> int:
        """What a collection can free, as far as packs are written anew for it and no writer at work needs it."""
        return self.bytes_unreferenced + self.leftover_bytes

    @property
    def dedup_ratio(self) -> float:
        """Logical bytes for each byte stored in packs; 1 for a store without packs."""
        return self.bytes_logical / self.bytes_packs if self.bytes_packs else 1.0


def usage(registry: Registry) -> Usage:
    """Count what a store holds; checkpoints that cannot be read are named and left out."""
    state = registry.refresh().copy()
    backend = registry.opened.backend
    stored = {listed.name: listed.size for listed in backend.list("")}
    leftovers = {name for name in stored if name.startswith("objects/")} - named_objects(state)
    needed, bytes_logical, unreadable = _needed(registry, live_checkpoints(state), live=True)
    deleted, _, unreadable_too = _needed(registry, deleted_checkpoints(state), live=False)
    packs = packs_in_force(state)
    reachable, restorable, unreferenced = _split_bytes(registry, state, needed, deleted - needed)
    condemned = {name_of_key(key) for key in state.condemned_objects}
    bytes_condemned = sum(stored.get(name, 0) for name in condemned)
    pending = bytes_condemned + sum(stored.get(state.pack(number).name, 0) for number in state.condemned)
    bytes_packs = sum(state.pack(number).size for number in packs)
    bytes_leftover = sum(stored[name] for name in leftovers)
    in_packs = sum(stored.get(state.pack(number).name, 0) for number in range(state.pack_count))
    return Usage(
        models=len(state.models),
        checkpoints=sum(len(model.checkpoints) for model in state.models.values()),
        log_entries=state.length,
        packs=len(packs),
        bytes_packs=bytes_packs,
        bytes_other=sum(stored.values()) - in_packs - bytes_leftover - bytes_condemned,
        chunks=len(needed),
        bytes_logical=bytes_logical,
        bytes_reachable=reachable,
        bytes_restorable=restorable,
        bytes_unreferenced=unreferenced,
        bytes_pending=pending,
        leftover_objects=len(leftovers),
        leftover_bytes=bytes_leftover,
        sessions=tuple(_sessions(registry)),
        unreadable=(*unreadable, *unreadable_too),
    )


def _needed(registry: Registry, roots: Iterable[Root], live: bool) -> tuple[set[ContentId], int, list[str]]:
    """Ids that checkpoints need, the logical bytes of live ones, and what could not be read."""
    needed, total, unreadable = set[ContentId](), 0, []
    for root in roots:
        try:
            needed.update(read_reachability(registry.opened, root.state))
            with suppress(NotAllowed):  # of what was not granted, sizes are not known either
                total += logical_bytes(registry, root) if live else 0
        except CairnError as error:
            if error.retryable:
                raise
            unreadable.append(f"checkpoint {root.checkpoint.hex()}: {error.message}")
    return needed, total, unreadable


def logical_bytes(registry: Registry, root: Root) -> int:
    """Plaintext bytes of a checkpoint: of its tree if it has one (tensors lie in files), else of all its parts."""
    manifest = CheckpointManifest(registry, root.model, root.checkpoint)
    sizes = {component: manifest.root(component).bytes_logical for component in manifest.components}
    return sizes.get(ComponentClass.FILES, sum(sizes.values()))


def _split_bytes(
    registry: Registry, state: State, needed: set[ContentId], restorable: set[ContentId]
) -> tuple[int, int, int]:
    """Bytes in packs in force that are needed, that are for what was deleted and can be restored, and all others."""
    counted, sums = set[ContentId](), [0, 0, 0]
    for piece in state.pieces:
        for identifier, at in locations_of(registry.opened, state, piece)[0]:
            if not state.in_force(at.pack):
                continue
            first = identifier not in counted
            counted.add(identifier)
            kind = 0 if first and identifier in needed else 1 if first and identifier in restorable else 2
            sums[kind] += at.length
    return sums[0], sums[1], sums[2]


def _sessions(registry: Registry) -> list[OpenSession]:
    found = []
    for session in open_sessions(registry.opened):
        try:
            found.append(OpenSession(session.hex(), read_session(registry.opened, session).epoch))
        except IntegrityError:
            found.append(OpenSession(session.hex(), None))
        except ObjectNotFound:
            continue  # its writer ended meanwhile
    return found
