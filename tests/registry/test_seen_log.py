"""What the next command of a client notices of entries that it has folded, at which cost, and what it leaves open."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cairn.core.errors import IntegrityError
from cairn.core.limits import ENTRY_READS_AT_ONCE, SNAPSHOT_ENTRIES
from cairn.registry import log, names, seenlog
from cairn.registry.audit import verify_log
from cairn.registry.entries import Abort
from cairn.registry.logview import LogView
from cairn.registry.models import ensure_model
from cairn.registry.names import entry_name
from cairn.registry.shortcuts import write_shortcuts
from cairn.store.backends.contract import Listed
from cairn.store.backends.faults import Fail, FaultyBackend
from tests.support.doubles import HeldClock
from tests.support.fake_s3 import fake_s3
from tests.support.longlogs import forget, grow_to, put
from tests.support.stores import Site, new_site

LENGTH = 40


@pytest.fixture
def grown(site: Site) -> Site:
    """A log of which this user has a warm cache."""
    ensure_model(site.registry(), "m")
    grow_to(site, LENGTH)
    site.registry().close()
    return site


def damaged(site: Site, n: int) -> None:
    data = site.backend.read(entry_name(n))
    put(site, entry_name(n), data[:-1] + bytes([data[-1] ^ 1]))


def log_calls(backend: FaultyBackend, op: str) -> list[str]:
    return [call.name for call in backend.calls if call.op == op and call.name.startswith("log/")]


# --- What it costs ---------------------------------------------------------------------------------


def test_an_untouched_log_costs_one_listing(grown: Site) -> None:
    backend = FaultyBackend(grown.backend)
    assert grown.registry(backend).state.damaged_from is None
    assert log_calls(backend, "list") == ["log/00000000"]
    assert log_calls(backend, "read") == [entry_name(0), entry_name(LENGTH - 1), entry_name(LENGTH)]


def test_copies_of_a_store_are_read_once(grown: Site) -> None:
    """Every stamp is another after a copy, and no byte: that costs time, once."""

    class Stamped(FaultyBackend):
        def list(self, prefix: str = "") -> Iterator[Listed]:
            return (Listed(one.name, one.size, b"other " + one.stamp) for one in super().list(prefix))

    reads = []
    for _ in range(2):
        backend = Stamped(grown.backend)
        assert grown.registry(backend).state.damaged_from is None
        reads.append(len(log_calls(backend, "read")))
    assert reads == [LENGTH + 3, 3]


def test_a_storage_that_tells_no_versions_is_read_in_part(grown: Site) -> None:
    """At least one batch, from anywhere on; more while that goes fast."""

    class Unstamped(FaultyBackend):
        def list(self, prefix: str = "") -> Iterator[Listed]:
            return (Listed(one.name, one.size) for one in super().list(prefix))

        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            assert isinstance(grown.clock, HeldClock)
            grown.clock.now_ns += 30_000_000
            return super().read(name, offset, length)

    looked = set[str]()
    for _ in range(20):
        backend = Unstamped(grown.backend)
        grown.registry(backend)
        read = log_calls(backend, "read")
        assert len(read) == ENTRY_READS_AT_ONCE + 3
        looked |= set(read)
    assert len(looked) > LENGTH - 4, "each has its turn"


# --- What it notices -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 17, LENGTH - 2])
@pytest.mark.parametrize("how", ["altered", "removed"])
def test_it_is_named_until_it_is_repaired(grown: Site, n: int, how: str) -> None:
    whole = grown.backend.read(entry_name(n))
    if how == "altered":
        damaged(grown, n)
    else:
        grown.backend.delete(entry_name(n))
    for _ in range(2):
        registry = grown.registry()
        assert (registry.state.damaged_from, registry.state.length) == (n, LENGTH)
        with pytest.raises(IntegrityError, match=f"log entry {n} is"):
            registry.append(lambda state: Abort())
        registry.close()
    put(grown, entry_name(n), whole)
    registry = grown.registry()
    assert registry.state.damaged_from is None
    assert registry.append(lambda state: Abort()) == LENGTH


def test_a_listing_that_leaves_out_what_comes_meanwhile_tells_of_no_damage(grown: Site) -> None:
    """A name that is added while a folder is read may be passed over, and the one after it be seen."""
    writer = grown.registry()
    added = [writer.append(lambda state: Abort()) for _ in range(3)]

    class Racing(FaultyBackend):
        def list(self, prefix: str = "") -> Iterator[Listed]:
            return (one for one in super().list(prefix) if one.name != entry_name(added[1]))

    backend = Racing(grown.backend)
    assert grown.registry(backend).state.damaged_from is None
    assert log_calls(backend, "read").count(entry_name(5)) == 0, "the log is not read anew"


def test_what_this_client_wrote_itself_is_looked_at_too(site: Site) -> None:
    registry = site.registry()
    for _ in range(6):
        registry.append(lambda state: Abort())
    registry.close()
    damaged(site, 3)
    assert site.registry().state.damaged_from == 3


def test_an_entry_far_ahead_is_told_and_not_believed(grown: Site) -> None:
    """A foreign hand puts a name where the log will be: everything is read as it was, and nobody writes."""
    grown.backend.create(entry_name(LENGTH + 100), [b"junk"])
    for cold in (False, True):
        registry = grown.registry(cold=cold)
        assert (registry.state.length, registry.state.damaged_from) == (LENGTH, LENGTH)
        with pytest.raises(IntegrityError, match=f"log entry {LENGTH} is missing"):
            registry.append(lambda state: Abort())
        registry.close()
    grown.backend.delete(entry_name(LENGTH + 100))
    assert grown.registry().append(lambda state: Abort()) == LENGTH, "no such head was remembered"


def test_foreign_names_do_not_keep_a_damaged_store_from_opening(grown: Site) -> None:
    damaged(grown, 20)
    grown.backend.create("objects/readme.txt", [b"-"])
    assert grown.registry(cold=True).state.damaged_from == 20


def test_a_client_that_never_saw_the_store_is_told_of_a_hole(grown: Site) -> None:
    forget(grown)
    grown.backend.delete(entry_name(20))
    assert grown.registry(cold=True).state.damaged_from == 20


@pytest.mark.parametrize("n", [3, 300, 1023])
def test_whoever_started_from_shortcuts_notices_what_comes_after(site: Site, n: int) -> None:
    ensure_model(site.registry(), "m")
    grow_to(site, SNAPSHOT_ENTRIES + 80)
    assert write_shortcuts(site.registry())[:2] == (4, 1)
    site.home = replace(site.home, cache=site.home.cache.with_name("another"))
    site.registry().close()
    damaged(site, n)
    assert site.registry().state.damaged_from == n


def test_what_was_altered_before_a_bundle_was_believed_is_the_audits_to_tell(site: Site) -> None:
    ensure_model(site.registry(), "m")
    grow_to(site, 600)
    write_shortcuts(site.registry())
    damaged(site, 77)
    registry = site.registry(cold=True)
    assert registry.state.damaged_from is None
    found = verify_log(LogView.of(registry.opened)).findings
    assert [(one.kind, one.entry) for one in found] == [("altered", 77)]


def test_on_s3_one_listing_more_names_it(tmp_path: Path) -> None:
    with fake_s3() as fake:
        site = new_site(tmp_path / "home", fake.backend())
        registry = site.registry()
        for _ in range(LENGTH):
            registry.append(lambda state: Abort())
        registry.close()
        asked = [0]
        for _ in range(3):
            site.registry().close()
            asked.append(len(fake.requests))
        assert asked[3] - asked[2] == 6, "format, wrap, first, last and next entry, and a listing"
        damaged(site, 7)
        assert site.registry().state.damaged_from == 7


# --- Several folders -------------------------------------------------------------------------------


@pytest.fixture
def folders_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (log, names, seenlog):
        monkeypatch.setattr(module, "LOG_FOLDER_ENTRIES", 4)


@pytest.mark.usefixtures("folders_of_four")
@pytest.mark.parametrize("n", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_every_folder_is_looked_at_as_long_as_that_goes_fast(site: Site, n: int, cold: bool) -> None:
    registry = site.registry()
    while registry.state.length < 10:
        registry.append(lambda state: Abort())
    registry.close()
    site.backend.delete(entry_name(n))
    assert site.registry(cold=cold).state.damaged_from == n


@pytest.mark.usefixtures("folders_of_four")
def test_where_listing_is_slow_the_newest_folder_and_one_more_are_looked_at(site: Site) -> None:
    registry = site.registry()
    while registry.state.length < 22:
        registry.append(lambda state: Abort())
    registry.close()

    class Slow(FaultyBackend):
        def list(self, prefix: str = "") -> Iterator[Listed]:
            assert isinstance(site.clock, HeldClock)
            site.clock.now_ns += 40_000_000
            return super().list(prefix)

    older = set[str]()
    for _ in range(30):
        backend = Slow(site.backend)
        site.registry(backend)
        newest, other = log_calls(backend, "list")
        assert newest == "log/00000005"
        older.add(other)
    assert older == {f"log/0000000{n}" for n in range(5)}


def test_who_may_not_list_reads_on(grown: Site) -> None:
    backend = FaultyBackend(grown.backend, [Fail(op="list", name="log/00000000")])
    assert grown.registry(backend).state.length == LENGTH


@pytest.mark.parametrize("junk", [b"", b"\x90", b"\x92\x90\x90", b"junk"])
def test_notes_that_cannot_be_read_are_none(grown: Site, junk: bytes) -> None:
    registry = grown.registry()
    registry.cache.note_seen({0: junk})
    registry.close()
    assert grown.registry().state.damaged_from is None
