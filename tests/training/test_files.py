"""Training checkpoints and committed files meet: weights from files, and no files where there are none."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import cairn
from cairn.core.errors import RefusedError, StateMismatch, UsageError


def test_committed_weights_load_into_a_module(store: Path, tmp_path: Path) -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file(dict(source.state_dict()), folder / "model.safetensors")
    registry = cairn.open_store(store)
    try:
        cairn.commit(registry, folder, "m", cairn.CommitOptions())
        with cairn.Checkpointer(registry, "m") as checkpointer:
            with pytest.raises(StateMismatch, match="model:weight"):
                checkpointer.load({"model": target}, resume=False)
            report = checkpointer.load({"model": target}, scopes={"model": ""}, resume=False)
        assert report is not None and report.tensors == 2
        assert torch.equal(source.weight, target.weight) and torch.equal(source.bias, target.bias)
    finally:
        registry.close()


def test_a_checkpoint_without_files_is_not_checked_out(store: Path, tmp_path: Path) -> None:
    registry = cairn.open_store(store)
    try:
        with cairn.Checkpointer(registry, "m") as checkpointer:
            checkpointer.save(1, {"model": nn.Linear(2, 2)}, blocking=True)
        with pytest.raises(RefusedError, match="holds no files"):
            cairn.checkout(registry, *cairn.resolve(registry, "m"), tmp_path / "out")
        assert not (tmp_path / "out").exists()
    finally:
        registry.close()


def test_an_unknown_exactness_is_refused_before_anything(store: Path) -> None:
    with pytest.raises(UsageError, match="bitwise_same_topology"):
        cairn.Checkpointer(store, "m", exactness="perfect")


def test_a_checkpoint_that_promises_less_is_refused(store: Path) -> None:
    model = nn.Linear(2, 2)
    with cairn.Checkpointer(store, "m", exactness="statistical") as checkpointer:
        checkpointer.save(1, {"model": model}, blocking=True)
        with pytest.raises(RefusedError, match="statistical"):
            checkpointer.load({"model": model}, require="bitwise_same_topology")
        assert checkpointer.load({"model": model}, require="weights_only") is not None


@pytest.mark.parametrize("step", [5.0, "5", True, -1, None, 1 << 63])
def test_a_step_that_is_none_is_refused_before_anything(store: Path, step: object) -> None:
    with cairn.Checkpointer(store, "m") as checkpointer:
        with pytest.raises(UsageError, match="step"):
            checkpointer.save(step, {"w": torch.ones(2)})  # type: ignore[arg-type]  # that is the point
        assert checkpointer.latest() is None
        checkpointer.save(torch.tensor(5), {"w": torch.ones(2)}, blocking=True)  # type: ignore[arg-type]  # an index
        found = checkpointer.latest()
    assert found is not None and found[1] == 5


def test_options_of_unknown_values_are_refused(store: Path) -> None:
    for options in ({"capture": "ovrlap"}, {"on_busy": "drop"}):
        with pytest.raises(UsageError, match="is none of"):
            cairn.Checkpointer(store, "m", **options)  # type: ignore[arg-type]  # that is the point
    with cairn.Checkpointer(store, "m") as checkpointer, pytest.raises(UsageError, match="is none of"):
        checkpointer.load({}, verify="no")  # type: ignore[arg-type]  # that is the point
