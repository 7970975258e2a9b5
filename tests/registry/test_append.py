"""Appending by compare-and-set: lost answers, lost races, holes, folders."""

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from cairn.core.errors import (
    CairnError,
    ConflictError,
    IntegrityError,
    NewerFormat,
    StorageError,
    StorageFull,
    TryAgain,
)
from cairn.registry import entries, log, names
from cairn.registry.entries import Abort, ModelCreate, Payload
from cairn.registry.registry import Registry
from cairn.registry.state import State
from cairn.store.backends.faults import Fail, Fault, FaultyBackend, LoseAnswer, LoseRequest
from cairn.store.backends.posix import PosixBackend
from tests.support.doubles import HeldClock
from tests.support.logs import model_create
from tests.support.rivals import interleaved
from tests.support.stores import Site, new_site


def abort(registry: Registry) -> int:
    return registry.append(lambda state: Abort())


def through(site: Site, *script: Fault) -> tuple[Registry, FaultyBackend]:
    backend = FaultyBackend(site.backend, script)
    return site.registry(backend), backend


def slept(site: Site) -> list[float]:
    assert isinstance(site.clock, HeldClock)
    return site.clock.slept


# --- Lost answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [LoseAnswer, LoseRequest])
def test_a_lost_answer_is_asked_for_again_with_the_same_bytes(site: Site, loss: type[Fault]) -> None:
    registry, backend = through(site, loss(op="create", name="log/*", call=1))
    assert abort(registry) == 1
    assert abort(registry) == 2
    creates = [call.name for call in backend.calls if call.op == "create"]
    assert creates == [site.log()[1], site.log()[1], site.log()[2]]
    assert (len(site.log()), slept(site)) == (3, [0.05])
    assert site.registry(cold=True).state.voids == []


def test_the_wait_for_an_answer_doubles_and_ends(site: Site) -> None:
    registry, _ = through(site, LoseRequest(op="create", name="log/*"))
    with pytest.raises(TryAgain, match="may or may not"):
        abort(registry)
    waits = slept(site)
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert (max(waits), len(waits)) == (5.0, log.LOG_APPEND_REPEATS_MAX)
    assert 20 < sum(waits) < 60
    assert len(site.log()) == 1


def test_after_a_lost_answer_the_own_entry_is_recognised_even_if_it_was_written_at_once(site: Site) -> None:
    calls = [LoseAnswer(op="create", name="log/*", call=number) for number in (1, 2, 3)]
    registry, _ = through(site, *calls)
    assert abort(registry) == 1
    assert len(site.log()) == 2


def test_a_lost_request_whose_slot_a_rival_takes_goes_to_the_next(site: Site) -> None:
    rival = site.registry()
    script = (LoseRequest(op="create", name="log/*", call=1),)
    # The rival acts before our second try.
    backend = FaultyBackend(interleaved(site.backend, lambda: abort(rival), op="create", name="log/*"), script)
    assert abort(site.registry(backend)) == 2
    assert len(site.log()) == 3
    assert site.registry(cold=True).state.voids == []


@pytest.mark.parametrize("error", [StorageError, StorageFull])
@pytest.mark.parametrize("refusals", [1, 20])
def test_a_refusal_after_a_lost_answer_does_not_make_the_outcome_known(
    site: Site, error: type[CairnError], refusals: int
) -> None:
    refused = [Fail(op="create", name="log/*", call=2 + number, error=error) for number in range(refusals)]
    registry, _ = through(site, LoseAnswer(op="create", name="log/*", call=1), *refused)
    # Told as unknown, or found out; never told as a failure.
    with suppress(TryAgain):
        assert abort(registry) == 1
    assert len(site.log()) == 2


def test_a_refused_look_after_a_lost_answer_does_not_make_the_outcome_known(tmp_path: Path) -> None:
    lost, entry = LoseAnswer(op="create", name="log/*", call=1), "log/00000000/000000000001"
    rehearsal, backend = through(new_site(tmp_path / "rehearsal"), lost)
    abort(rehearsal)
    calls = [call.op for call in backend.calls if call.name == entry]
    look = calls[: len(calls) - calls[::-1].index("create")].count("read") + 1
    site = new_site(tmp_path / "home")
    registry, _ = through(site, lost, Fail(op="read", name=entry, call=look))
    with suppress(TryAgain):
        assert abort(registry) == 1
    assert len(site.log()) == 2


def test_a_refusal_at_once_is_a_plain_failure(site: Site) -> None:
    registry, _ = through(site, Fail(op="create", name="log/*", call=1))
    with pytest.raises(StorageError):
        abort(registry)
    assert abort(registry) == 1


# --- Races ------------------------------------------------------------------------------------


def test_a_lost_race_is_validated_again_and_won_later(site: Site) -> None:
    rival = site.registry()
    lengths: list[int] = []

    def build(state: State) -> Payload:
        lengths.append(state.length)
        return Abort()

    backend = interleaved(site.backend, lambda: abort(rival), op="create", name="log/*", times=3)
    assert site.registry(backend).append(build) == 4
    assert lengths == [1, 2, 3, 4]


def test_a_lost_race_that_makes_the_change_void_ends_it(site: Site) -> None:
    rival = site.registry()
    backend = interleaved(
        site.backend, lambda: rival.append(lambda state: model_create(b"r" * 16)), op="create", name="log/*"
    )
    with pytest.raises(ConflictError, match="a model with this name exists"):
        site.registry(backend).append(lambda state: model_create())
    state = site.registry(cold=True).state
    assert (list(state.models), state.voids, state.length) == ([b"r" * 16], [], 2)


def test_who_loses_every_race_gives_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOG_APPEND_RACES_MAX", 5)
    rival = site.registry()
    backend = interleaved(site.backend, lambda: abort(rival), op="create", name="log/*", times=99)
    with pytest.raises(ConflictError, match="other writers were first"):
        abort(site.registry(backend))
    assert len(site.log()) == 6


@pytest.mark.parametrize("call", ["folders", "list"])
def test_a_newcomer_between_looking_and_listing_is_no_hole(site: Site, call: str) -> None:
    rival = site.registry()
    backend = interleaved(site.backend, lambda: abort(rival), op=call, name="log*")
    assert abort(site.registry(backend)) == 2


def test_writers_at_once_all_get_their_turn(tmp_path: Path) -> None:
    site = new_site(tmp_path / "home", PosixBackend(tmp_path / "store"))
    failed: list[BaseException] = []

    def work(registry: Registry, number: int) -> None:
        try:
            for at in range(8):
                payload = ModelCreate(bytes([number, at]) * 8, bytes([number, at]), b"", (), "x")
                registry.append(lambda state, payload=payload: payload)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(site.registry(cold=True), number)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    state = site.registry(cold=True).state
    assert (state.length, len(state.models), state.voids) == (25, 24, [])


# --- Refusals ---------------------------------------------------------------------------------


def test_what_would_be_void_is_not_written(site: Site) -> None:
    registry = site.registry()
    registry.append(lambda state: model_create())
    with pytest.raises(ConflictError, match="would be void"):
        registry.append(lambda state: model_create())
    assert len(site.log()) == 2


def test_an_entry_over_the_limit_is_not_written(site: Site) -> None:
    with pytest.raises(CairnError, match="over the limit"):
        site.registry().append(lambda state: ModelCreate(b"m" * 16, b"t", bytes(5 << 20), (), "x"))
    assert len(site.log()) == 1


def test_who_builds_and_raises_writes_nothing(site: Site) -> None:
    def build(state: State) -> Payload:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        site.registry().append(build)
    assert len(site.log()) == 1


def test_a_newer_entry_makes_the_store_read_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = site.registry()
    with monkeypatch.context() as patch:
        patch.setitem(entries.TYPES, Abort, "gc.teleport")
        abort(registry)
    for reader in (registry, site.registry(), site.registry(cold=True)):
        assert reader.state.newer_from == 1
        with pytest.raises(NewerFormat, match="log entry 1"):
            abort(reader)
    assert len(site.log()) == 2


# --- Holes and folders ------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [1, 3, 4])
def test_a_hole_stops_writing_and_not_reading(site: Site, missing: int) -> None:
    registry = site.registry()
    for _ in range(5):
        abort(registry)
    site.backend.delete(site.log()[missing])
    site.home.state.joinpath("heads", registry.opened.store.hex()).unlink()
    reader = site.registry(cold=True)
    assert reader.state.length == missing
    with pytest.raises(IntegrityError, match="hole"):
        abort(reader)
    assert len(site.log()) == 5


@pytest.fixture
def folders_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (log, names):
        monkeypatch.setattr(module, "LOG_FOLDER_ENTRIES", 4)


@pytest.mark.usefixtures("folders_of_four")
def test_a_new_folder_begins_once_the_last_entry_before_it_is_durable(site: Site) -> None:
    registry, backend = through(site)
    for _ in range(9):
        abort(registry)
    assert [name.split("/")[1] for name in site.log()] == ["00000000"] * 4 + ["00000001"] * 4 + ["00000002"] * 2
    of_log = [call for call in backend.calls if call.op in ("create", "settle")]
    settled = [
        (of_log[at - 1].name, call.name, of_log[at + 1].name) for at, call in enumerate(of_log) if call.op == "settle"
    ]
    written = site.log()
    assert settled == [(written[3], written[3], written[4]), (written[7], written[7], written[8])]
    assert site.registry(cold=True).state.length == 10


@pytest.mark.usefixtures("folders_of_four")
def test_an_unsettled_last_entry_keeps_the_folder_from_beginning(site: Site) -> None:
    registry, _ = through(site, Fail(op="settle"))
    for _ in range(3):
        abort(registry)
    with pytest.raises(StorageError):
        abort(registry)
    assert len(site.log()) == 4


@pytest.mark.usefixtures("folders_of_four")
@pytest.mark.parametrize("missing", [2, 3, 5])
@pytest.mark.parametrize("empty_folder", [False, True])
def test_a_hole_is_seen_across_folders_and_behind_an_empty_one(
    tmp_path: Path, missing: int, empty_folder: bool
) -> None:
    site = new_site(tmp_path / "home", PosixBackend(tmp_path / "store"))
    registry = site.registry()
    for _ in range(6):
        abort(registry)
    if empty_folder:  # left by a writer that died before its entry
        (tmp_path / "store" / "log" / "00000002").mkdir()
        abort(registry)
    site.backend.delete(site.log()[missing])
    site.home.state.joinpath("heads", registry.opened.store.hex()).unlink()
    with pytest.raises(IntegrityError, match="hole"):
        abort(site.registry(cold=True))
