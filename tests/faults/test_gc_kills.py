"""`kill -9` of `cairn gc apply` at many moments while two writers save: nothing is lost, and a rerun finishes."""

import os
import random
import secrets
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from cairn.gc.roots import named_objects
from cairn.registry.stores import create_store, open_store
from tests.cases.shell import ROOT, command
from tests.soak.run import Soak

KILLS = 50
# Storage calls until death, on average; a collection makes some hundred here.
CALLS = 80
SECONDS_MAX = 600.0
ENDING_SECONDS = 60.0

# Dies just before, or just after, one of its calls to the storage.
_KILL_AT_CALL = """
import os, signal
from cairn.store.backends.posix import PosixBackend
left = {call}
def counted(name):
    whole = getattr(PosixBackend, name)
    def call(self, *arguments):
        global left
        left -= 1
        if left <= 0 and not {after}:
            os.kill(os.getpid(), signal.SIGKILL)
        done = whole(self, *arguments)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(PosixBackend, name, call)
for name in ("create", "read", "read_into", "list", "folders", "delete", "reclaim"):
    counted(name)
"""


@pytest.mark.slow
def test_fifty_kills_of_a_collection_beside_writers_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    dice, store = random.Random(seed), tmp_path / "store"
    for kind in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    for name in ("CAIRN_STORE", "CAIRN_KEY_FILE", "CAIRN_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))
    (tmp_path / "work").mkdir()
    create_store(str(store))
    soak = Soak(str(store), tmp_path / "work", SECONDS_MAX, seed)
    writers = [soak.start("writer", f"writer-{number}", time.monotonic() + SECONDS_MAX) for number in range(2)]
    ends: Counter[int] = Counter()
    for _ in range(KILLS):
        prelude = _KILL_AT_CALL.format(call=1 + int(dice.expovariate(1 / CALLS)), after=dice.random() < 0.5)
        ends[collect(store, prelude).returncode] += 1
    assert [writer.poll() for writer in writers] == [None, None], "they save all the while"
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.wait(ENDING_SECONDS)
    print(f"ended with {dict(ends)}")
    assert set(ends) <= {-signal.SIGKILL, 0, 75}
    assert ends[-signal.SIGKILL] >= KILLS // 2, "most were killed in time"
    last = collect(store)
    assert last.returncode == 0, last.stderr
    registry = open_store(str(store))
    names = [listed.name for listed in registry.opened.backend.list()]
    registry.close()
    assert not [name for name in names if name.startswith(("sessions/", "pins/"))]
    assert {name for name in names if name.startswith("objects/")} <= named_objects(registry.state)
    report = soak.judge()
    print(report)
    assert soak.problems == []
    assert registry.state.floor > 0, "something was collected meanwhile"


def collect(store: Path, prelude: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the command; it waits for no writer longer than a moment."""
    words = [*command(prelude), "--store", str(store), "gc", "apply", "--yes", "--wait", "1"]
    return subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
