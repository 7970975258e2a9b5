"""Lineage: what a checkpoint was made from, and what was made from it, across all models of a store.

Parents stand in the body. Of a checkpoint whose body is gone or damaged the log still tells what its branch pointed to
before. Whoever may read manifests sees all of it; names and steps are the models' own (see `models.py`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from operator import attrgetter

import msgspec

from cairn.core.errors import IntegrityError, UsageError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import LINEAGE_CHECKPOINTS_MAX, LINEAGE_PARENTS_MAX, TRANSFERS_AT_ONCE
from cairn.core.pool import Pool
from cairn.manifests.relations import CONTINUE, check_declared
from cairn.manifests.schema import Parent
from cairn.registry.checkpoint import read_body
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve, resolve_any
from cairn.registry.state import Checkpoint, DeletedModel, Gone, State

# Below so many bodies, threads cost more than they save.
_FEW = 4


class DeclaredParent(msgspec.Struct, frozen=True):
    """A parent as whoever commits names it: a selector of the same store, and one of `relations.DECLARED`."""

    selector: str
    relation: str


class Standing(StrEnum):
    """How a store stands to a checkpoint of a lineage: unknown is one that it never had."""

    HERE = "here"
    DELETED = "deleted"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"


class Node(msgspec.Struct, frozen=True):
    """One checkpoint of a lineage; `model` is None if it is unknown, `state` also once it cannot be restored."""

    id: CheckpointId
    standing: Standing
    model: ModelId | None = None
    state: Checkpoint | None = None


class Link(msgspec.Struct, frozen=True):
    """`child` was made from `parent`."""

    child: CheckpointId
    parent: CheckpointId
    relation: str


class Lineage(msgspec.Struct, frozen=True):
    """Checkpoints around one, nearest first.

    Args:
        links: between them, those of the nearest first.
        complete: nothing was left out for the limit's sake.
    """

    start: CheckpointId
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    complete: bool


def declared_parents(registry: Registry, declared: Sequence[DeclaredParent]) -> tuple[Parent, ...]:
    """What a body says of declared parents; each stands there once.

    Raises:
        UsageError: a relation is none to declare, or there are too many.
        NotFoundError: a selector means no checkpoint of this store.
    """
    if len(declared) > LINEAGE_PARENTS_MAX:
        raise UsageError(f"{len(declared)} parents are over the limit of {LINEAGE_PARENTS_MAX}")
    found = [Parent(check_declared(one.relation), resolve(registry, one.selector)[1]) for one in declared]
    return tuple(dict.fromkeys(found))


def parents_with(declared: tuple[Parent, ...], tip: CheckpointId | None) -> tuple[Parent, ...]:
    """Parents of a commit: the branch's tip, if it had one, before what is declared."""
    return (*((Parent(CONTINUE, tip),) if tip is not None else ()), *declared)


def resolve_start(registry: Registry, selector: str) -> CheckpointId:
    """The checkpoint that a selector means; by id also a deleted one.

    Raises:
        NotFoundError: there is and was none, or the id's digits fit several.
        UsageError: a deleted one is named by its step.
    """
    return resolve_any(registry, selector)[1]


def ancestors(registry: Registry, start: CheckpointId, depth: int | None = None) -> Lineage:
    """What a checkpoint was made from, up to `depth` steps away.

    Raises:
        NotAllowed: this user may read no manifest.
    """
    accounts = _Accounts(registry)
    return accounts.lineage(start, accounts.links_of, attrgetter("parent"), depth)


def descendants(registry: Registry, start: CheckpointId, depth: int | None = None) -> Lineage:
    """What was made from a checkpoint, up to `depth` steps away; reads the bodies of all checkpoints of the store.

    Raises:
        NotAllowed: this user may read no manifest.
    """
    accounts = _Accounts(registry)
    below: dict[CheckpointId, list[Link]] = {}
    for link in accounts.links_of(list(accounts.places)):
        below.setdefault(link.parent, []).append(link)

    def links_of(level: Sequence[CheckpointId]) -> Iterable[Link]:
        return (link for one in level for link in below.get(one, ()))

    return accounts.lineage(start, links_of, attrgetter("child"), depth)


class Derivations:
    """What was made from what in a store, deleted ones that can be restored included; reads all their bodies."""

    def __init__(self, registry: Registry) -> None:
        """Read them.

        Raises:
            NotAllowed: this user may read no manifest.
        """
        self._accounts = _Accounts(registry)
        self._below: dict[CheckpointId, list[Link]] = {}
        for link in self._accounts.links_of(list(self._accounts.places)):
            self._below.setdefault(link.parent, []).append(link)

    @property
    def unreadable(self) -> list[CheckpointId]:
        """Checkpoints whose bodies cannot be read: of these nobody can tell what they were made from."""
        return sorted(self._accounts.unreadable)

    def all_from(self, starts: Iterable[CheckpointId]) -> set[CheckpointId]:
        """Everything that was made from some checkpoints, by whatever steps, themselves included."""
        found, pending = set(starts), list(starts)
        while pending:
            for link in self._below.get(pending.pop(), ()):
                if link.child not in found:
                    found.add(link.child)
                    pending.append(link.child)
        return found

    def others_from(self, starts: Iterable[CheckpointId]) -> list[tuple[ModelId, CheckpointId]]:
        """Live checkpoints that were made from some as another thing: in another model, or by a declared relation.

        What merely goes on from one in the same model is none of them.
        """
        starts, found = set(starts), dict[CheckpointId, ModelId]()
        for link, crossed in self._links_from(starts):
            model, held = self._accounts.places[link.child]
            if crossed and isinstance(held, Checkpoint) and link.child not in starts:
                found[link.child] = model
        return sorted((model, one) for one, model in found.items())

    def may_outlive(self, starts: Iterable[CheckpointId], whole: Collection[ModelId] = ()) -> bool:
        """Whether another thing that was made from some checkpoints is there or can be restored without them.

        So it is if nobody can tell, since a body cannot be read; and whatever else goes: one restores what one likes.

        Args:
            whole: models of theirs that go, and could come back, as a whole.
        """
        if self.unreadable:
            return True
        for link, crossed in self._links_from(starts):
            model, held = self._accounts.places[link.child]
            apart = model != self._model_of(link.parent) or (crossed and model not in whole)
            if apart and _restorable(held) is not None:
                return True
        return False

    def outlived(self) -> set[CheckpointId]:
        """All checkpoints of which, each by itself, `may_outlive` holds; found in one walk from below."""
        if self.unreadable:
            return set(self._accounts.places)
        above: dict[CheckpointId, list[Link]] = {}
        for links in self._below.values():
            for link in links:
                above.setdefault(link.child, []).append(link)
        pending = [(one, False) for one, (_, held) in self._accounts.places.items() if _restorable(held) is not None]
        seen = set(pending)
        while pending:
            one, other = pending.pop()
            for link in above.get(one, ()):
                step = link.parent, other or self._crosses(link)
                if step not in seen:
                    seen.add(step)
                    pending.append(step)
        return {one for one, other in seen if other}

    def _links_from(self, starts: Iterable[CheckpointId]) -> Iterator[tuple[Link, bool]]:
        """Links below some checkpoints, and whether what they lead to is another thing than those."""
        seen = {(one, False) for one in starts}
        pending = list(seen)
        while pending:
            one, other = pending.pop()
            for link in self._below.get(one, ()):
                crossed = other or self._crosses(link)
                yield link, crossed
                if (link.child, crossed) not in seen:
                    seen.add((link.child, crossed))
                    pending.append((link.child, crossed))

    def _crosses(self, link: Link) -> bool:
        """Whether it leads to another thing: into another model, or by a declared relation."""
        return link.relation != CONTINUE or self._model_of(link.child) != self._model_of(link.parent)

    def _model_of(self, checkpoint: CheckpointId) -> ModelId | None:
        place = self._accounts.places.get(checkpoint)
        return place[0] if place is not None else None


def spread(
    start: CheckpointId,
    links_of: Callable[[Sequence[CheckpointId]], Iterable[Link]],
    far: Callable[[Link], CheckpointId],
    depth: int | None,
    most: int,
) -> tuple[list[CheckpointId], list[Link], bool]:
    """Follow links from a checkpoint, level by level; each checkpoint is visited once, wherever links lead back to.

    Args:
        links_of: links of some checkpoints that lead on.
        far: the end of a link that it leads to.
        depth: levels beyond the first; None: all.
        most: checkpoints.

    Returns:
        Checkpoints and links in the order of discovery, and whether `most` left none out.
    """
    seen, links, level, complete = {start: None}, list[Link](), [start], True
    while level and depth != 0:
        depth = None if depth is None else depth - 1
        further: list[CheckpointId] = []
        for link in links_of(level):
            one = far(link)
            if one not in seen:
                if len(seen) >= most:
                    complete = False
                    continue
                seen[one] = None
                further.append(one)
            links.append(link)
        level = further
    return list(seen), links, complete


class _Accounts:
    """What a store tells of its checkpoints' parents.

    Attributes:
        places: model and state of each checkpoint that is here or was deleted.
        unreadable: those whose bodies could not be read.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.places = _places(registry.state)
        self.unreadable: set[CheckpointId] = set()

    def lineage(
        self,
        start: CheckpointId,
        links_of: Callable[[Sequence[CheckpointId]], Iterable[Link]],
        far: Callable[[Link], CheckpointId],
        depth: int | None,
    ) -> Lineage:
        seen, links, complete = spread(start, links_of, far, depth, LINEAGE_CHECKPOINTS_MAX)
        return Lineage(start, tuple(map(self._node, seen)), tuple(links), complete)

    def links_of(self, checkpoints: Sequence[CheckpointId]) -> Iterable[Link]:
        """Links to the parents of some checkpoints, in their order."""
        found: dict[CheckpointId, tuple[Parent, ...]] = {}

        def work(jobs: Iterable[CheckpointId]) -> None:
            for one in jobs:
                found[one] = self._parents(one)

        if len(checkpoints) < _FEW:
            work(checkpoints)
        else:
            Pool[CheckpointId](min(TRANSFERS_AT_ONCE, len(checkpoints)), work).run(checkpoints)
        for one in checkpoints:
            for parent in dict.fromkeys(found[one]):
                yield Link(one, CheckpointId(parent.checkpoint), parent.relation)

    def _parents(self, checkpoint: CheckpointId) -> tuple[Parent, ...]:
        if checkpoint not in self.places:
            return ()
        model, held = self.places[checkpoint]
        state = _restorable(held)
        if state is not None:
            try:
                return read_body(self._registry, model, checkpoint, state).parents
            except IntegrityError:
                self.unreadable.add(checkpoint)
        return (Parent(CONTINUE, held.parent),) if held.parent is not None else ()

    def _node(self, checkpoint: CheckpointId) -> Node:
        if checkpoint not in self.places:
            return Node(checkpoint, Standing.UNKNOWN)
        model, held = self.places[checkpoint]
        standing = Standing.DELETED if isinstance(held, Gone) else Standing.HERE
        if standing is Standing.HERE and checkpoint in self.unreadable:
            standing = Standing.UNREADABLE
        return Node(checkpoint, standing, model, _restorable(held))


def _places(state: State) -> dict[CheckpointId, tuple[ModelId, Checkpoint | Gone]]:
    places: dict[CheckpointId, tuple[ModelId, Checkpoint | Gone]] = {}
    for identifier, model in state.kept_models().items():
        held: dict[bytes, Checkpoint | Gone] = {**model.gone, **model.checkpoints}
        deleted = state.deleted.get(identifier)
        if deleted is not None:
            held |= {one: _gone_with(deleted, what) for one, what in model.checkpoints.items()}
        places.update((CheckpointId(one), (ModelId(identifier), what)) for one, what in held.items())
    return places


def _gone_with(deleted: DeletedModel, checkpoint: Checkpoint) -> Gone:
    return Gone(deleted.n, deleted.actor, deleted.due_at, deleted.cause, checkpoint.parent, checkpoint)


def _restorable(held: Checkpoint | Gone) -> Checkpoint | None:
    return held if isinstance(held, Checkpoint) else held.checkpoint
