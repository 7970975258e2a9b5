"""Readers without a pin: what is collected under them ends in an error that says why."""

import os
from pathlib import Path
from typing import Any

import pytest

from cairn.core.errors import GoneError, IntegrityError
from cairn.gc.collect import Collector, Options
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.pins import Pin
from tests.support.stores import Site, checkout_to, commit_tree, new_site, tip


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A store with two checkpoints; the first is the oldest of its model."""
    site, tree = new_site(tmp_path / "home"), tmp_path / "tree"
    tree.mkdir()
    for step in (1, 2):
        (tree / "file").write_bytes(os.urandom(100_000))
        commit_tree(site.registry(), tree, step=step)
    return site


def test_what_was_deleted_meanwhile_is_said_to_be_gone_and_not_damaged(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, first = tip(site.registry(), "m@step:1")
    pinned = Pin.__init__

    def too_late(pin: Pin, *args: Any) -> None:
        pinned(pin, *args)
        pin.release()
        collecting = site.registry()
        collecting.append(lambda state: Tombstone(model, (first,), 0, "test"))
        collecting.append(lambda state: Drop(model, (first,)))
        assert Collector(collecting, Options(unused=0.0)).run().objects_deleted

    monkeypatch.setattr(Pin, "__init__", too_late)
    with pytest.raises(GoneError, match="was deleted at"):
        checkout_to(site.registry(), "m@step:1", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_damaged_is_said_to_be_damaged(site: Site, tmp_path: Path) -> None:
    name = site.names(".body")[0]
    site.backend.delete(name)
    with pytest.raises(IntegrityError):
        for step in (1, 2):
            checkout_to(site.registry(), f"m@step:{step}", tmp_path / f"out-{step}")
