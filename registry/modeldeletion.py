"""Deleting whole models, and bringing them back.

`model.delete` -> (`model.restore`) -> `shred`, by an owner's `gc apply` (see `gc/shred.py`). A deleted model reads as
gone and is kept whole until its keys are destroyed.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import msgspec

from cairn.core.errors import ConflictError, GoneError, NotAllowed, NotFoundError, RefusedError
from cairn.core.ids import ID_PREFIX_HEX_MIN, CheckpointId, ModelId
from cairn.registry.deletion import check_grace
from cairn.registry.entries_deletion import Approve, ModelDelete, ModelRestore
from cairn.registry.fold_deletion import approval_missing
from cairn.registry.fold_policy import DeleteApproval, delete_approval
from cairn.registry.gonemodels import claimed_at, gone_model_error
from cairn.registry.holding import told
from cairn.registry.lineage import Derivations
from cairn.registry.models import model_name
from cairn.registry.names import check_model_name, model_tag
from cairn.registry.registry import NothingToDo, Registry
from cairn.registry.state import DeletedModel, State


class GoneModel(msgspec.Struct, frozen=True):
    """A deleted model; `name` is None once its keys are destroyed, `deleted_at` is the deleter's clock (ns)."""

    id: ModelId
    name: str | None
    gone: DeletedModel
    deleted_at: int | None


def delete_model(
    registry: Registry,
    model: ModelId,
    cause: str,
    grace_seconds: float,
    plan: bytes = b"",
    descendants: bool = False,
    check: Callable[[State], None] | None = None,
) -> None:
    """Delete a model. It can be restored until its keys are destroyed.

    Args:
        cause, grace_seconds: as of `deletion.tombstone`; for so long no key is destroyed.
        plan: hash of the plan that is carried out.
        descendants: others were made from its checkpoints that stay, or can be restored without them.
        check: raises if the state is not the one that the choice was made by.

    Raises:
        RefusedError: a hold keeps it, or another owner has to approve first.
        NotAllowed: this user is no owner.
    """
    check_grace(grace_seconds)

    def build(state: State) -> ModelDelete:
        if check is not None:
            check(state)
        check_not_held(registry, state, model)
        due_at = registry.opened.clock.wall_ns() + int(grace_seconds * 1e9)
        payload = ModelDelete(model, due_at, cause, plan, descendants)
        check_approved(registry, state, payload.plan, descendants)
        return payload

    registry.append(build)


def check_not_held(registry: Registry, state: State, model: ModelId) -> None:
    """Raise if a hold keeps a model, or a checkpoint of it.

    Raises:
        RefusedError: names the holds.
    """
    holds = told(state.live_model(model))
    if holds:
        raise RefusedError(
            f"model {model_name(registry, model)!r} stays: {holds}",
            hint="'cairn hold list' tells why, 'cairn hold lift' ends one",
        )


def may_be_outlived(registry: Registry, going: Iterable[CheckpointId], whole: Collection[ModelId] = ()) -> bool:
    """Whether the store's policy asks for a second owner's approval of a deletion, as of the last refresh.

    Args:
        going, whole: as of `Derivations.may_outlive`.
    """
    # Asked only where it matters: the bodies of all checkpoints are read for it.
    if delete_approval(registry.state) is DeleteApproval.OFF:
        return False
    return Derivations(registry).may_outlive(going, whole)


def check_approved(registry: Registry, state: State, plan: bytes, descendants: bool) -> None:
    """Raise if another owner has to approve a deletion first.

    Raises:
        RefusedError: names what to do.
    """
    if approval_missing(state, registry.signer().actor, plan, descendants):
        raise RefusedError(
            "others were made from what is to be deleted, and the store's policy asks for a second owner; nothing was "
            "deleted",
            hint="write the plan with 'cairn delete plan ... -o FILE', have another owner run 'cairn delete approve "
            "FILE --yes', then run 'cairn delete apply FILE --yes' with an identity of your own",
        )


def approve(registry: Registry, plan: bytes) -> None:
    """Consent to a plan, by its hash.

    Raises:
        ConflictError: this owner has approved it already.
        NotAllowed: this user is no owner, or is known only as holder of the root key.
    """
    if registry.refresh().recovery == registry.signer().actor:
        raise NotAllowed(
            "whoever holds the root key is nobody in particular, and cannot approve for a second owner",
            hint="approve with the identity of an owner; 'cairn members add IDENTITY owner' makes one",
        )
    registry.append(lambda state: Approve(plan))


def restore_model(registry: Registry, model: ModelId) -> bool:
    """Bring back a deleted model; False if it is there.

    Raises:
        GoneError: its keys are destroyed.
        NotFoundError: the store never had it.
    """

    def build(state: State) -> ModelRestore:
        if model in state.models:
            raise NothingToDo
        if state.kept_model(model) is None:
            state.live_model(model)  # raises
        return ModelRestore(model)

    with suppress(NothingToDo):
        registry.append(build)
        return True
    return False


def find_deleted(registry: Registry, text: str) -> ModelId:
    """A deleted model, by its name or the first digits of its id.

    Raises:
        NotFoundError: there is none.
        ConflictError: it is not deleted.
    """
    state = registry.state
    tag = model_tag(registry.opened.secrets.k_log, check_model_name(text))
    found = state.deleted_by_tag(tag)
    if found is not None:
        return ModelId(found[0])
    ids = [one for one in state.deleted if one.hex().startswith(text.lower())]
    if len(ids) == 1 and len(text) >= ID_PREFIX_HEX_MIN:
        return ModelId(ids[0])
    if state.model_by_tag(tag):
        raise ConflictError(f"model {text!r} is not deleted", hint=f"'cairn delete plan {text}' begins with it")
    raise NotFoundError(f"no model {text!r} was deleted here", hint="'cairn delete status' lists deleted models")


def find_restorable(registry: Registry, name: str) -> ModelId:
    """The model of a name that can be brought back, or is there.

    Raises:
        GoneError, NotFoundError: its keys are destroyed; there never was one.
    """
    tag = model_tag(registry.opened.secrets.k_log, check_model_name(name))
    for identifier, model in registry.state.kept_models().items():
        if model.name_tag == tag:
            return ModelId(identifier)
    deleted = registry.state.deleted_by_tag(tag)
    if deleted is not None:
        raise gone_model_error(registry, name, deleted[1])
    raise NotFoundError(
        f"no model {name!r} in {registry.opened.backend.url}",
        hint="'cairn ls' lists the models, 'cairn delete status' deleted ones",
    )


def deleted_models(registry: Registry) -> list[GoneModel]:
    """All deleted models, in the order of deletion."""
    listed = [
        GoneModel(ModelId(one), _name(registry, ModelId(one)), gone, claimed_at(registry, gone.n))
        for one, gone in registry.state.deleted.items()
    ]
    return sorted(listed, key=lambda one: one.gone.n)


def _name(registry: Registry, model: ModelId) -> str | None:
    with suppress(GoneError, NotAllowed):
        return model_name(registry, model)
    return None
