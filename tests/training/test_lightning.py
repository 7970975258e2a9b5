"""The plugin for Lightning, with the real library: a run that resumes equals one that was never broken."""

from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import cairn
from cairn.workspace.filesystem import CairnFileSystem
from tests.support.examples import load_example
from tests.support.stores import commit_tree

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]
STEPS = 10  # of 6 an epoch


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Imported here: no other test waits for these libraries."""
    return load_example("lightning_checkpoint")


def module(seed: int) -> Any:
    """A small network with dropout that keeps the loss of each step."""
    from pytorch_lightning import LightningModule

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"width": 8})
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
            self.losses: dict[int, float] = {}

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = (self.net(batch) - batch.mean(1, keepdim=True)).square().mean()
            self.losses[self.global_step + 1] = loss.item()
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), 0.01)
            scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    torch.manual_seed(seed)
    return Net()


def trained(
    folder: Path, net: Any, steps: int, plugin: Any = None, callbacks: Any = (), resume: Any = None,
    loads: Any = StatefulDataLoader,
) -> Any:  # fmt: skip
    """The module after training."""
    from pytorch_lightning import Trainer

    loader = loads(torch.arange(96.0).reshape(24, 4) / 96, batch_size=4, shuffle=True)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_steps=steps, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=bool(callbacks), default_root_dir=str(folder),
        plugins=[plugin] if plugin else [], callbacks=list(callbacks),
    )  # fmt: skip
    torch.manual_seed(3 if resume is None else 4)
    trainer.fit(net, loader, ckpt_path=resume)
    return net


@pytest.mark.parametrize(
    ("stop", "loads"), [(2, StatefulDataLoader), (4, StatefulDataLoader), (6, DataLoader), (8, StatefulDataLoader)]
)
def test_a_resumed_run_equals_an_unbroken_one(
    example: ModuleType, store: Path, tmp_path: Path, stop: int, loads: Any
) -> None:
    from pytorch_lightning.callbacks import ModelCheckpoint

    unbroken = trained(tmp_path / "whole", module(1), STEPS, loads=loads)
    assert sorted(unbroken.losses) == list(range(1, STEPS + 1))

    def run(seed: int, steps: int, resume: bool) -> Any:
        plugin = example.CairnCheckpointIO(store, "net")
        callbacks = [ModelCheckpoint(tmp_path / "names", every_n_train_steps=2), example.ExactRandomStates(plugin)]
        place = plugin.latest()
        assert (place is None) is not resume
        return trained(tmp_path / "parts", module(seed), steps, plugin, callbacks, place, loads)

    broken = run(1, stop, False)
    assert broken.losses == {step: loss for step, loss in unbroken.losses.items() if step <= stop}
    resumed = run(2, STEPS, True)
    assert resumed.losses == {step: loss for step, loss in unbroken.losses.items() if step > stop}
    for name, tensor in unbroken.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name
    assert list(tmp_path.rglob("*.ckpt")) == []
    with cairn.open("net", store) as checkpoint:
        assert checkpoint.metadata["step"] == STEPS
        assert checkpoint["lightning/state_dict/net.0.weight"].shape == (8, 4)


def test_a_file_of_model_checkpoints_is_found_by_its_step(example: ModuleType, store: Path, tmp_path: Path) -> None:
    from pytorch_lightning.callbacks import ModelCheckpoint

    plugin = example.CairnCheckpointIO(store, "net")
    files = ModelCheckpoint(tmp_path / "names", every_n_train_steps=2, save_top_k=-1)
    trained(tmp_path / "run", module(1), 4, plugin, [files])
    found = plugin.load_checkpoint(tmp_path / "names" / "epoch=0-step=2.ckpt")
    assert found["global_step"] == 2 and found["hyper_parameters"] == {"width": 8}
    assert found["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"] == 2
    plugin.teardown()


def test_lightning_reads_a_committed_file_by_its_address(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytorch_lightning.trainer import Trainer

    net = module(1)
    trainer = Trainer(
        accelerator="cpu", max_steps=0, logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.strategy.connect(net)
    trainer.save_checkpoint(tmp_path / "tree" / "a.ckpt", weights_only=True)
    registry = cairn.open_store(store)
    commit_tree(registry, tmp_path / "tree", "net")
    registry.close()
    monkeypatch.setenv("CAIRN_STORE", str(store))
    fsspec.register_implementation("cairn", CairnFileSystem, clobber=True)
    found = type(net).load_from_checkpoint("cairn://net@main/a.ckpt", map_location="cpu", weights_only=True)
    assert torch.equal(found.net[0].weight, net.net[0].weight)
    CairnFileSystem.clear_instance_cache()
