"""The fold of signed statements about checkpoints. Pure.

The fold opens no envelope: whether a signature holds, and whether its signer is trusted, is judged where it is wanted
(`requirement.py`). So that no member can crowd out what another one wrote, each replaces and fills up its own alone.
"""

from msgspec.structs import replace

from cairn.core.ids import HASH_BYTES, RANDOM_ID_BYTES
from cairn.core.limits import ATTESTATION_BYTES_MAX, ATTESTATIONS_PER_ACTOR_MAX
from cairn.registry.entries import Entry
from cairn.registry.entries_attest import Attest
from cairn.registry.state import Attestation, State


def attest(state: State, entry: Entry, payload: Attest) -> str | None:
    """Keep where a statement stands; the same actor's earlier one of the same signer and ref goes."""
    model = state.models.get(payload.model)
    held = model.checkpoints.get(payload.checkpoint) if model else None
    if model is None or held is None:
        return "its checkpoint does not exist"
    if len(payload.tag) not in (0, RANDOM_ID_BYTES) or len(payload.signer) != HASH_BYTES:
        return "its tag or its signer is none"
    if not 0 < len(payload.envelope) <= ATTESTATION_BYTES_MAX:
        return "its envelope is empty, or over the limit"
    fresh = Attestation(entry.n, entry.actor, payload.signer, payload.tag, payload.signed_at)
    kept = tuple(one for one in held.attestations if one.place != fresh.place)
    if sum(one.actor == entry.actor for one in kept) >= ATTESTATIONS_PER_ACTOR_MAX:
        return "its actor has written as many for this checkpoint as one may"
    model.checkpoints[payload.checkpoint] = replace(held, attestations=(*kept, fresh))
    return None
