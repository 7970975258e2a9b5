"""Positions in the training data, in three declared forms.

* **global cursor** - how many samples completed steps have consumed; the same on every rank, re-split over any number
  of ranks that divides the global batch.
* **logical shards** - a position in each shard of the data; dealt out anew over any number of ranks.
* **rank-local** - a state that only the same place in an equal job can use.

The first two count what training has *completed*, since loaders run ahead of it. Random transforms inside worker
processes, which seed themselves, are outside all three.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, SequentialSampler

from cairn.core.errors import RefusedError, UsageError
from cairn.manifests.forms import LOGICAL_SHARDS, RANK_LOCAL
from cairn.training.cursor import DistributedCursorSampler, GlobalCursor, check_count, check_rank, is_count, stale
from cairn.training.perrank import RankPlace, shown_keys

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["DistributedCursorSampler", "GlobalCursor", "LogicalShards", "RankLocal", "StatefulLoader"]

State = dict[str, Any]


class LogicalShards:
    """A position in each shard of the data; a `PerRank` object.

    The shards are dealt to the ranks in turn: rank `r` of `w` owns `shards[r::w]`. Ranks that read the same data, such
    as those of one tensor-parallel group, give the same `rank` here and stand at the same positions.

    Args:
        shards: all names, in the same order on every rank.
        rank: of those that divide the data.
        world_size: how many they are.
        coordinates: this rank's place in the job, see `RankPlace`.
        mesh: the mesh of all ranks, instead of `coordinates`.
    """

    form = LOGICAL_SHARDS

    def __init__(
        self,
        shards: Sequence[str],
        *,
        rank: int,
        world_size: int,
        coordinates: Mapping[str, int] | None = None,
        mesh: "DeviceMesh | None" = None,
    ) -> None:
        check_rank(rank, world_size)
        if len(set(shards)) != len(shards):
            twice = sorted({name for name in shards if shards.count(name) > 1})
            raise UsageError(f"shards {', '.join(twice)} are named more than once", hint="name each shard once")
        self._shards = tuple(shards)
        self._place = RankPlace(coordinates=coordinates, mesh=mesh)
        self._positions = dict.fromkeys(self._shards[rank::world_size], 0)
        self._epoch = 0

    @property
    def rank_key(self) -> str:
        """Where this rank stands, e.g. `dp=0,tp=1`."""
        return self._place.key

    @property
    def epoch(self) -> int:
        """Epoch that the positions belong to."""
        return self._epoch

    @property
    def positions(self) -> dict[str, int]:
        """The shards that this rank owns, and the samples of each that completed steps have consumed in this epoch."""
        return dict(self._positions)

    def advance(self, shard: str, samples: int = 1) -> None:
        """Count samples of a shard as consumed, when their step is completed."""
        check_count(samples)
        if shard not in self._positions:
            raise UsageError(
                f"shard {shard} is not this rank's", hint=f"it owns {', '.join(self._positions) or 'none'}"
            )
        self._positions[shard] += samples

    def set_epoch(self, epoch: int) -> None:
        """Begin every shard anew; nothing changes if the positions belong to `epoch` already."""
        if epoch < self._epoch:
            raise RefusedError(
                f"the shards stand in epoch {self._epoch}; set_epoch({epoch}) would repeat data",
                hint=f"begin the loop at epoch {self._epoch}",
            )
        if epoch > self._epoch:
            self._epoch = epoch
            self._positions = dict.fromkeys(self._positions, 0)

    def state_dict(self) -> State:
        """Epoch, and positions of the shards that this rank owns."""
        return {"form": self.form, "epoch": self._epoch, "positions": dict(self._positions)}

    def load_rank_states(self, states: Mapping[str, Any]) -> list[str]:
        """Take this rank's shards out of the states of all ranks, however many there were; see `PerRank`."""
        epoch, saved = _merged(states)
        lost, unknown = set(self._shards) - saved.keys(), saved.keys() - set(self._shards)
        if lost or unknown:
            raise RefusedError(
                f"the saved shards are not those of this data: not saved: {', '.join(sorted(lost)) or 'none'}; "
                f"not known here: {', '.join(sorted(unknown)) or 'none'}",
                hint="name the shards as they were, and load the states of all ranks",
            )
        same = self.rank_key in states and states[self.rank_key]["positions"].keys() == self._positions.keys()
        self._epoch = epoch
        self._positions = {shard: saved[shard] for shard in self._positions}
        return [] if same else [f"{len(saved)} shards of {len(states)} saved ranks were dealt out anew"]


def _merged(states: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Epoch and positions of all saved ranks; ranks that share a shard agree on it."""
    epochs: set[int] = set()
    merged: dict[str, int] = {}
    for key in sorted(states):
        state = states[key]
        known = isinstance(state, dict) and state.get("form") == LogicalShards.form
        if not known or not is_count(state.get("epoch")) or not isinstance(state.get("positions"), dict):
            raise RefusedError(f"the state of rank {key} is not one of logical shards", hint="load an older checkpoint")
        epochs.add(state["epoch"])
        for shard, position in state["positions"].items():
            if not is_count(position) or merged.setdefault(shard, position) != position:
                raise RefusedError(
                    f"shard {shard} stands at {position!r} on rank {key}, at {merged.get(shard)!r} on another",
                    hint="ranks that share a shard must advance together",
                )
    if len(epochs) != 1:
        raise RefusedError(
            f"the saved ranks stand in epochs {sorted(epochs) or 'none'}",
            hint="save when all have begun the same epoch",
        )
    return epochs.pop(), merged


class RankLocal:
    """Any object whose state only the same place in an equal job can use; a `PerRank` object.

    Args:
        inner: has `state_dict` and `load_state_dict`.
        coordinates: this rank's place, see `RankPlace`.
        mesh: the mesh of all ranks, instead of `coordinates`.
        ranks: number of ranks of the job, where neither a mesh nor `torch.distributed` tells.
    """

    form = RANK_LOCAL

    def __init__(
        self,
        inner: "Inner",
        *,
        coordinates: Mapping[str, int] | None = None,
        mesh: "DeviceMesh | None" = None,
        ranks: int | None = None,
    ) -> None:
        self._inner = inner
        self._place = RankPlace(coordinates=coordinates, mesh=mesh, ranks=ranks)
        if self._place.ranks is None:
            raise UsageError("how many ranks the job has is not known", hint="give ranks=... beside coordinates")

    @property
    def rank_key(self) -> str:
        """Where this rank stands, e.g. `dp=0,tp=1`."""
        return self._place.key

    def state_dict(self) -> State:
        """The inner object's state, copied."""
        return {"form": self.form, "state": deepcopy(self._inner.state_dict())}

    def load_rank_states(self, states: Mapping[str, Any]) -> list[str]:
        """Hand this rank's state to the inner object; see `PerRank`."""
        self._inner.load_state_dict(self._own(states)["state"])
        return []

    def check_rank_states(self, keys: Collection[str]) -> None:
        """Refuse what `load_rank_states` would refuse for other ranks, while nothing is changed on any rank.

        Raises:
            RefusedError: the job that saved it had other ranks.
        """
        # If every rank finds its own key and the numbers agree, then the sets of keys are equal.
        if self.rank_key not in keys or len(keys) != self._place.ranks:
            raise RefusedError(
                f"a rank-local state needs the job that saved it: this is rank {self.rank_key} of {self._place.ranks}, "
                f"saved were {len(keys)} ranks: {shown_keys(keys)}",
                hint="load on the same mesh, or use a global cursor or logical shards",
            )

    def _own(self, states: Mapping[str, Any]) -> Any:
        self.check_rank_states(states)
        state = states[self.rank_key]
        if not isinstance(state, dict) or state.get("form") != self.form:
            raise RefusedError(f"the state of rank {self.rank_key} is not {self.form}", hint="load an older checkpoint")
        return deepcopy(state)


class Inner(Protocol):
    """What `RankLocal` wraps."""

    def state_dict(self) -> Any:
        """Its state."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore it."""
        ...


class StatefulLoader(RankLocal):
    """torchdata's `StatefulDataLoader` with states that are complete whenever they are taken; a `PerRank` object.

    Iterate over this object instead of the loader. Before the first `iter`, `state_dict` begins the iterator that
    `iter` will then give, which draws from torch's generator: save random state after it.

    Args:
        loader: a `StatefulDataLoader`.
        form: `rank_local`, the only form of such a state.
    """

    def __init__(self, loader: Any, *, form: str = "rank_local", **place: Any) -> None:
        if form != self.form:
            raise UsageError(
                f"a StatefulDataLoader has no state of form {form}",
                hint="use DistributedCursorSampler with a plain DataLoader, or LogicalShards",
            )
        super().__init__(loader, **place)
        self._loader = loader
        # A restored state that no iterator has taken up yet.
        self._loaded: State | None = None
        self._loads = 0
        if isinstance(_source(loader), GlobalCursor):
            raise UsageError(
                "a cursor counts completed steps, a StatefulDataLoader what it has handed out",
                hint="give the cursor to a plain DataLoader, and save the cursor",
            )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        # Begun now, not at the first `next`: it draws from torch's generator, which is restored after it.
        batches = iter(self._loader)
        self._loaded = None
        return self._follow(batches, self._loads)

    def _follow(self, batches: Iterator[Any], loads: int) -> Iterator[Any]:
        while True:
            if loads != self._loads:
                raise stale("a state was loaded")
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def state_dict(self) -> State:
        """The loader's state, copied, with the number of workers and the sampler's epoch.

        Raises:
            RefusedError: it lacks the position of something, so that a resume would go elsewhere.
        """
        if self._loaded is not None:
            return deepcopy(self._loaded)
        state = super().state_dict()
        if wrong := incomplete(self._loader, state["state"]):
            raise RefusedError(f"the state of the dataloader is incomplete: {'; '.join(wrong)}", hint=_COMPLETE_HINT)
        epoch = getattr(_source(self._loader), "epoch", None)
        return {**state, "workers": self._loader.num_workers, "epoch": epoch}

    def load_rank_states(self, states: Mapping[str, Any]) -> list[str]:
        """Go on where the saved loader stood; iterators made before become stale; see `PerRank`."""
        own = self._own(states)
        if own.get("workers") != self._loader.num_workers:
            raise RefusedError(
                f"the dataloader was saved with {own.get('workers')} workers and now has {self._loader.num_workers}",
                hint="use as many workers",
            )
        if wrong := incomplete(self._loader, own["state"]):
            raise RefusedError(f"the saved state is incomplete: {'; '.join(wrong)}", hint="load an older checkpoint")
        source = _source(self._loader)
        if own.get("epoch") is not None and hasattr(source, "set_epoch"):
            source.set_epoch(own["epoch"])
        self._loader.load_state_dict(deepcopy(own["state"]))
        self._loaded = own
        self._loads += 1
        return []


_COMPLETE_HINT = "give the dataset and the sampler state_dict() and load_state_dict(), and keep in_order=True"


def incomplete(loader: Any, state: Any) -> list[str]:
    """What a state of `loader`, a `StatefulDataLoader` of torchdata 0.11, lacks for an exact resume, as phrases.

    torchdata draws an iterable dataset without a state forward from its beginning, and after a second resume too far;
    a sampler without a state begins anew and skips, which is another order if it shuffles.
    """
    several = loader.num_workers > 0
    wrong = []
    try:
        snapshot = state["_snapshot"] if several else state
        main = snapshot["_main_snapshot"] if several else snapshot
        workers = snapshot["_worker_snapshots"] if several else {"worker_0": snapshot}
        unpolled = [f"worker_{i}" for i in range(loader.num_workers) if not workers.get(f"worker_{i}")]
        if unpolled:
            wrong.append(f"nothing of {', '.join(unpolled)}")
        elif isinstance(loader.dataset, IterableDataset):
            bare = [name for name, worker in workers.items() if not _positions_of(worker)]
            if bare:
                wrong.append(f"no position of the iterable dataset in {', '.join(bare)}")
        elif not _keeps_order(source := _source(loader), main):
            wrong.append(f"no position of the sampler {type(source).__qualname__}")
    except (KeyError, TypeError, AttributeError) as error:
        return [f"it is not laid out as in torchdata 0.11 ({error!r})"]
    if several and not loader.in_order:
        wrong.append("batches come out of order (in_order=False)")
    return wrong


def _positions_of(worker: Mapping[str, Any]) -> bool:
    return worker["dataset_state"] is not None or worker["fetcher_state"]["dataset_iter_state"] is not None


def _source(loader: Any) -> Any:
    """What decides the order of a loader: its sampler, beneath the batches if they are the usual ones."""
    source = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return source.sampler if isinstance(source, BatchSampler) else source


def _keeps_order(source: Any, main: Mapping[str, Any]) -> bool:
    """Whether the position was saved, or follows from the number of samples and the epoch."""
    if main["_index_sampler_state"] is not None or isinstance(source, SequentialSampler | DistributedSampler):
        return True
    # The usual batches count their samples; what is beneath them adds its state if it has one.
    return bool((main["_sampler_iter_state"] or {}).keys() - {"samples_yielded"})
