"""Keys are destroyed while others do the same, collect, or change keys: nothing is lost, and nothing comes back."""

from pathlib import Path
from random import Random

import pytest

from cairn.core.errors import IntegrityError, TryAgain
from cairn.core.ids import ModelId
from cairn.gc.collect import Collector, Options
from cairn.gc.drops import drop, due_to_drop
from cairn.gc.plan import shredded_packs
from cairn.gc.scrub import verify
from cairn.gc.shred import shred_due
from cairn.registry.deletion import tombstone
from cairn.registry.modeldeletion import delete_model
from cairn.registry.models import find_model
from cairn.registry.reachability import read_reachability
from cairn.registry.receipts import make_receipt
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Delay, FaultyBackend
from tests.gc.test_shred import holds_any, sealed_chunks
from tests.support.rivals import Rival, interleaved
from tests.support.stores import Site, checkout_to, commit_tree, new_site, tip
from tests.support.trees import snapshot, write_files


def no_passphrase() -> None:
    """Of a store with key files."""


def apply(registry: Registry) -> None:
    """What `cairn gc apply` of an owner does."""
    shred_due(registry, no_passphrase)
    Collector(registry).run()


def two_models(site: Site, folder: Path, grace: float = 0.0) -> None:
    """`b`, and `a`, which is deleted and has something of its own beside what both have."""
    for name in "ab":
        own = Random(name).randbytes(300_000)
        tree = write_files(folder / name, {"both": Random(0).randbytes(400_000), "own": own})
        commit_tree(site.registry(), tree, name)
    registry = site.registry()
    delete_model(registry, find_model(registry, "a"), "deleted", grace)


def test_two_owners_who_apply_at_once_lose_nothing(tmp_path: Path) -> None:
    """The second comes at every third call of the first; who is overtaken is told to run it again."""
    for call in range(1, 400, 3):
        site = new_site(tmp_path / f"home-{call}", seed=call)
        two_models(site, tmp_path / f"trees-{call}")

        def rival(site: Site = site) -> None:
            apply(site.registry())

        clock = Rival(act=rival)
        through = FaultyBackend(site.backend, [Delay(call=call, seconds=0, clock=clock)])
        try:
            apply(site.registry(through))
        except TryAgain:
            assert clock.acted
        apply(site.registry())
        last = site.registry(cold=True)
        assert [gone.destroyed_n is not None for gone in last.state.deleted.values()] == [True]
        assert not shredded_packs(last.state) and verify(last, full=True).ok
        checkout_to(last, "b", tmp_path / f"out-{call}")
        assert snapshot(tmp_path / f"out-{call}") == snapshot(tmp_path / f"trees-{call}" / "b")
        if not clock.acted:
            return
    raise AssertionError("it never went through")


def half_empty(site: Site, tmp_path: Path) -> tuple[ModelId, list[bytes]]:
    """A deleted model with a pack of which little is needed, some of that by `b` too; and what it alone needs."""
    registry, both = site.registry(), {"both": Random("both").randbytes(400_000)}
    kept = both | {"kept": Random("kept").randbytes(4_000)}
    commit_tree(registry, write_files(tmp_path / "1", kept | {"gone": Random("gone").randbytes(300_000)}), "a")
    model, first = tip(registry, "a")
    commit_tree(registry, write_files(tmp_path / "2", kept), "a")
    commit_tree(registry, write_files(tmp_path / "b", both), "b")
    tombstone(registry, model, [first], "deleted", 0.0)
    drop(registry, due_to_drop(registry))
    (second,) = registry.state.models[model].checkpoints.values()
    (other,) = registry.state.models[tip(registry, "b")[0]].checkpoints.values()
    alone = set(read_reachability(registry.opened, second)) - set(read_reachability(registry.opened, other))
    pieces = sealed_chunks(registry, alone)
    delete_model(registry, model, "deleted", 0.0)
    return model, pieces


def test_what_a_collector_copies_meanwhile_does_not_outlive_the_shred(tmp_path: Path) -> None:
    """It has planned to write packs anew while the model could still be restored."""
    site = new_site(tmp_path / "home")
    model, pieces = half_empty(site, tmp_path)

    def meanwhile() -> None:
        shred_due(site.registry(), no_passphrase)

    copying = site.registry(interleaved(site.backend, meanwhile, op="create", name="*.pack"))
    Collector(copying).run()
    assert site.registry().state.deleted[model].destroyed_n is not None
    Collector(site.registry()).run()
    assert not holds_any(site.backend, pieces)


def test_what_a_collector_sweeps_between_accounts_and_shred_is_gone_for_the_receipt(tmp_path: Path) -> None:
    site = new_site(tmp_path / "home")
    model, pieces = half_empty(site, tmp_path)
    Collector(site.registry(), Options(condemn_only=True)).run()

    def meanwhile() -> None:
        Collector(site.registry()).run()

    shred_due(site.registry(interleaved(site.backend, meanwhile, op="create", name="log/*")), no_passphrase)
    Collector(site.registry()).run()
    told = make_receipt(site.registry(), model).statement
    assert told.packs and not told.packs_left and not holds_any(site.backend, pieces)


def test_the_old_root_key_stays_while_a_wrap_is_missing_that_needs_it(tmp_path: Path) -> None:
    """It may be on its way back from a backup."""
    site = new_site(tmp_path / "home")
    two_models(site, tmp_path)
    registry = site.registry()
    name = registry.state.models[find_model(registry, "b")].wrap
    wrap = site.backend.read(name)
    site.backend.delete(name)
    with pytest.raises(IntegrityError, match="the old root key stays"):
        shred_due(site.registry(), no_passphrase)
    site.backend.create(name, [wrap])
    apply(site.registry())
    checkout_to(site.registry(cold=True), "b", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "b")
