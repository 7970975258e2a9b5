"""Two stores of one tenant."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cairn.core import pool
from cairn.gc.scrub_open import verify_store
from cairn.registry.opened import create_store
from cairn.store import chunkstore
from cairn.store.backends.contract import Backend
from cairn.store.backends.memory import MemoryBackend
from tests.support.doubles import SeededEntropy
from tests.support.stores import Site, commit_tree, new_site
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files


def twin_of(site: Site, seed: int = 100, backend: Backend | None = None) -> Site:
    """A second store of a site's tenant, of the same user."""
    twin = replace(site, backend=backend or MemoryBackend(), entropy=SeededEntropy(seed))
    create_store(twin.backend, twin.home, twin.source, twin.clock, twin.entropy, twin=site.open())
    return twin


def pair(folder: Path) -> tuple[Site, Site]:
    """A local store and its remote."""
    here = new_site(folder / "user")
    return here, twin_of(here)


PACK_BYTES = 64 << 10


@pytest.fixture(autouse=True)
def short_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several packs of little content, uploaded one after the other."""
    monkeypatch.setattr(chunkstore, "PACK_BYTES_TARGET", PACK_BYTES)
    monkeypatch.setattr(pool, "MEMORY_BUDGET_BYTES", 1)


@pytest.fixture
def sites(tmp_path: Path) -> tuple[Site, Site]:
    """A local store and its remote, both empty."""
    return pair(tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Eight tensors of 80 kB, and notes."""
    tensors = {f"layer.{number}": weights(number, 20_000) for number in range(8)}
    return write_files(tmp_path / "tree", {"m.safetensors": safetensors(tensors), "notes": b"first " * 4000})


def commit(site: Site, tree: Path, **options: Any) -> bytes:
    """Commit a tree; returns the checkpoint's id."""
    return commit_tree(site.registry(), tree, **options).checkpoint


def clean(site: Site) -> bool:
    """Whether `verify --full` finds nothing."""
    report = verify_store(site.backend, site.home, site.source, True)
    assert report.ok, report.errors
    return True


def packs(site: Site) -> list[str]:
    """Names of all packs."""
    return site.names(".pack")
