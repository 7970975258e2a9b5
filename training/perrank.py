"""State that belongs to one rank: what an object with such state offers, and the names of ranks.

Two kinds of objects stand in a training state. A *replicated* one has `state_dict()` and `load_state_dict(state)`, and
its state is the same on every rank. A *per-rank* one has a state of its own on each rank, saved under its rank's key.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch.distributed as dist

from cairn.core.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Errors name this many keys; a job may have thousands.
_KEYS_SHOWN_MAX = 16


@runtime_checkable
class PerRank(Protocol):
    """An object whose state differs from rank to rank.

    States are plain data: numbers, strings, bytes, lists, tuples, dicts.
    """

    @property
    def rank_key(self) -> str:
        """Where this rank stands, e.g. `dp=0,tp=1`; no two ranks of a job have the same."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; changes nothing."""
        ...

    def load_rank_states(self, states: Mapping[str, Any]) -> list[str]:
        """Restore this rank from the states of all ranks that were saved, by their keys.

        Returns:
            What the caller should know about it, as sentences.

        Raises:
            RefusedError: they do not fit; nothing was changed.
        """
        ...


class RankPlace:
    """Where this process stands among the ranks of its job.

    Args:
        coordinates: its place on each mesh dimension by name; all dimensions, so that no other rank has the same.
        mesh: the mesh of all ranks of the job, instead of `coordinates`.
        ranks: how many ranks the job has; by default those of `mesh`, else of `torch.distributed`.

    Without coordinates and mesh it is the rank in `torch.distributed`, looked up anew at each use.
    """

    def __init__(
        self,
        *,
        coordinates: Mapping[str, int] | None = None,
        mesh: "DeviceMesh | None" = None,
        ranks: int | None = None,
    ) -> None:
        if coordinates is not None and mesh is not None:
            raise UsageError("a rank's place is given twice, by coordinates and by mesh", hint="give one of them")
        self._coordinates = _coordinates_in(mesh) if mesh is not None else coordinates
        self._ranks = mesh.size() if mesh is not None and ranks is None else ranks
        if self._coordinates is not None:
            _check_names(self._coordinates)

    @property
    def key(self) -> str:
        """Coordinates sorted by dimension, `dp=0,tp=1`, or `rank=3`."""
        if self._coordinates is None:
            return default_rank_key()
        return ",".join(f"{name}={self._coordinates[name]}" for name in sorted(self._coordinates))

    @property
    def ranks(self) -> int | None:
        """Number of ranks of the job; `None` if only coordinates are known."""
        if self._ranks is None and _job_is_up():
            return dist.get_world_size()
        return 1 if self._ranks is None and self._coordinates is None else self._ranks


def default_rank_key() -> str:
    """`rank=<rank in torch.distributed>`; `rank=0` in a job of one process."""
    return f"rank={dist.get_rank() if _job_is_up() else 0}"


def shown_keys(keys: Collection[str]) -> str:
    """The rank keys as errors name them: sorted, the first few."""
    shown = sorted(keys)[:_KEYS_SHOWN_MAX]
    more = f" and {len(keys) - len(shown)} more" if len(keys) > len(shown) else ""
    return f"{'; '.join(shown)}{more}" if shown else "none"


def _job_is_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def _coordinates_in(mesh: "DeviceMesh") -> dict[str, int]:
    place = mesh.get_coordinate()
    if place is None:
        raise UsageError("this rank is not part of the mesh", hint="give the mesh that holds all ranks, or coordinates")
    if _job_is_up() and mesh.size() < dist.get_world_size():
        raise RefusedError(
            f"the mesh holds {mesh.size()} of {dist.get_world_size()} ranks: two ranks would get the same key",
            hint="give the whole mesh instead of one of its dimensions, or coordinates that tell all ranks apart",
        )
    names = mesh.mesh_dim_names or tuple(f"dim{i}" for i in range(len(place)))
    return dict(zip(names, place, strict=True))


def _check_names(coordinates: Mapping[str, int]) -> None:
    bad = [name for name in coordinates if not name or set(name) & set("=,;")]
    if bad or not coordinates:
        raise UsageError(
            f"mesh dimensions {bad or 'without any name'} cannot stand in a rank's key",
            hint="name each dimension without the signs = , ;",
        )
