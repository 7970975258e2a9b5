"""TorchTitan's checkpoints in Cairn: a checkpoint manager that a trainer's configuration names in one line.

    checkpoint=CairnCheckpointManager.Config(enable=True, folder="/data/store", model="llama3-8b", interval=500)

It offers what TorchTitan's trainer asks of `BaseCheckpointManager` (TorchTitan of August 2026). The store at `folder`
is made once, by `cairn init`. A run saved on any layout resumes on any other, as far as its dataloader can.

It differs from TorchTitan's own manager where Cairn does:

* Weights and optimizer state are saved from the modules and optimizers themselves, not from state dicts; no hidden
  optimizer step is run.
* Nothing is deleted during training: unchanged tensors are stored once, and what goes is decided at the store.
* Files for others are made from the store afterwards: `cairn checkout MODEL DEST --format safetensors`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from torchtitan.components.checkpointer import DATALOADER, LR_SCHEDULER, MODEL, OPTIMIZER, BaseCheckpointManager

import cairn

log = logging.getLogger("cairn.torchtitan")

# What belongs to a data-parallel rank: its dataloader, and the trainer's counters, among them the tokens it has seen.
TRAIN_STATE = "train_state"
_OF_DATA_RANKS = (DATALOADER, TRAIN_STATE)
# TorchTitan's dataloaders keep the state of their rank under a key that begins so.
_DATA_RANK = "dp_rank_"


class CairnCheckpointManager(BaseCheckpointManager):
    """Saves and loads the state of a TorchTitan trainer; see `torchtitan.components.checkpointer`."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):
        """TorchTitan's options, and where in the store the checkpoints go."""

        model: str = "torchtitan"
        """Name of the logical model in the store."""

        branch: str = "main"
        """Branch of the model that this run moves."""

        async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "async_with_pinned_mem"
        """Wait for each save; copy the state in `save` and store it beside training; copy it beside training too."""

        def __post_init__(self) -> None:
            BaseCheckpointManager.Config.__post_init__(self)
            if self.initial_load_path or self.initial_load_in_hf:
                raise ValueError("commit the initial checkpoint to the store (`cairn commit PATH MODEL`) instead")
            if self.last_save_in_hf or self.export_dtype != "float32":
                raise ValueError("export from the store instead: `cairn checkout MODEL DEST --format safetensors`")

    def __init__(
        self,
        config: Config,
        *,
        dataloader: Any,
        model_parts: list[Any],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        sd_adapter: Any = None,
        base_folder: str = "",
    ) -> None:
        self.enable = config.enable
        self.save_future = None
        if not self.enable:
            return
        self._config = config
        self.states = states
        own = {MODEL: model_parts, OPTIMIZER: optimizers, DATALOADER: dataloader, LR_SCHEDULER: lr_schedulers}
        states.update({name: value for name, value in own.items() if value is not None})
        self.folder = config.folder if "://" in config.folder else str(Path(base_folder, config.folder))
        self._checkpointer = cairn.Checkpointer(
            self.folder,
            config.model,
            branch=config.branch,
            capture="overlap" if config.async_mode == "async_with_pinned_mem" else "eager",
        )

    # --- what `BaseCheckpointManager` calls where checkpoints are enabled ------------------------------

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """Save at every interval, at the end, and after the first step if asked for."""
        config = self._config
        first = curr_step == 1 and config.enable_first_step_checkpoint
        if config.load_only or not (first or last_step or curr_step % config.interval == 0):
            return False
        state = self._state(model_only=last_step and config.last_save_model_only)
        waits = last_step or config.async_mode == "disabled"
        self.save_future = self._checkpointer.save(curr_step, state, blocking=waits).committed
        return True

    def _load(self, step: int = -1) -> bool:
        """Load a step, or the newest. A seed checkpoint, of step 0, holds the model alone.

        Raises:
            cairn.CairnError: the step is not there, or does not fit; nothing was changed.
        """
        newest = step == -1
        if newest:
            found = self._checkpointer.latest()
            step = -1 if found is None or found[1] is None else found[1]
        state = self._state(model_only=step == 0)
        unknown = set(self._config.exclude_from_loading) - self.states.keys()
        if unknown:
            raise ValueError(f"exclude_from_loading names {sorted(unknown)}, which are not in the state")
        for name in self._config.exclude_from_loading:
            state.pop(name, None)
        report = self._checkpointer.load(state, "latest" if newest else f"step:{step}", missing_ok=newest)
        if report is None:
            log.info("no checkpoint in %s yet: this is a fresh start", self.folder)
            return False
        log.info("loaded step %s in %.1f s", report.step, sum(report.seconds.values()))
        return True

    def _maybe_wait_for_staging(self) -> None:
        """Nothing: what is copied beside training is awaited by a hook of the optimizers' own `step`."""

    def _wait_for_saving(self) -> None:
        """Wait for the save under way."""
        self.save_future = None
        self._checkpointer.wait()

    def _close(self) -> None:
        """Wait for the save under way, and let go of the store."""
        self._checkpointer.close()

    # --- the state as Cairn takes it ------------------------------------------------------------------

    def _state(self, model_only: bool) -> dict[str, Any]:
        if model_only:
            return {MODEL: _plain(self.states[MODEL])}
        return {
            name: OfDataRank(value, self._data_rank) if name in _OF_DATA_RANKS else _plain(value)
            for name, value in self.states.items()
        }

    @cached_property
    def _data_rank(self) -> str:
        loader = self.states.get(DATALOADER)
        keys = [] if loader is None else [key for key in loader.state_dict() if str(key).startswith(_DATA_RANK)]
        own = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        return keys[0] if len(keys) == 1 else f"rank_{own}"


def _plain(value: Any) -> Any:
    """Modules and optimizers without TorchTitan's containers, which answer for them with state dicts.

    Optimizers are kept apart by kind, since those of one kind share the numbers of their groups, on every layout.
    """
    if isinstance(optimizers := getattr(value, "optimizers", None), list):
        kinds: dict[str, list[Any]] = {}
        for optimizer in optimizers:
            kinds.setdefault(type(optimizer).__name__, []).append(optimizer)
        return kinds
    if isinstance(parts := getattr(value, "model", None), list):
        return parts
    return value


class OfDataRank:
    """A stateful object of a data-parallel rank; all ranks of one `rank_key` hold the same."""

    def __init__(self, value: Any, rank_key: str) -> None:
        self.rank_key = rank_key
        self._value = value

    def state_dict(self) -> dict[str, Any]:
        """Its state."""
        return dict(self._value.state_dict())

    def load_rank_states(self, states: Mapping[str, Any]) -> list[str]:
        """Hand it what all ranks saved, its own last: a dataloader finds its part, or says why it cannot go on."""
        merged: dict[str, Any] = {}
        for key in sorted(states, key=lambda key: key == self.rank_key):
            merged.update(states[key])
        self._value.load_state_dict(merged)
        return []
