"""Fixtures of this folder."""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.shell import Shell
from tests.support.fixtures import environments_closed

__all__ = ["draw", "environments_closed", "shell"]

_MEMORY_DISK = Path("/dev/shm")
_ROOM_BYTES = 1 << 30


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A user at a shell, in a folder with a new store.

    For speed it lies in memory where there is room, and this process syncs nothing to disk: what outlives a power cut
    is `tests/store`'s matter.
    """
    in_memory = _MEMORY_DISK.is_dir() and shutil.disk_usage(_MEMORY_DISK).free > _ROOM_BYTES
    place = Path(tempfile.mkdtemp(prefix="cairn-case-", dir=_MEMORY_DISK if in_memory else tmp_path))
    monkeypatch.setattr(os, "fsync", lambda file: None)
    user = Shell(place / "user")
    user.enter(monkeypatch)
    user("init")
    yield user
    user.close()
    shutil.rmtree(place)


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Randomness of one test, from the seed that the run prints."""
    seed = f"{request.config.option.hypothesis_seed} {request.node.name}"
    print(f"seed {seed!r}")
    return random.Random(seed)
