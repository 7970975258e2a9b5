"""Shortcuts into a long log, written for whoever opens the store without a cache: bundles, and fold snapshots.

Nothing depends on them. So this can be stopped anywhere and repeated, and several may do it at once: names say what
an object holds, and whoever finds a name taken leaves it.
"""

from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from cairn.core.errors import ObjectExists
from cairn.core.limits import SEALED_OBJECT_BYTES_MAX, SNAPSHOT_ENTRIES, SNAPSHOTS_KEPT
from cairn.registry.bundles import write_bundles
from cairn.registry.fold import STATE_VERSION
from cairn.registry.registry import Registry
from cairn.registry.snapshots import SnapshotName, listed_snapshots, newest_snapshot, seal_snapshot
from cairn.registry.state import State


class Written(NamedTuple):
    """What was done: bundles and snapshots written, older snapshots removed."""

    bundles: int = 0
    snapshots: int = 0
    removed: int = 0


def write_shortcuts(registry: Registry) -> Written:
    """Write the bundles that are missing, and a snapshot if one is due; remove snapshots that are superseded.

    Raises:
        NewerFormat, IntegrityError, NotAllowed: the store cannot be written to.
    """
    opened, state = registry.opened, registry.settled()
    newest_in_order = _newest_in_order(state)
    bundles = write_bundles(opened, newest_in_order, registry.bad_bundles)
    newest = newest_snapshot(opened, registry.first_owners, registry.ends_as)
    # What is ahead of us may be of a log that is about to come back.
    removed = _remove(registry, [name for name in newest.useless if name.length <= state.length])
    behind = state.length - (newest.state.length if newest.state else 0)
    # What nothing speaks for yet may be damage; the next entry, and the next call, will tell.
    due = behind > SNAPSHOT_ENTRIES and newest_in_order == state.length - 1
    snapshots = _write_snapshot(registry, state) if due else 0
    return Written(bundles, snapshots, removed + _remove(registry, _superseded(registry, state.length)))


def _newest_in_order(state: State) -> int:
    """Position of the newest entry that is not void, which speaks for all before it."""
    void, n = {one.n for one in state.voids}, state.length - 1
    while n in void:
        n -= 1
    return n


def _write_snapshot(registry: Registry, state: State) -> int:
    opened, name = registry.opened, SnapshotName(STATE_VERSION, state.length)
    identity = opened.identity_among(registry.first_owners)
    if identity is None:
        return 0
    sealed = seal_snapshot(opened, identity, state)
    if len(sealed) > SEALED_OBJECT_BYTES_MAX:
        return 0
    with suppress(ObjectExists):  # another writer's, of the same state
        opened.backend.create(name.object, [sealed])
        return 1
    return 0


def _superseded(registry: Registry, length: int) -> list[SnapshotName]:
    """All but the last two up to `length`, and those of older rules once there are two of these."""
    listed = listed_snapshots(registry.opened)
    own = [name for name in listed if name.version == STATE_VERSION and name.length <= length]
    older = [name for name in listed if name.version < STATE_VERSION]
    return own[:-SNAPSHOTS_KEPT] + (older if len(own) >= SNAPSHOTS_KEPT else [])


def _remove(registry: Registry, names: Collection[SnapshotName]) -> int:
    for name in names:
        registry.opened.backend.delete(name.object)
    return len(names)
