"""Telling the log what was found whole: retention then knows what not to let go of."""

from contextlib import suppress

from cairn.core.ids import CheckpointId, ModelId
from cairn.gc.report import VerifyReport
from cairn.registry.entries import Verified
from cairn.registry.fold_collection import DEPTHS
from cairn.registry.registry import Registry
from cairn.registry.state import State

# 32 bytes each: far below what one entry holds.
_CHECKPOINTS_PER_ENTRY = 10_000


class _NothingToSay(Exception):
    """They are gone by now."""


def record(registry: Registry, report: VerifyReport) -> int:
    """Append `verify` entries for all that a scrub found whole; returns how many checkpoints they name.

    What was found whole by a more thorough scrub keeps that record.

    Raises:
        NotAllowed: this user may not write.
    """
    by_model: dict[ModelId, list[CheckpointId]] = {}
    for model, checkpoint in report.whole:
        by_model.setdefault(model, []).append(checkpoint)
    return sum(
        _record_of(registry, model, some, report.depth)
        for model, found in by_model.items()
        for some in (found[at : at + _CHECKPOINTS_PER_ENTRY] for at in range(0, len(found), _CHECKPOINTS_PER_ENTRY))
    )


def _record_of(registry: Registry, model: ModelId, found: list[CheckpointId], depth: str) -> int:
    count = 0

    def build(state: State) -> Verified:
        nonlocal count
        held = state.live_model(model).checkpoints if model in state.models else {}
        named = tuple(one for one in found if one in held and not _is_deeper(held[one].verified, depth))
        count = len(named)
        if not named:
            raise _NothingToSay
        return Verified(model, named, depth)

    with suppress(_NothingToSay):
        registry.append(build)
    return count


def _is_deeper(known: str, depth: str) -> bool:
    return bool(known) and DEPTHS.index(known) > DEPTHS.index(depth)
