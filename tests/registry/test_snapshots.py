"""Fold snapshots: a start without the log's whole history, and nothing else than the log says."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from cairn.core.errors import IntegrityError
from cairn.registry import shortcuts
from cairn.registry.entries import Abort, RunOpen
from cairn.registry.fold import STATE_VERSION, encode_state
from cairn.registry.localfiles import Head
from cairn.registry.log import read_entry
from cairn.registry.merkle import root_of
from cairn.registry.names import entry_name
from cairn.registry.opened import OpenStore
from cairn.registry.shortcuts import write_shortcuts
from cairn.registry.snapshots import FOLDER, SnapshotName, Statement, seal_snapshot, seal_statement
from cairn.registry.state import State
from cairn.store.backends.faults import Fail, FaultyBackend
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto.signing import Identity
from tests.support.counting import CountingBackend
from tests.support.doubles import SeededEntropy
from tests.support.longlogs import append_all, by_entries, forget, grow_to, put
from tests.support.stores import Site, checkout_to, commit_tree, new_site
from tests.support.trees import snapshot, write_files

LENGTH = 60
NAME = SnapshotName(STATE_VERSION, LENGTH)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "SNAPSHOT_ENTRIES", 20)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", {"notes": b"one " * 40_000, "more": b"two"})


@pytest.fixture
def long(site: Site, tree: Path) -> Site:
    """A commit, a log of 60 entries with a snapshot, and 10 more, which nobody remembers."""
    commit_tree(site.registry(), tree)
    grow_to(site, LENGTH)
    assert write_shortcuts(site.registry()).snapshots == 1
    grow_to(site, LENGTH + 10)
    forget(site)
    return site


def opened_cold(site: Site) -> tuple[State, bool]:
    """The state of a cold start, and whether it went by a snapshot."""
    backend = FaultyBackend(site.backend)
    state = site.registry(backend, cold=True).state
    read = [call.name for call in backend.calls if call.op == "read" and call.name.startswith("log/")]
    return state, len(read) < LENGTH


# --- What they are for ------------------------------------------------------------------------


def test_a_cold_start_goes_by_the_snapshot_and_finds_the_same(long: Site, tree: Path, tmp_path: Path) -> None:
    expected = by_entries(long)
    backend = CountingBackend(long.backend)
    registry = long.registry(backend, cold=True)
    assert registry.state == expected
    # Entry 0, the snapshot's last, four and six more, the end; four listings; format, key and the snapshot; a piece.
    assert backend.requests <= 1 + 1 + 10 + 1 + 4 + 3 + len(expected.pieces) + 1
    # The index is not in the snapshot: content is found all the same.
    checkout_to(registry, "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)
    registry.append(lambda state: Abort())
    registry.close()
    warm = long.registry()
    assert warm.state.length == LENGTH + 11
    checkout_to(warm, "m", tmp_path / "again")


def test_a_snapshot_of_the_whole_log_is_enough(site: Site, tree: Path) -> None:
    commit_tree(site.registry(), tree)
    grow_to(site, LENGTH)
    write_shortcuts(site.registry())
    assert opened_cold(site) == (by_entries(site), True)


def test_a_warm_start_asks_for_none(long: Site) -> None:
    long.registry()
    backend = FaultyBackend(long.backend, [Fail(name="snapshots*")])
    long.registry(backend)
    assert not [call for call in backend.calls if call.name.startswith(FOLDER)]


def test_snapshots_and_bundles_go_together(site: Site, tree: Path) -> None:
    commit_tree(site.registry(), tree)
    grow_to(site, LENGTH)
    write_shortcuts(site.registry())
    grow_to(site, 600)
    assert shortcuts.write_bundles(site.open(), 599, ()) == 2
    backend = FaultyBackend(site.backend)
    assert site.registry(backend, cold=True).state == by_entries(site)
    assert entry_name(30) not in [call.name for call in backend.calls if call.op == "read"]
    assert sum(call.op == "read" and call.name.startswith("bundles/") for call in backend.calls) == 2


# --- A snapshot that does not serve costs nothing but time ------------------------------------


def test_no_flipped_bit_changes_anything(long: Site, request: pytest.FixtureRequest) -> None:
    seed = request.config.option.hypothesis_seed
    print(f"seed {seed!r}")
    draw, expected = random.Random(seed), by_entries(long)
    good = long.backend.read(NAME.object)
    for at in [0, 4, 5, 6, 8, 40, 72, len(good) - 1] + [draw.randrange(len(good)) for _ in range(20)]:
        put(long, NAME.object, good[:at] + bytes([good[at] ^ 1 << draw.randrange(8)]) + good[at + 1 :])
        assert opened_cold(long) == (expected, False), at
    for data in (b"", good[:1], good[:100], good[:-1], good + b"\0"):
        put(long, NAME.object, data)
        assert opened_cold(long) == (expected, False)
    put(long, NAME.object, good)
    assert opened_cold(long) == (expected, True)


def lying(state: State) -> State:
    """The state with one thing in it that no entry says."""
    other = state.copy()
    next(iter(other.models.values())).runs[b"never" * 3] = 7
    return other


def as_of(site: Site, length: int) -> State:
    """The state of the first entries."""
    elsewhere = replace(site.home, cache=site.home.cache.with_name(f"as-of-{length}"))
    cut = replace(site, backend=MemoryBackend(), home=elsewhere)
    for listed in site.backend.list():
        if not listed.name.startswith("log/") or int(listed.name.rpartition("/")[2]) < length:
            cut.backend.create(listed.name, [site.backend.read(listed.name)])
    forget(site)
    state = cut.registry().state
    forget(site)
    return state


def resealed(site: Site, state: State, by: Identity | None = None, opened: OpenStore | None = None) -> bytes:
    opened = opened or site.open()
    return seal_snapshot(opened, by or opened.identity, state)


def by_stranger(site: Site, state: State) -> bytes:
    return resealed(site, lying(state), Identity.generate(SeededEntropy(99)))


def of_another_store(site: Site, state: State) -> bytes:
    other = new_site(site.home.data.parent / "other", seed=78).open()
    return seal_snapshot(other, other.identity, lying(state))


def of_another_store_under_this_key(site: Site, state: State) -> bytes:
    opened = site.open()
    return seal_snapshot(replace(opened, tenant=bytes(16)), opened.identity, lying(state))


def at_another_length(site: Site, state: State) -> bytes:
    return resealed(site, as_of(site, LENGTH - 3))


def with_another_root(site: Site, state: State) -> bytes:
    other = lying(state)
    other.frontier = (bytes(32),) * len(other.frontier)
    return resealed(site, other)


def with_an_impossible_frontier(site: Site, state: State) -> bytes:
    other = lying(state)
    other.frontier = (root_of(state.frontier),)
    return resealed(site, other)


def with_another_last_entry(site: Site, state: State) -> bytes:
    other = lying(state)
    other.last_leaf = bytes(32)
    return resealed(site, other)


def of_no_state(site: Site, state: State) -> bytes:
    encoded = msgspec.msgpack.encode([STATE_VERSION, ["x"]])
    return stated(site, state, encoded, blake3(encoded).digest())


def of_a_state_that_was_not_signed(site: Site, state: State) -> bytes:
    return stated(site, state, encode_state(lying(state)), blake3(encode_state(state)).digest())


def with_a_root_that_is_not_its_own(site: Site, state: State) -> bytes:
    encoded, rooted = encode_state(lying(state)), state.copy()
    rooted.frontier = (bytes(32),) * len(state.frontier)
    return stated(site, rooted, encoded, blake3(encoded).digest())


def in_the_name_of_an_owner(site: Site, state: State) -> bytes:
    other = Identity.generate(SeededEntropy(99))
    other.actor = site.open().identity.actor
    return resealed(site, lying(state), other)


def stated(site: Site, state: State, encoded: bytes, signed: bytes) -> bytes:
    opened = site.open()
    said = Statement(
        1, opened.tenant, opened.store, LENGTH, root_of(state.frontier), STATE_VERSION, opened.identity.actor, signed
    )
    return seal_statement(opened, opened.identity, said, encoded)


FORGERIES: list[Callable[[Site, State], bytes]] = [
    by_stranger, of_another_store, of_another_store_under_this_key, at_another_length, with_another_root,
    with_an_impossible_frontier, with_another_last_entry, of_no_state, of_a_state_that_was_not_signed,
    with_a_root_that_is_not_its_own, in_the_name_of_an_owner,
]  # fmt: skip


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_forged_snapshot_is_ignored(long: Site, forge: Callable[[Site, State], bytes]) -> None:
    expected, state = by_entries(long), as_of(long, LENGTH)
    put(long, NAME.object, forge(long, state))
    found = long.registry(cold=True).state
    assert found == expected
    assert found.damaged_from is None


def test_the_forger_would_be_believed_if_he_were_an_owner(long: Site) -> None:
    """What the tests above rely on: but for what is wrong with each, their snapshots would serve."""
    put(long, NAME.object, resealed(long, lying(as_of(long, LENGTH))))
    state, by_snapshot = opened_cold(long)
    assert by_snapshot
    assert b"never" * 3 in next(iter(state.models.values())).runs


def test_the_recovery_identity_is_an_owner_too(long: Site) -> None:
    recovery = Identity(long.open().secrets.recovery_seed)
    put(long, NAME.object, resealed(long, as_of(long, LENGTH), recovery))
    assert opened_cold(long) == (by_entries(long), True)


def test_a_snapshot_of_other_rules_or_another_name_is_ignored(long: Site) -> None:
    expected, good = by_entries(long), long.backend.read(NAME.object)
    for name in (
        f"{FOLDER}/{LENGTH:012d}-{STATE_VERSION - 1}", f"{FOLDER}/{LENGTH:012d}-{STATE_VERSION + 1}",
        f"{FOLDER}/{LENGTH:012d}-0{STATE_VERSION}", f"{FOLDER}/{LENGTH + 1:012d}-{STATE_VERSION}",
        f"{FOLDER}/{LENGTH:011d}-{STATE_VERSION}", f"{FOLDER}/{LENGTH:012d}-{STATE_VERSION}-x", f"{FOLDER}/x",
    ):  # fmt: skip
        long.backend.delete(NAME.object)
        put(long, name, good)
        assert opened_cold(long) == (expected, False), name
        long.backend.delete(name)


def test_the_next_older_one_serves_where_the_newest_does_not(long: Site) -> None:
    write_shortcuts(long.registry(cold=True))
    grow_to(long, 90)
    assert write_shortcuts(long.registry()).snapshots == 1
    newest = SnapshotName(STATE_VERSION, 90)
    put(long, newest.object, long.backend.read(newest.object)[:-1])
    for ahead in range(1000, 1002):
        put(long, SnapshotName(STATE_VERSION, ahead).object, b"junk")
    assert opened_cold(long) == (by_entries(long), True)


def test_snapshots_that_cannot_be_read_are_done_without(long: Site) -> None:
    expected = by_entries(long)
    for fault in (Fail(op="read", name="snapshots/*"), Fail(op="list", name="snapshots")):
        assert long.registry(FaultyBackend(long.backend, [fault]), cold=True).state == expected


# --- The log decides --------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 40, LENGTH - 1])
def test_a_log_that_was_cut_below_its_snapshot_is_as_long_as_it_is(long: Site, kept: int) -> None:
    for name in long.log()[kept:]:
        long.backend.delete(name)
    state = long.registry(cold=True).state
    assert (state.length, state.damaged_from) == (kept, None)
    assert state == by_entries(long)


@pytest.mark.parametrize("kept", [1, 40, LENGTH - 1, LENGTH, LENGTH + 5])
def test_a_log_that_was_cut_is_noticed_by_whoever_has_seen_more(long: Site, kept: int) -> None:
    long.registry()
    for name in long.log()[kept:]:
        long.backend.delete(name)
    with pytest.raises(IntegrityError, match="rolled back"):
        long.registry(cold=True)


@pytest.mark.parametrize("kept", [40, LENGTH - 1, LENGTH])
def test_a_log_that_was_written_anew_is_not_that_of_its_snapshot(long: Site, kept: int) -> None:
    registry = long.registry()
    model = next(iter(registry.state.models))
    head = (long.home.state / "heads" / registry.opened.store.hex()).read_text()
    for name in long.log()[kept:]:
        long.backend.delete(name)
    forget(long)
    fresh = long.registry(cold=True)
    append_all(fresh.opened, fresh.state.copy(), (RunOpen(model, b"anew" * 4, n + 1) for n in range(40)))
    assert opened_cold(long) == (by_entries(long), kept == LENGTH)
    (long.home.state / "heads" / registry.opened.store.hex()).write_text(head)
    with pytest.raises(IntegrityError, match="the log was replaced"):
        long.registry(cold=True)


@pytest.mark.parametrize("length", [1, 2, 30, LENGTH - 1, LENGTH, LENGTH + 1, LENGTH + 9])
def test_a_remembered_head_before_behind_and_at_the_snapshot(long: Site, length: int) -> None:
    opened = long.open()
    root = root_of(as_of(long, length).frontier)
    opened.home.remember_head(opened.store, Head(length, root))
    assert opened_cold(long)[1]
    assert long.home.remembered_head(opened.store) == Head(LENGTH + 10, root_of(by_entries(long).frontier))
    forget(long)
    opened.home.remember_head(opened.store, Head(length, bytes(32)))
    with pytest.raises(IntegrityError, match="the log was replaced"):
        long.registry(cold=True)


def test_damage_behind_the_snapshot_is_damage(long: Site) -> None:
    stored = read_entry(long.open(), LENGTH + 3)[0]
    put(long, entry_name(LENGTH + 3), stored[:-1])
    state = long.registry(cold=True).state
    assert state.damaged_from == LENGTH + 3
    assert state == by_entries(long)


def test_an_entry_behind_that_contradicts_the_snapshot_sends_all_back_to_the_log(long: Site) -> None:
    """The snapshot is one of another log that ends in the same entry."""
    expected, other = by_entries(long), as_of(long, LENGTH)
    other = lying(other)
    other.frontier = (bytes(32), *other.frontier[1:])
    put(long, NAME.object, resealed(long, other))
    assert opened_cold(long) == (expected, False)
