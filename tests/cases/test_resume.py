"""Faults of resuming: optimizers, their groups and schedulers, through the checkpointer and a store."""

from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR

import cairn
from cairn.core.errors import StateMismatch
from tests.cases.training import Net, Runs, bits, forbidden, gradients, groups, moments, train


@pytest.mark.parametrize("capturable", [False, True], ids=["number", "tensor"])
def test_R02_every_scalar_of_every_group_is_back_before_the_first_step(runs: Runs, capturable: bool) -> None:
    def make(lr: float, **more: Any) -> tuple[Net, AdamW]:
        net = Net()
        rate: Any = torch.tensor(lr) if capturable else lr
        parts = [{"params": net.a.parameters()}, {"params": net.b.parameters(), **more}]
        return net, AdamW(parts, lr=rate, foreach=False if capturable else None)

    net, optimizer = make(1e-3, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-6, amsgrad=True)
    scheduler = LambdaLR(optimizer, lambda epoch: 0.3 ** (epoch / 5))
    for step in range(5):
        train(net, optimizer, [step])
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(3e-4)
    runs.save({"model": net, "optimizer": optimizer})

    fresh, other = make(1e-3)
    rate = other.param_groups[0]["lr"]
    runs.load({"model": fresh, "optimizer": other})
    assert groups(other) == groups(optimizer)
    if capturable:
        assert other.param_groups[0]["lr"] is rate, "graphs and schedulers hold the tensor"
    train(net, optimizer, range(5, 8))
    train(fresh, other, range(5, 8))
    assert bits(dict(fresh.state_dict())) == bits(dict(net.state_dict()))


@pytest.mark.parametrize("warm", [False, True], ids=["fresh optimizer", "optimizer with state"])
def test_R07_gradients_at_hand_change_nothing(runs: Runs, warm: bool) -> None:
    net = Net()
    optimizer = AdamW(net.parameters())
    train(net, optimizer, range(3))
    gradients(net, 3)
    with forbidden(AdamW, "step", "a hidden step while saving"):
        runs.save({"model": net, "optimizer": optimizer})

    fresh = Net(seed=1)
    other = AdamW(fresh.parameters())
    if warm:
        train(fresh, other, range(2))
    gradients(fresh, 9)
    before = [bits(parameter.grad) for parameter in fresh.parameters()]
    with forbidden(AdamW, "step", "a hidden step while loading"):
        report = runs.load({"model": fresh, "optimizer": other})
    assert moments(other) == moments(optimizer) and len(other.state) == 3
    assert report.tensors == 3 + sum(map(len, other.state.values())), "all that the manifest has"
    assert [bits(parameter.grad) for parameter in fresh.parameters()] == before


class LowMemoryAdam(Optimizer):
    """Moments that have neither the dtype nor the shape of their parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros(p.shape, dtype=torch.float32)
                    state["quantized"] = torch.arange(p.numel(), dtype=torch.uint8).reshape(p.shape)
                    state["absmax"] = torch.full((2,), 1.0 + 2**-12)
                state["exp_avg"] += p.grad.float() + 2**-12


@pytest.mark.parametrize("warm", [False, True], ids=["fresh optimizer", "optimizer with state"])
def test_R12_state_keeps_the_dtype_it_was_saved_with(runs: Runs, warm: bool) -> None:
    net = Net(dtype=torch.bfloat16)
    optimizer = LowMemoryAdam(net.parameters())
    train(net, optimizer, range(2))
    runs.save({"model": net, "optimizer": optimizer})
    fresh = Net(seed=1, dtype=torch.bfloat16)
    other = LowMemoryAdam(fresh.parameters())
    if warm:
        train(fresh, other, range(1))
    report = runs.load({"model": fresh, "optimizer": other})
    assert moments(other) == moments(optimizer) and not report.casts
    kinds = {name: value.dtype for name, value in other.state[fresh.a.weight].items()}
    assert kinds == {"exp_avg": torch.float32, "quantized": torch.uint8, "absmax": torch.float32}


def test_R12_state_that_is_held_in_another_dtype_is_refused_by_name(runs: Runs) -> None:
    net = Net(dtype=torch.bfloat16)
    optimizer = LowMemoryAdam(net.parameters())
    train(net, optimizer, range(2))
    runs.save({"model": net, "optimizer": optimizer})
    state = optimizer.state[net.a.weight]
    state["exp_avg"] = state["exp_avg"].to(torch.bfloat16)
    before = moments(optimizer)
    with pytest.raises(StateMismatch, match=r"optimizer:state/a\.weight/exp_avg is bfloat16, .* float32"):
        runs.load({"model": net, "optimizer": optimizer})
    assert moments(optimizer) == before
    report = runs.load({"model": net, "optimizer": optimizer}, casts=True)
    assert len(report.casts) == 1 and "float32 to bfloat16" in report.casts[0]
    assert optimizer.state[net.a.weight]["exp_avg"].dtype is torch.bfloat16


class Masters(Optimizer):
    """Plain descent on fp32 copies of bf16 parameters; makes the copies only if it has none."""

    def __init__(self, parameters: Any, lr: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "master" not in state:
                    state["master"] = p.detach().float()
                state["master"] -= group["lr"] * p.grad.float()
                with torch.no_grad():
                    p.copy_(state["master"])


def test_R13_masters_are_bitwise_what_they_were(runs: Runs) -> None:
    net = Net(dtype=torch.bfloat16)
    optimizer = Masters(net.parameters())
    train(net, optimizer, range(1))
    for state in optimizer.state.values():
        state["master"].fill_(1 + 2**-12)
    runs.save({"model": net, "optimizer": optimizer, "masters": [torch.full((3,), 1 + 2**-12)]})
    fresh = Net(seed=1, dtype=torch.bfloat16)
    state = {"model": fresh, "optimizer": Masters(fresh.parameters()), "masters": [torch.zeros(3)]}
    runs.load(state)
    assert moments(state["optimizer"]) == moments(optimizer)
    assert state["masters"][0].tolist() == [1 + 2**-12] * 3


def test_R13_a_narrower_target_is_refused_unless_a_cast_is_asked_for(runs: Runs) -> None:
    net = Net()
    runs.save({"model": net})
    narrow = Net(seed=1, dtype=torch.bfloat16)
    before = bits(dict(narrow.state_dict()))
    with pytest.raises(StateMismatch, match=r"a\.weight is bfloat16, in the checkpoint float32"):
        runs.load({"model": narrow})
    assert bits(dict(narrow.state_dict())) == before
    report = runs.load({"model": narrow}, casts=True)
    assert len(report.casts) == 3
    assert torch.equal(narrow.a.weight, net.a.weight.bfloat16())


def test_R14_ten_resumes_are_an_unbroken_run(runs: Runs) -> None:
    whole = Net(dtype=torch.bfloat16)
    unbroken = Masters(whole.parameters())
    train(whole, unbroken, range(10))
    net = Net(dtype=torch.bfloat16)
    for step in range(10):
        optimizer = Masters(net.parameters())
        if step:
            runs.load({"model": net, "optimizer": optimizer})
        train(net, optimizer, [step])
        runs.save({"model": net, "optimizer": optimizer}, step)
        if step < 9:
            net = Net(seed=step + 1, dtype=torch.bfloat16)
    assert moments(optimizer) == moments(unbroken)
    assert bits(dict(net.state_dict())) == bits(dict(whole.state_dict()))


def test_R14_masters_that_the_checkpoint_lacks_are_named_and_must_be_allowed(runs: Runs) -> None:
    net = Net(dtype=torch.bfloat16)
    optimizer = Masters(net.parameters())
    train(net, optimizer, range(3))
    held = moments(optimizer)
    for state in optimizer.state.values():
        state["steps"] = state.pop("master").sum()
    runs.save({"model": net, "optimizer": optimizer})

    fresh = Net(dtype=torch.bfloat16)
    other = Masters(fresh.parameters())
    train(fresh, other, range(3))
    with pytest.raises(StateMismatch, match=r"the checkpoint lacks .*optimizer:state/a\.weight/master"):
        runs.load({"model": fresh, "optimizer": other})
    assert moments(other) == held
    report = runs.load({"model": fresh, "optimizer": other}, strict=False)
    assert any("master" in name for name in report.skipped)
    assert [state["master"] for state in moments(other)] == [state["master"] for state in held]


def test_R17_moments_of_a_frozen_parameter_come_back(runs: Runs) -> None:
    net = Net()
    optimizer = AdamW(net.parameters())
    train(net, optimizer, range(3))
    net.b.weight.requires_grad_(False)
    train(net, optimizer, range(3, 5))
    runs.save({"model": net, "optimizer": optimizer})
    for frozen in (True, False):
        fresh = Net(seed=1)
        fresh.b.weight.requires_grad_(not frozen)
        other = AdamW(fresh.parameters())
        runs.load({"model": fresh, "optimizer": other})
        assert moments(other) == moments(optimizer)
        assert other.state[fresh.b.weight]["step"] == 3
        assert fresh.b.weight.requires_grad is not frozen, "the checkpoint says nothing of what trains"


def test_R18_state_that_is_missing_is_named_with_its_parameter(runs: Runs) -> None:
    net = Net()
    optimizer = Adam(net.parameters())
    train(net, optimizer, range(2))
    del optimizer.state[net.a.bias]["exp_avg"]
    identity = runs.save({"model": net, "optimizer": optimizer}).wait()

    fresh = Net(seed=1)
    other = Adam(fresh.parameters())
    train(fresh, other, range(2))
    before = moments(other)
    with pytest.raises(StateMismatch, match=r"the checkpoint lacks optimizer:state/a\.bias/exp_avg") as caught:
        runs.load({"model": fresh, "optimizer": other})
    assert identity.hex()[:8] in caught.value.message
    assert moments(other) == before


def test_R18_an_optimizer_without_state_is_told_what_others_of_the_group_have(runs: Runs) -> None:
    net = Net()
    optimizer = Adam(net.parameters())
    train(net, optimizer, range(2))
    del optimizer.state[net.a.bias]["exp_avg"]
    runs.save({"model": net, "optimizer": optimizer})
    fresh = Net(seed=1)
    report = runs.load({"model": fresh, "optimizer": Adam(fresh.parameters())})
    assert any("a.bias" in note and "exp_avg" in note for note in report.notes)


def test_R18_a_parameter_that_the_checkpoint_does_not_know_is_named(runs: Runs) -> None:
    net = Net()
    partial = AdamW(net.a.parameters())
    gradients(net)
    partial.step()
    runs.save({"model": net, "optimizer": partial})
    fresh = Net(seed=1)
    with pytest.raises(StateMismatch, match=r"the checkpoint lacks optimizer:state/b\.weight"):
        runs.load({"model": fresh, "optimizer": AdamW(fresh.parameters())})
    whole = AdamW(net.parameters())
    train(net, whole, [0])
    runs.save({"model": net, "optimizer": whole}, 2)
    fresh = Net(seed=1)
    with pytest.raises(StateMismatch, match=r"the state lacks optimizer:state/b\.weight"):
        runs.load({"model": fresh, "optimizer": AdamW(fresh.a.parameters())})


def test_R19_keys_of_groups_that_one_version_lacks_are_kept_and_reported(runs: Runs) -> None:
    net = Net()
    old = Adam(net.parameters(), lr=0.5)
    old.param_groups[0]["dropped_since"] = (1, "x")
    del old.param_groups[0]["decoupled_weight_decay"]
    train(net, old, range(0))
    runs.save({"model": net, "optimizer": old})
    fresh = Net()
    new = Adam(fresh.parameters(), decoupled_weight_decay=True)
    report = runs.load({"model": fresh, "optimizer": new})
    group = new.param_groups[0]
    assert group["lr"] == 0.5 and group["dropped_since"] == (1, "x")
    assert group["decoupled_weight_decay"] is True, "this version's own default"
    assert any("decoupled_weight_decay" in note for note in report.notes)
    assert any("dropped_since" in note for note in report.notes)


def test_R20_a_scheduler_made_in_the_middle_goes_on(runs: Runs) -> None:
    def rates(optimizer: Optimizer, scheduler: Any, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    net = Net()
    optimizer = SGD(net.parameters(), lr=0.1)
    scheduler = MultiStepLR(optimizer, [2, 4, 6], gamma=0.5)
    rates(optimizer, scheduler, 3)
    optimizer.param_groups[0]["added by others"] = [1, {"deep": None}]
    runs.save({"model": net, "optimizer": optimizer})
    expected = rates(optimizer, scheduler, 5)

    fresh = Net()
    other = SGD(fresh.parameters(), lr=0.7)
    runs.load({"model": fresh, "optimizer": other})
    assert other.param_groups[0]["initial_lr"] == 0.1
    assert other.param_groups[0]["added by others"] == [1, {"deep": None}]
    rebuilt = MultiStepLR(other, [2, 4, 6], gamma=0.5, last_epoch=2)
    assert rates(other, rebuilt, 5) == pytest.approx(expected)


def test_R33_nested_state_comes_back_leaf_by_leaf(runs: Runs) -> None:
    def nested(step: int) -> dict[str, Any]:
        return {
            "step": torch.tensor(float(step)),
            "factors": {0: (torch.full((8, 8), 1.0 * step), torch.eye(3).double()), "1": [torch.arange(step), None]},
            "rank": (step, "left"),
        }

    net = Net()
    optimizer = SGD(net.parameters(), lr=0.1)
    optimizer.state[net.a.weight] = nested(5)
    runs.save({"model": net, "optimizer": optimizer})
    for held in (None, nested(5)):
        fresh = Net(seed=1)
        other = SGD(fresh.parameters(), lr=0.1)
        if held is not None:
            other.state[fresh.a.weight] = held
        runs.load({"model": fresh, "optimizer": other})
        assert moments(other) == moments(optimizer)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_R33_nested_state_that_is_made_lies_beside_its_parameter(runs: Runs) -> None:
    net = Net()
    optimizer = SGD(net.parameters(), lr=0.1)
    optimizer.state[net.a.weight] = {"step": torch.tensor(1.0), "factors": [torch.eye(8)]}
    runs.save({"model": net, "optimizer": optimizer})
    fresh = Net().cuda()
    other = SGD(fresh.parameters(), lr=0.1)
    runs.load({"model": fresh, "optimizer": other})
    state = other.state[fresh.a.weight]
    assert state["step"].device.type == "cpu" and state["factors"][0].device == fresh.a.weight.device


def test_R34_groups_and_moments_stay_the_same_objects(runs: Runs) -> None:
    net = Net()
    optimizer = AdamW(net.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, 10)
    for step in range(4):
        train(net, optimizer, [step])
        scheduler.step()
    runs.save({"model": net, "optimizer": optimizer, "scheduler": scheduler})

    fresh = Net(seed=1)
    other = AdamW(fresh.parameters(), lr=0.1)
    steps = CosineAnnealingLR(other, 10)
    train(fresh, other, [0])
    group, moment = other.param_groups[0], other.state[fresh.a.weight]["exp_avg"]
    held = [other.param_groups, group, *group["params"], moment]
    runs.load({"model": fresh, "optimizer": other, "scheduler": steps})
    now = other.param_groups[0]
    again = [other.param_groups, now, *now["params"], other.state[fresh.a.weight]["exp_avg"]]
    assert all(one is two for one, two in zip(held, again, strict=True))
    for step in range(4, 7):
        train(net, optimizer, [step]), scheduler.step()
        train(fresh, other, [step]), steps.step()
        assert group["lr"] == optimizer.param_groups[0]["lr"] == steps.get_last_lr()[0]
    assert bits(dict(fresh.state_dict())) == bits(dict(net.state_dict()))


def test_R35_an_optimizer_that_never_holds_state_changes_nothing(runs: Runs) -> None:
    net = Net()
    optimizer = SGD(net.parameters(), lr=0.1)
    train(net, optimizer, range(3), keep=True)
    before = bits(dict(net.state_dict()))
    with forbidden(SGD, "step", "a hidden step"):
        handle = runs.save({"model": net, "optimizer": optimizer})
        report = runs.load({"model": net, "optimizer": optimizer})
    assert bits(dict(net.state_dict())) == before and report.tensors == 3
    assert not optimizer.state and isinstance(handle, cairn.SaveHandle)
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_R36_a_first_step_that_the_scaler_skipped(runs: Runs) -> None:
    net = Net()
    optimizer = AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    gradients(net)
    scaler.scale(torch.ones(()))
    net.a.weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert not optimizer.state and scaler.get_scale() == 128.0
    handle = runs.save({"model": net, "optimizer": optimizer, "scaler": scaler})
    assert any("optimizer" in note and "no state" in note for note in handle.notes)

    fresh = Net(seed=1)
    other, again = AdamW(fresh.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0)
    train(fresh, other, [0])
    report = runs.load({"model": fresh, "optimizer": other, "scaler": again})
    assert not other.state and again.get_scale() == 128.0
    assert any("dropped" in note for note in report.notes)
    train(fresh, other, [0])
    assert len(other.state) == 3
