"""What a checkpoint says of itself beside its content: commit, lineage, and the job that saved it."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from cairn.core.errors import IntegrityError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import LINEAGE_CHECKPOINTS_MAX
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.envelope import read_envelope
from cairn.registry.models import model_name, open_meta, saved_at
from cairn.registry.registry import Registry
from cairn.registry.state import Model


class Side(msgspec.Struct, frozen=True):
    """One of two checkpoints that are compared.

    Args:
        saved_at: by the clock of whoever saved it (ns).
        parents: relation and id.
        facts: what else the commit says.
        job: ranks and hosts that saved it; empty if it was not saved from a training loop, or that cannot be read.
    """

    checkpoint: CheckpointId
    model: ModelId
    name: str
    step: int | None
    saved_at: int
    parents: tuple[tuple[str, CheckpointId], ...]
    facts: dict[str, Any]
    job: dict[str, Any]


class Kinship(msgspec.Struct, frozen=True):
    """How two checkpoints stand to each other, as far as the log and their own parents tell.

    Args:
        ancestor: the nearest checkpoint that both come from, which may be one of them; None if none is known.
        old, new: how many checkpoints each of them comes after it.
        relation: how one was made from the other, if in one step.
    """

    ancestor: CheckpointId | None
    old: int = 0
    new: int = 0
    relation: str = ""


def kinship_of(registry: Registry, old: Side, new: Side) -> Kinship:
    """How two checkpoints stand to each other."""
    known, own = registry.state.models, dict.fromkeys((old.model, new.model))
    # Most ancestors are of the same model, so it is asked first.
    models = [known[one] for one in own] + [model for one, model in known.items() if one not in own]
    before, after = _behind(models, old), _behind(models, new)
    common = before.keys() & after.keys()
    if not common:
        return Kinship(None)
    nearest = min(common, key=lambda one: (before[one] + after[one], one))
    relations = {parent: relation for side in (old, new) for relation, parent in side.parents}
    near = before[nearest] + after[nearest] == 1
    return Kinship(nearest, before[nearest], after[nearest], relations.get(nearest, "") if near else "")


def _behind(models: Sequence[Model], side: Side) -> dict[CheckpointId, int]:
    """A checkpoint and what it comes from, each with its distance, up to `LINEAGE_CHECKPOINTS_MAX`."""
    found, level = {side.checkpoint: 0}, [parent for _, parent in side.parents]
    for distance in count(1):
        fresh = [one for one in dict.fromkeys(level) if one not in found]
        found.update(dict.fromkeys(fresh, distance))
        if not fresh or len(found) >= LINEAGE_CHECKPOINTS_MAX:
            break
        parents = (
            next((m.parent_of(one) for m in models if one in m.checkpoints or one in m.gone), None) for one in fresh
        )
        level = [CheckpointId(parent) for parent in parents if parent is not None]
    return found


def side_of(registry: Registry, manifest: CheckpointManifest) -> Side:
    """What a checkpoint says of itself."""
    meta = open_meta(registry, manifest.model, manifest.state)
    facts: dict[str, Any] = {
        "message": meta.message,
        "metrics": dict(meta.metrics),
        "exactness": manifest.body.exactness,
        "actor": manifest.state.actor.hex(),
    }
    return Side(
        manifest.id, manifest.model, model_name(registry, manifest.model), meta.step, saved_at(manifest.state, meta),
        tuple((parent.relation, CheckpointId(parent.checkpoint)) for parent in manifest.body.parents),
        {name: value for name, value in facts.items() if value}, _job(registry, manifest),
    )  # fmt: skip


def _job(registry: Registry, manifest: CheckpointManifest) -> dict[str, Any]:
    try:
        envelope = read_envelope(registry, manifest.model, manifest.state)
    except IntegrityError:  # it tells of the save alone: what was saved can be compared without
        return {}
    if envelope is None:
        return {}
    return {"ranks": len(envelope.ranks), "hosts": sorted({one.host for one in envelope.ranks})}
