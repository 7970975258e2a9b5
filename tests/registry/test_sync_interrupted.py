"""Pushes that end before they are done, and go on."""

import os
import shutil
from pathlib import Path

from cairn.registry.registry import Registry
from cairn.registry.sync import SendOptions, send
from cairn.store.backends.faults import Crash, Effect, Fail, FaultyBackend, Stopped
from cairn.store.backends.memory import MemoryBackend
from tests.support.stores import Site
from tests.support.twins import clean, commit, packs, pair, short_packs, sites, tree, twin_of

__all__ = ["short_packs", "sites", "tree"]


def attempt(here: Site, there: Site, *script: object) -> tuple[BaseException | None, FaultyBackend]:
    backend = FaultyBackend(there.backend, script)  # type: ignore[arg-type]  # faults
    try:
        send(here.registry(), Registry(there.open(backend)), "m", SendOptions())
    except BaseException as error:
        return error, backend
    return None, backend


def uploads(backend: FaultyBackend) -> int:
    return sum(call.op == "create" and call.name.endswith(".pack") for call in backend.calls)


def test_H06_H14_H17_an_interrupted_push_goes_on_where_it_was(tmp_path: Path, tree: Path) -> None:
    here, spare = pair(tmp_path)
    commit(here, tree)
    _, whole = attempt(here, spare)
    calls, total = len(whole.calls), uploads(whole)
    assert total > 5
    for number in range(1, calls + 1):
        there = twin_of(here, seed=1000 + number)
        stopped, first = attempt(here, there, Crash(call=number))
        assert isinstance(stopped, Stopped), number
        assert [len(model.checkpoints) for model in there.registry(cold=True).state.models.values()] in ([], [0], [1])
        again, second = attempt(here, there)
        assert again is None, f"call {number}: {again!r}"
        # At most the pack that was on its way goes twice.
        assert uploads(first) + uploads(second) <= total + 2, number
        assert clean(there)
        assert not list((there.home.state / "transfers").iterdir())
    print(f"push: {calls} points")


def test_a_pack_that_was_stored_and_not_noted_is_not_sent_again(tmp_path: Path, tree: Path) -> None:
    """A kill between the two is all it takes."""
    here, there = pair(tmp_path)
    commit(here, tree)
    _, whole = attempt(here, twin_of(here, seed=99))
    stored = Crash(op="create", name="*.pack", call=3, effect=Effect.COMPLETE)
    stopped, first = attempt(here, there, stored)
    assert isinstance(stopped, Stopped)
    # Whatever else somebody left there is nothing of ours.
    beside = os.path.dirname(packs(there)[0])
    there.backend.create(f"{beside}/readme.txt", [b"-"])
    error, second = attempt(here, there)
    assert error is None
    there.backend.delete(f"{beside}/readme.txt")
    assert clean(there)
    assert uploads(first) + uploads(second) == uploads(whole)


def test_a_session_given_up_meanwhile_is_not_relied_on(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    commit(here, tree)
    error, first = attempt(here, there, Fail(op="create", name="*.pack", call=4))
    assert error is not None and uploads(first) >= 4
    # A collector takes the writer for dead, and sweeps.
    for name in [*there.names(".open"), *there.names(".pack")]:
        there.backend.delete(name)
    assert attempt(here, there)[0] is None
    assert clean(there)


def test_packs_swept_under_a_journal_are_sent_again(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    commit(here, tree)
    attempt(here, there, Fail(op="create", name="*.pack", call=4))
    there.backend.delete(packs(there)[0])
    assert attempt(here, there)[0] is None
    assert clean(there)


def test_a_torn_journal_costs_a_repetition_only(sites: tuple[Site, Site], tree: Path) -> None:
    here, there = sites
    commit(here, tree)
    attempt(here, there, Fail(op="create", name="*.pack", call=5))
    (journal,) = (there.home.state / "transfers").iterdir()
    whole = journal.read_bytes()
    for length in (0, 3, 40, len(whole) - 1):
        journal.write_bytes(whole[:length])
        fresh = MemoryBackend()
        for name in there.names():
            fresh.create(name, [there.backend.read(name)])
        shutil.rmtree(there.home.state / "heads")  # it is another store's copy
        site = Site(fresh, there.home, there.source, there.clock, there.entropy)
        assert attempt(here, site)[0] is None
        assert clean(site)
