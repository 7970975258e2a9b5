"""Fixtures of this folder."""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cases.shell import Shell
from tests.support.fixtures import environments_closed

if TYPE_CHECKING:
    from tests.cases.gates import Hold
    from tests.cases.training import Runs
    from tests.support.threads import Fleet

__all__ = ["draw", "environments_closed", "fleet", "hold", "runs", "shell"]

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
def runs(tmp_path: Path) -> "Runs":
    """Training runs at a new store in memory."""
    from tests.cases.training import Runs  # torch takes seconds to import, and most tests here need none

    return Runs(tmp_path / "home")


@pytest.fixture
def hold() -> Iterator[Callable[..., "Hold"]]:
    """Makes faults that hold a call; in the end all are let go, lest a failed test waits for its own save."""
    from tests.cases.gates import Hold

    made: list[Hold] = []

    def make(**more: Any) -> Hold:
        made.append(Hold(**more))
        return made[-1]

    yield make
    for one in made:
        one.let_go.set()


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Randomness of one test, from the seed that the run prints."""
    seed = f"{request.config.option.hypothesis_seed} {request.node.name}"
    print(f"seed {seed!r}")
    return random.Random(seed)


@pytest.fixture
def fleet(tmp_path: Path) -> "Fleet":
    """Jobs of several ranks, which are threads, at one store in memory."""
    from tests.support.threads import Fleet  # torch takes seconds to import, and most tests here need none

    return Fleet(tmp_path / "home")
