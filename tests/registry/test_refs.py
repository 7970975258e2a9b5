"""Branches and tags: moved by compare-and-set, each name once in a model."""

from pathlib import Path

import pytest

from cairn.core.errors import BadName, CairnError, ConflictError, NotFoundError, RefMoved
from cairn.core.ids import CheckpointId, ModelId
from cairn.registry.models import (
    delete_ref,
    ensure_model,
    find_model,
    history,
    list_refs,
    model_name,
    move_ref,
    ref_value,
)
from cairn.registry.registry import Registry
from tests.support.rivals import interleaved
from tests.support.stores import Site, commit_tree, tip
from tests.support.trees import write_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", {"a": b"first" * 100})


@pytest.fixture
def registry(site: Site, folder: Path) -> Registry:
    """Two checkpoints of a model on main."""
    registry = site.registry()
    commit_tree(registry, folder, step=1)
    commit_tree(registry, folder, step=2)
    return registry


def refs(registry: Registry, model: str = "m") -> dict[str, tuple[str, CheckpointId]]:
    registry.refresh()
    return {ref.name: (ref.kind, ref.checkpoint) for ref in list_refs(registry, find_model(registry, model))}


def test_refs_are_listed_by_name_with_kind_and_checkpoint(registry: Registry) -> None:
    (model, second), (_, first) = tip(registry), tip(registry, "m@step:1")
    move_ref(registry, model, "v1", "tag", None, first)
    move_ref(registry, model, "dev", "branch", None, second)
    move_ref(registry, model, "dev", "branch", second, first)
    assert refs(registry) == {"dev": ("branch", first), "main": ("branch", second), "v1": ("tag", first)}
    assert list(refs(registry)) == ["dev", "main", "v1"]
    assert ref_value(registry, model, "latest") == second
    assert delete_ref(registry, model, "v1", "tag") == first
    assert set(refs(registry)) == {"dev", "main"}


def test_of_two_who_move_one_ref_the_second_is_told(site: Site, registry: Registry) -> None:
    (model, second), (_, first) = tip(registry), tip(registry, "m@step:1")
    other = site.registry(cold=True)
    move_ref(registry, model, "main", "branch", second, first)
    before = site.log()
    with pytest.raises(RefMoved, match="main"):
        move_ref(other, model, "main", "branch", second, first)
    assert site.log() == before
    assert refs(other) == {"main": ("branch", first)}


@pytest.mark.parametrize("change", ["move", "delete", "create"])
def test_a_rival_at_the_last_moment_is_noticed_and_nothing_changed(site: Site, registry: Registry, change: str) -> None:
    (model, second), (_, first) = tip(registry), tip(registry, "m@step:1")
    move_ref(registry, model, "r", "tag", None, first)

    def rival() -> None:
        if change == "create":
            move_ref(registry, model, "new", "tag", None, first)
        else:
            move_ref(registry, model, "r", "tag", first, second)

    loser = site.registry(interleaved(site.backend, rival, op="create", name="log/*"), cold=True)
    with pytest.raises(RefMoved):
        if change == "move":
            move_ref(loser, model, "r", "tag", first, second)
        elif change == "delete":
            delete_ref(loser, model, "r", "tag")
        else:
            move_ref(loser, model, "new", "tag", None, second)
    expected = {"main": ("branch", second), "r": ("tag", second)}
    if change == "create":
        expected = {"main": ("branch", second), "r": ("tag", first), "new": ("tag", first)}
    assert refs(loser) == expected
    assert site.registry(cold=True).state.voids == []


def test_a_commit_whose_branch_moved_meanwhile_changes_nothing(site: Site, registry: Registry, folder: Path) -> None:
    rival = site.registry(cold=True)
    loser = site.registry(
        interleaved(site.backend, lambda: commit_tree(rival, folder, step=3), op="create", name="*.body"), cold=True
    )
    with pytest.raises(RefMoved):
        commit_tree(loser, folder, step=4)
    steps = [line.meta.step for line in history(rival, tip(rival)[0], tip(rival)[1])]
    assert steps == [3, 2, 1]
    assert commit_tree(loser, folder, step=4).created, "and the loser may simply repeat"
    assert [listed for listed in site.names(".open") if "sessions/" in listed] == []


def test_who_creates_a_model_second_uses_the_first_ones(site: Site) -> None:
    rival = site.registry()
    found: list[ModelId] = []
    backend = interleaved(site.backend, lambda: found.append(ensure_model(rival, "m")), op="create", name="log/*")
    loser = site.registry(backend, cold=True)
    assert [ensure_model(loser, "m")] == found
    assert list(site.registry(cold=True).state.models) == found
    assert len([name for name in site.names() if name.startswith("keys/model/")]) == 1, "the loser's wrap is removed"
    assert model_name(loser, found[0]) == "m"


def test_branches_and_tags_share_names_but_not_kinds(registry: Registry, folder: Path) -> None:
    model, second = tip(registry)
    move_ref(registry, model, "v1", "tag", None, second)
    with pytest.raises(BadName, match="is a tag"):
        commit_tree(registry, folder, branch="v1", step=9)
    with pytest.raises(ConflictError, match="taken by a tag"):
        move_ref(registry, model, "v1", "branch", second, second)
    for name, kind in (("v1", "branch"), ("main", "tag"), ("absent", "tag")):
        with pytest.raises(NotFoundError):
            delete_ref(registry, model, name, kind)
    assert set(refs(registry)) == {"main", "v1"}


@pytest.mark.parametrize("name", ["", "latest", "step:4", "a@b", "\udc80", "x" * (16 * 1024 + 1)], ids=ascii)
def test_names_that_no_ref_may_have(registry: Registry, name: str) -> None:
    model, second = tip(registry)
    with pytest.raises(BadName):
        move_ref(registry, model, name, "tag", None, second)
    # Nor does asking for one do more than fail.
    with pytest.raises(CairnError):
        delete_ref(registry, model, name, "tag")


def test_history_follows_ref_parents_and_may_be_cut(registry: Registry, folder: Path) -> None:
    commit_tree(registry, folder, step=3, message="third")
    model, third = tip(registry)
    lines = history(registry, model, third)
    assert [(line.meta.step, line.meta.message) for line in lines] == [(3, "third"), (2, ""), (1, "")]
    assert [line.meta.step for line in history(registry, model, third, 2)] == [3, 2]
    assert history(registry, model, third, 0) == []
    assert history(registry, model, None) == []
