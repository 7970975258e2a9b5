"""Taking a state at the moment of `save`: its plain values, and its tensors' bytes now or until the next step."""

from collections.abc import Mapping, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from cairn.core.clock import Clock
from cairn.core.heap import collection_paused
from cairn.manifests.provenance import PROVENANCE
from cairn.manifests.values import encode_value
from cairn.store.crypto.components import ComponentClass
from cairn.training.agreement import exchange, names_to_agree
from cairn.training.capture import Capture, CapturePlan, plan_capture
from cairn.training.fragment import ContributedValue
from cairn.training.handle import SaveHandle
from cairn.training.hostmemory import Arena
from cairn.training.leaves import Leaves, TensorLeaf
from cairn.training.overlap import Deferred, StepHooks, copy_in_background
from cairn.training.ranks import Ranks
from cairn.training.tree import Collector, optimizers_in


def encoded_values(leaves: Leaves, provenance: Mapping[str, Any]) -> list[ContributedValue]:
    """All plain values, encoded now, since they may change as soon as `save` returns.

    Raises:
        RefusedError: one is not plain data.
    """
    values = [
        ContributedValue(leaf.key, int(leaf.component), encode_value(leaf.value, f"value {leaf.key}"), leaf.union)
        for leaf in leaves.values
    ]
    if provenance:
        data = encode_value(dict(provenance), "the provenance")
        values.append(ContributedValue(PROVENANCE, int(ComponentClass.PROVENANCE), data))
    return values


def deferrable(leaves: Sequence[TensorLeaf], capture: Capture, optimizers: Sequence[Optimizer]) -> list[int]:
    """Slots of what these optimizers alone change: their parameters and their state."""
    owned = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return [number for number, slot in enumerate(capture.plan.slots) if leaves[slot.leaf].owner in owned]


@dataclass(slots=True, eq=False)
class Snapshot:
    """A state that is being captured; `replan`: its structure is another than the ranks agreed on."""

    leaves: Leaves
    values: list[ContributedValue]
    capture: Capture
    replan: bool


class Snapshots:
    """Takes one snapshot after the other into one arena. What has not moved since the last is not planned anew."""

    def __init__(
        self, ranks: Ranks, clock: Clock, arena: Arena, mode: str, seconds: float, provenance: Mapping[str, Any]
    ) -> None:
        self._ranks, self._clock, self._arena, self._seconds = ranks, clock, arena, seconds
        self._provenance = provenance
        self._overlap = mode == "overlap"
        self._hooks = StepHooks(self.finish)
        self._collector = Collector()
        self._agreed: dict[int, tuple[int, int]] | None = None
        self._plan: tuple[Any, CapturePlan] | None = None
        self._deferred: tuple[Deferred, SaveHandle] | None = None

    def take(self, state: dict[str, Any], task: str, handle: SaveHandle, check: bool) -> Snapshot:
        """Copy everything but what may wait for the next optimizer step; `handle.captured` tells when all is copied.

        Args:
            task: under which ranks meet, if they must agree on owners.
            check: take replicas that others store too.

        Raises:
            RefusedError: the state cannot be saved.
        """
        begun, stages = self._clock.monotonic(), handle.stages
        with collection_paused():
            leaves = self._collector.collect(state)
            handle.notes.extend(leaves.notes)
            values = encoded_values(leaves, self._provenance)
            replan = self._agree(task, leaves.tensors)
            capture = self._capture_of(leaves, check)
        planned = self._clock.monotonic()
        stages.plan, stages.bytes_captured = planned - begun, capture.plan.nbytes
        optimizers = optimizers_in(state) if self._overlap else []
        later = deferrable(leaves.tensors, capture, optimizers) if optimizers else []
        waiting = set(later)
        capture.copy([number for number in range(len(capture.plan.slots)) if number not in waiting])
        if later:
            self._hooks.watch(optimizers)
            deferred = Deferred(capture, later, lambda leaf: str(leaves.tensors[leaf].key))
            self._deferred = deferred, handle
            copy_in_background(deferred, lambda error: _settle(handle, error))
        else:
            handle.captured.set_result(None)
        stages.capture = self._clock.monotonic() - planned
        return Snapshot(leaves, values, capture, replan)

    def finish(self) -> None:
        """Wait until the deferred part is copied, and help: before the optimizer's step."""
        if self._deferred is None:
            return
        deferred, handle = self._deferred
        if not deferred.done:
            begun = self._clock.monotonic()
            deferred.copy()
            handle.stages.blocked += self._clock.monotonic() - begun
        self._deferred = None

    def agree_anew(self) -> None:
        """Let the next snapshot ask the other ranks what they hold."""
        self._agreed = None

    def release(self) -> None:
        """Let go of hooks and memory."""
        self._hooks.remove()
        self._arena.release()
        self._plan = None

    def _agree(self, task: str, leaves: list[TensorLeaf]) -> bool:
        names = list(names_to_agree(leaves, self._ranks.count).values())
        if self._agreed is None:
            self._agreed = exchange(self._ranks, task, names, self._seconds)
            return False
        return any(name not in self._agreed for name in names)

    def _capture_of(self, leaves: Leaves, check: bool) -> Capture:
        """Lay out the capture; for tensors that were where they are at the last one, as it was then."""
        agreed = self._agreed or {}
        tensors, lasting = leaves.tensors, leaves.lasting
        if any(holding.local.is_cuda for leaf in tensors for holding in leaf.holdings) and not self._arena.pinned:
            self._arena.release()
            self._arena.pinned = True
        replicas: list[tuple[int, int] | None] = [None] * len(tensors)
        for number, name in names_to_agree(tensors, self._ranks.count).items():
            replicas[number] = agreed.get(name, (0, 1))
        same = ([id(leaf) for leaf in tensors[:lasting]], replicas[:lasting], check)
        if self._plan is None or self._plan[0] != same:
            self._plan = same, plan_capture(tensors[:lasting], replicas, check)
        return Capture(plan_capture(tensors, replicas, check, self._plan[1], lasting), self._arena)


def _settle(handle: SaveHandle, error: BaseException | None) -> None:
    with suppress(InvalidStateError):  # the save has failed already
        if error is None:
            handle.captured.set_result(None)
        else:
            handle.captured.set_exception(error)
