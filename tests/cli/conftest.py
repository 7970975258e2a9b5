"""A user at a shell: a home, a working folder with a store, and some files."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cairn.cli.app import run
from tests.support.fixtures import be_new_user, environments_closed
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

__all__ = ["environments_closed"]


@dataclass(frozen=True)
class Shell:
    """Runs commands in this process; `files` is a folder to commit."""

    folder: Path
    files: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run a command that must exit with `code`; returns what it prints, or with a code its error."""
        self.capture.readouterr()
        got = run(list(arguments))
        out, err = self.capture.readouterr()
        assert got == code, f"cairn {' '.join(arguments)} exited with {got}: {err}"
        return err if code else out

    def json(self, *arguments: str) -> Any:
        """Run a command with `--json` and decode what it prints."""
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def bare_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A shell in an empty folder."""
    be_new_user(monkeypatch, tmp_path)
    files = {"model.safetensors": safetensors({"w": weights(1, 64, 64), "b": weights(2, 8)}), "sub/notes.txt": b"notes"}
    tree = write_files(tmp_path / "files", files)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Shell(tmp_path / "work", tree, capfd)


@pytest.fixture
def shell(bare_shell: Shell) -> Shell:
    """The same with a store."""
    bare_shell("init")
    return bare_shell


@pytest.fixture
def settle() -> Callable[[Path], None]:
    """Make a tree's stamps old enough to prove something."""

    def age(tree: Path) -> None:
        past = time.time_ns() - 10_000_000_123
        for path in [tree, *tree.rglob("*")]:
            os.utime(path, ns=(past, past), follow_symlinks=False)
        time.sleep(0.15)  # the change time cannot be set

    return age
