"""Bundles: they save requests, and whatever they hold, the log is the same."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from cairn.core.errors import IntegrityError
from cairn.core.limits import BUNDLE_ENTRIES, LOG_ENTRY_BYTES_MAX
from cairn.registry import bundles
from cairn.registry.bundles import bundle_name, decode_bundle, encode_bundle, listed_bundles, read_bundle
from cairn.registry.entries import Abort, RunOpen
from cairn.registry.log import read_from
from cairn.registry.merkle import append_leaf, leaf_hash, root_of
from cairn.registry.models import ensure_model
from cairn.registry.names import entry_name
from cairn.registry.replay import UNREADABLE
from cairn.registry.shortcuts import write_shortcuts
from cairn.registry.state import State
from cairn.store.backends.faults import Delay, Fail, FaultyBackend
from tests.support.counting import CountingBackend
from tests.support.longlogs import append_all, by_entries, forget, grow_to, next_entry, put
from tests.support.stores import Site, new_site

LENGTH = 600


@pytest.fixture
def long(site: Site) -> Site:
    """A log of 600 entries and its two bundles, which nobody remembers."""
    ensure_model(site.registry(), "m")
    grow_to(site, LENGTH)
    assert write_shortcuts(site.registry()).bundles == 2
    forget(site)
    return site


def by_bundles(site: Site) -> State:
    return site.registry(cold=True).state


def entries_of(site: Site, number: int) -> list[bytes]:
    return read_bundle(site.open(), number)


def put_entries(site: Site, number: int, entries: list[bytes]) -> None:
    """A bundle that is in order, whatever its entries are."""
    put(site, bundle_name(number), encode_bundle(site.open().store, number, entries))


# --- What they are for ------------------------------------------------------------------------


def test_a_bundle_holds_the_entries_as_they_are(long: Site) -> None:
    entries = [stored for stored, _ in read_from(long.open(), 0)]
    assert listed_bundles(long.open()) == [0, 1]
    assert entries_of(long, 0) + entries_of(long, 1) == entries[:512]


def test_a_cold_start_takes_few_requests_and_comes_to_the_same_state(site: Site) -> None:
    ensure_model(site.registry(), "m")
    grow_to(site, 1000)
    backend = CountingBackend(site.backend)
    state = site.registry(backend, cold=True).state
    without = backend.requests
    assert write_shortcuts(site.registry()).bundles == 3
    backend.forget()
    assert site.registry(backend, cold=True).state == state
    # The store's keys and entry 0, four entries, four listings, three bundles, the rest of the log and its end.
    rest = 1000 - 3 * BUNDLE_ENTRIES
    assert without >= 1000
    assert backend.requests <= 4 + 4 + 4 + 3 + rest + 1


def test_a_warm_start_asks_for_none(long: Site) -> None:
    long.registry()
    backend = CountingBackend(long.backend)
    long.registry(backend)
    assert [call for call in backend.calls if not call.name.startswith(("keys/", "format"))] == [
        ("read", entry_name(0)), ("read", entry_name(LENGTH - 1)), ("list", "log/00000000"),
        ("read", entry_name(LENGTH)),
    ]  # fmt: skip


@pytest.mark.parametrize("start", [1, 100, 250, 256, 300, 507, 508, 511, 512, 590])
def test_it_goes_on_from_a_cache_that_is_behind(site: Site, start: int) -> None:
    ensure_model(site.registry(), "m")
    if start > 2:
        grow_to(site, start)
    site.registry().close()
    elsewhere = replace(site, home=replace(site.home, cache=site.home.cache.with_name("elsewhere")))
    grow_to(elsewhere, LENGTH)
    write_shortcuts(elsewhere.registry())
    backend = FaultyBackend(site.backend)
    assert site.registry(backend).state == by_entries(site)
    read = [call.name for call in backend.calls if call.op == "read" and call.name.startswith("bundles/")]
    first = max(start, 2) + 4
    assert read == [bundle_name(number) for number in range(first // 256, 2)]


def test_storage_that_answers_slowly_gives_the_same(long: Site) -> None:
    slow = FaultyBackend(long.backend, [Delay(op="read", seconds=0.05, clock=long.clock)])
    assert long.registry(slow, cold=True).state == by_entries(long)


def test_void_entries_and_liars_in_a_bundle_are_what_they_are_in_the_log(site: Site) -> None:
    ensure_model(site.registry(), "m")
    grow_to(site, 100)
    registry = site.registry()
    opened, state = registry.opened, registry.state.copy()
    liar = next_entry(opened, 100, (bytes(32),), Abort())
    garbage = b"garbage"
    frontier = state.frontier
    for n, stored in ((100, liar), (101, garbage)):
        site.backend.create(entry_name(n), [stored])
        frontier = append_leaf(frontier, n, leaf_hash(stored))
    state.length, state.frontier = 102, frontier
    append_all(opened, state, [Abort()] * 300)
    assert write_shortcuts(site.registry()).bundles == 1
    found = by_bundles(site)
    assert found == by_entries(site)
    assert [(void.n, void.reason) for void in found.voids] == [(100, "its signed root is wrong"), (101, UNREADABLE)]


# --- Nobody trusts one ------------------------------------------------------------------------


def test_no_flipped_bit_of_a_bundle_changes_anything(long: Site, request: pytest.FixtureRequest) -> None:
    seed = request.config.option.hypothesis_seed
    print(f"seed {seed!r}")
    draw, expected, name = random.Random(seed), by_entries(long), bundle_name(1)
    good = long.backend.read(name)
    regions = [0, 4, 5, 8, 16, 32, 32 + 4 * 255, 1056, len(good) - 33, len(good) - 32, len(good) - 1]
    for at in regions + [draw.randrange(len(good)) for _ in range(10)]:
        put(long, name, good[:at] + bytes([good[at] ^ 1 << draw.randrange(8)]) + good[at + 1 :])
        registry = long.registry(cold=True)
        assert registry.state == expected, at
        assert registry.bad_bundles == {1}
    # Whoever has met a bad one writes it anew.
    assert write_shortcuts(registry).bundles == 1
    assert long.backend.read(name) == good


def test_a_truncated_or_lengthened_bundle_changes_nothing(long: Site) -> None:
    name = bundle_name(0)
    good, expected = long.backend.read(name), by_entries(long)
    for data in [good[:keep] for keep in (0, 1, 31, 32, 1055, 1056, 1087, -1000, -1)] + [good + b"\0", good + good]:
        put(long, name, data)
        with pytest.raises(IntegrityError):
            decode_bundle(data, long.open().store, 0)
        assert by_bundles(long) == expected


@pytest.mark.parametrize("change", [1, -1, LOG_ENTRY_BYTES_MAX, 1 << 31])
def test_lengths_that_do_not_fit_are_damage(long: Site, change: int) -> None:
    entries, store = entries_of(long, 0), long.open().store
    data = bytearray(encode_bundle(store, 0, entries)[:-32])
    data[32:36] = (len(entries[0]) + change).to_bytes(4, "little")
    data += blake3(data).digest()
    with pytest.raises(IntegrityError, match="impossible lengths"):
        decode_bundle(bytes(data), store, 0)


def flip_one(entries: list[bytes]) -> list[bytes]:
    return [*entries[:77], entries[77][:-1] + bytes([entries[77][-1] ^ 1]), *entries[78:]]


LIES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a bit of an entry": flip_one,
    "a bit of the last entry": lambda entries: [*entries[:-1], flip_one([entries[-1]] * 100)[77]],
    "two that changed places": lambda entries: [*entries[:9], entries[10], entries[9], *entries[11:]],
    "one twice": lambda entries: [*entries[:9], entries[8], *entries[10:]],
    "garbage": lambda entries: [b""] * BUNDLE_ENTRIES,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("number", [0, 1])
def test_a_bundle_in_order_that_holds_something_else_changes_nothing(
    long: Site, lie: Callable[[list[bytes]], list[bytes]], number: int
) -> None:
    expected, good = by_entries(long), long.backend.read(bundle_name(number))
    put_entries(long, number, lie(entries_of(long, number)))
    registry = long.registry(cold=True)
    assert registry.state == expected
    assert number in registry.bad_bundles
    write_shortcuts(registry)
    assert long.backend.read(bundle_name(number)) == good


@pytest.mark.parametrize("behind", [0, 1, 5])
def test_an_entry_that_lost_its_race_does_not_come_back_by_a_bundle(site: Site, behind: int) -> None:
    """Signed by an owner, for this very position, and never in the log: only an entry behind can tell."""
    model = ensure_model(site.registry(), "m")
    grow_to(site, 255)
    registry = site.registry()
    loser = next_entry(registry.opened, 255, registry.state.frontier, RunOpen(model, b"lost" * 4, 1))
    grow_to(site, 256 + behind)
    entries = [stored for stored, _ in read_from(site.open(), 0)][:255]
    put_entries(site, 0, [*entries, loser])
    forget(site)
    state = by_bundles(site)
    assert (state.length, state.damaged_from) == (256 + behind, None)
    assert b"lost" * 4 not in state.models[model].runs
    assert state == by_entries(site)


def test_a_bundle_of_another_store_is_bad(long: Site, tmp_path: Path) -> None:
    other = new_site(tmp_path / "other", seed=77)
    ensure_model(other.registry(), "m")
    grow_to(other, 300)
    write_shortcuts(other.registry())
    expected = by_entries(long)
    put(long, bundle_name(0), other.backend.read(bundle_name(0)))
    registry = long.registry(cold=True)
    assert (registry.state, registry.bad_bundles) == (expected, {0})


@pytest.mark.parametrize("kept", [1, 3, 200, 256, 500, 512, 513])
def test_a_log_that_was_cut_under_its_bundles_is_as_long_as_it_is(long: Site, kept: int) -> None:
    for name in long.log()[kept:]:
        long.backend.delete(name)
    state = by_bundles(long)
    assert (state.length, state.damaged_from) == (kept, None)
    assert state == by_entries(long)


def test_a_log_that_was_written_anew_is_not_that_of_its_bundles(long: Site) -> None:
    for name in long.log()[400:]:
        long.backend.delete(name)
    model = next(iter(by_entries(long).models))
    registry = long.registry(cold=True)
    append_all(registry.opened, registry.state.copy(), (RunOpen(model, b"anew" * 4, n + 1) for n in range(300)))
    forget(long)
    assert by_bundles(long) == by_entries(long)
    assert by_bundles(long).length == 700


def test_a_damaged_entry_is_read_from_the_bundle_where_the_roots_speak_for_it(long: Site) -> None:
    expected = by_entries(long)
    stored = long.backend.read(entry_name(77))
    put(long, entry_name(77), stored[:-1])
    assert by_entries(long).damaged_from == 77
    assert by_bundles(long) == expected
    assert root_of(expected.frontier) == root_of(by_bundles(long).frontier)


def test_bundles_that_cannot_be_read_are_done_without(long: Site) -> None:
    expected = by_entries(long)
    for fault in (Fail(op="read", name="bundles/*"), Fail(op="list", name="bundles")):
        assert long.registry(FaultyBackend(long.backend, [fault]), cold=True).state == expected


# --- Which there are --------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "written"), [(255, 0), (256, 0), (257, 1), (512, 1), (513, 2)])
def test_a_bundle_is_written_once_an_entry_speaks_for_it(site: Site, length: int, written: int) -> None:
    ensure_model(site.registry(), "m")
    grow_to(site, length)
    assert write_shortcuts(site.registry()).bundles == written
    assert write_shortcuts(site.registry()).bundles == 0
    assert listed_bundles(site.open()) == list(range(written))


def test_a_range_with_an_entry_over_the_limit_has_no_bundle(site: Site) -> None:
    ensure_model(site.registry(), "m")
    grow_to(site, 300)
    registry = site.registry()
    state = registry.state.copy()
    huge = bytes(LOG_ENTRY_BYTES_MAX + 1)
    site.backend.create(entry_name(300), [huge])
    state.length, state.frontier = 301, append_leaf(state.frontier, 300, leaf_hash(huge))
    append_all(registry.opened, state, [Abort()] * 500)
    assert write_shortcuts(site.registry()).bundles == 2
    assert listed_bundles(site.open()) == [0, 2]
    assert by_bundles(site) == by_entries(site)


def test_a_range_of_long_entries_has_no_bundle_and_is_not_read_for_it(
    long: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {number: len(long.backend.read(bundle_name(number))) for number in (0, 1)}
    for number in sizes:
        long.backend.delete(bundle_name(number))
    monkeypatch.setattr(bundles, "BUNDLE_BYTES_MAX", min(sizes.values()) - 1)
    backend = FaultyBackend(long.backend)
    registry = long.registry(backend, cold=True)
    before = len(backend.calls)
    assert write_shortcuts(registry).bundles == 0
    assert sum(call.op == "read" for call in backend.calls[before:]) < 5
    monkeypatch.setattr(bundles, "BUNDLE_BYTES_MAX", max(sizes.values()))
    assert write_shortcuts(registry).bundles == 2
