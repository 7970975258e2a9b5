"""What `save` gives back."""

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cairn.core.errors import CairnError, UsageError
from cairn.core.ids import CheckpointId
from cairn.registry.envelope import Stages


@dataclass(slots=True, eq=False)
class Copy:
    """A copy of one save's checkpoint in another store: of what tier that is, and when it is there."""

    tier: str
    done: "Future[CheckpointId]" = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class SaveHandle:
    """One save under way.

    Attributes:
        step: as given to `save`.
        captured: done when the state may change again in any way; its result is None.
        committed: done when the checkpoint exists, durably; its result is the checkpoint's id.
        stages: where the time went on this rank, filled as the save goes on.
        notes: what is worth a word: doubled pieces, stale weights.
        skipped: nothing was saved, since another save was under way and the policy is `skip`.
        copies: by the names of the other stores that get the checkpoint too; on the coordinator, which copies.
    """

    step: int
    local_store: bool
    captured: "Future[None]" = field(default_factory=Future)
    committed: "Future[CheckpointId]" = field(default_factory=Future)
    stages: Stages = field(default_factory=Stages)
    notes: list[str] = field(default_factory=list)
    skipped: bool = False
    copies: dict[str, Copy] = field(default_factory=dict)

    def durable(self, tier: str) -> "Future[None] | Future[CheckpointId]":
        """Done when a tier holds the state.

        Args:
            tier: `memory` (this host's), `local` or `object` (the store, by its kind; else the first copy of that
                kind), or a copy by its name.

        Raises:
            UsageError: neither the store nor a copy is of that tier.
        """
        tiers: dict[str, Future[None] | Future[CheckpointId]] = {
            "memory": self.captured,
            "local" if self.local_store else "object": self.committed,
        }
        for name, copy in self.copies.items():
            tiers.setdefault(copy.tier, copy.done)
            tiers.setdefault(name, copy.done)
        if tier not in tiers:
            raise UsageError(
                f"this checkpointer has no tier {tier!r}",
                hint=f"its tiers are {', '.join(map(repr, tiers))}; copies are told of on rank 0, which makes them",
            )
        return tiers[tier]

    def wait(self, seconds: float | None = None) -> CheckpointId:
        """Wait until the checkpoint exists; returns its id.

        Raises:
            CairnError: why the save failed.
            TimeoutError: it took longer than `seconds`.
        """
        return self.committed.result(seconds)

    def fail(self, error: BaseException) -> None:
        """Settle every future that is open; the error names the step from here on."""
        if isinstance(error, CairnError) and f"step {self.step}" not in error.message:
            error.message = f"save of step {self.step}: {error.message}"
        elif not isinstance(error, CairnError):
            error.add_note(f"this ended the save of step {self.step}")
        futures: list[Future[Any]] = [self.captured, self.committed, *(copy.done for copy in self.copies.values())]
        for future in futures:
            # The capture may end at this very moment, on its own thread.
            with suppress(InvalidStateError):
                future.set_exception(error)

    @property
    def stage(self) -> str:
        """What the save is at: `capture`, `write`, `commit`, `done`."""
        if self.committed.done():
            return "done"
        if not self.captured.done():
            return "capture"
        return "commit" if self.stages.write else "write"

    def failure(self) -> BaseException | None:
        """Why it failed; None if it is committed."""
        return self.committed.exception()


def is_local(url: str) -> bool:
    """Whether a store at this address is of the tier `local`; else it is of `object`."""
    scheme, separator, _ = url.partition("://")
    return not separator or scheme == "file"
