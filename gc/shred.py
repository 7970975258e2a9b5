"""Destroying the keys of deleted models, once they can be restored no more.

account -> `shred` entry (from here on there is no way back) -> new root key, which wraps all others -> wraps of the
shredded models deleted -> `destroyed` entry. What was interrupted goes on with the next call.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from msgspec.structs import replace

from cairn.core.errors import IntegrityError, NotAllowed, Overtaken, TryAgain
from cairn.core.ids import ModelId
from cairn.gc.due import due_to_shred, is_due, to_destroy
from cairn.gc.liveness import Array, Stored, has, stored_in, union, words_of_root
from cairn.gc.roots import Root, all_roots
from cairn.registry.entries_deletion import Content, Destroyed, Shared, Shred
from cairn.registry.members import named_wraps
from cairn.registry.modelkeys import WRAP_FOLDERS
from cairn.registry.numbers import ranges
from cairn.registry.registry import NothingToDo, Registry
from cairn.registry.rootkeys import is_in_force
from cairn.registry.rotation import rotate_root
from cairn.registry.state import State
from cairn.store.crypto.provider import RootKey


@dataclass(frozen=True, slots=True)
class Accounts:
    """What a model needs alone, where that lies, and what it shares."""

    checkpoints: int
    alone: Content
    packs: tuple[tuple[int, int], ...]
    shared: tuple[Shared, ...]


@dataclass(frozen=True, slots=True)
class Shredded:
    """Args:
    models: whose keys are destroyed now.
    key_file: the new one, which every owner who is no member needs; None if the root key lies sealed in the store.
    """

    models: tuple[ModelId, ...]
    key_file: Path | None


class _Stale(Exception):
    """Something was made live since the accounts were made."""


def shred_due(registry: Registry, passphrase: Callable[[], str | None]) -> Shredded | None:
    """Destroy the keys of all deleted models that are due, and finish what was begun before; None if there are none.

    The root key is made anew once for all of them.

    Args:
        passphrase: called if keys are to be destroyed: the passphrase from here on, None in a store without one.

    Raises:
        NotAllowed: this user is no owner.
        TryAgain: another owner changed the root key meanwhile.
        IntegrityError: a list cannot be read, so that nobody can tell what others need as well; nothing was destroyed.
    """
    for model in due_to_shred(registry):
        _shred(registry, model)
    shredded = to_destroy(registry.refresh())
    return _destroy(registry, shredded, passphrase) if shredded else None


def account(registry: Registry, state: State, models: Iterable[ModelId]) -> Accounts:
    """What some models need that nothing else does, and what others need as well.

    Raises:
        IntegrityError: a reachability list cannot be read.
    """
    chosen = set(models)
    roots = all_roots(state)
    mine = _words_of(registry, [root for root in roots if root.model in chosen])
    others, shared = np.zeros(0, np.uint64), list[tuple[bytes, Array]]()
    for model in sorted({root.model for root in roots} - chosen):
        words = _words_of(registry, [root for root in roots if root.model == model])
        others = union(others, words)
        both = words[has(mine, words)]
        if len(both):
            shared.append((model, both))
    # Of what is condemned, too, nothing may come back.
    stored = stored_in(registry.opened, replace(state, condemned={}))
    alone = has(mine, stored.words) & ~has(others, stored.words)
    return Accounts(
        sum(root.model in chosen for root in roots),
        _content(stored, alone & stored.best),
        ranges(int(number) for number in np.unique(stored.packs[alone])),
        tuple(Shared(model, _content(stored, stored.best & has(words, stored.words))) for model, words in shared),
    )


def _words_of(registry: Registry, roots: Iterable[Root]) -> Array:
    found = np.zeros(0, np.uint64)
    for root in roots:
        if not root.state.quarantined:
            found = union(found, words_of_root(registry.opened, root))
    return found


def _content(stored: Stored, rows: Array) -> Content:
    ids = np.sort(stored.ids[rows])
    return Content(len(ids), int(stored.lengths[rows].astype(np.int64).sum()), blake3(ids.tobytes()).digest())


def _shred(registry: Registry, model: ModelId) -> None:
    """Decide it: from here on nothing brings the model back."""
    while True:
        state = registry.refresh()
        try:
            marked, accounts = state.length, account(registry, state, [model])
        except IntegrityError:
            if registry.refresh().epoch == state.epoch:
                raise
            continue  # a collection went on, and has deleted a list that was to be read
        entry = Shred(model, marked, accounts.checkpoints, accounts.alone, accounts.packs, accounts.shared)

        def build(state: State, entry: Shred = entry) -> Shred:
            if not is_due(state, entry.model, registry.opened.clock.wall_ns()):
                raise NothingToDo
            if state.live_n >= entry.marked:
                raise _Stale
            return entry

        try:
            registry.append(build)
        except _Stale:
            continue
        except NothingToDo:
            pass
        return


def _changed_by_another(registry: Registry) -> bool:
    root = registry.opened.root
    return isinstance(root, RootKey) and not is_in_force(root, registry.refresh())


def _destroy(registry: Registry, shredded: list[ModelId], passphrase: Callable[[], str | None]) -> Shredded:
    backend = registry.opened.backend
    # A wrap that another process has stored by now is named by an entry before that of the new root key, or never.
    wraps = [found.name for folder in WRAP_FOLDERS for found in backend.list(folder)]
    try:
        key_file = rotate_root(registry, passphrase(), keep_old=False)
    except (NotAllowed, Overtaken) as error:
        if isinstance(error, NotAllowed) and not _changed_by_another(registry):
            raise
        raise TryAgain(
            "another owner changed the root key meanwhile, so no key of a deleted model was destroyed here",
            hint="run 'cairn gc apply --yes' again: it finishes what is left of it",
        ) from None
    named = named_wraps(registry.refresh())
    for name in wraps:
        if name not in named:
            backend.delete(name)
    told: list[ModelId] = []

    def build(state: State) -> Destroyed:
        told[:] = [one for one in shredded if one in to_destroy(state)]
        if not told:
            raise NothingToDo
        return Destroyed(tuple(told))

    with suppress(NothingToDo):
        registry.append(build)
    return Shredded(tuple(told), key_file)
