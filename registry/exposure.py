"""Who could read a model, and who did, as far as the log tells."""

from typing import NamedTuple

from cairn.core.ids import ActorId, ModelId
from cairn.registry.auditlines import Trail, Wanted
from cairn.registry.logview import LogView
from cairn.registry.registry import Registry
from cairn.registry.rights import readable
from cairn.store.crypto.components import ComponentClass


class Exposure(NamedTuple):
    """Args:
    owners: who hold the root key, which opens everything.
    members: who were given keys of it and still have the right, and what they may read.
    read: how many recorded reads each actor has.
    """

    owners: list[ActorId]
    members: dict[ActorId, list[str]]
    read: dict[ActorId, int]


def exposure_of(registry: Registry, model: ModelId) -> Exposure:
    """Look through the whole log."""
    state = registry.state
    held = state.kept_model(model) or state.live_model(model)
    members = {
        ActorId(actor): [ComponentClass(one).name.lower() for one in sorted(readable(state.members[actor], model))]
        for actor in held.readers
    }
    read: dict[ActorId, int] = {}
    for line in Trail(LogView.of(registry.opened), Wanted(model, ("reads",))).lines:
        for one in line.reads:
            read[ActorId(one.actor)] = read.get(ActorId(one.actor), 0) + 1
    owners = [ActorId(one) for one in state.owners if one != state.recovery]
    return Exposure(owners, members, read)
