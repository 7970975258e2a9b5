"""Cairn in a Hugging Face `Trainer`, by a callback, and in a loop of Accelerate's.

    callback = CairnCallback("runs", "llama", every=100)
    arguments = TrainingArguments(..., save_strategy="no")
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume_from())

The callback saves model, optimizer, scheduler, random states and the trainer's own counters, and puts them back in
place. `Trainer` itself finds its place in the data, as with folders of its own: `resume_from` gives it a folder that
holds the counters and no weights, so it logs that weights are missing; the callback loads them a moment later.

Tested in one process. Under DDP every rank has a callback of its own; sharded strategies want weights in the folder.
In a loop of Accelerate's, `unwrapped` is all that is needed.
"""

import dataclasses
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

import cairn


class CairnCallback(TrainerCallback):  # type: ignore[misc]  # its base is untyped
    """Saves every so many steps while training goes on, and at the end; every rank has one."""

    def __init__(self, store: str | Path, model: str, *, every: int, **options: Any) -> None:
        """Say where to save; `options` are those of `cairn.Checkpointer`."""
        self._place, self._every = (store, model), every
        self._options: dict[str, Any] = {"capture": "overlap"} | options
        self._opened: cairn.Checkpointer | None = None
        self._folder: TemporaryDirectory[str] | None = None
        self._resumed, self._saved = "", -1

    @property
    def checkpointer(self) -> cairn.Checkpointer:
        """Opened at the first use: ranks meet in the process group, which `TrainingArguments` makes."""
        if self._opened is None:
            self._opened = cairn.Checkpointer(*self._place, **self._options)
        return self._opened

    def resume_from(self, ref: str = "latest") -> str | None:
        """What `Trainer.train(resume_from_checkpoint=...)` wants; None if there is no checkpoint yet."""
        counters = {"trainer": ""}
        report = self.checkpointer.load(counters, ref, missing_ok=True)
        if report is None:
            return None
        self._resumed = report.checkpoint.hex()
        self._folder = TemporaryDirectory(prefix="cairn-trainer-")
        Path(self._folder.name, TRAINER_STATE_NAME).write_text(counters["trainer"])
        save_file({}, Path(self._folder.name, SAFE_WEIGHTS_NAME))
        return self._folder.name

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Load in place; by now model, optimizer and scheduler are those that train."""
        if self._resumed:
            self.checkpointer.load(_state(parts), self._resumed)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Put random states back: the order of the epoch is drawn from them."""
        self._restore_random_states(last=float(state.epoch).is_integer())

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Put them back again in the middle of an epoch, whose order has been drawn once more by now."""
        self._restore_random_states(last=True)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Save if it is time."""
        if state.global_step % self._every == 0:
            self._save(state, parts)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Save what is not saved yet, and wait until it is durable."""
        if state.global_step != self._saved:
            self._save(state, parts)
        self.checkpointer.close()
        self._opened = None
        if self._folder is not None:
            self._folder.cleanup()

    def _restore_random_states(self, last: bool) -> None:
        if self._resumed:
            self.checkpointer.load({"rng": cairn.RngState()}, self._resumed)
            self._resumed = "" if last else self._resumed

    def _save(self, state: TrainerState, parts: dict[str, Any]) -> None:
        counters = json.dumps(dataclasses.asdict(state))
        self.checkpointer.save(state.global_step, _state(parts) | {"rng": cairn.RngState(), "trainer": counters})
        self._saved = state.global_step


def _state(parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": parts["model"],
        "optimizer": unwrapped(parts["optimizer"]),
        "scheduler": unwrapped(parts["lr_scheduler"]),
    }


def unwrapped(value: Any) -> Any:
    """An optimizer or scheduler without what `Accelerator.prepare` put around it; models Cairn unwraps itself."""
    if isinstance(value, AcceleratedOptimizer):
        return value.optimizer
    return value.scheduler if isinstance(value, AcceleratedScheduler) else value
