"""What follows a commit behind a training run: retention, and copies to other stores."""

from collections.abc import Sequence

from cairn.core.ids import CheckpointId
from cairn.registry.opened import OpenStore
from cairn.registry.retention import Retention
from cairn.training.copies import Copies
from cairn.training.handle import SaveHandle
from cairn.training.retainer import retainer


class Followers:
    """Both, of one branch, on the coordinator; without rules and copies, nothing follows.

    Args:
        copies: names of remotes, or addresses.

    Raises:
        NotFoundError: a name is no remote's.
    """

    def __init__(
        self, opened: OpenStore, model: str, branch: str, rules: Retention | None, copies: Sequence[str]
    ) -> None:
        self.copies = Copies(opened, model, branch, tuple(copies))
        self.retention = retainer(opened, model, branch, rules) if rules is not None else None

    def begin(self, handle: SaveHandle) -> None:
        """Let it follow a commit; returns at once."""
        self.copies.begin(CheckpointId(handle.committed.result()), handle.copies)
        if self.retention is not None:
            self.retention.begin(None)

    def told(self) -> list[str]:
        """What went wrong since the last call; each is logged as a warning."""
        return [*(self.retention.told() if self.retention is not None else ()), *self.copies.told()]

    def finish(self, seconds: float) -> None:
        """Wait for each that is under way."""
        if self.retention is not None:
            self.retention.finish(seconds)
        self.copies.finish(seconds)
        self.told()
