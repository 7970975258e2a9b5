"""A short soak in a folder; `make soak` runs the long ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cairn.registry.stores import create_store
from tests.soak.run import Soak


@pytest.mark.slow
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.soak.run", "--seconds", "12"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost: 0" in done.stdout and "killed: " in done.stdout


def test_the_judge_tells_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a journal says was committed, and the store does not show, is a loss."""
    (tmp_path / "work" / "writer-0").mkdir(parents=True)
    store = str(tmp_path / "store")
    for kind in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    create_store(store)
    (tmp_path / "work" / "writer-0" / "journal").write_text(json.dumps({"kind": "committed", "checkpoint": "ab" * 32}))
    run = Soak(store, tmp_path / "work", 1.0, 1)
    assert "lost: 1" in run.judge() and "nobody deleted it" in run.problems[0]
