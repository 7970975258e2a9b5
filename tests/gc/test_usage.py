"""Roots, marks and usage."""

import random
from pathlib import Path

import pytest

from cairn.core.errors import IntegrityError
from cairn.gc.counted import Counted
from cairn.gc.roots import all_roots, live_checkpoints, named_objects, packs_in_force
from cairn.gc.scrub import verify
from cairn.gc.usage import usage
from tests.gc.gallery import Gallery, flipped
from tests.support.stores import Site, commit_tree
from tests.support.trees import write_files


def test_roots_are_the_committed_checkpoints_in_order(gallery: Gallery) -> None:
    state = gallery.site.registry().state
    roots = live_checkpoints(state)
    assert [(root.model, root.checkpoint) for root in roots] == list(gallery.trees)
    assert [root.state.n for root in roots] == sorted(root.state.n for root in roots)


def test_packs_in_force_are_those_that_are_not_condemned(gallery: Gallery) -> None:
    state = gallery.site.registry().state.copy()
    assert packs_in_force(state) == list(range(state.pack_count))
    state.condemned[1] = 1
    assert packs_in_force(state) == [0, *range(2, state.pack_count)]


def test_every_object_but_the_leftover_is_named(gallery: Gallery) -> None:
    names = named_objects(gallery.site.registry().state)
    assert names == {name for name in gallery.objects() if name.startswith("objects/")}


def test_marking_stops_at_what_it_cannot_read(gallery: Gallery) -> None:
    registry = gallery.site.registry()
    roots = all_roots(registry.state)
    assert len(Counted(registry.opened).count(roots)) == usage(registry).chunks
    name = gallery.objects(".reach")[0]
    with gallery.replaced(name, None), pytest.raises(IntegrityError):
        Counted(registry.opened).count(roots)


def test_usage_adds_up(gallery: Gallery) -> None:
    registry = gallery.site.registry()
    used, report = usage(registry), verify(registry, full=True)
    stored = {name: gallery.site.backend.size(name) for name in gallery.site.names()}
    packs = sum(size for name, size in stored.items() if name in gallery.objects(".pack"))
    assert (used.models, used.checkpoints, used.log_entries) == (2, 3, len(gallery.site.log()))
    assert (used.packs, used.bytes_packs) == (len(gallery.objects(".pack")), packs)
    assert (used.leftover_objects, used.leftover_bytes) == (1, len(b"half a pack"))
    assert used.bytes_packs + used.bytes_other + used.leftover_bytes == sum(stored.values())
    assert (used.chunks, used.bytes_unreferenced) == (report.chunks, 0)
    assert used.bytes_reachable == report.bytes_read
    files = [entry[2] for tree in gallery.trees.values() for entry in tree.values() if entry[0] == "file"]
    logical = sum(len(data) for data in files if isinstance(data, bytes))
    assert used.bytes_logical == logical
    assert used.dedup_ratio == pytest.approx(logical / packs) and used.dedup_ratio > 2
    assert [(session.id, session.epoch) for session in used.sessions] == [("ee" * 16, 0)]
    assert used.unreadable == ()


def test_an_empty_store_costs_little(site: Site) -> None:
    used = usage(site.registry())
    assert (used.models, used.checkpoints, used.packs, used.chunks, used.leftover_objects) == (0, 0, 0, 0, 0)
    assert used.dedup_ratio == 1.0 and used.bytes_other > 0


def test_second_copies_are_not_reachable_bytes(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "one", {"x.bin": random.Random(9).randbytes(100_000)})
    registry = site.registry()
    commit_tree(registry, tree, step=1)
    before = usage(registry)
    (name,) = [name for name in site.names(".pack") if site.backend.size(name) > 100_000]
    whole = site.backend.read(name)
    site.backend.delete(name)
    commit_tree(registry, tree, step=2, always=True)
    site.backend.create(name, [whole])
    after = usage(registry)
    assert after.bytes_reachable - before.bytes_reachable < 2000, "only pages are new"
    assert 100_000 < after.bytes_unreferenced < 102_000
    assert verify(registry, full=True).ok


def test_what_cannot_be_read_is_left_out_and_named(gallery: Gallery) -> None:
    whole = usage(gallery.site.registry())
    for ending in (".body", ".root", ".reach"):
        name = gallery.objects(ending)[0]
        with gallery.replaced(name, flipped(gallery.site.backend.read(name), random.Random(0))):
            used = usage(gallery.site.registry())
        assert len(used.unreadable) == 1 and used.bytes_logical < whole.bytes_logical
        assert used.checkpoints == 3
    name = gallery.objects(".open")[0]
    with gallery.replaced(name, b"no session"):
        assert [session.epoch for session in usage(gallery.site.registry()).sessions] == [None]
