"""The index follows the log: whatever the fold names is found, from pieces or footers, and failures do not stick."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from cairn.core.errors import CairnError, IntegrityError, StorageError
from cairn.registry import registry as module
from cairn.registry.entries import seal_entry
from cairn.registry.models import ensure_model
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Corrupt, Fail, Fault, FaultyBackend, LoseAnswer
from tests.support.stores import Site, checkout_to, commit_tree
from tests.support.trees import snapshot, write_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", {"a": b"some content " * 50, "sub/b": bytes(range(256)) * 20})


def reads(registry: Registry, selector: str, folder: Path, out: Path) -> bool:
    checkout_to(registry, selector, out)
    return snapshot(out) == snapshot(folder)


def test_others_commits_are_found_after_refresh(site: Site, folder: Path, tmp_path: Path) -> None:
    reader, writer = site.registry(cold=True), site.registry()
    commit_tree(writer, folder)
    assert reader.state.length == 1
    reader.refresh()
    assert reads(reader, "m", folder, tmp_path / "out")


def test_processes_that_share_a_cache_share_its_index(site: Site, folder: Path, tmp_path: Path) -> None:
    first, second = site.registry(), site.registry()
    commit_tree(first, folder)
    commit_tree(second, write_files(tmp_path / "more", {"c": b"more " * 99}), "n")
    first.refresh()
    assert reads(first, "n", tmp_path / "more", tmp_path / "out")
    backend = FaultyBackend(site.backend)
    third = site.registry(backend)
    assert not [call for call in backend.calls if call.name.endswith(".index")], "a warm cache reads no piece again"
    assert reads(third, "n", tmp_path / "more", tmp_path / "out3")
    assert reads(third, "m", folder, tmp_path / "out4")


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("fault", [Fail, LoseAnswer])
def test_a_failure_while_a_piece_is_read_does_not_stick(
    site: Site, folder: Path, tmp_path: Path, fault: type[Fault], cold: bool
) -> None:
    reader = site.registry(FaultyBackend(site.backend, [fault(op="read", name="*.index", call=1)]), cold=cold)
    commit_tree(site.registry(cold=True), folder)
    with pytest.raises(CairnError):
        reader.refresh()
    reader.refresh()
    assert reads(reader, "m", folder, tmp_path / "out")


@pytest.mark.parametrize("entry", [2, 3], ids=["half way", "at the end"])
def test_a_failure_while_the_log_is_read_does_not_stick(site: Site, folder: Path, tmp_path: Path, entry: int) -> None:
    # Entry 3 is not there, which is how a reader knows that it has them all.
    lost = Fail(op="read", name=f"log/*{entry}", call=1)
    reader = site.registry(FaultyBackend(site.backend, [lost]), cold=True)
    commit_tree(site.registry(cold=True), folder)
    with pytest.raises(StorageError):
        reader.refresh()
    assert reader.refresh().length == 3
    assert reads(reader, "m", folder, tmp_path / "out")


def test_a_failure_while_opening_does_not_stick(site: Site, folder: Path, tmp_path: Path) -> None:
    commit_tree(site.registry(cold=True), folder)
    backend = FaultyBackend(site.backend, [Fail(op="read", name="*.index", call=1)])
    with pytest.raises(StorageError):
        site.registry(backend)
    assert reads(site.registry(backend), "m", folder, tmp_path / "out")


@pytest.mark.parametrize("harm", ["lost", "changed", "cut"])
def test_a_damaged_piece_is_made_up_for_by_footers(site: Site, folder: Path, tmp_path: Path, harm: str) -> None:
    commit_tree(site.registry(), folder)
    (name,) = site.names(".index")
    data = site.backend.read(name)
    site.backend.delete(name)
    if harm != "lost":
        site.backend.create(name, [data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1])])
    assert reads(site.registry(cold=True), "m", folder, tmp_path / "out")


def test_what_was_restored_is_found_without_deleting_the_cache(site: Site, folder: Path, tmp_path: Path) -> None:
    commit_tree(site.registry(), folder)
    lost = {name: site.backend.read(name) for name in [*site.names(".index"), *site.names(".pack")]}
    for name in lost:
        site.backend.delete(name)
    home = replace(site.home, cache=tmp_path / "other-cache")
    other = Site(site.backend, home, site.source, site.clock, site.entropy)
    with pytest.raises(IntegrityError):
        checkout_to(other.registry(), "m", tmp_path / "out")
    for name, data in lost.items():
        site.backend.create(name, [data])
    assert reads(other.registry(), "m", folder, tmp_path / "out")


@pytest.mark.parametrize("seen_apart", [True, False])
def test_the_packs_of_a_liar_are_never_taken_for_those_of_an_honest_commit(
    site: Site, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_apart: bool
) -> None:
    lies = write_files(tmp_path / "lies", {"x": b"a lie " * 500})
    reader, liar, honest = site.registry(), site.registry(cold=True), site.registry(cold=True)
    ensure_model(liar, "liar")
    with monkeypatch.context() as patch:
        patch.setattr(
            module, "seal_entry", lambda entry, *rest: seal_entry(structs.replace(entry, root=b"\xee" * 32), *rest)
        )
        commit_tree(liar, lies, "liar")
    if seen_apart:
        assert reader.refresh().damaged_from is not None
    # Somebody who goes on all the same; his root agrees with all bytes.
    monkeypatch.setattr(Registry, "check_writable", lambda self: None)
    commit_tree(honest, folder)
    reader.refresh()
    for number, registry in enumerate([reader, site.registry(), site.registry(cold=True)]):
        assert (registry.state.damaged_from, [void.n for void in registry.state.voids]) == (None, [2])
        assert reads(registry, "m", folder, tmp_path / f"out-{number}")


def test_a_bit_that_flips_on_the_way_is_made_up_for(site: Site, folder: Path, tmp_path: Path) -> None:
    commit_tree(site.registry(), folder)
    reader = site.registry(FaultyBackend(site.backend, [Corrupt(op="read", name="*.index", bit=4000)]), cold=True)
    assert reads(reader, "m", folder, tmp_path / "out")
