"""`kill -9` and Ctrl-C of the real command: what was committed before is there afterwards, bit for bit."""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import cairn
from tests.support.trees import snapshot, write_files

KILLS = 50
# One kill in so many meets a checkout, the others a commit.
CHECKOUT_EVERY = 5
# After so many kills one commit is let through, so that there is something to lose.
COMMIT_EVERY = 10
SIZE = 8 << 20


@dataclass
class Shell:
    """A user's shell in a folder with a store."""

    folder: Path
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        source = Path(cairn.__file__).parents[1]
        homes = {f"XDG_{kind}_HOME": str(self.folder / kind.lower()) for kind in ("DATA", "STATE", "CACHE")}
        self.environment = {**os.environ, "PYTHONPATH": str(source), **homes}
        for name in ("CAIRN_STORE", "CAIRN_KEY_FILE", "CAIRN_PASSPHRASE"):
            self.environment.pop(name, None)

    def start(self, *arguments: object) -> "subprocess.Popen[bytes]":
        """Begin a command."""
        command = [sys.executable, "-m", "cairn", *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What starts the tests may ignore interrupts (a shell's background job does), and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: object) -> float:
        """Run a command to its good end; returns the seconds that it took."""
        started = time.monotonic()
        process = self.start(*arguments)
        _, told = process.communicate()
        assert process.returncode == 0, told.decode()
        return time.monotonic() - started

    def kill(self, after: float, *arguments: object) -> int:
        """Kill a command after some seconds, if it is not done by then; returns how it ended."""
        process = self.start(*arguments)
        try:
            process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.run("init")
    return shell


@pytest.mark.slow
def test_D01_fifty_kills_lose_nothing_that_was_committed(shell: Shell, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    trees: dict[int, dict[bytes, tuple[object, ...]]] = {}

    def commit(step: int, act: Callable[..., float | int]) -> float | int:
        """Commit a tree of which every 1 MiB block is new."""
        write_files(tmp_path / "tree", {"model.bin": draw.randbytes(SIZE), "config.json": b"{}"})
        trees[step] = snapshot(tmp_path / "tree")
        return act("commit", "tree", "m", "--step", step)

    whole = max(commit(0, shell.run), 0.1)
    read = shell.run("checkout", "m", "out")
    ends = {"commit": 0, "checkout": 0}
    for number in range(1, KILLS + 1):
        if number % CHECKOUT_EVERY == 0:
            place = tmp_path / f"killed-{number}"
            ends["checkout"] += shell.kill(draw.uniform(0, read), "checkout", "m@step:0", place) != 0
            assert not place.exists() or snapshot(place) == trees[0], "a half-written destination"
        else:
            code = commit(number, lambda *arguments: shell.kill(draw.uniform(0, whole), *arguments))
            ends["commit"] += code != 0
            assert code in (0, -signal.SIGKILL)
        if number % COMMIT_EVERY == 0:
            commit(1000 + number, shell.run)
    print(f"{ends} of {KILLS} were killed in time")
    assert ends["commit"] > KILLS // 4
    # Whatever the history shows, also of commits that were killed just after they became visible, is whole.
    shown = subprocess.run(
        [sys.executable, "-m", "cairn", "log", "m", "--json"], cwd=tmp_path, env=shell.environment, capture_output=True,
        check=True,
    ).stdout.decode()  # fmt: skip
    steps = [step for step in trees if f'"step": {step},' in shown or f'"step":{step},' in shown]
    assert {0, *(1000 + number for number in range(COMMIT_EVERY, KILLS + 1, COMMIT_EVERY))} <= set(steps)
    for step in steps:
        shell.run("checkout", f"m@step:{step}", f"end-{step}")
        assert snapshot(tmp_path / f"end-{step}") == trees[step]
    shell.run("verify", "--full")


def first_sign(shell: Shell, pattern: str, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until a file of that pattern appears; False if the process ends before."""
    while process.poll() is None:
        if next(shell.folder.glob(pattern), None):
            return True
        time.sleep(0.001)
    return False


@pytest.mark.slow
def test_an_interrupt_ends_a_commit_in_order(shell: Shell, tmp_path: Path) -> None:
    write_files(tmp_path / "small", {"a": b"x" * 1000})
    shell.run("commit", "small", "m")
    with (tmp_path / "big").open("wb") as file:
        for number in range(160):
            file.write(random.Random(number).randbytes(1 << 20))
    before = sorted(path.name for path in (tmp_path / ".cairn" / "log").rglob("*") if path.is_file())
    for _ in range(5):  # until it is met at work: a session is open once the first pack goes out
        process = shell.start("commit", "big", "m")
        met = first_sign(shell, ".cairn/sessions/*.open", process)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
        if met and process.returncode:
            break
    assert process.returncode == 130, told.decode()
    assert "Traceback" not in told.decode()
    assert "interrupted" in told.decode()
    assert sorted(path.name for path in (tmp_path / ".cairn" / "log").rglob("*") if path.is_file()) == before
    assert list((tmp_path / ".cairn" / "sessions").iterdir()) == []
    shell.run("checkout", "m", "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "small")


@pytest.mark.slow
def test_an_interrupt_ends_a_checkout_in_order(shell: Shell, tmp_path: Path) -> None:
    write_files(tmp_path / "tree", {f"{number}": random.Random(number).randbytes(1 << 20) for number in range(160)})
    shell.run("commit", "tree", "m")
    for number in range(5):
        process = shell.start("checkout", "m", f"out-{number}")
        met = first_sign(shell, f".out-{number}.*", process)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
        if met and process.returncode:
            break
    assert process.returncode == 130, told.decode()
    assert "Traceback" not in told.decode()
    assert list(tmp_path.glob(".out-*")) == []
    assert not (tmp_path / f"out-{number}").exists()
