"""Fixtures that several folders share; each folder's `conftest.py` imports what it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cairn.registry.stores import create_store
from tests.support.stores import Site, close_environments, new_site


@pytest.fixture(autouse=True)
def environments_closed() -> Iterator[None]:
    """No test leaves LMDB environments to the next."""
    yield
    close_environments()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A store in memory."""
    return new_site(tmp_path / "home")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store on disk, with the user's folders beside it, for this process and those that it starts."""
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    place = tmp_path / "store"
    place.mkdir()
    create_store(place)
    return place
