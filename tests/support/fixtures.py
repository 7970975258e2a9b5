"""Fixtures that several folders share; each folder's `conftest.py` imports what it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
