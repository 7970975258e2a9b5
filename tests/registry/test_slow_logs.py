"""A log in storage that answers slowly is fetched many entries at a time, and is the same log."""

from collections.abc import Iterator

import pytest

from cairn.registry import log, names
from cairn.registry.entries import Abort
from cairn.store.backends.faults import Delay, FaultyBackend
from tests.support.stores import Site


def entries(site: Site, start: int) -> Iterator[tuple[bytes, bytes]]:
    backend = FaultyBackend(site.backend, [Delay(op="read", seconds=0.05, clock=site.clock)])
    return log.read_from(site.open(backend), start)


def test_entries_come_in_order_wherever_one_begins(site: Site) -> None:
    registry = site.registry()
    for _ in range(40):
        registry.append(lambda state: Abort())
    fast = list(log.read_from(site.open(), 0))
    assert len(fast) == 41
    for start in (0, 1, 30, 36, 40, 41):
        assert list(entries(site, start)) == fast[start:]


def test_a_hole_ends_the_reading_and_folders_follow_each_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LOG_FOLDER_ENTRIES", 8)
    monkeypatch.setattr(log, "LOG_FOLDER_ENTRIES", 8)
    registry = site.registry()
    for _ in range(39):
        registry.append(lambda state: Abort())
    assert len(list(entries(site, 0))) == 40  # ends with a full folder
    site.backend.delete(names.entry_name(21))
    assert len(list(entries(site, 0))) == 21
