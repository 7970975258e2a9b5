"""Replaying stored bytes: void entries, liars, damage, and entries of a newer format."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.canonical import encode
from cairn.core.ids import StoreId
from cairn.core.limits import LOG_ENTRY_BYTES_MAX
from cairn.registry.entries import Abort, Init, RefChange, RefMove, seal_entry
from cairn.registry.fold import decode_state, encode_state
from cairn.registry.replay import UNREADABLE
from cairn.registry.state import Model, State
from cairn.store.crypto.objects import ObjectKind, seal_object
from tests.support.logs import MAIN, MODEL, TAG, LogMaker, commit_entry, model_create, packs

FIRST, SECOND = b"1" * 32, b"2" * 32
LIE = b"\xee" * 32
MOVED = RefChange(MAIN, b"sealed", FIRST)


@pytest.fixture
def log() -> LogMaker:
    """Init, a model, a commit."""
    log = LogMaker()
    log.add(log.init())
    log.add(model_create())
    log.add(commit_entry(FIRST, packs(1)))
    return log


def voids(state: State) -> dict[int, str]:
    return {void.n: void.reason for void in state.voids}


def flipped(data: bytes, at: int = 100) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_honest_entries_make_one_state_that_is_attested(log: LogMaker) -> None:
    replay = log.replay()
    state = replay.current()
    assert state is replay.attested()
    assert (state.length, replay.length, replay.root) == (3, 3, log.root())
    assert (state.voids, state.damaged_from, state.newer_from) == ([], None, None)
    assert state.models[MODEL].refs[MAIN].checkpoint == FIRST


@given(st.integers(0, 6))
def test_it_goes_on_from_a_cached_state_as_from_the_start(cut: int) -> None:
    log = LogMaker()
    log.add(log.init())
    log.add(model_create())
    log.add(commit_entry(FIRST, packs(1)))
    log.stored.append(b"garbage")
    log.add(commit_entry(SECOND, packs(2), ref=MOVED))
    log.add(Abort())
    whole = log.replay().attested()
    cached = decode_state(encode_state(log.replay(log.stored[:cut]).attested()))
    assert log.replay(log.stored[cut:], cached).attested() == whole


# --- Void entries: they count as bytes and do nothing -----------------------------------------


def other_store(log: LogMaker) -> bytes:
    return log.seal(Abort(), store=StoreId(bytes(16)))


def bad_signature(log: LogMaker) -> bytes:
    return seal_entry(log.entry(Abort()), log.stranger, log.k_log, log.entropy)


def resealed(log: LogMaker, plain: bytes) -> bytes:
    return seal_object(log.k_log, log.store, ObjectKind.LOG_ENTRY, plain, log.entropy)


VOID: dict[str, tuple[Callable[[LogMaker], bytes], str]] = {
    "nothing": (lambda log: b"", UNREADABLE),
    "garbage": (lambda log: b"garbage" * 50, UNREADABLE),
    "changed": (lambda log: flipped(log.seal(Abort())), UNREADABLE),
    "cut": (lambda log: log.seal(Abort())[:-1], UNREADABLE),
    "another key": (lambda log: seal_object(bytes(32), log.store, ObjectKind.LOG_ENTRY, b"", log.entropy), UNREADABLE),
    "another kind": (lambda log: seal_object(log.k_log, log.store, ObjectKind.BODY, b"", log.entropy), UNREADABLE),
    "no entry": (lambda log: resealed(log, b"\xc1"), UNREADABLE),
    "second spelling": (lambda log: resealed(log, b"\xdc\x00\x02\xc4\x00\xc4\x00"), UNREADABLE),
    "a stranger in the owner's name": (bad_signature, UNREADABLE),
    "another place": (lambda log: log.seal(Abort(), n=9), UNREADABLE),
    "an entry of this log again": (lambda log: log.stored[1], UNREADABLE),
    "another store": (other_store, UNREADABLE),
    "another tenant": (lambda log: log.seal(Abort(), tenant=bytes(16)), UNREADABLE),
    "a stranger": (lambda log: log.seal(Abort(), log.stranger), "no right"),
    "a payload that does not decode": (lambda log: log.seal(b"\xc0", type="commit"), "payload of log entry 3"),
    "another type's payload": (lambda log: log.seal(encode(Abort()), type="ref.move"), "payload of log entry 3"),
    "a rule broken": (lambda log: log.seal(commit_entry(FIRST)), "exists already"),
    "a second init": (lambda log: log.seal(log.init()), "init entry"),
}


@pytest.mark.parametrize(("make", "reason"), VOID.values(), ids=VOID)
def test_a_void_entry_counts_and_does_nothing(log: LogMaker, make: Callable[[LogMaker], bytes], reason: str) -> None:
    before = log.replay().current()
    log.stored.append(make(log))
    after = log.replay().current()
    assert reason in voids(after)[3]
    assert (after.length, after.models, after.packs, after.damaged_from) == (4, before.models, before.packs, None)
    log.add(commit_entry(SECOND, packs(2), ref=MOVED))
    last = log.replay().attested()
    assert last.models[MODEL].refs[MAIN].checkpoint == SECOND
    assert list(voids(last)) == [3]


@pytest.mark.parametrize("over", [0, 1, 1000])
def test_an_entry_over_the_limit_is_void(log: LogMaker, over: int) -> None:
    # What a reader sees of an entry is at most one byte over the limit.
    slack = LOG_ENTRY_BYTES_MAX - len(log.seal(commit_entry(SECOND, ref=MOVED, meta=bytes(1 << 20)))) + (1 << 20)
    stored = log.seal(commit_entry(SECOND, ref=MOVED, meta=bytes(slack + over)))
    assert len(stored) == LOG_ENTRY_BYTES_MAX + over
    log.stored.append(stored[: LOG_ENTRY_BYTES_MAX + 1])
    state = log.replay().current()
    assert (state.models[MODEL].refs[MAIN].checkpoint == SECOND) == (over == 0)
    assert list(voids(state)) == ([] if over == 0 else [3])


def test_a_log_that_does_not_begin_with_init_has_no_owner() -> None:
    log = LogMaker()
    log.add(model_create())
    log.add(log.init())
    state = log.replay().current()
    assert (state.owners, state.models) == ([], {})
    assert list(voids(state)) == [0, 1]


# --- Wrong roots: a lie, or damage ------------------------------------------------------------


def test_a_liar_is_void_once_an_honest_entry_agrees_with_the_bytes(log: LogMaker) -> None:
    log.add(commit_entry(SECOND, packs(2), ref=MOVED), root=LIE)
    suspected = log.replay()
    assert suspected.current().damaged_from == 3
    assert suspected.attested().length == 3
    log.add(commit_entry(b"3" * 32, packs(3), ref=MOVED))
    for replay in (log.replay(), suspected):
        if replay is suspected:
            replay.feed(log.stored[-1])
        state = replay.current()
        assert state is replay.attested()
        assert voids(state) == {3: "its signed root is wrong"}
        assert (state.damaged_from, state.length) == (None, 5)
        assert [state.pack(number) for number in range(state.pack_count)] == packs(1, 3)
        assert set(state.models[MODEL].checkpoints) == {FIRST, b"3" * 32}


def test_several_liars_and_void_entries_between_them_are_void_in_order(log: LogMaker) -> None:
    log.add(Abort(), root=LIE)
    log.stored.append(b"garbage")
    log.add(model_create(b"x" * 16, b"x"), root=bytes(32))
    log.add(Abort(), by=log.stranger)
    assert log.replay().current().damaged_from == 3
    log.add(RefMove(MODEL, TAG, "tag", b"", None, FIRST))
    state = log.replay().attested()
    assert list(voids(state)) == [3, 4, 5, 6]
    assert (set(state.models), set(state.models[MODEL].refs)) == ({MODEL}, {MAIN, TAG})


@pytest.mark.parametrize(("at", "readable"), [(0, set()), (1, set()), (2, {SECOND, b"3" * 32})])
def test_a_changed_byte_is_damage_and_what_follows_is_still_read(log: LogMaker, at: int, readable: set[bytes]) -> None:
    log.add(commit_entry(SECOND, packs(2), ref=MOVED))
    log.add(commit_entry(b"3" * 32, packs(3), relied=((0, 1),), ref=RefChange(MAIN, b"sealed", SECOND)))
    tampered = list(log.stored)
    tampered[at] = flipped(tampered[at])
    replay = log.replay(tampered)
    state = replay.current()
    assert {checkpoint for model in state.models.values() for checkpoint in model.checkpoints} == readable
    assert voids(state)[at] == UNREADABLE
    # What is certain ends before the entry whose root contradicts the bytes.
    assert replay.attested().damaged_from is None
    assert not readable & set(replay.attested().models.get(MODEL, Model(b"", b"", (), "", 0)).checkpoints)
    if at:  # without the owner nobody has a right; a registry refuses such a log altogether
        assert (state.damaged_from, replay.attested().length) == (at, at + 1)


def test_damage_is_shown_for_good_once_no_later_root_agrees(log: LogMaker) -> None:
    tampered = [log.stored[0], log.seal(model_create(b"x" * 16, b"y"), n=1, root=bytes(32)), *log.stored[2:]]
    for number in range(5):
        log.add(Abort())
        tampered.append(log.stored[-1])
        state = log.replay(tampered).current()
        assert state.damaged_from == 1
        assert state.length == 4 + number


def test_entries_that_only_moved_are_damage(log: LogMaker) -> None:
    log.add(Abort())
    log.add(Abort())
    swapped = [*log.stored[:3], log.stored[4], log.stored[3]]
    assert set(voids(log.replay(swapped).current())) == {3, 4}
    log.add(Abort())
    assert log.replay([*swapped, log.stored[5]]).current().damaged_from in (3, 4)


def test_old_garbage_is_not_blamed_for_a_new_lie(log: LogMaker) -> None:
    log.stored.append(b"garbage")
    log.add(Abort())
    log.add(Abort())
    log.add(Abort(), root=LIE)
    # Entry 5 agrees with all before it, so only entry 5 may have changed since, or entry 6 lies.
    assert log.replay().current().damaged_from in (5, 6)


# --- A newer format ---------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"type": "gc.teleport"}, {"type": "abort", "format": 2}], ids=str)
def test_a_type_or_format_that_is_not_known_means_a_newer_cairn(log: LogMaker, changes: dict[str, object]) -> None:
    log.add(b"\xc0", **changes)
    log.add(Abort())
    log.add(b"\xc0", **changes)
    state = log.replay().current()
    assert (state.newer_from, state.voids, state.damaged_from) == (3, [], None)


def test_a_strangers_unknown_type_is_just_void(log: LogMaker) -> None:
    log.add(b"\xc0", log.stranger, type="gc.teleport")
    state = log.replay().current()
    assert (state.newer_from, list(voids(state))) == (None, [3])


def test_an_init_of_another_owner_gives_nobody_a_right() -> None:
    log = LogMaker()
    payload: Init = log.init(owner=log.stranger.actor)
    log.add(payload)
    assert log.replay().current().owners == []
