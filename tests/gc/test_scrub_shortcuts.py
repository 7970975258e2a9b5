"""The scrub goes by the log: it notes shortcuts that are useless, and names snapshots that lie."""

from dataclasses import replace
from pathlib import Path

import pytest

from cairn.gc.collect import Collector
from cairn.gc.report import VerifyReport
from cairn.gc.scrub_open import verify_store
from cairn.registry import shortcuts
from cairn.registry.bundles import bundle_name, encode_bundle, read_bundle
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.fold import STATE_VERSION
from cairn.registry.names import entry_name
from cairn.registry.shortcuts import write_shortcuts
from cairn.registry.snapshots import FOLDER, SnapshotName, seal_snapshot
from cairn.registry.state import State
from cairn.store.crypto.signing import Identity
from tests.support.longlogs import by_entries, forget, grow_to, put
from tests.support.stores import Site, checkout_to, commit_tree, tip
from tests.support.trees import snapshot, write_files

NAME = SnapshotName(STATE_VERSION, 300)
LENGTH = 310


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "SNAPSHOT_ENTRIES", 20)


@pytest.fixture
def long(site: Site, tmp_path: Path) -> Site:
    """A bundle and a snapshot of a store with one checkpoint."""
    commit_tree(site.registry(), write_files(tmp_path / "tree", {"notes": b"one " * 40_000}))
    grow_to(site, NAME.length)
    assert write_shortcuts(site.registry()) == (1, 1, 0)
    grow_to(site, LENGTH)
    site.registry().close()
    return site


def verify(site: Site, cold: bool = False) -> VerifyReport:
    home = replace(site.home, cache=site.home.cache.with_name("for-verify")) if cold else site.home
    return verify_store(site.backend, home, site.source, False)


def lie(site: Site) -> bytes:
    """A snapshot that an owner signed, without the checkpoint."""
    opened = site.open()
    return seal_snapshot(opened, opened.identity, lying(site))


def lying(site: Site) -> State:
    opened = site.open()
    state = shortcuts.newest_snapshot(opened, (opened.identity.actor,), lambda state: True).state
    assert state is not None
    next(iter(state.models.values())).checkpoints.clear()
    return state


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_shortcuts_in_order_are_no_finding(long: Site, cold: bool) -> None:
    report = verify(long, cold)
    assert (report.ok, report.notes, report.checkpoints, report.leftover_objects) == (True, (), 1, 0)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("name", [NAME.object, bundle_name(0)])
def test_a_damaged_one_is_a_note_and_no_damage(long: Site, name: str, cold: bool) -> None:
    good = long.backend.read(name)
    for data in (good[:-1], good[:1000] + bytes([good[1000] ^ 1]) + good[1001:], b""):
        put(long, name, data)
        report = verify(long, cold)
        assert report.ok, report.errors
        assert [note for note in report.notes if note.startswith(name)]


def test_a_bundle_of_other_entries_and_one_beyond_the_end_are_notes(long: Site) -> None:
    opened = long.open()
    entries = read_bundle(opened, 0)
    put(long, bundle_name(0), encode_bundle(opened.store, 0, [*entries[:9], entries[10], entries[9], *entries[11:]]))
    put(long, bundle_name(1), encode_bundle(opened.store, 1, entries))
    report = verify(long)
    assert report.ok
    assert [note.split()[0] for note in report.notes] == [bundle_name(0), bundle_name(1)]


def test_a_snapshot_that_an_owner_signed_and_that_lies_is_named(long: Site) -> None:
    put(long, NAME.object, lie(long))
    report = verify(long)
    assert [problem.object for problem in report.errors] == [NAME.object]
    assert "another state" in report.errors[0].what


def test_whoever_started_from_a_snapshot_that_lies_is_told_so(long: Site) -> None:
    put(long, NAME.object, lie(long))
    forget(long)
    home = replace(long.home, cache=long.home.cache.with_name("deceived"))
    # By design: whom the log makes an owner is believed.
    assert not next(iter(replace(long, home=home).registry().state.models.values())).checkpoints
    report = verify_store(long.backend, home, long.source, False)
    assert [problem.object for problem in report.errors] == [NAME.object, ""]
    (here,) = (problem.what for problem in report.errors if not problem.object)
    assert str(home.cache) in here
    # What it says to do helps, and only all of it.
    long.backend.delete(NAME.object)
    assert not verify_store(long.backend, home, long.source, False).ok
    replace(long, home=home).registry().cache.clear()
    report = verify_store(long.backend, home, long.source, False)
    assert (report.ok, report.checkpoints) == (True, 1)


def test_a_snapshot_by_a_stranger_deceives_nobody(long: Site) -> None:
    put(long, NAME.object, seal_snapshot(long.open(), Identity(b"\1" * 32), lying(long)))
    report = verify(long, cold=True)
    assert (report.ok, report.checkpoints) == (True, 1)
    assert [note.split()[0] for note in report.notes] == [NAME.object]


def test_a_signed_snapshot_of_a_longer_log_shows_that_it_was_cut(long: Site) -> None:
    forget(long)
    for n in range(290, LENGTH):
        long.backend.delete(entry_name(n))
    report = verify(long, cold=True)
    assert [problem.object for problem in report.errors] == [NAME.object]
    assert "it was cut" in report.errors[0].what


def test_snapshots_of_other_rules_are_left_alone(long: Site) -> None:
    put(long, f"{FOLDER}/{NAME.length:012d}-{STATE_VERSION + 1}", b"of a newer Cairn")
    report = verify(long)
    assert (report.ok, report.notes) == (True, ())


def test_damage_to_the_log_is_what_is_reported_and_not_what_it_contradicts(long: Site) -> None:
    put(long, entry_name(50), long.backend.read(entry_name(50))[:-1])
    report = verify(long)
    assert {problem.object for problem in report.errors} == {entry_name(50)}


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_collected_store_opens_from_a_snapshot_as_from_its_log(site: Site, tmp_path: Path, cold: bool) -> None:
    registry = site.registry()
    for step in range(3):
        tree = write_files(tmp_path / f"tree-{step}", {"notes": bytes((step, 7)) * 40_000, "more": b"same " * 40_000})
        commit_tree(registry, tree, step=step)
    model, newest = tip(registry)
    older = tuple(one for one in registry.state.models[model].checkpoints if one != newest)
    registry.append(lambda state: Tombstone(model, older, 0, "test"))
    registry.append(lambda state: Drop(model, older))
    assert Collector(registry).run().objects_deleted
    grow_to(site, 40)
    assert write_shortcuts(site.registry()).snapshots == 1
    report = verify(site, cold)
    assert (report.ok, report.notes, report.checkpoints) == (True, (), 1)
    fresh = site.registry(cold=True)
    assert fresh.state == by_entries(site)
    checkout_to(fresh, "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "tree-2")
