"""Fixtures of this folder."""

import random
from pathlib import Path

import pytest

from tests.gc.gallery import Gallery, make_gallery
from tests.support.fixtures import environments_closed, site

__all__ = ["draw", "environments_closed", "gallery", "site"]


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Randomness of one test, from the seed that the run prints."""
    seed = f"{request.config.option.hypothesis_seed} {request.node.name}"
    print(f"seed {seed!r}")
    return random.Random(seed)


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """A store with one of everything that a scrub looks at."""
    return make_gallery(tmp_path)
