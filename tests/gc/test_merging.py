"""Merging index pieces: a newcomer and a client that knows the old ones see the same."""

import os
from pathlib import Path

from cairn.gc.collect import Collector
from cairn.gc.merging import merge_pieces, rows_of_small
from cairn.gc.scrub import verify
from cairn.registry.entries import ObjectRef
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.reachability import read_reachability
from cairn.registry.state import Piece
from tests.support.stores import Site, commit_tree, new_site, tip

KIB, MIB = 1 << 10, 1 << 20


def store_of(folder: Path, steps: int) -> Site:
    site, tree = new_site(folder / "home"), folder / "tree"
    tree.mkdir()
    registry = site.registry()
    for step in range(steps):
        (tree / "file").write_bytes(os.urandom(3 * KIB))
        commit_tree(registry, tree, step=step)
    return site


def test_many_small_pieces_become_one(tmp_path: Path) -> None:
    site = store_of(tmp_path, 6)
    warm = site.registry()
    assert len(warm.state.pieces) == 6
    assert merge_pieces(site.registry(), least=4) == 5
    for registry in (warm, site.registry(), site.registry(cold=True)):
        registry.refresh()
        assert [piece.first for piece in registry.state.pieces] == [0]
        for model in registry.state.models.values():
            for checkpoint in model.checkpoints.values():
                for identifier in read_reachability(registry.opened, checkpoint):
                    assert len(registry.index().locations(identifier)) == 1
    report = verify(site.registry(cold=True), full=True)
    assert report.ok, report.errors
    Collector(site.registry()).run()
    assert len(site.names("index")) == 1
    assert verify(site.registry(cold=True), full=True).ok


def test_what_is_deleted_is_left_out(tmp_path: Path) -> None:
    site = store_of(tmp_path, 6)
    registry = site.registry()
    model, last = tip(registry)
    old = [one for one in registry.state.models[model].checkpoints if one != last]
    registry.append(lambda state: Tombstone(model, tuple(old), 0, "test"))
    registry.append(lambda state: Drop(model, tuple(old)))
    Collector(registry).run()
    before = len(registry.state.pieces)
    assert before >= 1
    commit_tree(registry, tmp_path / "tree", "other")
    (tmp_path / "tree" / "file").write_bytes(os.urandom(3 * KIB))
    commit_tree(registry, tmp_path / "tree", "other")
    pieces = len(registry.state.pieces)
    assert merge_pieces(registry, least=2) == pieces - 1
    assert verify(site.registry(cold=True), full=True).ok


def test_only_rows_of_small_pieces_are_merged() -> None:
    def piece(first: int, size: int) -> Piece:
        return Piece(ObjectRef(bytes(28), size, bytes(32)), first, 1)

    sizes = [KIB, KIB, KIB, 9 * MIB, KIB, KIB, 9 * MIB, KIB, KIB, KIB, KIB]
    pieces = [piece(number, size) for number, size in enumerate(sizes)]
    assert [[one.first for one in row] for row in rows_of_small(pieces, 3)] == [[0, 1, 2], [7, 8, 9, 10]]
    large = [piece(number, 7 * MIB) for number in range(9)]
    assert [len(row) for row in rows_of_small(large, 3)] == [3, 3, 3]


def test_a_client_that_missed_both_the_commit_and_the_merge(tmp_path: Path) -> None:
    """The merged piece lists packs that the client knows, and one that it has never heard of."""
    site = store_of(tmp_path, 4)
    warm = site.registry()
    (tmp_path / "tree" / "file").write_bytes(os.urandom(3 * KIB))
    newest = commit_tree(site.registry(cold=True), tmp_path / "tree", step=9)
    assert merge_pieces(site.registry(cold=True), least=4) == 4
    warm.refresh()
    for held in warm.state.models[newest.model].checkpoints.values():
        for identifier in read_reachability(warm.opened, held):
            assert len(warm.index().locations(identifier)) == 1
