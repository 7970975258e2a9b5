"""Fixtures that several folders share; each folder's `conftest.py` imports what it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cairn.registry.stores import create_store
from tests.support.stores import Site, close_environments, new_site


def be_new_user(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Lay a user's three folders below `folder`, for this process and those that it starts; no settings of Cairn."""
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    for name in ("CAIRN_STORE", "CAIRN_KEY_FILE", "CAIRN_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)


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
    be_new_user(monkeypatch, tmp_path)
    place = tmp_path / "store"
    place.mkdir()
    create_store(place)
    return place
