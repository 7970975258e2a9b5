"""Faults of saves in the background, seen from the training loop that goes on meanwhile."""

import logging
import multiprocessing.process
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cairn
from cairn.core.errors import CairnError, IntegrityError, NotFoundError, StorageError, UsageError
from cairn.store.backends.faults import (
    Crash,
    Effect,
    Fail,
    Fault,
    FaultyBackend,
    LoseAnswer,
    Stopped,
)
from tests.cases.gates import ENTRIES, PATIENCE_SECONDS, Hold, Later
from tests.cases.training import Net, Runs, bits, cairn_threads, check_is, children, latest_step, train
from tests.support.doubles import HeldClock


def filled(value: float) -> dict[str, Any]:
    """State of all kinds, filled with one number."""
    return {
        "tensor": torch.full((1_000_000,), value),
        "scalar": torch.tensor(value),
        "expanded": torch.full((1, 64), value).expand(64, 64),
        "strided": torch.full((64, 64), value)[:, ::2],
        "array": np.full(1000, value),
        "tree": {"list": [value, [value, {"deep": value}]], "tensors": [torch.full((300, 300), value), value]},
        "number": value,
    }


def refill(state: dict[str, Any], value: float) -> None:
    """Change everything in place, by whatever way there is."""
    state["tensor"].fill_(value)
    state["scalar"].fill_(value)
    state["expanded"].as_strided((64,), (1,)).fill_(value)
    state["strided"].numpy()[...] = value
    state["array"][...] = value
    state["tree"]["list"][0] = state["tree"]["list"][1][0] = state["tree"]["list"][1][1]["deep"] = value
    state["tree"]["tensors"][0].data.fill_(value)
    state["tree"]["tensors"][1] = state["number"] = value


def numbers(value: Any) -> set[float]:
    """Every number of a state."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return set(np.unique(np.asarray(value)).tolist())
    if isinstance(value, dict | list | tuple):
        return set().union(*map(numbers, value.values() if isinstance(value, dict) else value))
    return {value}


@pytest.mark.parametrize("capture", ["eager", "overlap"])
def test_A01_what_is_changed_after_save_returns_is_not_in_the_checkpoint(
    runs: Runs, hold: Callable[..., Hold], capture: Any
) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gate = hold(op="create", name="sessions/*")
    state = {**filled(1.0), "model": net, "optimizer": optimizer, "buffers": torch.nn.BatchNorm1d(4)}
    with runs.checkpointer(FaultyBackend(runs.site.backend, [gate]), capture=capture) as checkpointer:
        handle = checkpointer.save(1, state)
        refill(state, 2.0)
        state["buffers"].running_mean.fill_(2.0)
        optimizer.param_groups[0]["lr"] = 2.0
        if capture == "eager":
            with torch.no_grad():
                net.a.weight.fill_(2.0)
        assert gate.reached.wait(PATIENCE_SECONDS) and not handle.committed.done()
        gate.let_go.set()
        checkpointer.wait()
    fresh = Net(seed=1)
    other = torch.optim.SGD(fresh.parameters(), lr=0.5)
    found: dict[str, Any] = {**filled(0.0), "array": None, "model": fresh, "optimizer": other}
    found["expanded"] = torch.zeros(64, 64)
    found["buffers"] = torch.nn.BatchNorm1d(4)
    runs.load(found)
    assert found["buffers"].running_mean.tolist() == [0.0] * 4 and other.param_groups[0]["lr"] == 0.1
    assert bits(dict(fresh.state_dict())) == bits(dict(Net().state_dict()))
    for name in filled(1.0):
        assert numbers(found[name]) == {1.0}, name


def test_A03_A06_a_save_that_never_ended_is_not_latest_and_harms_nothing(runs: Runs, hold: Callable[..., Hold]) -> None:
    runs.save({"model": Net(seed=1)}, 1)
    gate = hold(op="create", name="*.body")
    # The first entry is the run's claim of its branch.
    backend = FaultyBackend(runs.site.backend, [gate, Crash(op="create", name=ENTRIES, call=2)])
    with pytest.raises(Stopped), runs.checkpointer(backend) as checkpointer:
        checkpointer.save(2, {"model": Net(seed=2)})
        assert gate.reached.wait(PATIENCE_SECONDS)
        assert checkpointer.latest()[1] == 1, "scheduled is not saved"
        gate.let_go.set()
        checkpointer.wait()
    kinds = {name.rpartition(".")[2] for name in runs.site.names() if name.startswith("objects/")}
    assert kinds > {"pack", "index", "body", "root"} and runs.site.names(".open"), "all but the commit is there"
    check_is(runs, 1)
    with pytest.raises(NotFoundError, match="2"):
        runs.load({"model": Net()}, "step:2")


@pytest.mark.parametrize("kind", [".body", ".root", ".pack"])
def test_A06_a_broken_checkpoint_is_an_error_and_no_fresh_start(runs: Runs, kind: str) -> None:
    runs.save({"model": Net(seed=1)}, 1)
    before = set(runs.site.names())
    runs.save({"model": Net(seed=2)}, 2)
    for name in set(runs.site.names(kind)) - before:
        runs.site.backend.delete(name)
    with runs.checkpointer(cold=True) as checkpointer:
        for ref in ("latest", "step:2"):
            with pytest.raises((IntegrityError, NotFoundError, CairnError)) as caught:
                checkpointer.load({"model": Net()}, ref, missing_ok=True)
            assert caught.value.message
        assert checkpointer.load({"model": Net()}, "step:1").step == 1


def test_A06_a_checkpoint_that_is_asked_for_by_name_is_no_fresh_start_either(runs: Runs) -> None:
    with runs.checkpointer() as checkpointer:
        assert checkpointer.load({"model": Net()}, missing_ok=True) is None
        checkpointer.save(1, {"model": Net()}, blocking=True)
        for ref in ("step:2", "tag-that-is-not", "ab" * 16):
            with pytest.raises(NotFoundError):
                checkpointer.load({"model": Net()}, ref, missing_ok=True)


@pytest.mark.parametrize("how", ["save", "wait", "close", "handle", "load"])
def test_A08_the_first_failure_comes_up_with_its_step_and_the_next_save_works(runs: Runs, how: str) -> None:
    backend = FaultyBackend(runs.site.backend, [Fail(op="create", name="sessions/*", call=1)])
    with runs.checkpointer(backend) as checkpointer:
        handle = checkpointer.save(7, {"model": Net(seed=7)})
        calls: dict[str, Callable[[], Any]] = {
            "save": lambda: checkpointer.save(8, {"model": Net(seed=8)}),
            "wait": checkpointer.wait,
            "close": checkpointer.close,
            "handle": handle.wait,
            "load": lambda: checkpointer.load({"model": Net()}),
        }
        with pytest.raises(StorageError, match="a fault was injected") as caught:
            calls[how]()
        if how == "handle":
            with pytest.raises(StorageError) as caught:
                checkpointer.wait()
        assert "step 7" in caught.value.message
        if how == "close":
            return
        checkpointer.save(9, {"model": Net(seed=9)}, blocking=True)
        checkpointer.wait()
    check_is(runs, 9)


@pytest.mark.parametrize(
    ("fault", "capture"),
    [
        (Fail(), "eager"),
        (Fail(), "overlap"),
        (LoseAnswer(), "eager"),
        (Crash(), "overlap"),
        (Crash(effect=Effect.COMPLETE), "eager"),
    ],
    ids=["fails", "fails overlapped", "answer lost", "crash before, overlapped", "crash after"],
)
def test_A08_A18_after_a_fault_at_any_call_of_a_save_latest_loads_fully(
    tmp_path: Path, fault: Fault, capture: Any
) -> None:
    runs = Runs(tmp_path / "home", clock=HeldClock())

    def attempt(step: int, script: Sequence[Fault], arm: Callable[[], None]) -> BaseException | None:
        registry = runs.site.registry(FaultyBackend(runs.site.backend, script))
        try:
            with cairn.Checkpointer(registry, "m", capture=capture) as checkpointer:
                arm()
                checkpointer.save(step, state_of(step))
                try:
                    checkpointer.wait()
                except CairnError as error:
                    told.append(error.message)
                    if "committed" not in error.message:
                        check_is(runs, good, cold=False)
                    checkpointer.save(step, state_of(step), blocking=True)
        except Stopped as stopped:
            return stopped
        finally:
            registry.close()
        return None

    def state_of(step: int) -> dict[str, Any]:
        net = Net(seed=step)
        return {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "step": step}

    told: list[str] = []
    good = 1
    attempt(1, [], lambda: None)
    for nth in range(1, 200):
        step = nth + 1
        later = Later(fault=fault, nth=nth)
        stopped = attempt(step, [later], later.arm)
        if stopped is None or latest_step(runs) == step:  # a crash after the commit
            good = step
        check_is(runs, good, cold=not later.met)
        if not later.met:
            assert all("step " in message for message in told) and bool(told) is not isinstance(fault, Crash)
            return
        for name in runs.site.names(".open"):
            runs.site.backend.delete(name)  # given up, lest each save looks after more of the dead
    raise AssertionError("there is no end of calls")


def test_A11_a_load_right_after_a_save_waits_for_it(runs: Runs, hold: Callable[..., Hold]) -> None:
    runs.save({"model": Net(seed=4)}, 4)
    gate = hold(op="create", name="*.pack")
    with runs.checkpointer(FaultyBackend(runs.site.backend, [gate])) as checkpointer:
        checkpointer.save(5, {"model": Net(seed=5)})
        assert gate.reached.wait(PATIENCE_SECONDS)
        assert checkpointer.latest()[1] == 4, "latest is what is committed"
        with pytest.raises(NotFoundError, match="5"):
            runs.load({"model": Net()}, "step:5")  # another process has nothing to wait for
        gate.let_go_soon()
        for ref in ("step:5", "latest"):
            net = Net()
            assert checkpointer.load({"model": net}, ref).step == 5
            assert bits(dict(net.state_dict())) == bits(dict(Net(seed=5).state_dict()))


@pytest.mark.parametrize("fails", [False, True])
def test_A12_nothing_runs_after_close_and_a_new_one_works(runs: Runs, fails: bool) -> None:
    script = [Fail(op="create", name="*.pack")] if fails else []
    registry = runs.site.registry(FaultyBackend(runs.site.backend, script))
    checkpointer, before = cairn.Checkpointer(registry, "m"), children()
    assert cairn_threads() == [], "nothing is started before there is something to do"
    checkpointer.save(1, {"model": Net(seed=1)})
    with pytest.raises(StorageError) if fails else nullcontext():
        checkpointer.close()
    assert cairn_threads() == [] and children() == before
    for _ in range(3):
        checkpointer.close()
    for call in (lambda: checkpointer.save(2, {}), lambda: checkpointer.load({}), checkpointer.latest):
        with pytest.raises(UsageError, match="closed"):
            call()
    registry.close()
    runs.save({"model": Net(seed=2)}, 2)
    check_is(runs, 2)
    assert cairn_threads() == [] and children() == before


def test_A13_both_errors_are_told_when_the_loop_ends_by_one(
    runs: Runs, hold: Callable[..., Hold], caplog: pytest.LogCaptureFixture
) -> None:
    last = {"op": "create", "name": ENTRIES, "call": 3}
    gate = hold(**last)
    script = [gate, Fail(**last)]
    caplog.set_level(logging.ERROR, "cairn.training")
    with pytest.raises(ZeroDivisionError) as caught, runs.checkpointer(FaultyBackend(runs.site.backend, script)) as one:
        one.save(3, {"model": Net()})
        assert gate.reached.wait(PATIENCE_SECONDS)
        gate.let_go_soon()
        raise ZeroDivisionError("the loop's own")
    assert "the last save failed: save of step 3" in "".join(caught.value.__notes__)
    assert "save of step 3" in caplog.text
    with runs.checkpointer(cold=True) as after:
        assert after.latest() is None, "plainly uncommitted"


def test_A13_a_save_in_its_last_call_is_finished_when_the_loop_ends_by_an_error(
    runs: Runs, hold: Callable[..., Hold]
) -> None:
    gate = hold(op="create", name=ENTRIES, call=3)
    with pytest.raises(ZeroDivisionError) as caught, runs.checkpointer(FaultyBackend(runs.site.backend, [gate])) as one:
        one.save(3, {"model": Net(seed=3)})
        assert gate.reached.wait(PATIENCE_SECONDS)
        gate.let_go_soon()
        raise ZeroDivisionError("the loop's own")
    assert not hasattr(caught.value, "__notes__")
    check_is(runs, 3)


def test_A13_closing_is_bounded_and_says_what_is_not_done(runs: Runs, hold: Callable[..., Hold]) -> None:
    gate = hold(op="create", name="*.pack")
    registry = runs.site.registry(FaultyBackend(runs.site.backend, [gate]))
    checkpointer = cairn.Checkpointer(registry, "m", close_seconds=0.2)
    handle = checkpointer.save(3, {"model": Net(seed=3)})
    with pytest.raises(CairnError, match="step 3 is not done after"):
        checkpointer.close()
    gate.let_go.set()
    handle.wait(PATIENCE_SECONDS)
    registry.close()
    check_is(runs, 3)


def test_A15_twenty_saves_start_no_process(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError("a process was started")

    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    net, before = Net(), children()
    optimizer = torch.optim.AdamW(net.parameters())
    state = {"model": net, "optimizer": optimizer, "rng": cairn.RngState()}
    with runs.checkpointer(capture="overlap") as checkpointer:
        for step in range(20):
            train(net, optimizer, [step])
            checkpointer.save(step, state)
            assert children() == before
    assert latest_step(runs) == 19


def test_A20_A03_no_save_deletes_what_an_earlier_one_stored(runs: Runs) -> None:
    """What a checkpointer deletes are its own session, pin and fragments."""
    backend = FaultyBackend(runs.site.backend)
    for step in range(3):
        before = set(runs.site.names())
        begun = len(backend.calls)
        with runs.checkpointer(backend) as checkpointer:
            checkpointer.save(step, {"model": Net(seed=step)}, blocking=True)
            checkpointer.load({"model": Net()})
        deleted = {call.name for call in backend.calls[begun:] if call.op == "delete"}
        assert not deleted & before and all(name.startswith(("sessions/", "pins/")) for name in deleted)
    for step in range(3):
        assert runs.load({"model": Net()}, f"step:{step}").step == step
