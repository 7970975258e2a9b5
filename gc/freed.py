"""What the deletion of checkpoints would set free, and who reads them at present."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cairn.core.ids import ActorId, CheckpointId, ModelId
from cairn.gc.counted import Counted
from cairn.gc.observe import list_pins, observe
from cairn.gc.plan import make_plan
from cairn.gc.silence import Silence
from cairn.registry.registry import Registry
from cairn.registry.state import Gone, State

_ALL = 2**63


@dataclass(frozen=True, slots=True)
class Freed:
    """Args:
    bytes_alone: stored bytes that nothing but these checkpoints needs.
    readers: who reads one of them at present, one a pin; a pin that cannot be read tells of nobody.
    """

    bytes_alone: int
    readers: tuple[ActorId, ...]


def freed_by(registry: Registry, model: ModelId, checkpoints: Sequence[CheckpointId]) -> Freed:
    """Plan collections with and without some live checkpoints, and compare; changes nothing.

    Raises:
        IntegrityError: a reachability list cannot be read.
    """
    opened = registry.opened
    silence, counted = Silence.of(opened, registry.state), Counted(opened)
    observed = observe(registry, silence)
    without = replace(observed, state=_deleted(observed.state, model, checkpoints))
    now, _ = make_plan(registry, observed, counted, unused=0.0, repack_bytes=_ALL)
    drops = [(model, one) for one in checkpoints]
    then, _ = make_plan(registry, without, counted, drops=drops, unused=0.0, repack_bytes=_ALL)
    pins = [seen.record for seen in list_pins(opened, silence) if seen.record is not None and not seen.dead]
    silence.keep()
    readers = [ActorId(pin.actor) for pin in pins if pin.model == model and pin.checkpoint in checkpoints]
    return Freed(max(then.bytes_freed - now.bytes_freed, 0), tuple(readers))


def readers_now(registry: Registry, model: ModelId) -> list[ActorId]:
    """Who reads a model at present, one a pin; a pin that cannot be read tells of nobody."""
    silence = Silence.of(registry.opened, registry.state)
    found = [seen.record for seen in list_pins(registry.opened, silence) if seen.record is not None and not seen.dead]
    silence.keep()
    return [ActorId(pin.actor) for pin in found if pin.model == model]


def _deleted(state: State, model: ModelId, checkpoints: Sequence[CheckpointId]) -> State:
    """A state in which some live checkpoints are tombstoned."""
    state = state.copy()
    held = state.models[model]
    for one in checkpoints:
        committed = held.checkpoints.pop(one)
        held.gone[one] = Gone(state.length, committed.actor, 0, "", committed.parent, committed)
    return state
