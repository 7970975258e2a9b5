"""Root keys: of several changes at once one counts, and wherever a change stops, the key in force is found."""

import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cairn.core.errors import CairnError, NotAllowed, WrongKey
from cairn.gc.scrub import verify
from cairn.registry.opened import KeySource
from cairn.registry.permission import check_root
from cairn.registry.rootkeys import next_key_file, read_key_file
from cairn.registry.rotation import rotate_root
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Crash, Delay, Effect, FaultyBackend, Stopped
from cairn.store.crypto import keyfile
from cairn.store.crypto.keyfile import dump_key_file
from cairn.store.crypto.provider import RootKey
from tests.support.rivals import Rival
from tests.support.stores import Site, checkout_to, commit_tree, home_in, new_site


@pytest.mark.parametrize("passphrase", [None, "old"])
@pytest.mark.parametrize("apart", [False, True])
def test_of_two_changes_of_root_at_once_one_counts(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, apart: bool, passphrase: str | None
) -> None:
    """The second comes at every call of the first, on the same machine or another one with a copy of the key file."""
    monkeypatch.setattr(keyfile, "_MEMORY_KIB", 64)
    for call in range(1, 60):
        site = new_site(tmp_path / f"home-{call}", seed=call, passphrase=passphrase)
        commit_tree(site.registry(), folder)
        other = site
        if apart:
            with suppress(FileNotFoundError):  # none with a passphrase
                shutil.copytree(site.home.data, tmp_path / f"other-{call}" / "data")
            shutil.copytree(site.home.state, tmp_path / f"other-{call}" / "state")
            other = replace(site, home=home_in(tmp_path / f"other-{call}"))
        changed = list[Site]()

        def change(who: Site, through: Backend, changed: list[Site] = changed) -> None:
            with suppress(CairnError):
                rotate_root(who.registry(through), passphrase)
                changed.append(who)

        clock = Rival(act=partial(change, other, site.backend))
        change(site, FaultyBackend(site.backend, [Delay(call=call, seconds=0, clock=clock)]))
        winner = changed[-1].registry(cold=True)
        assert winner.state.root_generation == len(changed)
        assert verify(winner, full=True).ok
        checkout_to(winner, "m", tmp_path / f"out-{call}")
        assert len([name for name in site.names() if name.startswith("keys/store/")]) == 1
        if not clock.acted:
            return
    raise AssertionError("it never went through")


def test_a_key_file_without_its_name_is_found(committed: Site, folder: Path, tmp_path: Path) -> None:
    """A stop between the entry and the file's new name, while others change the root key."""
    registry = committed.registry()
    path = registry.opened.key_file
    assert path is not None
    before = path.read_bytes()
    rotate_root(registry)
    assert isinstance(registry.opened.root, RootKey)
    path.replace(next_key_file(path, registry.opened.root))
    path.write_bytes(before)
    leftover = RootKey(1, bytes(32))
    next_key_file(path, leftover).write_bytes(dump_key_file(registry.opened.store, leftover))
    next_key_file(path, RootKey(2, b"x" * 32)).write_bytes(b"damaged")
    again = committed.registry(cold=True)
    checkout_to(again, "m", tmp_path / "out")
    rotate_root(again)
    assert read_key_file(path, again.opened.store) == again.opened.root
    assert not next_key_file(path, leftover).exists()
    checkout_to(committed.registry(cold=True), "m", tmp_path / "last")


@pytest.mark.parametrize(("before", "after"), [(None, "new"), ("old", "new")])
@pytest.mark.parametrize("op", ["create", "delete"])
def test_a_change_of_what_keeps_the_root_key_may_stop_anywhere(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, op: str, before: str | None, after: str
) -> None:
    """The store opens with what opened it before, or with what was to open it, for reading and writing."""
    monkeypatch.setattr(keyfile, "_MEMORY_KIB", 64)
    for call in range(1, 20):
        site = new_site(tmp_path / f"home-{call}", seed=call, passphrase=before)
        commit_tree(site.registry(), folder)
        registry = site.registry(FaultyBackend(site.backend, [Crash(op=op, call=call, effect=Effect.COMPLETE)]))
        stopped = True
        with suppress(Stopped):
            rotate_root(registry, after)
            stopped = False
        try:
            again = replace(site, source=KeySource(passphrase=after)).registry(cold=True)
            check_root(again.opened, again.state)
        except (WrongKey, NotAllowed):
            again = site.registry(cold=True)
        rotate_root(again, after)
        checkout_to(again, "m", tmp_path / f"out-{call}")
        assert verify(again, full=True).ok
        assert len([name for name in site.names() if name.startswith("keys/root/")]) == 1
        if not stopped:
            return
    raise AssertionError("it never went through")
