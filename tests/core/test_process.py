"""Telling live processes from dead ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cairn.core import process


def test_a_process_that_ended_is_dead_and_this_one_is_not() -> None:
    if not process.this_machine():
        pytest.fail("the system does not tell which machine this is")
    mine = process.this_process()
    assert not process.is_known_dead(mine)
    assert process.is_known_dead(process.ProcessMark(mine.machine, _ended(), mine.started))
    assert process.is_known_dead(process.ProcessMark(mine.machine, mine.number, mine.started + 1)), "number used again"
    assert not process.is_known_dead(process.ProcessMark("another machine", _ended(), mine.started))


def test_a_process_that_proc_hides_is_not_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = process.this_process()
    monkeypatch.setattr(process, "_PROC", tmp_path)
    assert not process.is_known_dead(mine)
    assert process.is_known_dead(process.ProcessMark(mine.machine, _ended(), mine.started))
    assert process.is_known_dead(process.ProcessMark(mine.machine, 1 << 80, mine.started))


def _ended() -> int:
    """The number of a process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not Path(f"/proc/{child.pid}").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    return child.pid
