"""Writing bundles and snapshots: stopped anywhere, by several at once, and for one store only."""

import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cairn.core.errors import CairnError, NotAllowed
from cairn.registry import shortcuts
from cairn.registry.bundles import bundle_name
from cairn.registry.fold import STATE_VERSION
from cairn.registry.registry import Registry
from cairn.registry.shortcuts import write_shortcuts
from cairn.registry.snapshots import SnapshotName
from cairn.registry.sync import SendOptions, send
from cairn.store.backends.faults import Crash, Effect, Fail, Fault, FaultyBackend, LoseAnswer, LoseRequest, Stopped
from cairn.store.crypto.signing import Identity
from tests.support.longlogs import by_entries, forget, grow_to, put
from tests.support.stores import Site, commit_tree, copied
from tests.support.trees import write_files
from tests.support.twins import twin_of

LENGTH = 530


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "SNAPSHOT_ENTRIES", 20)


@pytest.fixture
def due(site: Site, tmp_path: Path) -> Site:
    """A bundle, and three snapshots of which one is damaged; another bundle and a snapshot are due."""
    commit_tree(site.registry(), write_files(tmp_path / "tree", {"notes": b"one " * 40_000}))
    for length in (200, 250, 300):
        grow_to(site, length)
        write_shortcuts(site.registry())
    grow_to(site, LENGTH)
    put(site, JUNK, b"junk")
    forget(site)
    return site


ONE_BEFORE, JUNK, NEWEST = (SnapshotName(STATE_VERSION, length).object for length in (300, 310, LENGTH))
DONE = {bundle_name(0), bundle_name(1), ONE_BEFORE, NEWEST}


def stored(site: Site) -> set[str]:
    return {name for name in site.names() if name.startswith(("bundles/", "snapshots/"))}


def copy_of(site: Site) -> Site:
    """The store as it is, under other hands; caches of the same user."""
    return replace(site, backend=copied(site.backend))


def written(site: Site, *script: Fault) -> tuple[BaseException | None, FaultyBackend, int]:
    """How it ended, through what, and the number of calls before it."""
    backend = FaultyBackend(site.backend, script)
    registry = site.registry(backend)
    before = len(backend.calls)
    try:
        write_shortcuts(registry)
    except (CairnError, Stopped) as error:
        return error, backend, before
    return None, backend, before


FAULTS: list[tuple[type[Fault], dict[str, object]]] = [
    (Crash, {"effect": Effect.NONE}), (Crash, {"effect": Effect.COMPLETE}), (Crash, {"effect": Effect.TORN}),
    (Fail, {}), (LoseRequest, {}), (LoseAnswer, {}),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "options"), FAULTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_it_can_be_stopped_at_any_call(due: Site, fault: type[Fault], options: dict[str, object]) -> None:
    expected = by_entries(due)
    due.registry().close()
    error, recorder, before = written(clean := copy_of(due))
    assert error is None
    assert stored(clean) == DONE
    # Reads of 256 entries differ in nothing; every tenth will do.
    calls = list(enumerate(recorder.calls, 1))[before:]
    points = [n for n, call in calls if call.op != "read" or not call.name.startswith("log/") or n % 10 == 0]
    print(f"{len(points)} points")
    assert len(points) > 20
    for number in points:
        site = copy_of(due)
        error, _, _ = written(site, fault(call=number, **options))  # type: ignore[arg-type]  # fields of a fault
        assert error is not None or fault is not Crash
        assert site.registry(cold=True).state == expected, number
        torn = options.get("effect") is Effect.TORN
        # Whoever meets a torn bundle while it opens the store cold mends it.
        registry = site.registry(cold=torn)
        write_shortcuts(registry)
        # What could not be read may pass for a snapshot until the next one is due.
        spared = {ONE_BEFORE, JUNK} if fault is Fail else set()
        assert stored(site) - spared == DONE - spared, number
        assert site.registry(cold=True).state == expected
        assert not site.registry(cold=True).bad_bundles


def test_several_may_write_at_once(due: Site) -> None:
    expected = by_entries(due)
    registries = [due.registry(cold=True) for _ in range(4)]
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            write_shortcuts(registries[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert stored(due) == DONE
    assert due.registry(cold=True).state == expected


def test_a_stranger_writes_none(due: Site) -> None:
    before, opened = stored(due), due.open()
    secrets = msgspec.structs.replace(opened.secrets, recovery_seed=bytes(32))
    with pytest.raises(NotAllowed):
        write_shortcuts(Registry(replace(opened, identity=Identity(b"\1" * 32), secrets=secrets)))
    assert stored(due) == before


def test_only_a_first_owner_signs_a_snapshot(due: Site) -> None:
    registry = due.registry()
    registry.first_owners = ()
    assert write_shortcuts(registry)[:2] == (1, 0)


def test_no_shortcut_travels_to_another_store(due: Site, tmp_path: Path) -> None:
    write_shortcuts(due.registry())
    there = twin_of(due)
    send(due.registry(), there.registry(), "m", SendOptions())
    assert stored(there) == set()
    write_shortcuts(there.registry())
    assert stored(there) == set()
