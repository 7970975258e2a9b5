"""Training checkpoints travel: an evaluator pulls weights alone, a second cluster all of it."""

from pathlib import Path

import pytest
import torch
from torch import nn

import cairn
from cairn.core.errors import StateMismatch, TensorNotFound
from cairn.registry.stores import create_twin
from cairn.store.crypto.components import ComponentClass


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_weights_come_first_and_the_rest_when_it_is_needed(store: Path, tmp_path: Path) -> None:
    model, optimizer = trained(1)
    registry = cairn.open_store(store)
    opened, _ = create_twin(str(tmp_path / "evaluator"), registry.opened)
    other = cairn.Registry(opened)
    try:
        with cairn.Checkpointer(registry, "m") as checkpointer:
            checkpointer.save(1, {"model": model, "optimizer": optimizer, "step": 1}, blocking=True)
        weights = cairn.Selection(frozenset([ComponentClass.WEIGHTS]))
        part = cairn.send(registry, other, "m", cairn.SendOptions(selection=weights))
        assert part.partial
        with cairn.open("m", other) as opened:
            assert set(opened) == {f"model/{name}" for name, _ in model.named_parameters()}
            with pytest.raises(KeyError, match="without optimizer, training: it was brought in part") as lacking:
                opened["optimizer/state/0.weight/exp_avg"]
        assert isinstance(lacking.value, TensorNotFound) and "cairn pull m" in lacking.value.hint
        target, target_optimizer = trained(2)
        with cairn.Checkpointer(other, "m") as checkpointer:
            checkpointer.load({"model": target}, resume=False)
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), target.parameters(), strict=True))
            with pytest.raises(StateMismatch, match="optimizer, training was not pulled") as error:
                checkpointer.load({"model": target, "optimizer": target_optimizer, "step": 0}, resume=False)
            assert "cairn pull" in error.value.hint
            whole = cairn.send(registry, other, "m", cairn.SendOptions())
            assert not whole.partial and whole.counts.bytes_stored < part.counts.bytes_stored * 3
            state = {"model": target, "optimizer": target_optimizer, "step": 0}
            report = checkpointer.load(state, resume=False)
        assert report is not None and state["step"] == 1
        moments = [optimizer.state[one]["exp_avg"] for one in model.parameters()]
        found = [target_optimizer.state[one]["exp_avg"] for one in target.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(moments, found, strict=True))
    finally:
        registry.close()
        other.close()


def test_training_state_goes_to_another_tenant(store: Path, tmp_path: Path) -> None:
    model, optimizer = trained(1)
    foreign = tmp_path / "foreign"
    cairn.create_store(foreign)
    registry, other = cairn.open_store(store), cairn.open_store(foreign)
    try:
        with cairn.Checkpointer(registry, "m") as checkpointer:
            checkpointer.save(1, {"model": model, "optimizer": optimizer, "step": 1}, blocking=True)
        sent = cairn.send(registry, other, "m", cairn.SendOptions(reseal=True))
        target, target_optimizer = trained(2)
        state = {"model": target, "optimizer": target_optimizer, "step": 0}
        with cairn.Checkpointer(other, "m") as checkpointer:
            report = checkpointer.load(state, resume=False)
        assert report is not None and report.checkpoint == sent.checkpoint and state["step"] == 1
        for source, found in zip(model.parameters(), target.parameters(), strict=True):
            assert torch.equal(source, found)
            assert torch.equal(optimizer.state[source]["exp_avg"], target_optimizer.state[found]["exp_avg"])
    finally:
        registry.close()
        other.close()
