"""Legal holds: what is held is not deleted, dropped, shredded or collected until the hold is lifted."""

import msgspec

from cairn.core.errors import CairnError, NotFoundError, UsageError
from cairn.core.ids import ID_PREFIX_HEX_MIN, RANDOM_ID_BYTES, CheckpointId, ModelId, short
from cairn.core.limits import HOLD_REASON_BYTES_MAX
from cairn.registry.entries_deletion import HoldLift, HoldSet
from cairn.registry.registry import Registry
from cairn.registry.state import Hold, Model, State

_REASON = "hold"


class HeldBy(msgspec.Struct, frozen=True):
    """A hold; `reason` is None where no key opens it, `checkpoint` where the whole model is held."""

    id: bytes
    model: ModelId
    checkpoint: CheckpointId | None
    hold: Hold
    reason: str | None


def add_hold(registry: Registry, model: ModelId, checkpoint: CheckpointId | None, reason: str) -> bytes:
    """Hold a model or a checkpoint of it, also a deleted one that can be restored; returns the hold's id.

    Raises:
        NotAllowed: this user is no owner.
        UsageError: the reason is empty or too long.
    """
    if not reason.strip():
        raise UsageError("a hold without a reason", hint="say why, such as a reference that others find it by")
    if len(reason.encode()) > HOLD_REASON_BYTES_MAX:
        raise UsageError(f"a reason of {len(reason.encode())} bytes", hint=f"at most {HOLD_REASON_BYTES_MAX}")
    identifier = registry.opened.entropy.token(RANDOM_ID_BYTES)
    sealed = registry.model_keys(model).seal_meta(reason.encode(), _REASON)
    registry.append(lambda state: HoldSet(identifier, model, checkpoint or b"", sealed))
    return identifier


def lift_hold(registry: Registry, identifier: bytes) -> HeldBy:
    """End a hold; returns it.

    Raises:
        NotFoundError: there is no such hold, or no more.
        NotAllowed: this user is no owner.
    """
    lifted: list[HeldBy] = []

    def build(state: State) -> HoldLift:
        found = [one for one in list_holds(registry) if one.id == identifier]
        if not found:
            raise NotFoundError(f"there is no hold {identifier.hex()}", hint="'cairn hold list' lists them")
        lifted[:] = found
        return HoldLift(identifier, found[0].model)

    registry.append(build)
    return lifted[0]


def find_hold(registry: Registry, digits: str) -> bytes:
    """The hold whose id begins so.

    Raises:
        NotFoundError, UsageError: none does, or several.
    """
    found = [one.id for one in list_holds(registry) if one.id.hex().startswith(digits.lower())]
    if len(found) > 1 or len(digits) < ID_PREFIX_HEX_MIN:
        raise UsageError(f"{digits[:80]!r} does not say which hold is meant", hint="write more digits of its id")
    if not found:
        raise NotFoundError(f"there is no hold {digits[:80]}", hint="'cairn hold list' lists them")
    return found[0]


def list_holds(registry: Registry, model: ModelId | None = None) -> list[HeldBy]:
    """All holds, of one model or of all, in the order in which they were set."""
    kept = registry.state.kept_models()
    found = [
        HeldBy(one, ModelId(identifier), CheckpointId(hold.checkpoint) if hold.checkpoint else None, hold,
               _reason(registry, ModelId(identifier), hold))
        for identifier, held in kept.items() if model in (None, identifier)
        for one, hold in held.holds.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: one.hold.n)


def told(model: Model, checkpoint: bytes = b"") -> str:
    """Which holds keep a model or a checkpoint of it, for a message; empty if none does."""
    ids = [short(one) for one in (model.held_by(checkpoint) if checkpoint else model.holds)]
    return f"hold{'s' if len(ids) > 1 else ''} {', '.join(ids)}" if ids else ""


def _reason(registry: Registry, model: ModelId, hold: Hold) -> str | None:
    try:
        return registry.model_keys(model).open_meta(hold.sealed_reason, _REASON, "reason of a hold").decode()
    except CairnError:
        return None
