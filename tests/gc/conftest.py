"""Fixtures of this folder."""

from pathlib import Path

import pytest

from tests.gc.gallery import Gallery, make_gallery
from tests.support.fixtures import environments_closed, site

__all__ = ["environments_closed", "gallery", "site"]


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """A store with one of everything that a scrub looks at."""
    return make_gallery(tmp_path)
