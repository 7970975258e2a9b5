"""A store whose branch has some checkpoints, and what is done to them."""

from pathlib import Path
from typing import Any

from cairn.core.ids import CheckpointId, ModelId
from cairn.gc.drops import drop, due_to_drop
from cairn.registry.deletion import tombstone
from cairn.registry.fold import BRANCH, TAG
from cairn.registry.models import history, move_ref, ref_value
from cairn.registry.registry import Registry
from tests.support.doubles import HeldClock
from tests.support.stores import commit_tree, new_site, tip
from tests.support.trees import write_files


def drop_due(registry: Registry) -> list[tuple[ModelId, CheckpointId]]:
    """Drop what can be dropped by now, as `cairn gc apply` does before it collects."""
    return drop(registry, due_to_drop(registry))


class History:
    """Checkpoints of steps 1, 2, ... on `main` of model `m`; their metric `loss` is the step's distance from 3.

    Attributes:
        ids: of checkpoints, by step.
    """

    def __init__(self, folder: Path, steps: int, seconds_apart: float = 3600.0) -> None:
        self.site, self.folder, self._seconds_apart = new_site(folder / "home"), folder, seconds_apart
        self.registry = self.site.registry()
        self.ids: dict[int, CheckpointId] = {}
        for step in range(1, steps + 1):
            self.commit(step)
        self.model: ModelId = tip(self.registry)[0]

    def tree(self, step: int) -> Path:
        """What is in the checkpoint of a step: some of it alone, some in all."""
        return write_files(self.folder / f"tree-{step}", {"a": f"step {step} ".encode() * 3000, "b": b"same " * 1000})

    def commit(self, step: int, registry: Registry | None = None, **options: Any) -> CheckpointId:
        """One more."""
        assert isinstance(self.site.clock, HeldClock)
        self.site.clock.sleep(self._seconds_apart)
        metrics = {"loss": float(abs(step - 3))}
        made = commit_tree(registry or self.registry, self.tree(step), step=step, metrics=metrics, **options)
        self.ids[step] = made.checkpoint
        return made.checkpoint

    def tag(self, step: int, name: str) -> None:
        """A tag at the checkpoint of a step."""
        move_ref(self.registry, self.model, name, TAG, None, self.ids[step])

    def branch(self, step: int, name: str) -> None:
        """A branch there."""
        move_ref(self.registry, self.model, name, BRANCH, None, self.ids[step])

    def delete(self, *steps: int, cause: str = "deleted", grace: float = 0.0) -> None:
        """Delete the checkpoints of some steps."""
        tombstone(self.registry, self.model, [self.ids[step] for step in steps], cause, grace)

    def steps(self, registry: Registry | None = None) -> list[int | None]:
        """Steps of `main`, newest first, as another user or the one given sees them."""
        registry = registry or self.site.registry()
        return [line.meta.step for line in history(registry, self.model, ref_value(registry, self.model, "main"))]
