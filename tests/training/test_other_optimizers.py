"""State of one optimizer meets another that has no use for it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from cairn.core.errors import StateMismatch
from cairn.training.optimizer_kinds import _KINDS
from tests.cases.training import Net, Runs
from tests.support.threads import Fleet


@pytest.fixture
def runs(tmp_path: Any) -> Runs:
    return Runs(tmp_path / "user")


def stepped(optimizer: Optimizer) -> Optimizer:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_moments_of_adamw_are_not_taken_for_those_of_sgd(runs: Runs) -> None:
    net = Net()
    runs.save({"model": net, "optimizer": stepped(AdamW(net.parameters()))})
    for momentum, held in ((0.0, False), (0.9, False), (0.9, True)):
        fresh = Net(seed=1)
        other: Optimizer = SGD(fresh.parameters(), lr=0.1, momentum=momentum)
        before = [parameter.clone() for parameter in fresh.parameters()]
        if held:
            stepped(other)
            before = [parameter.clone() for parameter in fresh.parameters()]
        with pytest.raises(StateMismatch, match=r"the state lacks optimizer:state/\*/exp_avg, .*exp_avg_sq, .*step"):
            runs.load({"model": fresh, "optimizer": other})
        assert all(map(torch.equal, before, fresh.parameters()))
        assert "betas" not in other.param_groups[0]
        report = runs.load({"model": fresh, "optimizer": other}, strict=False)
        assert "optimizer:state/*/exp_avg" in report.skipped
        assert not any({"exp_avg", "step"} & set(state) for state in other.state.values())
        assert all(map(torch.equal, net.parameters(), fresh.parameters()))
        stepped(other)


def test_momentum_of_sgd_is_not_taken_for_moments(runs: Runs) -> None:
    net = Net()
    runs.save({"model": net, "optimizer": stepped(SGD(net.parameters(), lr=0.1, momentum=0.9))})
    fresh = Net(seed=1)
    with pytest.raises(StateMismatch, match="momentum_buffer"):
        runs.load({"model": fresh, "optimizer": Adam(fresh.parameters())})


class Own(Optimizer):
    """Keeps what its kind keeps."""

    def __init__(self, parameters: Any, pull: float = 0.5) -> None:
        super().__init__(parameters, {"lr": 0.1, "pull": pull})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["exp_avg"] = parameter.grad.clone()


def test_what_both_take_goes_from_one_to_the_other(runs: Runs) -> None:
    net = Net()
    saved = stepped(AdamW(net.parameters()))
    runs.save({"model": net, "optimizer": saved})
    fresh = Net(seed=1)
    adam = Adam(fresh.parameters())
    runs.load({"model": fresh, "optimizer": adam})
    assert torch.equal(adam.state[fresh.a.weight]["exp_avg"], saved.state[net.a.weight]["exp_avg"])
    # Nothing tells what an optimizer of somebody else's takes until it has state.
    own = Own(fresh.parameters())
    runs.load({"model": fresh, "optimizer": own})
    assert "exp_avg_sq" in own.state[fresh.a.weight]
    used = stepped(Own(fresh.parameters()))
    with pytest.raises(StateMismatch, match=r"state/\*/exp_avg_sq, optimizer:state/\*/step\n"):
        runs.load({"model": fresh, "optimizer": used})


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"amsgrad": True}, {"centered": True}], ids=str)
def test_what_torch_s_optimizers_keep_is_known(kind: Any, options: dict[str, Any]) -> None:
    parameter = nn.Parameter(torch.ones(3))
    if not options.keys() <= kind([parameter], lr=0.1).defaults.keys():
        options = {}
    kept = stepped(kind([parameter], lr=0.1, **options)).state[parameter]
    assert set(kept) <= set(_KINDS[kind])


def test_stages_of_a_pipeline_agree_on_what_is_not_taken(tmp_path: Any) -> None:
    def stages(kind: Any) -> list[dict[str, Any]]:
        parts = [nn.ModuleDict({name: nn.Linear(4, 4)}) for name in ("first", "second")]
        return [{"model": part, "optimizer": kind(part.parameters(), lr=0.1)} for part in parts]

    fleet = Fleet(tmp_path / "fleet")
    saved = stages(AdamW)
    for state in saved:
        stepped(state["optimizer"])
    fleet.save("m", saved)
    assert "the state lacks optimizer:state/*/exp_avg, " in fleet.refused_load("m", stages(SGD))
    (first, second) = fleet.load("m", stages(SGD), strict=False)
    assert first.skipped == second.skipped and "optimizer:state/*/step" in first.skipped
    fleet.load("m", stages(Adam))
