"""Lightning's checkpoints in Cairn: a `CheckpointIO` plugin, and a callback for random states.

    plugin = CairnCheckpointIO("runs", "llama")
    trainer = Trainer(
        plugins=[plugin], callbacks=[ModelCheckpoint(every_n_train_steps=100), ExactRandomStates(plugin)], ...
    )
    trainer.fit(module, ckpt_path=plugin.latest())

`ModelCheckpoint` decides when to save, Lightning what: weights, optimizers, schedulers, loops, callbacks,
hyperparameters. A save returns when all of it is copied, and is stored while training goes on. What is a path to
Lightning is a message to Cairn; to load, name a ref (`step:400`, a tag, an id), or a file of `ModelCheckpoint`'s, whose
name holds `step=400`.

Lightning saves on one rank, so random states are those of that rank; sharded strategies do without plugins of this
kind: use `cairn.Checkpointer` in the module's own hooks. Removing is left to the store, where equal tensors are one.
"""

import re
from pathlib import Path
from typing import Any

from lightning_fabric.plugins import CheckpointIO
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning import Callback, LightningModule, Trainer

import cairn
from cairn.training.rendezvous import Alone

_STEP_OF_FILE = re.compile(r"step=(\d+)")


class CairnCheckpointIO(CheckpointIO):
    """Stores what Lightning wants saved as one tree of tensors and plain data. No pickle."""

    def __init__(self, store: str | Path, model: str, **options: Any) -> None:
        """Say where to save; `options` are those of `cairn.Checkpointer`."""
        self._place, self._options = (store, model), options
        self._opened: cairn.Checkpointer | None = None
        self._loaded = ""

    @property
    def checkpointer(self) -> cairn.Checkpointer:
        """Opened at the first use, for this process alone: Lightning saves on one rank and loads on each."""
        if self._opened is None:
            self._opened = cairn.Checkpointer(*self._place, rendezvous=Alone(), **self._options)
        return self._opened

    def latest(self) -> str | None:
        """Id of the newest checkpoint, for `ckpt_path`; None if there is none."""
        found = self.checkpointer.latest()
        return None if found is None else found[0].hex()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Copy the state, and store it in the background."""
        state = {"lightning": checkpoint, "rng": cairn.RngState()}
        self.checkpointer.save(checkpoint["global_step"], state, message=str(path))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint by ref, or by the step in a file's name."""
        step = _STEP_OF_FILE.search(str(path))
        state: dict[str, Any] = {"lightning": {}}
        ref = f"step:{step[1]}" if step else str(path)
        report = self.checkpointer.load(state, ref, resume=rank_zero_only.rank == 0)
        assert report is not None
        self._loaded = report.checkpoint.hex()
        return dict(state["lightning"])

    def restore_random_states(self) -> None:
        """Those of the checkpoint that was loaded last, if any."""
        if self._loaded:
            self.checkpointer.load({"rng": cairn.RngState()}, self._loaded, resume=False)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Nothing: what goes is decided at the store."""

    def teardown(self) -> None:
        """Wait for the save under way, and raise what went wrong."""
        if self._opened is not None:
            self._opened.close()
        self._opened, self._loaded = None, ""


class ExactRandomStates(Callback):
    """Puts random states back where an unbroken run would have them."""

    def __init__(self, plugin: CairnCheckpointIO) -> None:
        self._plugin, self._resuming = plugin, False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before iterators exist: the next epoch's draw from them."""
        self._plugin.restore_random_states()
        self._resuming = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """In the middle of an epoch again: iterators have drawn once more than they did."""
        if self._resuming and batch_idx > 0:
            self._plugin.restore_random_states()
        self._resuming = False
