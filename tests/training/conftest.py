"""Fixtures of this folder."""

from pathlib import Path

import pytest

from cairn.registry.stores import create_store
from tests.support.fixtures import environments_closed, site

__all__ = ["environments_closed", "site"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store on disk, with the user's folders beside it, for this process and those that it starts."""
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    place = tmp_path / "store"
    place.mkdir()
    create_store(place)
    return place
