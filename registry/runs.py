"""Training runs: each takes over its branch by an entry, and what an earlier one commits after that is void."""

from cairn.core.ids import ModelId
from cairn.registry.entries import RunOpen
from cairn.registry.names import ref_tag
from cairn.registry.registry import Registry
from cairn.registry.state import State


def open_run(registry: Registry, model: ModelId, branch: str) -> int:
    """Take over a branch; returns the run's epoch, which its commits name."""
    tag = ref_tag(registry.opened.secrets.k_log, model, branch)
    epoch = 0

    def build(state: State) -> RunOpen:
        nonlocal epoch
        epoch = state.live_model(model).runs.get(tag, 0) + 1
        return RunOpen(model, tag, epoch)

    registry.append(build)
    return epoch
