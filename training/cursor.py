"""The global cursor: how many samples completed steps have consumed, and which sample comes next.

* **order** - the sequence of samples of an epoch; depends on the seed and the epoch, never on the number of ranks.
* **step** - one global batch, the next piece of the order.
* **jump** - a move of the cursor other than completing a step; iterators made before it are stale.
"""

from collections.abc import Collection, Iterator
from typing import Any, TypeGuard

import numpy as np
from blake3 import blake3
from torch.utils.data import Sampler

from cairn.core.canonical import encode
from cairn.core.errors import RefusedError, UsageError
from cairn.manifests.forms import GLOBAL_CURSOR
from cairn.manifests.spans import epoch_samples

State = dict[str, Any]

# The shuffle is ours, so that a checkpoint means the same order under every version of every library.
ORDER = "blake3-v1"
_ORDER_CONTEXT = "cairn 2026 order of samples, blake3-v1"


class GlobalCursor:
    """Counts the samples of completed steps; replicated.

    Step `s` of an epoch consumes samples `order[s * global_batch : (s + 1) * global_batch]`, whatever the number of
    ranks. When the last step of an epoch is completed the cursor stands at the beginning of the next epoch.

    Args:
        dataset_size: number of samples.
        global_batch: samples of one step, on all ranks together.
        seed: of the shuffle; 64 bits, not negative.
        shuffle: a new order each epoch; else ascending.
        drop_last: leave out the samples behind the last whole batch; else the last step is short.
        allow: what may differ between the saved cursor and this one: nothing, or `{"global_batch"}`.
    """

    form = GLOBAL_CURSOR

    def __init__(
        self,
        dataset_size: int,
        *,
        global_batch: int,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = True,
        allow: Collection[str] = (),
    ) -> None:
        if dataset_size < 1 or global_batch < 1 or not 0 <= seed < 1 << 64:
            raise UsageError(
                f"no cursor over {dataset_size} samples in batches of {global_batch} with seed {seed}",
                hint="sizes are at least 1, seeds 0 to 2**64 - 1",
            )
        if set(allow) - {"global_batch"}:
            raise UsageError(f"allow={sorted(allow)} is not a choice", hint="only global_batch may differ")
        self.dataset_size, self.global_batch, self.seed = dataset_size, global_batch, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self.epoch_samples = epoch_samples(dataset_size, global_batch, drop_last)
        self.epoch_steps = -(-self.epoch_samples // global_batch)
        if not self.epoch_steps:
            raise UsageError(
                f"{dataset_size} samples do not fill one batch of {global_batch}", hint="choose drop_last=False"
            )
        self._allow = frozenset(allow)
        # Completed steps since the beginning of epoch 0.
        self._completed = 0
        # Grows when the position jumps; what was made before is stale.
        self._jumps = 0
        self._order: tuple[int, np.ndarray[Any, Any]] | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the next step."""
        return self._completed // self.epoch_steps

    @property
    def consumed(self) -> int:
        """Samples of this epoch that completed steps have consumed."""
        return self._completed % self.epoch_steps * self.global_batch

    def advance(self, steps: int = 1) -> None:
        """Count steps as completed; to be called once per step of the optimizer, after it."""
        check_count(steps)
        self._completed += steps

    def skip(self, steps: int) -> None:
        """Leave out the data of the next steps; iterators made before become stale."""
        check_count(steps)
        self._jump(self._completed + steps)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; stay where the cursor is if it stands in `epoch` already.

        Raises:
            RefusedError: the cursor is past that epoch, as in a loop that begins at 0 again after a resume.
        """
        if epoch < self.epoch:
            raise RefusedError(
                f"the cursor stands in epoch {self.epoch}; set_epoch({epoch}) would repeat data",
                hint=f"begin the loop at epoch {self.epoch}, as in range(cursor.epoch, ...); or make a new cursor",
            )
        if epoch > self.epoch:
            self._jump(epoch * self.epoch_steps)

    def samples(self, epoch: int, step: int) -> "np.ndarray[Any, Any]":
        """Indices of the samples of one step, in order; fewer than `global_batch` in a short last step."""
        begin = step * self.global_batch
        end = min(begin + self.global_batch, self.epoch_samples)
        if not self.shuffle:
            return np.arange(begin, end)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, shuffled(self.dataset_size, self.seed, epoch)
        return self._order[1][begin:end]

    def state_dict(self) -> State:
        """Plain data, the same on every rank."""
        return {"form": self.form, **self._declared(), "epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state: Any) -> None:
        """Go on where the saved cursor stood; iterators made before become stale.

        Raises:
            RefusedError: it counts other data, or stands between two steps of this global batch; nothing was changed.
        """
        if not isinstance(state, dict) or state.get("form") != self.form:
            raise RefusedError(f"this is not the state of a {self.form}", hint="load it into the object that saved it")
        wrong = [
            f"{name} was {state.get(name)!r}, is {now!r}"
            for name, now in self._declared().items()
            if state.get(name) != now and name not in self._allow
        ]
        if wrong:
            raise RefusedError(
                f"the saved cursor counts other data: {'; '.join(wrong)}",
                hint="make the cursor as it was; allow={'global_batch'} admits another batch where it divides",
            )
        epoch, consumed = state.get("epoch"), state.get("consumed")
        if not is_count(epoch) or not is_count(consumed) or consumed > self.dataset_size:
            raise RefusedError(
                f"no cursor stands at sample {consumed!r} of epoch {epoch!r}", hint="load an older checkpoint"
            )
        if consumed % self.global_batch:
            raise RefusedError(
                f"the saved cursor has consumed {consumed} samples, which is not a multiple of the global batch "
                f"{self.global_batch}",
                hint=f"choose a global batch that divides {consumed}",
            )
        self._jump(epoch * self.epoch_steps + consumed // self.global_batch)

    def _jump(self, completed: int) -> None:
        self._completed = completed
        self._jumps += 1

    def _declared(self) -> State:
        return {
            "order": ORDER if self.shuffle else "ascending",
            "dataset_size": self.dataset_size,
            "global_batch": self.global_batch,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }


class DistributedCursorSampler(GlobalCursor, Sampler[int]):
    """A global cursor that deals out its samples to one rank, for `torch.utils.data.DataLoader`.

    Of each step, rank `r` of `w` takes the `r`-th of `w` equal, contiguous shares, so the loader's batch size is
    `global_batch // world_size` (or a part of it that divides). `iter` begins at the cursor: what is not completed is
    dealt out again. The trainer calls `advance()` after each step; the loader's own position does not count.
    """

    def __init__(
        self,
        dataset_size: int,
        *,
        global_batch: int,
        rank: int,
        world_size: int,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = True,
        allow: Collection[str] = (),
    ) -> None:
        super().__init__(
            dataset_size, global_batch=global_batch, seed=seed, shuffle=shuffle, drop_last=drop_last, allow=allow
        )
        check_rank(rank, world_size)
        if global_batch % world_size:
            raise UsageError(
                f"{world_size} ranks cannot share a global batch of {global_batch} equally",
                hint="choose a global batch that the number of ranks divides",
            )
        if (short := self.epoch_samples % global_batch) % world_size:
            raise UsageError(
                f"{dataset_size} samples in batches of {global_batch} leave a last step of {short}, which "
                f"{world_size} ranks cannot share equally",
                hint="choose drop_last=True",
            )
        self._rank, self._world_size = rank, world_size
        # Steps since epoch 0 whose data has been handed to some iterator.
        self._dealt = 0

    def __len__(self) -> int:
        """Samples of a whole epoch for this rank, wherever the cursor stands."""
        return self.epoch_samples // self._world_size

    def __iter__(self) -> Iterator[int]:
        # The position is read now, not at the first `next`.
        return self._deal(self._jumps, self.epoch, self._completed % self.epoch_steps)

    def advance(self, steps: int = 1) -> None:
        """See `GlobalCursor.advance`.

        Raises:
            RefusedError: the data of these steps was never dealt out: it came from an iterator made before a load, or
                `advance` is called more often than the optimizer steps.
        """
        if self._completed + steps > self._dealt:
            raise RefusedError(
                f"{steps} steps cannot be completed in epoch {self.epoch} after {self.consumed} samples: since the "
                f"last jump of the cursor, data of {max(self._dealt - self._completed, 0)} steps was dealt out",
                hint="make iterators after loading, and call advance once per step of the optimizer; skip() leaves out",
            )
        super().advance(steps)

    def _deal(self, jumps: int, epoch: int, first: int) -> Iterator[int]:
        for step in range(first, self.epoch_steps):
            samples = self.samples(epoch, step)
            share = len(samples) // self._world_size
            for index in samples[self._rank * share : (self._rank + 1) * share].tolist():
                self._require_fresh(jumps)
                self._dealt = max(self._dealt, epoch * self.epoch_steps + step + 1)
                yield index
        self._require_fresh(jumps)

    def _jump(self, completed: int) -> None:
        super()._jump(completed)
        self._dealt = completed

    def _require_fresh(self, jumps: int) -> None:
        if jumps != self._jumps:
            raise stale("the cursor was moved (load_state_dict, set_epoch or skip)")


def shuffled(count: int, seed: int, epoch: int) -> "np.ndarray[Any, Any]":
    """The order `blake3-v1` of `count` samples: sorted by 64-bit keys, the output of BLAKE3 over seed and epoch.

    Takes 16 bytes of memory a sample; equal keys keep ascending order.
    """
    stream = blake3(encode([seed, epoch]), derive_key_context=_ORDER_CONTEXT).digest(length=8 * count)
    return np.argsort(np.frombuffer(stream, "<u8"), kind="stable")


def stale(why: str) -> RefusedError:
    """The error of an iterator made before a jump."""
    return RefusedError(f"this iterator is stale: {why} after it was made", hint="call iter() again, after loading")


def check_rank(rank: int, world_size: int) -> None:
    """Refuse a rank outside its world."""
    if not 0 <= rank < world_size:
        raise UsageError(f"there is no rank {rank} of {world_size}", hint="ranks are 0 to world_size - 1")


def check_count(count: int) -> None:
    """Refuse to count backwards."""
    if count < 0:
        raise UsageError(f"a position cannot move by {count}", hint="load an earlier state to go back")


def is_count(value: Any) -> TypeGuard[int]:
    """A whole number that is not negative, as positions are."""
    return type(value) is int and value >= 0
