"""Capturing from a device that copies beside its work: in its order, and without making the host wait."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from cairn.core.errors import StateMismatch
from cairn.training.capture import Capture, CapturePlan, Slot
from cairn.training.devices import lane_of, lanes_of
from cairn.training.hostmemory import Arena
from cairn.training.overlap import Deferred, copy_in_background
from tests.cases.training import Net, Runs, bits, moments, train
from tests.support.lanes import LazyLane, lazy_host

SOURCES = 5


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> LazyLane:
    """Host memory is a device with a lazy lane."""
    return lazy_host(monkeypatch)


def captured() -> Capture:
    plan = CapturePlan()
    for number in range(SOURCES):
        plan.add(number, torch.full((3, number + 1), float(number)), [], 4)
    return Capture(plan, Arena(None))


def deferred(capture: Capture) -> Deferred:
    return Deferred(capture, range(SOURCES), lambda leaf: f"t{leaf}")


def content(capture: Capture) -> list[float]:
    memory = capture.array()
    return [float(slot.array(memory).view("f4").mean()) for slot in capture.plan.slots]


def change(slots: list[Slot]) -> None:
    for slot in slots:
        slot.source.add_(100)


def test_host_memory_has_no_lane() -> None:
    assert lane_of(torch.device("cpu")) is None and lanes_of([torch.zeros(2)]) == []


def test_an_eager_copy_follows_the_device_and_is_done_on_return(lane: LazyLane) -> None:
    capture = captured()
    capture.copy(range(SOURCES))
    assert lane.followed == 1 and not lane.waiting
    assert content(capture) == [0, 1, 2, 3, 4]


def test_the_step_does_not_wait_and_the_device_does(lane: LazyLane) -> None:
    capture = captured()
    one = deferred(capture)
    assert lane.followed == 1 and not lane.begun
    # What `hold` does on a device in its own time, the lazy lane does at once; the host called no `wait`.
    waits: list[int] = []
    lane.run = lambda until: waits.append(until)  # type: ignore[method-assign]  # a device that is slow
    one.copy()
    assert (lane.begun, lane.held, waits) == (SOURCES, 1, [SOURCES]) and not one.done
    del lane.run
    lane.run(SOURCES)
    change(capture.plan.slots)
    one.finish()
    assert one.done and content(capture) == [0, 1, 2, 3, 4], "what the step changes afterwards is its own matter"


def test_captured_is_told_when_the_bytes_are_there(lane: LazyLane) -> None:
    capture = captured()
    told: list[BaseException | None] = []
    copy_in_background(deferred(capture), told.append).join(10)
    assert told == [None] and not lane.waiting and content(capture) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("who", ["copy", "finish"])
def test_a_change_before_the_step_is_found_though_copies_are_under_way(lane: LazyLane, who: str) -> None:
    capture = captured()
    one = deferred(capture)
    change(capture.plan.slots[2:3])
    with pytest.raises(StateMismatch, match=r"1 tensors were changed .*: t2"):
        getattr(one, who)()
    with pytest.raises(StateMismatch):
        one.finish()


def test_many_threads_begin_each_copy_once(lane: LazyLane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cairn.training.capture.COPY_BYTES", 1)
    capture = captured()
    one = deferred(capture)
    threads = [threading.Thread(target=one.copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    one.finish()
    assert lane.begun == SOURCES and not lane.waiting


def test_host_memory_is_taken_before_threads_can_race_for_it() -> None:
    capture = captured()
    one = deferred(capture)
    memory = capture.array()
    one.finish()
    assert capture.array() is not None and memory.ctypes.data == capture.array().ctypes.data


@pytest.mark.parametrize("mode", ["eager", "overlap"])
def test_training_goes_on_from_what_was_there_at_save(tmp_path: Path, lane: LazyLane, mode: Any) -> None:
    runs = Runs(tmp_path / "home")
    net = Net()
    optimizer = AdamW(net.parameters())
    train(net, optimizer, range(2))
    weights, state = bits(dict(net.state_dict())), moments(optimizer)
    with runs.checkpointer(capture=mode) as checkpointer:
        handle = checkpointer.save(2, {"model": net, "optimizer": optimizer})
        train(net, optimizer, range(2, 5))
        handle.wait(30)
    fresh = Net(seed=1)
    other = AdamW(fresh.parameters())
    runs.load({"model": fresh, "optimizer": other})
    assert bits(dict(fresh.state_dict())) == weights and moments(other) == state
    assert lane.begun and not lane.waiting
