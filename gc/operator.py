"""What an operator may tell a collection by hand."""

from cairn.core.errors import ConflictError, IntegrityError, NotFoundError
from cairn.core.ids import CheckpointId, ModelId
from cairn.registry.checkpoint import committed
from cairn.registry.entries import Quarantine, Uncondemn
from cairn.registry.numbers import ranges
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.state import State


def uncondemn_all(registry: Registry) -> tuple[int, int]:
    """Take back everything that is condemned above the floor; returns the number of packs and of other objects.

    Raises:
        NotFoundError: nothing is.
    """
    counts = 0, 0

    def build(state: State) -> Uncondemn:
        nonlocal counts
        packs = [number for number, epoch in state.condemned.items() if epoch > state.floor]
        keys = sorted(key for key, epoch in state.condemned_objects.items() if epoch > state.floor)
        if not packs and not keys:
            raise NotFoundError("nothing is condemned that could be taken back", hint="what the floor passed is gone")
        counts = len(packs), len(keys)
        return Uncondemn(ranges(packs), b"".join(keys))

    registry.append(build)
    return counts


def quarantine(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> None:
    """Let collection go on without a checkpoint's reachability list.

    Raises:
        ConflictError: the list can be read, so there is no reason to.
    """
    try:
        read_reachability(registry.opened, committed(registry, model, checkpoint))
    except IntegrityError:
        registry.append(lambda state: Quarantine(model, checkpoint))
        return
    raise ConflictError(f"the list of checkpoint {checkpoint.hex()} is whole", hint="run 'cairn gc apply --yes'")
