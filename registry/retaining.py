"""Retention on a branch: plan (what stays and why), then apply (tombstones for what goes).

A plan speaks of one state of its model. Whatever changes there, a commit, a moved tag, a checkpoint verified or
deleted, makes it void: it is not mended but made anew. Nothing in a plan's file is trusted but its rules and its time.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from cairn.core.errors import NotFoundError, PlanVoid
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import PLAN_RACES_MAX
from cairn.registry.deletion import tombstone
from cairn.registry.fold import BRANCH
from cairn.registry.fold_policy import DeleteApproval, delete_approval
from cairn.registry.holding import told
from cairn.registry.lineage import Derivations
from cairn.registry.models import LogLine, NamedRef, history, list_refs, model_name, walk_history
from cairn.registry.planfiles import decode_plan_file, fingerprint, model_of_plan
from cairn.registry.presence import PackPresence, is_whole
from cairn.registry.registry import Registry
from cairn.registry.retention import Candidate, Retention, kept_by_rules
from cairn.registry.state import State

CAUSE = "retention"
_FORMAT = "cairn retention plan 1"


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a checkpoint; it stays if `kept_by` names a rule."""

    checkpoint: str
    step: int | None
    saved_at: int
    kept_by: tuple[str, ...]


class RetentionPlan(msgspec.Struct, frozen=True):
    """What is to stay of a branch, and what is to go.

    Args:
        store, model: ids, as hexadecimal digits.
        length: of the log that it was made by.
        planned_at: the planner's clock (ns), which ages go by.
        seen: hash of the model's refs and checkpoints; whatever changes them makes the plan void.
        verdicts: of all checkpoints of the branch, newest first.
    """

    store: str
    model: str
    branch: str
    length: int
    planned_at: int
    seen: str
    rules: Retention
    verdicts: tuple[Verdict, ...]
    format: str = _FORMAT

    @property
    def removed(self) -> list[CheckpointId]:
        """What goes, newest first."""
        return [CheckpointId(bytes.fromhex(one.checkpoint)) for one in self.verdicts if not one.kept_by]


def plan_retention(
    registry: Registry, model: ModelId, branch: str, rules: Retention, now: int | None = None
) -> RetentionPlan:
    """Look at a branch as of the last refresh; changes nothing.

    Args:
        now: the time (ns) that ages go by; by default this machine's.

    Raises:
        NotFoundError: the model has no such branch.
    """
    state, now = registry.state, registry.opened.clock.wall_ns() if now is None else now
    refs = list_refs(registry, model)
    tip = next((ref.checkpoint for ref in refs if (ref.name, ref.kind) == (branch, BRANCH)), None)
    if tip is None:
        name = model_name(registry, model)
        raise NotFoundError(f"model {name!r} has no branch {branch!r}", hint=f"'cairn branch {name}' lists them")
    lines = history(registry, model, tip)
    kept = _kept_by_names(registry, model, refs)
    reasons = _reasons(lines, kept, rules, now)
    if not all(reasons):
        # Asked only if something is to go: it costs a look at the storage.
        for identifier, reason in _newest_whole(registry, model, refs):
            kept.setdefault(identifier, []).append(reason)
        reasons = _reasons(lines, kept, rules, now)
    if not all(reasons) and delete_approval(state) is not DeleteApproval.OFF:
        # No rule stands in for the second owner whom the store's policy asks for.
        outlived = Derivations(registry).outlived()
        for line, why in zip(lines, reasons, strict=True):
            if not why and line.id in outlived:
                kept.setdefault(line.id, []).append("others were made from it")
        reasons = _reasons(lines, kept, rules, now)
    verdicts = [
        Verdict(one.id.hex(), one.meta.step, one.saved_at, names) for one, names in zip(lines, reasons, strict=True)
    ]
    seen = fingerprint(state.live_model(model))
    return RetentionPlan(
        registry.opened.store.hex(), model.hex(), branch, state.length, now, seen, rules, tuple(verdicts)
    )


def apply_plan(registry: Registry, plan: RetentionPlan, grace_seconds: float = 0.0) -> list[CheckpointId]:
    """Delete what a plan says; returns it. Makes it again first, so that a file decides nothing.

    Raises:
        PlanVoid: the plan is void, since something changed; nothing was deleted.
        UsageError: it is of another store.
    """
    registry.refresh()
    model = model_of_plan(registry, plan.store, plan.model)
    made = plan_retention(registry, model, plan.branch, plan.rules, plan.planned_at)
    if (made.seen, made.verdicts) != (plan.seen, plan.verdicts):
        raise _void(registry, plan)
    return _execute(registry, made, grace_seconds)


def retain(
    registry: Registry, model: ModelId, branch: str, rules: Retention, grace_seconds: float = 0.0
) -> RetentionPlan:
    """Plan and apply, again if something changes between the two; returns the plan that was applied.

    Raises:
        PlanVoid: something changed each time.
    """
    for left in reversed(range(PLAN_RACES_MAX)):
        registry.refresh()
        plan = plan_retention(registry, model, branch, rules)
        try:
            _execute(registry, plan, grace_seconds)
        except PlanVoid:
            if not left:
                raise
        else:
            return plan
    raise AssertionError("unreachable")


def decode_plan(data: bytes) -> RetentionPlan:
    """Inverse of `planfiles.encode_plan`.

    Raises:
        BadInput: it is no plan of retention.
    """
    return decode_plan_file(
        data,
        RetentionPlan,
        _FORMAT,
        "retain",
        lambda plan: (plan.store, plan.model, *(one.checkpoint for one in plan.verdicts)),
    )


# --- what rules do not decide -----------------------------------------------------------------------


def _kept_by_names(registry: Registry, model: ModelId, refs: list[NamedRef]) -> dict[CheckpointId, list[str]]:
    """What stays since a hold keeps it, a ref names it, or it is one of the newest two of a branch."""
    kept: dict[CheckpointId, list[str]] = {}
    held = registry.state.live_model(model)
    if held.holds:
        kept |= {CheckpointId(one): [told(held, one)] for one in held.checkpoints if held.held_by(one)}
    for ref in refs:
        kept.setdefault(ref.checkpoint, []).append(f"{ref.kind} {ref.name}")
        if ref.kind == BRANCH:
            whole = (line for line in walk_history(registry, model, ref.checkpoint) if not line.state.quarantined)
            for line in islice(whole, 2):
                if line.id != ref.checkpoint:
                    kept.setdefault(line.id, []).append(f"second of {ref.name}")
    return kept


def _newest_whole(registry: Registry, model: ModelId, refs: list[NamedRef]) -> Iterator[tuple[CheckpointId, str]]:
    """Of each branch the newest checkpoint that was verified; if none was, the newest that is there at full size."""
    packs, whole = PackPresence(registry.opened.backend, registry.index()), dict[CheckpointId, bool]()
    for ref in refs:
        if ref.kind != BRANCH:
            continue
        sound = [one for one in walk_history(registry, model, ref.checkpoint) if not one.state.quarantined]
        verified = next((one for one in sound if one.state.verified), None)
        if verified is not None:
            yield verified.id, f"newest verified of {ref.name}"
            continue
        for one in sound:
            if one.id not in whole:
                whole[one.id] = is_whole(registry, one.state, packs)
            if whole[one.id]:
                yield one.id, f"newest whole of {ref.name}"
                break


def _reasons(
    lines: list[LogLine], kept: dict[CheckpointId, list[str]], rules: Retention, now: int
) -> list[tuple[str, ...]]:
    """What keeps each checkpoint of a branch; rules do not count those whose content was given up."""
    whole = [_candidate(line, kept.get(line.id, ())) for line in lines if not line.state.quarantined]
    found = dict(zip((one.id for one in whole), kept_by_rules(whole, rules, now), strict=True))
    return [found.get(line.id, tuple(kept.get(line.id, ()))) for line in lines]


def _candidate(line: LogLine, kept_by: Sequence[str]) -> Candidate:
    return Candidate(line.id, line.meta.step, line.saved_at, line.meta.metrics, tuple(kept_by))


# --- one state --------------------------------------------------------------------------------------


def _execute(registry: Registry, plan: RetentionPlan, grace_seconds: float) -> list[CheckpointId]:
    model, removed = ModelId(bytes.fromhex(plan.model)), plan.removed

    def check(state: State) -> None:
        held = state.live_model(model)
        if fingerprint(held) != plan.seen or any(held.held_by(one) for one in removed):
            raise _void(registry, plan)

    if removed:
        tombstone(registry, model, removed, CAUSE, grace_seconds, check)
    return removed


def _void(registry: Registry, plan: RetentionPlan) -> PlanVoid:
    name = model_name(registry, ModelId(bytes.fromhex(plan.model)))
    return PlanVoid(
        f"the plan for {name!r} of log position {plan.length} is void: "
        "a ref, checkpoint or hold of the model has changed",
        hint=f"nothing was deleted; plan again: 'cairn retain plan {name}@{plan.branch} ...'",
    )
