"""Who could read a model, and who did, as far as the log tells."""

from collections.abc import Collection
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


def exposures_of(registry: Registry, models: Collection[ModelId]) -> dict[ModelId, Exposure]:
    """Look through the whole log, once for all of some models."""
    state, owners = registry.state, [ActorId(one) for one in registry.state.owners if one != registry.state.recovery]
    found = {}
    for model in models:
        held = state.kept_model(model) or state.live_model(model)
        members = {
            ActorId(actor): [ComponentClass(one).name.lower() for one in sorted(readable(state.members[actor], model))]
            for actor in held.readers
        }
        found[model] = Exposure(owners, members, {})
    for line in Trail(LogView.of(registry.opened), Wanted(None, ("reads",))).lines:
        for one in line.reads:
            exposure = found.get(ModelId(one.model))
            if exposure is not None:
                exposure.read[ActorId(one.actor)] = exposure.read.get(ActorId(one.actor), 0) + 1
    return found
