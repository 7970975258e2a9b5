"""The checkpoint manager for TorchTitan, in a trainer of TorchTitan's shape.

TorchTitan itself is not needed: the classes below are small stand-ins with the names, signatures and state of what its
trainer has around a checkpoint manager (August 2026), written from its interface.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import cairn
from cairn.core.errors import NotFoundError, StateMismatch
from tests.cases.training import bits, moments

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchtitan_checkpoint.py"
PARTS, WIDTH = 2, 6


class BaseCheckpointManager:
    """Dispatches to hooks, where checkpoints are enabled."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        enable: bool = False
        folder: str = "checkpoint"
        interval: int = 500
        initial_load_path: str | None = None
        initial_load_in_hf: bool = False
        last_save_model_only: bool = True
        last_save_in_hf: bool = False
        export_dtype: str = "float32"
        keep_latest_k: int = 10
        load_step: int = -1
        exclude_from_loading: list[str] = field(default_factory=list)
        enable_first_step_checkpoint: bool = False
        load_only: bool = False

        def __post_init__(self) -> None:
            if self.interval < 1:
                raise ValueError("interval")

    def load(self, step: int = -1) -> bool:
        return self.enable and self._load(step)

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        return self.enable and self._save(curr_step, last_step)

    def maybe_wait_for_staging(self) -> None:
        if self.enable:
            self._maybe_wait_for_staging()

    def maybe_wait_for_saving(self) -> None:
        if self.enable and self.save_future is not None:
            self._wait_for_saving()

    def close(self) -> None:
        if getattr(self, "enable", False):
            self._close()


class OptimizersContainer(Optimizer):
    """Is an optimizer of all parameters itself, with neither state nor settings of its own."""

    def __init__(self, parts: list[nn.Module]) -> None:
        self.optimizers: list[Optimizer] = []
        for part in parts:
            matrices = [p for p in part.parameters() if p.ndim == 2]
            self.optimizers.append(AdamW([{"params": matrices, "weight_decay": 0.1}], lr=0.01))
            self.optimizers.append(SGD([p for p in part.parameters() if p.ndim < 2], lr=0.02, momentum=0.9))
        super().__init__([p for part in parts for p in part.parameters()], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        raise AssertionError("its state dict runs a hidden step")


class LRSchedulersContainer:
    """Keeps one number."""

    def __init__(self, optimizers: OptimizersContainer) -> None:
        self.schedulers = [LambdaLR(optimizer, lambda step: 0.9**step) for optimizer in optimizers.optimizers]

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.schedulers[0].last_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for scheduler in self.schedulers:
            scheduler.last_epoch = state["last_epoch"]


class Dataloader:
    """Keeps the state of its data-parallel rank under that rank's name."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        self.rank, self.ranks, self.position = rank, ranks, 0

    def state_dict(self) -> dict[str, Any]:
        return {"dp_world_size": self.ranks, f"dp_rank_{self.rank}": {"position": self.position, "buffer": b"\0\1"}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["dp_world_size"] != self.ranks:
            raise ValueError("cannot resume after changing the effective data-parallel degree")
        self.position = state[f"dp_rank_{self.rank}"]["position"]


class Trainer:
    """Two model parts, as a rank of an interleaved pipeline has them; is itself the `train_state`."""

    def __init__(self, config: Any, base: Path, seed: int = 0) -> None:
        torch.manual_seed(seed)
        names = [f"layers.{number}" for number in range(PARTS)]
        self.model_parts: list[nn.Module] = [nn.ModuleDict({n.replace(".", "_"): nn.Linear(6, 6)}) for n in names]
        self.optimizers = OptimizersContainer(self.model_parts)
        self.lr_schedulers = LRSchedulersContainer(self.optimizers)
        self.dataloader = Dataloader()
        self.step = self.ntokens_seen = 0
        self.config = config
        self.checkpointer = type(config).owner(
            config,
            dataloader=self.dataloader,
            model_parts=self.model_parts,
            optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers,
            states={"train_state": self},
            sd_adapter=None,
            base_folder=str(base),
        )

    def train(self, steps: int) -> list[int]:
        """As TorchTitan's trainer goes about it; returns the steps that were saved."""
        self.checkpointer.load(step=self.config.load_step)
        saved = []
        while self.step < steps:
            self.step += 1
            data = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(self.step))
            for part in self.model_parts:
                data = torch.relu(next(iter(part.children()))(data)) + data
            data.square().mean().backward()
            self.dataloader.position += 4
            self.ntokens_seen += 4 * WIDTH
            self.checkpointer.maybe_wait_for_staging()
            self.optimizers.step()
            self.lr_schedulers.step()
            self.optimizers.zero_grad()
            if self.checkpointer.save(self.step, last_step=self.step == steps):
                saved.append(self.step)
        return saved

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]

    def everything(self) -> list[Any]:
        """All that a checkpoint is to bring back."""
        weights = [bits(dict(part.state_dict())) for part in self.model_parts]
        rates = [group["lr"] for one in self.optimizers.optimizers for group in one.param_groups]
        counts = [self.lr_schedulers.state_dict(), self.dataloader.state_dict(), self.state_dict()]
        return [weights, [moments(one) for one in self.optimizers.optimizers], rates, counts]


@pytest.fixture
def titan(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example, imported where TorchTitan is the stand-in above."""
    stand_in = ModuleType("torchtitan.components.checkpointer")
    names = {"MODEL": "model", "OPTIMIZER": "optimizer", "LR_SCHEDULER": "lr_scheduler", "DATALOADER": "dataloader"}
    vars(stand_in).update(names, BaseCheckpointManager=BaseCheckpointManager)
    for name in ("torchtitan", "torchtitan.components"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    spec = spec_from_file_location("torchtitan_checkpoint", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    example.CairnCheckpointManager.Config.owner = example.CairnCheckpointManager
    yield example


@pytest.fixture
def trainer(titan: Any, store: Path) -> Iterator[Any]:
    """Makes trainers of one run, one after the other; each is closed before the next."""
    made: list[Trainer] = []

    def make(seed: int = 0, **options: Any) -> Trainer:
        if made:
            made[-1].checkpointer.close()
        options = {"enable": True, "folder": store.name, "interval": 2, "last_save_model_only": False, **options}
        made.append(Trainer(titan.CairnCheckpointManager.Config(**options), store.parent, seed))
        return made[-1]

    yield make
    made[-1].checkpointer.close()


@pytest.mark.parametrize("mode", ["disabled", "async", "async_with_pinned_mem"])
def test_a_run_goes_on_bit_for_bit(trainer: Any, mode: str) -> None:
    whole = trainer(enable=False)
    assert whole.train(7) == []
    first = trainer(async_mode=mode)
    assert first.train(5) == [2, 4, 5]
    second = trainer(seed=1, async_mode=mode)
    assert second.checkpointer.load() and second.everything() == first.everything()
    assert second.step == 5 and second.ntokens_seen == 5 * 4 * WIDTH
    assert second.train(7) == [6, 7]
    assert second.everything() == whole.everything()


def test_a_step_is_loaded_by_its_number_and_an_unknown_one_refused(trainer: Any) -> None:
    first = trainer(interval=1)
    assert first.train(3) == [1, 2, 3]
    at_two = trainer(enable=False)
    at_two.train(2)
    second = trainer(seed=1, load_step=2)
    assert second.checkpointer.load(step=2) and second.everything() == at_two.everything()
    with pytest.raises(NotFoundError):
        second.checkpointer.load(step=77)
    assert second.everything() == at_two.everything()


def test_an_empty_store_is_a_fresh_start(trainer: Any) -> None:
    one = trainer()
    before = one.everything()
    assert one.checkpointer.load() is False and one.everything() == before


def test_disabled_it_touches_nothing(titan: Any, tmp_path: Path) -> None:
    one = Trainer(titan.CairnCheckpointManager.Config(folder="nowhere"), tmp_path)
    assert one.train(3) == [] and one.checkpointer.load() is False
    one.checkpointer.maybe_wait_for_saving()
    one.checkpointer.close()
    assert not (tmp_path / "nowhere").exists()


def test_the_last_step_is_saved_at_once_and_may_hold_the_model_alone(trainer: Any, store: Path) -> None:
    first = trainer(interval=100, last_save_model_only=True)
    assert first.train(3) == [3]
    assert first.checkpointer.save_future.done()
    second = trainer(seed=1)
    with pytest.raises(StateMismatch, match="optimizer"):
        second.checkpointer.load()
    second.checkpointer.close()
    with cairn.Checkpointer(store, "torchtitan") as checkpointer:
        checkpointer.load({"model": second.model_parts}, resume=False)
    assert second.everything()[0] == first.everything()[0]


def test_a_seed_checkpoint_brings_the_model_alone(trainer: Any) -> None:
    seed = trainer(last_save_model_only=True)
    assert seed.checkpointer.save(0, last_step=True)
    other = trainer(seed=1)
    rest = other.everything()[1:]
    assert other.checkpointer.load()
    assert other.everything() == [seed.everything()[0], *rest]


def test_policies_of_saving_and_loading(trainer: Any) -> None:
    first = trainer(interval=3, enable_first_step_checkpoint=True)
    assert first.train(4) == [1, 3, 4]
    second = trainer(seed=1, load_only=True, exclude_from_loading=["dataloader", "lr_scheduler", "optimizer"])
    assert second.checkpointer.load() and second.dataloader.position == 0 and second.step == 4
    assert second.everything()[0] == first.everything()[0] and not second.optimizers.optimizers[0].state
    assert second.train(6) == []
    with pytest.raises(ValueError, match="exclude_from_loading"):
        trainer(exclude_from_loading=["nothing"]).checkpointer.load()


@pytest.mark.parametrize(
    "options", [{"initial_load_path": "/x"}, {"last_save_in_hf": True}, {"export_dtype": "bfloat16"}, {"interval": 0}]
)
def test_options_that_mean_another_format_are_refused(titan: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        titan.CairnCheckpointManager.Config(**options)


def test_ranks_keep_their_own_dataloaders(titan: Any) -> None:
    loaders = [Dataloader(rank, 2) for rank in range(2)]
    for loader in loaders:
        loader.position = 10 + loader.rank
    parts = {f"dp_rank_{loader.rank}": titan.OfDataRank(loader, f"dp_rank_{loader.rank}") for loader in loaders}
    states = {key: part.state_dict() for key, part in parts.items()}
    for loader in loaders:
        loader.position = 0
    for part in parts.values():
        assert part.load_rank_states(states) == []
    assert [loader.position for loader in loaders] == [10, 11]
    with pytest.raises(ValueError, match="data-parallel degree"):
        titan.OfDataRank(Dataloader(0, 4), "dp_rank_0").load_rank_states(states)
