"""Faults of saves in the background that show when processes end, fork, or train together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import cairn
from tests.cases.training import Net, bits
from tests.support.ranks import ROOT, run_ranks

# Every store on disk of these scripts; `through` is the backend that they save through.
PRELUDE = """
import logging, os, sys, threading, time
import torch, cairn
from cairn.core.settings import Settings
from cairn.registry.location import backend_at
from cairn.registry.localfiles import KeyHome
from cairn.registry.opened import KeySource, open_store
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Delay, Fail, FaultyBackend
from tests.cases.training import Net

logging.basicConfig(level=logging.INFO)

def checkpointer(*script, **more):
    settings = Settings.from_environment()
    home = KeyHome(settings.data, settings.state, settings.cache)
    backend = FaultyBackend(backend_at(sys.argv[1]), script)
    return cairn.Checkpointer(Registry(open_store(backend, home, KeySource(settings.key_file, None))), "m", **more)

"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store on disk with one checkpoint, step 1."""
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    cairn.create_store(tmp_path / "store")
    with cairn.Checkpointer(tmp_path / "store", "m") as checkpointer:
        checkpointer.save(1, {"model": Net(seed=1)}, blocking=True)
    return tmp_path / "store"


def run(store: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(store)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def newest(store: Path) -> int:
    """Step of the newest checkpoint, which is loaded and compared as a whole."""
    net = Net()
    with cairn.Checkpointer(store, "m") as checkpointer:
        report = checkpointer.load({"model": net}, resume=False)
    assert report is not None and report.step is not None
    assert bits(dict(net.state_dict())) == bits(dict(Net(seed=report.step).state_dict()))
    return report.step


def test_A05_a_save_that_nobody_waits_for_is_there_after_the_exit(store: Path) -> None:
    slow = 'Delay(op="create", name="*.pack", seconds=0.7)'
    done = run(store, f'checkpointer({slow}).save(2, {{"model": Net(seed=2)}})')
    assert done.returncode == 0, done.stderr
    assert newest(store) == 2


@pytest.mark.parametrize("work", ["", "time.sleep(0.7)"], ids=["ends at once", "goes on"])
def test_A05_a_save_that_fails_and_that_nobody_waits_for_fails_the_process(store: Path, work: str) -> None:
    script = f"""
def main():
    one = checkpointer(Delay(op="create", name="*.pack", seconds=0.2), Fail(op="create", name="*.pack"))
    one.save(2, {{"model": Net()}})

main()
{work}
"""
    done = run(store, script)
    assert done.returncode == 1 and "the last save failed: save of step 2" in done.stderr
    assert newest(store) == 1


def test_A05_the_wait_at_the_exit_is_bounded(store: Path) -> None:
    slow = 'Delay(op="create", name="*.pack", seconds=60)'
    done = run(store, f'one = checkpointer({slow}, close_seconds=0.5)\none.save(2, {{"model": Net()}})')
    assert done.returncode == 1 and "step 2 is not done after" in done.stderr
    assert newest(store) == 1


def test_A13_an_error_that_ends_the_program_hides_no_other(store: Path) -> None:
    last = 'op="create", name="log/*", call=2'
    script = f"""
one = checkpointer(Delay({last}, seconds=0.5), Fail({last}))
one.save(2, {{"model": Net(seed=2)}})
raise ZeroDivisionError("the loop's own")
"""
    done = run(store, script)
    assert done.returncode == 1 and "ZeroDivisionError: the loop's own" in done.stderr
    assert "the last save failed: save of step 2" in done.stderr
    assert newest(store) == 1


FORKED = """
def child(what):
    pid = os.fork()
    if not pid:
        try:
            what()
        except cairn.CairnError as error:
            print("refused", flush=True)
        sys.exit(0)
    end = time.monotonic() + 15
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, 9), os.waitpid(pid, 0)
            print("hung", flush=True)
            return
        time.sleep(0.02)

def load(one):
    net = Net()
    step = one.load({"model": net}, resume=False).step
    assert torch.equal(net.a.weight, Net(seed=step).a.weight)
    print("loaded", flush=True)

def anew():
    with cairn.Checkpointer(sys.argv[1], "m") as other:
        load(other)

def save(one):
    one.save(9, {"model": Net(seed=9)}, blocking=True)
    print("saved", flush=True)
"""


@pytest.mark.parametrize("when", ["idle", "during a save"])
def test_A16_a_forked_child_works_or_is_refused_at_once(store: Path, when: str) -> None:
    if when == "idle":
        begin = "one = checkpointer()\nload(one)\n"
    else:
        begin = """
held = threading.Event()
class Wait(Delay):
    def apply(self, request):
        held.wait(100)
        return request.send()
one = checkpointer(Wait(op="create", name="*.pack", seconds=0))
one.save(2, {"model": Net(seed=2)})
time.sleep(0.3)
"""
    children = "child(anew)\nchild(lambda: load(one))\nchild(lambda: save(one))\nchild(lambda: None)\n"
    rest = 'globals().get("held", threading.Event()).set()\none.close()\nprint("end")\n'
    done = run(store, FORKED + begin + children + rest)
    told = done.stdout.splitlines()[when == "idle" :]
    assert told[0] == "loaded", done.stderr
    assert told[1] in ("loaded", "refused") and told[2] in ("saved", "refused") and told[3:] == ["end"], done.stderr
    assert done.returncode == 0 and newest(store) == (9 if told[2] == "saved" else 1 if when == "idle" else 2)


def test_A09_saves_do_not_meet_the_collectives_of_training(store: Path, tmp_path: Path) -> None:
    found = run_ranks(tmp_path / "job", 2, "tests.cases.rank_jobs:train_while_saving", str(store), seconds=60)
    assert [one["sums"] for one in found] == [found[0]["sums"]] * 2
    assert all(one["during a save"] > 5 and one["steps"] == [3, 2, 1, 0] for one in found)
    assert max(one["seconds"] for one in found) < 30


LOOP = """
import itertools
one = checkpointer()
for step in itertools.count(2):
    net = Net(seed=step)
    one.save(step, {"model": net, "bulk": torch.full((2 << 20,), step)})
    print(step, flush=True)
"""


def test_D01_a_run_that_is_killed_in_a_save_leaves_the_last_checkpoint_whole(store: Path) -> None:
    last = 1
    for turn in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", PRELUDE + LOOP.replace("count(2)", f"count({last + 1})"), str(store)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for _ in range(2 + turn):
                begun = int(process.stdout.readline())
            time.sleep(0.007 * turn)
            process.send_signal(signal.SIGKILL)
        step = newest(store)
        assert last < step and begun - 1 <= step, "what was committed before the next save began is there"
        bulk = {"bulk": torch.zeros(2 << 20, dtype=torch.int64)}
        with cairn.Checkpointer(store, "m") as checkpointer:
            checkpointer.load(bulk, resume=False)
        assert bulk["bulk"].unique().tolist() == [step]
        last = begun + 1
