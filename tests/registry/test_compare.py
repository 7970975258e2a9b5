"""Comparing checkpoints: how they stand to each other, whose bytes are whose, and what cannot be compared."""

from pathlib import Path
from typing import Any

import pytest

from cairn.core.errors import NotAllowed
from cairn.registry.compare import Comparison, Omission, compare
from cairn.registry.comparedfacts import Kinship
from cairn.registry.delivery import Selection
from cairn.registry.lineage import DeclaredParent
from cairn.registry.models import find_model, move_ref
from cairn.registry.publish import ENVELOPE
from cairn.registry.reachability import read_reachability
from cairn.registry.rights import Role
from cairn.registry.sync import SendOptions, send
from cairn.store.crypto.components import ComponentClass
from tests.cases.training import Net, Runs
from tests.support.members import give, join
from tests.support.stores import Site, commit_tree, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files
from tests.support.twins import twin_of


def commit(site: Site, folder: Path, number: int, model: str = "m", **options: Any) -> bytes:
    """Commit two tensors, one of which depends on a number, and notes."""
    tensors = {"same": weights(0, 3000), "other": weights(number, 5000)}
    files = {"m.safetensors": safetensors(tensors), "notes": b"notes"}
    tree = write_files(folder / f"{model}-{number}-{options.get('step', 0)}", files)
    return commit_tree(site.registry(), tree, model, step=options.pop("step", number), **options).checkpoint


def between(site: Site, old: str, new: str = "m") -> Comparison:
    registry = site.registry()
    return compare(registry, tip(registry, old), tip(registry, new))


def facts(found: Comparison) -> dict[tuple[Any, ...], tuple[Any, Any]]:
    return {(one.group, *one.item.path): (one.item.old, one.item.new) for one in found.facts}


# --- Kinship -------------------------------------------------------------------------------------


def test_how_checkpoints_of_a_branch_stand_to_each_other(site: Site, tmp_path: Path) -> None:
    first, second, third = (commit(site, tmp_path, number) for number in (1, 2, 3))
    assert between(site, "m@step:2").kinship == Kinship(second, 0, 1, "continue")
    assert between(site, "m@step:1").kinship == Kinship(first, 0, 2)
    assert between(site, "m", "m@step:1").kinship == Kinship(first, 2, 0)
    assert between(site, "m").kinship == Kinship(third)


def test_branches_go_back_to_where_they_parted(site: Site, tmp_path: Path) -> None:
    first = commit(site, tmp_path, 1)
    registry = site.registry()
    move_ref(registry, find_model(registry, "m"), "side", "branch", None, tip(registry)[1])
    commit(site, tmp_path, 2)
    commit(site, tmp_path, 3)
    commit(site, tmp_path, 4, branch="side")
    assert between(site, "m", "m@side").kinship == Kinship(first, 2, 1)


def test_declared_parents_lead_to_other_models(site: Site, tmp_path: Path) -> None:
    commit(site, tmp_path, 1)
    base = commit(site, tmp_path, 2)
    commit(site, tmp_path, 3, "tuned", parents=(DeclaredParent("m", "finetune"),))
    assert between(site, "m", "tuned").kinship == Kinship(base, 0, 1, "finetune")
    assert between(site, "m@step:1", "tuned").kinship.new == 2
    commit(site, tmp_path, 4, "stranger")
    assert between(site, "m", "stranger").kinship == Kinship(None)


# --- Facts and bytes -----------------------------------------------------------------------------


def test_what_a_commit_says_of_itself(site: Site, tmp_path: Path) -> None:
    commit(site, tmp_path, 1, message="first", metrics={"loss": 2.0})
    commit(site, tmp_path, 2, message="second", metrics={"loss": 1.5, "lr": 0.1})
    found = between(site, "m@step:1")
    assert facts(found) == {
        ("checkpoint", "message"): ("first", "second"),
        ("checkpoint", "metrics", "loss"): (2.0, 1.5),
        ("checkpoint", "metrics", "lr"): (None, 0.1),
    }
    assert [(side.name, side.step) for side in found.sides] == [("m", 1), ("m", 2)]
    assert found.recorded == ((), ())


def test_bytes_are_those_of_both_or_of_one(site: Site, tmp_path: Path) -> None:
    commit(site, tmp_path, 1)
    commit(site, tmp_path, 2)
    found, registry = between(site, "m@step:1"), site.registry()
    index, model = registry.index(), registry.state.models[find_model(registry, "m")]

    def stored(checkpoint: bytes) -> int:
        ids = read_reachability(registry.opened, model.checkpoints[checkpoint])
        return sum(index.locations(identifier)[0].length for identifier in ids)

    assert found.bytes_shared + found.bytes_only_old == stored(found.old)
    assert found.bytes_shared + found.bytes_only_new == stored(found.new)
    assert found.bytes_shared > 12_000 and min(found.bytes_only_old, found.bytes_only_new) > 20_000
    same = between(site, "m")
    assert (same.bytes_only_old, same.bytes_only_new, same.bytes_shared) == (0, 0, stored(found.new))


def test_the_same_comparison_comes_out_the_same(site: Site, tmp_path: Path) -> None:
    commit(site, tmp_path, 1)
    commit(site, tmp_path, 2)
    assert between(site, "m@step:1") == between(site, "m@step:1")


def test_a_lost_envelope_does_not_hide_what_differs(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs")
    runs.save({"x": 1}, 1)
    runs.save({"x": 2}, 2)
    (old, _) = runs.site.names(f".{ENVELOPE}")
    whole = between(runs.site, "m@step:1")
    assert whole.sides[0].job["ranks"] == 1
    runs.site.backend.delete(old)
    found = between(runs.site, "m@step:1")
    assert sorted(len(side.job) for side in found.sides) == [0, 2]
    assert found.values == whole.values


# --- What cannot be compared ---------------------------------------------------------------------


def test_components_that_were_not_granted_are_named(site: Site, tmp_path: Path) -> None:
    commit(site, tmp_path, 1)
    commit(site, tmp_path, 2)
    member = join(site, "bob", Role.READER)
    with pytest.raises(NotAllowed):
        between(member, "m@step:1")
    give(site, member, "m", ComponentClass.WEIGHTS)
    found = between(member, "m@step:1")
    assert found.omissions == [Omission("files", "old", False), Omission("files", "new", False)]
    assert [str(one.key) for one in found.tensors] == ["other"] and found.tensors_equal == 1
    give(site, member, "m", ComponentClass.WEIGHTS, ComponentClass.FILES)
    assert between(member, "m@step:1").omissions == []


def test_what_may_be_read_of_one_model_alone_is_left_out_of_both(site: Site, tmp_path: Path) -> None:
    commit(site, tmp_path, 1)
    commit(site, tmp_path, 2, "n")
    member = join(site, "bob", Role.READER)
    give(site, member, "m", ComponentClass.WEIGHTS)
    give(site, member, "n", ComponentClass.WEIGHTS, ComponentClass.FILES)
    found = between(member, "m", "n")
    assert found.omissions == [Omission("files", "old", False)] and found.files == []
    assert [str(one.key) for one in found.tensors] == ["other"]


def test_components_that_were_not_brought_are_named(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs")
    there = twin_of(runs.site)
    for step in (1, 2):
        runs.save({"model": Net(step), "step": step}, step)
        selection = Selection(frozenset([ComponentClass.WEIGHTS]))
        send(runs.site.registry(), there.registry(), "m", SendOptions(selection=selection))
    found = between(there, "m@step:1")
    assert found.omissions == [Omission("training", "old", True), Omission("training", "new", True)]
    assert len(found.tensors) == 3 and found.values == []
    assert found.bytes_only_new < between(runs.site, "m@step:1").bytes_only_new
