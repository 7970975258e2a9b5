"""What checkpoints need, remembered: right after every change, and nothing once it is damaged."""

import os
from pathlib import Path

import numpy as np

from cairn.gc.counted import Counted
from cairn.gc.roots import Root, all_roots
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from tests.support.counting import CountingBackend
from tests.support.stores import commit_tree, new_site


def words_by_hand(registry: Registry, roots: list[Root]) -> list[int]:
    ids = {one for root in roots for one in read_reachability(registry.opened, root.state)}
    return sorted(int.from_bytes(one[:8], "big") for one in ids)


def test_only_lists_that_came_or_went_are_read(tmp_path: Path) -> None:
    site, tree = new_site(tmp_path / "home"), tmp_path / "tree"
    tree.mkdir()
    (tree / "shared").write_bytes(os.urandom(5000))
    for step in range(5):
        (tree / "own").write_bytes(os.urandom(3000))
        commit_tree(site.registry(), tree, step=step)
    backend = CountingBackend(site.backend)
    registry = site.registry(backend)
    roots = all_roots(registry.state)
    for chosen, reads in ((roots[:3], 3), (roots[1:], 3), (roots[1:], 0), (roots[:2], 4), (roots, 3)):
        counted = Counted(registry.opened)
        backend.forget()
        assert counted.count(chosen).tolist() == words_by_hand(site.registry(), chosen)
        calls = backend.calls[-backend.requests :] if backend.requests else []
        assert sum(call.name.endswith(".reach") for call in calls) == reads
        counted.keep()


def test_a_damaged_file_is_worth_nothing(tmp_path: Path) -> None:
    site, tree = new_site(tmp_path / "home"), tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(3000))
    commit_tree(site.registry(), tree)
    registry = site.registry()
    roots = all_roots(registry.state)
    counted = Counted(registry.opened)
    expected = counted.count(roots).tolist()
    counted.keep()
    path = registry.opened.home.cache_folder(registry.opened.store) / "needed"
    whole = path.read_bytes()
    for at in range(0, len(whole), max(len(whole) // 40, 1)):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        assert Counted(registry.opened)._lists == {}
    path.write_bytes(whole)
    assert len(Counted(registry.opened)._lists) == 1
    assert np.array_equal(Counted(registry.opened).count(roots), expected)
