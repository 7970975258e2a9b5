"""What a saved state of a training run is the state of, as far as its form gives that away."""

from typing import Any

# Positions in the training data, as they say themselves (see `training/dataloader.py`).
GLOBAL_CURSOR, LOGICAL_SHARDS, RANK_LOCAL = "global_cursor", "logical_shards", "rank_local"
# Random generators, known by what `training/rng.py` saves of them.
RANDOM = "random"
_RANDOM_KEYS = {"version", "generators", "device", "dtensor"}


def form_of(state: Any) -> str:
    """One of the above; empty for any other value."""
    if not isinstance(state, dict):
        return ""
    form = state.get("form")
    if form in (GLOBAL_CURSOR, LOGICAL_SHARDS, RANK_LOCAL):
        return str(form)
    return RANDOM if state.keys() == _RANDOM_KEYS else ""
