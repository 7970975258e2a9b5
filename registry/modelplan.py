"""Planning the deletion of whole models, and of all that was made from something; then applying the plan.

Of a model of which something stays, refs are moved back to what stays, or removed, and the rest is tombstoned; a model
of which nothing stays is deleted with its keys. A stop in between leaves part of it done: what is planned anew is the
rest.
"""

from collections.abc import Iterator, Sequence

import msgspec

from cairn.core.errors import CairnError, GoneError, IntegrityError, NotFoundError, PlanVoid, RefusedError
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.registry.checkpoint import committed
from cairn.registry.deleting import CAUSE, Fate
from cairn.registry.deletion import check_free, check_grace, check_is_owner, tombstone
from cairn.registry.fold import BRANCH
from cairn.registry.lineage import Derivations
from cairn.registry.modeldeletion import check_approved, check_not_held, delete_model, may_be_outlived
from cairn.registry.models import (
    delete_ref,
    find_model,
    list_refs,
    model_name,
    move_ref,
    open_meta,
    ref_value,
    walk_history,
)
from cairn.registry.planfiles import check_store, decode_plan_file, fingerprint, plan_hash
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve_any
from cairn.registry.state import State

FORMAT = "cairn model deletion plan 1"


class PlannedRef(msgspec.Struct, frozen=True):
    """A branch or tag that names what goes; `to` is the checkpoint that it is moved back to, None if it is removed."""

    name: str
    kind: str
    to: str | None


class ModelPart(msgspec.Struct, frozen=True):
    """What goes of one model.

    Args:
        model, name: id, as hexadecimal digits, and name.
        whole: the model goes, and its keys with it.
        seen: hash of the model's refs and checkpoints.
        refs: that are moved back or removed first; none if the model goes.
        goes: checkpoints, in the order of their commits.
    """

    model: str
    name: str
    whole: bool
    seen: str
    refs: tuple[PlannedRef, ...]
    goes: tuple[Fate, ...]


class Derived(msgspec.Struct, frozen=True):
    """A checkpoint that stays and was made from one that goes."""

    model: str
    checkpoint: str


class ModelsPlan(msgspec.Struct, frozen=True):
    """What goes of which models.

    Args:
        store: id, as hexadecimal digits.
        target: a model, or a checkpoint of it; empty: all models of the store.
        taint: what was made from it goes too, whatever model it is of.
        length: of the log that it was made by.
        stays: what was made from what goes, as another thing, and stays.
    """

    store: str
    target: str
    taint: bool
    length: int
    parts: tuple[ModelPart, ...]
    stays: tuple[Derived, ...]
    format: str = FORMAT

    @property
    def whole(self) -> list[ModelId]:
        """Models that go with their keys."""
        return [ModelId(bytes.fromhex(part.model)) for part in self.parts if part.whole]


def plan_models(registry: Registry, target: str | None, taint: bool = False) -> ModelsPlan:
    """Look at what goes, as of the last refresh; changes nothing.

    Args:
        target: a model's name; with `taint` also a selector of one checkpoint, which by its id may be a deleted one;
            None for all models of the store.

    Raises:
        IntegrityError: the body of a checkpoint cannot be read, so that nobody can tell what it was made from.
        NotFoundError, GoneError: there is nothing of that name, or it is deleted already.
    """
    state, home = registry.state, None
    chosen, starts = set[ModelId](), set[CheckpointId]()
    if target is None:
        chosen = {ModelId(one) for one in state.models}
        if not chosen:
            raise NotFoundError("the store has no model", hint="'cairn delete status' lists what was deleted")
    elif "@" not in target:
        chosen = {find_model(registry, target)}
    else:
        home, start = resolve_any(registry, target)
        # A ref or step means something else once this is carried out.
        starts, target = {start}, f"{model_name(registry, home)}@{start.hex()}"
    for held in (state.models[model] for model in chosen):
        starts |= {CheckpointId(one) for one in (*held.checkpoints, *held.gone)}
    derivations = Derivations(registry)
    if taint and derivations.unreadable:
        some = ", ".join(map(short, derivations.unreadable[:3]))
        raise IntegrityError(
            f"what checkpoint {some} was made from cannot be read, so nobody can tell whether it has to go",
            hint="'cairn verify --repair' mends it where a copy is; or delete it by itself first",
        )
    doomed = derivations.all_from(starts) if taint else starts
    parts = []
    # Last goes what the target names, by which the rest is found if it is stopped on the way.
    for model in sorted(map(ModelId, state.models), key=lambda one: one == home or one in chosen):
        going = [CheckpointId(one) for one in state.models[model].checkpoints if one in doomed]
        if model in chosen or going:
            parts.append(_part(registry, model, going, model in chosen))
    others = derivations.others_from(one for part in parts for one in _ids(part))
    stays = tuple(Derived(model.hex(), one.hex()) for model, one in others)
    if not parts:
        raise GoneError(f"{target} is deleted, and so is what was made from it", hint="'cairn delete status' lists it")
    return ModelsPlan(registry.opened.store.hex(), target or "", taint, state.length, tuple(parts), stays)


def check_current(registry: Registry, plan: ModelsPlan) -> None:
    """Raise unless a plan, made anew, comes out the same, as of the last refresh.

    Raises:
        PlanVoid: it does not.
        GoneError, NotFoundError: what it was made for is not there any more.
    """
    made = plan_models(registry, plan.target or None, plan.taint)
    if (made.parts, made.stays) != (plan.parts, plan.stays):
        raise _void(plan)


def apply_models(registry: Registry, plan: ModelsPlan, grace_seconds: float = 0.0) -> None:
    """Delete what a plan says. All of it can be restored at first.

    Args:
        grace_seconds: as of `deletion.tombstone`.

    Raises:
        PlanVoid: something changed; the message says what was deleted, and which refs were moved or removed.
        RefusedError: another owner has to approve; nothing was changed. Or a hold keeps some of it: one that came
            meanwhile is told with what was done before it.
        NotAllowed: this user is no owner.
    """
    check_grace(grace_seconds)
    registry.refresh()
    check_store(registry, plan.store)
    check_is_owner(registry)
    check_current(registry, plan)
    going = [one for part in plan.parts for one in _ids(part)]
    digest, descendants = plan_hash(plan), bool(plan.stays) or may_be_outlived(registry, going, plan.whole)
    check_approved(registry, registry.state, digest, descendants)
    for part in plan.parts:
        _check_free(registry, part)
    known = {part.model: set(registry.state.models[bytes.fromhex(part.model)].checkpoints) for part in plan.parts}
    done, moved = list[ModelPart](), list[str]()
    for part in plan.parts:
        model = ModelId(bytes.fromhex(part.model))
        check = _Check(plan, part, known[part.model], done, moved)
        try:
            if part.whole:
                delete_model(registry, model, CAUSE, grace_seconds, digest, descendants, check)
            else:
                _take_refs_off(registry, model, part, moved)
                removed = _ids(part)
                tombstone(registry, model, removed, CAUSE, grace_seconds, check, digest, descendants)
        except RefusedError as error:
            raise RefusedError(f"{error.message}; {_told(done, moved)}", hint=error.hint) from None
        done.append(part)
        moved.clear()


def decode_plan(data: bytes) -> ModelsPlan:
    """Inverse of `planfiles.encode_plan`.

    Raises:
        BadInput: it is no plan of deletion of models.
    """
    return decode_plan_file(data, ModelsPlan, FORMAT, "delete", _ids_in)


def _ids_in(plan: ModelsPlan) -> Iterator[str]:
    yield plan.store
    for part in plan.parts:
        yield part.model
        yield from (one.checkpoint for one in part.goes)
        yield from (ref.to for ref in part.refs if ref.to is not None)
    for left in plan.stays:
        yield from (left.model, left.checkpoint)


def _ids(part: ModelPart) -> list[CheckpointId]:
    return [CheckpointId(bytes.fromhex(one.checkpoint)) for one in part.goes]


# --- what goes --------------------------------------------------------------------------------------


def _part(registry: Registry, model: ModelId, going: Sequence[CheckpointId], chosen: bool) -> ModelPart:
    held = registry.state.models[model]
    whole = chosen or len(going) == len(held.checkpoints)
    refs = () if whole else tuple(_planned_refs(registry, model, set(going)))
    fates = tuple(Fate(one.hex(), _step(registry, model, one)) for one in going)
    return ModelPart(model.hex(), model_name(registry, model), whole, fingerprint(held), refs, fates)


def _step(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> int | None:
    try:
        return open_meta(registry, model, committed(registry, model, checkpoint)).step
    except CairnError:
        return None


def _planned_refs(registry: Registry, model: ModelId, going: set[CheckpointId]) -> Iterator[PlannedRef]:
    """Branches go back to the newest checkpoint that stays, if there is one; tags go."""
    for ref in list_refs(registry, model):
        if ref.checkpoint not in going:
            continue
        behind = walk_history(registry, model, ref.checkpoint) if ref.kind == BRANCH else ()
        to = next((line.id for line in behind if line.id not in going), None)
        yield PlannedRef(ref.name, ref.kind, to.hex() if to is not None else None)


# --- doing it ---------------------------------------------------------------------------------------


def _check_free(registry: Registry, part: ModelPart) -> None:
    """Raise if a hold keeps some of a part."""
    model = ModelId(bytes.fromhex(part.model))
    if part.whole:
        check_not_held(registry, registry.state, model)
    else:
        for one in _ids(part):
            check_free(registry, model, one)


def _take_refs_off(registry: Registry, model: ModelId, part: ModelPart, moved: list[str]) -> None:
    """Take the refs of a part off what goes; adds their names to `moved`."""
    for ref in part.refs:
        expected = ref_value(registry, model, ref.name)
        if expected not in _ids(part):
            continue
        if ref.to is None:
            delete_ref(registry, model, ref.name, ref.kind)
        else:
            move_ref(registry, model, ref.name, ref.kind, expected, CheckpointId(bytes.fromhex(ref.to)))
        moved.append(f"{part.name}@{ref.name}")


class _Check:
    """Raises unless a model is as the plan saw it; one of which something stays may have other refs by now."""

    def __init__(
        self, plan: ModelsPlan, part: ModelPart, known: set[bytes], done: Sequence[ModelPart], moved: Sequence[str]
    ) -> None:
        self._plan, self._part, self._known, self._done, self._moved = plan, part, known, done, moved

    def __call__(self, state: State) -> None:
        model = state.live_model(bytes.fromhex(self._part.model))
        same = fingerprint(model) == self._part.seen if self._part.whole else set(model.checkpoints) == self._known
        if not same:
            raise _void(self._plan, self._done, self._moved)


def _void(plan: ModelsPlan, done: Sequence[ModelPart] = (), moved: Sequence[str] = ()) -> PlanVoid:
    what = f"{plan.target!r}" if plan.target else "all models"
    options = ("--tenant" if not plan.target else plan.target) + (" --taint" if plan.taint else "")
    return PlanVoid(
        f"the plan for {what} of log position {plan.length} is void: what it speaks of has changed; "
        + _told(done, moved),
        hint=f"plan again: 'cairn delete plan {options}'",
    )


def _told(done: Sequence[ModelPart], moved: Sequence[str]) -> str:
    names = ", ".join(repr(part.name) for part in done)
    text = f"of {names} it was carried out, of the others nothing was deleted" if done else "nothing was deleted"
    return text + (f", and refs were moved back or removed: {', '.join(map(repr, moved))}" if moved else "")
