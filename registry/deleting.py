"""Deleting one checkpoint, branch or tag by name: plan (what goes, what stays and why), then apply.

    refs removed, one entry each  ->  one `tombstone` of what goes, if the rest of the model is as the plan saw it

A stop between the two leaves checkpoints that no ref names; applying the same plan again goes on from there. Nothing
in a plan's file is trusted: what it says is made again and must come out the same.
"""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from cairn.core.errors import NotFoundError, PlanVoid, RefusedError, UsageError
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.registry.checkpoint import committed
from cairn.registry.deletion import check_grace, check_is_owner, tombstone
from cairn.registry.fold import BRANCH, TAG
from cairn.registry.fold_policy import DeleteApproval, delete_approval
from cairn.registry.lineage import Derivations
from cairn.registry.modeldeletion import check_approved
from cairn.registry.models import (
    LogLine,
    NamedRef,
    delete_ref,
    find_model,
    list_refs,
    model_name,
    open_meta,
    ref_kind,
    walk,
    walk_history,
)
from cairn.registry.names import LATEST, MAIN, ref_tag
from cairn.registry.planfiles import decode_plan_file, fingerprint, model_of_plan, plan_hash
from cairn.registry.registry import Registry
from cairn.registry.selectors import parse_selector, resolve
from cairn.registry.state import State

CAUSE = "deleted"
CHECKPOINT = "checkpoint"
_FORMAT = "cairn deletion plan 1"


class Fate(msgspec.Struct, frozen=True):
    """A checkpoint that goes or stays.

    Args:
        reached_by: refs that lead to it when the plan is done, such as `branch main`.
    """

    checkpoint: str
    step: int | None
    reached_by: tuple[str, ...] = ()


class DeletionPlan(msgspec.Struct, frozen=True):
    """What goes with one checkpoint, branch or tag.

    Args:
        store, model: ids, as hexadecimal digits.
        kind, target: `checkpoint` and its id, or `branch` or `tag` and its name.
        with_tags: tags that name the checkpoint go too.
        length: of the log that it was made by.
        seen: hashes of the model's refs and checkpoints: as they are, and after each of `refs` is removed.
        refs: names that are removed, in this order; of one kind.
        goes: checkpoints that are deleted, newest first.
        stays: of the ref's own history, what stays. What nothing reaches any more can still be named by its id.
    """

    store: str
    model: str
    kind: str
    target: str
    with_tags: bool
    length: int
    seen: tuple[str, ...]
    refs: tuple[str, ...]
    goes: tuple[Fate, ...]
    stays: tuple[Fate, ...]
    format: str = _FORMAT

    @property
    def removed(self) -> list[CheckpointId]:
        """Checkpoints that go, newest first."""
        return [CheckpointId(bytes.fromhex(one.checkpoint)) for one in self.goes]


def plan_deletion(registry: Registry, text: str, with_tags: bool = False) -> DeletionPlan:
    """Look at what a selector names, as of the last refresh; changes nothing.

    Args:
        with_tags: if it is a checkpoint, tags that name it are removed; without, they keep it.

    Raises:
        RefusedError: `main`, the tip of a branch, or a tagged checkpoint without `with_tags`.
        NotFoundError, GoneError: there is nothing of that name, or it is deleted already.
    """
    selector = parse_selector(text)
    model = find_model(registry, selector.model)
    name = MAIN if selector.revision == LATEST else selector.revision
    kind = ref_kind(registry, model, name)
    if kind is None:
        return _plan(registry, model, CHECKPOINT, resolve(registry, text)[1].hex(), with_tags)
    return _plan(registry, model, kind, name, with_tags)


def apply_deletion(registry: Registry, plan: DeletionPlan, grace_seconds: float = 0.0) -> list[CheckpointId]:
    """Remove and delete what a plan says; returns the checkpoints. They can be restored, the refs can be made again.

    Args:
        grace_seconds: as for `tombstone`.

    Raises:
        PlanVoid: something changed; no checkpoint was deleted, and the message says whether refs were removed.
        UsageError: it is of another store.
        NotAllowed: checkpoints go, and this user is no owner.
        RefusedError: another owner has to approve; nothing was changed.
    """
    check_grace(grace_seconds)
    registry.refresh()
    model = model_of_plan(registry, plan.store, plan.model)
    now = fingerprint(registry.state.live_model(model))
    if now not in plan.seen:
        raise _void(registry, plan, ())
    begun = plan.seen.index(now)
    if not _comes_out_the_same(registry, model, plan, begun):
        raise _void(registry, plan, ())
    digest, descendants = plan_hash(plan), False
    if plan.goes:
        check_is_owner(registry)
        # Asked only where it matters: the bodies of all checkpoints are read for it.
        if delete_approval(registry.state) is not DeleteApproval.OFF:
            descendants = bool(Derivations(registry).others_from(plan.removed))
            check_approved(registry, registry.state, digest, descendants)
    for at in range(begun, len(plan.seen)):
        check = _Check(registry, plan, at, plan.refs[begun:at])
        if at < len(plan.refs):
            delete_ref(registry, model, plan.refs[at], _kind_of_refs(plan), check)
        elif plan.goes:
            tombstone(registry, model, plan.removed, CAUSE, grace_seconds, check, digest, descendants)
    return plan.removed


def decode_plan(data: bytes) -> DeletionPlan:
    """Inverse of `planfiles.encode_plan`.

    Raises:
        BadInput: it is no plan of deletion.
    """
    return decode_plan_file(data, DeletionPlan, _FORMAT, "delete", _ids_in)


def _ids_in(plan: DeletionPlan) -> Iterator[str]:
    yield plan.model
    yield from (one.checkpoint for one in plan.goes)
    if plan.kind == CHECKPOINT:
        yield plan.target


# --- what goes --------------------------------------------------------------------------------------


def _plan(registry: Registry, model: ModelId, kind: str, target: str, with_tags: bool) -> DeletionPlan:
    refs = list_refs(registry, model)
    if kind == CHECKPOINT:
        identifier = CheckpointId(bytes.fromhex(target))
        named = _naming(registry, model, identifier, refs, with_tags)
        meta = open_meta(registry, model, committed(registry, model, identifier))
        goes, stays = [Fate(target, meta.step)], list[Fate]()
    else:
        named = [_removable(registry, model, kind, target, with_tags, refs)]
        lines = list(walk_history(registry, model, named[0].checkpoint))
        goes, stays = _split(registry, model, kind, lines, [ref for ref in refs if ref not in named])
    names = tuple(ref.name for ref in named)
    return DeletionPlan(
        registry.opened.store.hex(), model.hex(), kind, target, with_tags, registry.state.length,
        _fingerprints(registry, model, names), names, tuple(goes), tuple(stays),
    )  # fmt: skip


def _removable(
    registry: Registry, model: ModelId, kind: str, name: str, with_tags: bool, refs: Sequence[NamedRef]
) -> NamedRef:
    """The branch or tag of a name, if it may go."""
    if name == MAIN:
        raise RefusedError(
            f"{MAIN!r} of {model_name(registry, model)!r} is the default branch, and stays",
            hint="delete checkpoints of it by id or step, or by rules with 'cairn retain'",
        )
    if with_tags:
        raise UsageError(f"{name!r} is a {kind}: --with-tags is for a checkpoint", hint="leave it out")
    found = next((ref for ref in refs if (ref.name, ref.kind) == (name, kind)), None)
    if found is None:
        raise NotFoundError(f"no {kind} {name!r} in this model", hint=f"'cairn {kind} MODEL' lists them")
    return found


def _naming(
    registry: Registry, model: ModelId, checkpoint: CheckpointId, refs: Sequence[NamedRef], with_tags: bool
) -> list[NamedRef]:
    """Tags that name a checkpoint and go with it."""
    named = [ref for ref in refs if ref.checkpoint == checkpoint]
    name = model_name(registry, model)
    for ref in named:
        if ref.kind == BRANCH:
            raise RefusedError(
                f"branch {ref.name!r} of {name!r} ends in checkpoint {short(checkpoint)}: it stays",
                hint=f"move the branch first: 'cairn branch {name}@REF {ref.name} --force'"
                + ("" if ref.name == MAIN else f"; or delete it: 'cairn delete plan {name}@{ref.name}'"),
            )
    if named and not with_tags:
        tags = ", ".join(repr(ref.name) for ref in named)
        raise RefusedError(
            f"checkpoint {short(checkpoint)} of {name!r} stays, since it is tagged: {tags}",
            hint="--with-tags removes these tags first",
        )
    return named


def _split(
    registry: Registry, model: ModelId, kind: str, lines: Sequence[LogLine], others: Sequence[NamedRef]
) -> tuple[list[Fate], list[Fate]]:
    """Of a ref's history, what goes with it and what stays; with a tag goes no more than what it names."""
    reached = _reached(registry, model, others, {line.id for line in lines})
    fates = [Fate(line.id.hex(), line.meta.step, tuple(reached.get(line.id, ()))) for line in lines]
    candidates = fates[:1] if kind == TAG else fates
    goes = [one for one in candidates if not one.reached_by]
    if kind == TAG:
        # Behind a tag others than it may keep everything; only what loses its last name is worth a word.
        stays = [one for one in fates if one not in goes and (one is fates[0] or not one.reached_by)]
    else:
        stays = [one for one in fates if one.reached_by]
    return goes, stays


def _reached(
    registry: Registry, model: ModelId, refs: Sequence[NamedRef], wanted: Collection[CheckpointId]
) -> dict[CheckpointId, list[str]]:
    """Which refs lead to checkpoints; each stretch of history is opened once, however many refs share it."""
    behind: dict[CheckpointId, CheckpointId | None] = {}
    found: dict[CheckpointId, list[str]] = {}
    for ref in refs:
        for past in walk(registry, model, ref.checkpoint):
            if past.id in behind:
                break
            behind[past.id] = past.parent
        at: CheckpointId | None = ref.checkpoint
        seen = set[CheckpointId]()
        while at is not None and at in behind and at not in seen:
            seen.add(at)
            if at in wanted:
                found.setdefault(at, []).append(f"{ref.kind} {ref.name}")
            at = behind[at]
    return found


# --- one state --------------------------------------------------------------------------------------


def _comes_out_the_same(registry: Registry, model: ModelId, plan: DeletionPlan, begun: int) -> bool:
    """Whether a plan of which the first refs are removed already is what would be planned now."""
    if plan.kind != CHECKPOINT and begun:
        # Its ref is gone, and the history with it: what is left to do is to delete what nothing reaches.
        held, refs = registry.state.live_model(model), list_refs(registry, model)
        there = all(one in held.checkpoints for one in plan.removed)
        return len(plan.seen) == 2 and there and not _reached(registry, model, refs, plan.removed)
    made = _plan(registry, model, plan.kind, plan.target, plan.with_tags)
    return (made.seen, made.refs, made.goes, made.stays) == (
        plan.seen[begun:], plan.refs[begun:], plan.goes, plan.stays,
    )  # fmt: skip


def _kind_of_refs(plan: DeletionPlan) -> str:
    return TAG if plan.kind == CHECKPOINT else plan.kind


def _fingerprints(registry: Registry, model: ModelId, names: Sequence[str]) -> tuple[str, ...]:
    tags = [ref_tag(registry.opened.secrets.k_log, model, name) for name in names]
    held = registry.state.live_model(model)
    return tuple(fingerprint(held, tags[:removed]) for removed in range(len(tags) + 1))


class _Check:
    """Raises unless the model is as the plan saw it, but for the first refs, which are removed."""

    def __init__(self, registry: Registry, plan: DeletionPlan, removed: int, by_us: Sequence[str]) -> None:
        self._registry, self._plan, self._removed, self._by_us = registry, plan, removed, by_us

    def __call__(self, state: State) -> None:
        held = state.live_model(ModelId(bytes.fromhex(self._plan.model)))
        if fingerprint(held) != self._plan.seen[self._removed]:
            raise _void(self._registry, self._plan, self._by_us)


def _void(registry: Registry, plan: DeletionPlan, by_us: Sequence[str]) -> PlanVoid:
    name, target, done = model_name(registry, ModelId(bytes.fromhex(plan.model))), plan.target, "nothing was deleted"
    if by_us:
        done = f"{_kind_of_refs(plan)} {', '.join(map(repr, by_us))} was removed, no checkpoint deleted"
        if plan.removed:
            target = short(plan.removed[0])
    return PlanVoid(
        f"the plan for {plan.kind} {plan.target!r} of {name!r} of log position {plan.length} is void: "
        f"a ref or checkpoint of the model has changed; {done}",
        hint=f"plan again: 'cairn delete plan {name}@{target}'",
    )
