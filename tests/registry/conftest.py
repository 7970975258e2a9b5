"""Fixtures of this folder."""

from pathlib import Path

import pytest

from tests.support.fixtures import environments_closed, site
from tests.support.stores import Site, commit_tree
from tests.support.trees import write_files

__all__ = ["environments_closed", "site"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files to commit."""
    return write_files(tmp_path / "tree", {"a": b"first" * 1000})


@pytest.fixture
def committed(site: Site, folder: Path) -> Site:
    """A store with one checkpoint of a model."""
    commit_tree(site.registry(), folder, step=1)
    return site
