"""Index pieces that were merged: who knows some of what the merged one lists learns the rest."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cairn.gc.merging import merge_pieces
from cairn.registry import indexing
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from tests.support.stores import Site, commit_tree, new_site


def commits(site: Site, tree: Path, count: int) -> None:
    registry = site.registry()
    for _ in range(count):
        (tree / "file").write_bytes(os.urandom(3 << 10))
        commit_tree(registry, tree)


def places(registry: Registry) -> Iterator[int]:
    """How many places the index has for each id that a checkpoint needs."""
    registry.refresh()
    for model in registry.state.models.values():
        for checkpoint in model.checkpoints.values():
            for identifier in read_reachability(registry.opened, checkpoint):
                yield len(registry.index().locations(identifier))


@pytest.mark.parametrize("long", [False, True], ids=["short pieces", "long pieces"])
def test_a_client_that_slept_through_commits_and_their_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    if long:
        monkeypatch.setattr(indexing, "INDEX_ROWS_MAX", 0)
    tree = tmp_path / "tree"
    tree.mkdir()
    site = new_site(tmp_path / "home")
    busy = Site(site.backend, site.home, site.source, site.clock, site.entropy)
    busy.home = type(site.home)(site.home.data, site.home.state, tmp_path / "another-cache")
    commits(busy, tree, 3)
    asleep = site.registry()
    commits(busy, tree, 3)
    assert merge_pieces(busy.registry(), least=6) == 5
    for registry in (asleep, site.registry(), busy.registry(), site.registry(cold=True)):
        assert set(places(registry)) == {1}
