"""Which snapshots there are: one when it is due, the last two, and none of what may be damage."""

import pytest

from cairn.core.errors import IntegrityError
from cairn.registry import shortcuts
from cairn.registry.entries import Abort
from cairn.registry.fold import STATE_VERSION
from cairn.registry.models import ensure_model
from cairn.registry.names import entry_name
from cairn.registry.shortcuts import write_shortcuts
from cairn.registry.snapshots import SnapshotName, listed_snapshots
from tests.support.longlogs import by_entries, grow_to, put
from tests.support.stores import Site

LENGTH = 60
NAME = SnapshotName(STATE_VERSION, LENGTH)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "SNAPSHOT_ENTRIES", 20)


@pytest.fixture
def long(site: Site) -> Site:
    """A log of 60 entries with a snapshot, and 10 more."""
    ensure_model(site.registry(), "m")
    grow_to(site, LENGTH)
    assert write_shortcuts(site.registry()).snapshots == 1
    grow_to(site, LENGTH + 10)
    return site


def names(site: Site) -> list[SnapshotName]:
    return listed_snapshots(site.open())


def test_one_is_written_when_it_is_due_and_the_last_two_are_kept(long: Site) -> None:
    assert write_shortcuts(long.registry()) == (0, 0, 0)
    lengths = [LENGTH]
    for length in (80, 81, 101, 102, 140):
        grow_to(long, length)
        done = write_shortcuts(long.registry())
        due = length - lengths[-1] > 20
        assert done.snapshots == due
        lengths += [length] * due
        assert [name.length for name in names(long)] == lengths[-2:]
    assert lengths == [60, 81, 102, 140]


def test_a_short_log_has_none(site: Site) -> None:
    grow = site.registry()
    for _ in range(19):
        grow.append(lambda state: Abort())
    assert write_shortcuts(grow) == (0, 0, 0)
    grow.append(lambda state: Abort())
    assert write_shortcuts(grow).snapshots == 1


def test_what_does_not_serve_is_replaced_and_removed(long: Site) -> None:
    put(long, NAME.object, b"junk")
    registry = long.registry()
    here = SnapshotName(STATE_VERSION, LENGTH + 10)
    put(long, here.object, b"more junk")
    assert write_shortcuts(registry) == (0, 1, 2)
    assert names(long) == [here]
    assert long.registry(cold=True).state == by_entries(long)


def test_those_of_older_rules_go_once_there_are_two_and_those_of_newer_ones_stay(long: Site) -> None:
    older, newer = SnapshotName(STATE_VERSION - 1, 30), SnapshotName(STATE_VERSION + 1, 30)
    for name in (older, newer):
        put(long, name.object, b"of another Cairn")
    assert write_shortcuts(long.registry()).removed == 0
    grow_to(long, 90)
    assert write_shortcuts(long.registry()) == (0, 1, 1)
    assert names(long) == [NAME, SnapshotName(STATE_VERSION, 90), newer]


def test_none_is_written_while_nothing_speaks_for_the_newest_entry(long: Site) -> None:
    grow_to(long, 90)
    long.backend.create(entry_name(90), [b"garbage"])
    assert write_shortcuts(long.registry()).snapshots == 0
    long.registry().append(lambda state: Abort())
    assert write_shortcuts(long.registry()).snapshots == 1
    assert long.registry(cold=True).state == by_entries(long)


def test_none_is_written_of_a_damaged_log(long: Site) -> None:
    grow_to(long, 90)
    put(long, entry_name(70), b"damaged")
    before = names(long)
    with pytest.raises(IntegrityError):
        write_shortcuts(long.registry(cold=True))
    assert names(long) == before
