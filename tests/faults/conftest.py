"""Fixtures of this folder."""

from functools import partial

import lmdb
import pytest

from tests.support.fixtures import environments_closed

__all__ = ["environments_closed"]


@pytest.fixture(autouse=True)
def caches_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine does not lose its power in these tests, and syncing the cache takes most of their time."""
    monkeypatch.setattr(lmdb, "open", partial(lmdb.open, sync=False))
