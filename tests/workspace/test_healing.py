"""Damage and loss: committing the same content again brings it back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cairn.core.errors import IntegrityError
from tests.support.stores import Site, checkout_to, commit_tree
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot, write_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_files(
        tmp_path / "tree", {"a": bytes(range(256)) * 40, "m.safetensors": safetensors({"w": weights(1, 500)})}
    )


def lost(data: bytes) -> bytes | None:
    return None


def cut(data: bytes) -> bytes | None:
    return data[: len(data) // 3]


def changed(data: bytes) -> bytes | None:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def harm(site: Site, ending: str, by: Callable[[bytes], bytes | None]) -> None:
    for name in site.names(ending):
        data = by(site.backend.read(name))
        site.backend.delete(name)
        if data is not None:
            site.backend.create(name, [data])


@pytest.mark.parametrize("by", [lost, cut])
def test_H20_committing_lost_content_again_heals_its_checkpoint(
    site: Site, tree: Path, tmp_path: Path, by: Callable[[bytes], bytes | None]
) -> None:
    first = commit_tree(site.registry(), tree)
    harm(site, ".pack", by)
    with pytest.raises(IntegrityError):
        checkout_to(site.registry(), "m", tmp_path / "no")
    registry = site.registry()
    commit_tree(registry, tree)
    for cold in (False, True):
        reader = site.registry(cold=cold)
        checkout_to(reader, "m", tmp_path / f"tip-{cold}")
        checkout_to(reader, f"m@{first.checkpoint.hex()}", tmp_path / f"old-{cold}")
        assert snapshot(tmp_path / f"tip-{cold}") == snapshot(tmp_path / f"old-{cold}") == snapshot(tree)


def test_H20_changed_content_is_healed_once_it_was_noticed(site: Site, tree: Path, tmp_path: Path) -> None:
    commit_tree(site.registry(), tree)
    harm(site, ".pack", changed)
    with pytest.raises(IntegrityError):
        checkout_to(site.registry(), "m", tmp_path / "no")
    # Reading stops at the first damage, so it may take a look for each damaged chunk.
    for attempt in range(5):
        commit_tree(site.registry(), tree)
        try:
            checkout_to(site.registry(), "m", tmp_path / f"out-{attempt}")
        except IntegrityError:
            continue
        assert snapshot(tmp_path / f"out-{attempt}") == snapshot(tree)
        return
    raise AssertionError("five good commits did not heal it")


@pytest.mark.parametrize("ending", [".body", ".root"])
@pytest.mark.parametrize("by", [lost, cut, changed])
def test_a_damaged_manifest_does_not_keep_its_content_from_being_committed_again(
    site: Site, tree: Path, tmp_path: Path, ending: str, by: Callable[[bytes], bytes | None]
) -> None:
    commit_tree(site.registry(), tree)
    harm(site, ending, by)
    assert commit_tree(site.registry(), tree).created
    checkout_to(site.registry(cold=True), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)


def test_what_is_not_damaged_stays_readable(site: Site, tree: Path, tmp_path: Path) -> None:
    registry = site.registry()
    other = write_files(tmp_path / "other", {"b": b"other content " * 30})
    commit_tree(registry, other, "other")
    kept = set(site.names(".pack"))
    commit_tree(registry, tree)
    for name in set(site.names(".pack")) - kept:
        site.backend.delete(name)
    reader = site.registry(cold=True)
    checkout_to(reader, "other", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(other)
    with pytest.raises(IntegrityError):
        checkout_to(reader, "m", tmp_path / "no")
