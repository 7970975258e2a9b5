"""Planning the deletion of models and of all that was made from something, approving it, and carrying it out."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cairn.core.errors import BadInput, ConflictError, GoneError, IntegrityError, NotAllowed, PlanVoid, RefusedError
from cairn.core.ids import CheckpointId
from cairn.gc.shred import shred_due
from cairn.registry.deleting import apply_deletion, plan_deletion
from cairn.registry.fold import TAG
from cairn.registry.fold_policy import DELETE_APPROVAL
from cairn.registry.holding import add_hold, find_hold, lift_hold, list_holds
from cairn.registry.lineage import DeclaredParent, Derivations
from cairn.registry.modeldeletion import approve, deleted_models, find_deleted, find_restorable, restore_model
from cairn.registry.modelplan import Derived, ModelsPlan, apply_models, decode_plan, plan_models
from cairn.registry.models import find_model, history, list_refs, move_ref, ref_value
from cairn.registry.planfiles import encode_plan, plan_hash
from cairn.registry.policy import set_policy
from cairn.registry.registry import Registry
from cairn.registry.retaining import plan_retention, retain
from cairn.registry.retention import Retention
from cairn.registry.rights import Role
from cairn.registry.state import Checkpoint
from cairn.store.backends.faults import Crash, Delay, FaultyBackend, Stopped
from tests.support.members import join
from tests.support.rivals import Rival, interleaved
from tests.support.stores import Site, commit_tree, new_site, tip
from tests.support.trees import write_files


class Family:
    """`base` 1 -> 2 -> 3; `tuned` 1 from base 2, then 2; `apart` 1, then 2 from tuned 2."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site = folder, new_site(folder / "home")
        self.registry = self.site.registry()
        for step in (1, 2, 3):
            self.commit("base", step)
        self.commit("tuned", 1, "base@step:2", "finetune")
        self.commit("tuned", 2)
        self.commit("apart", 1)
        self.commit("apart", 2, "tuned", "merge")

    def commit(self, model: str, step: int, *parent: str) -> CheckpointId:
        tree = write_files(self.folder / f"{model}-{step}", {"f": f"{model} {step} ".encode() * 1000})
        parents = (DeclaredParent(*parent),) if parent else ()
        return commit_tree(self.registry, tree, model, step=step, parents=parents).checkpoint

    def plan(self, target: str | None, taint: bool = False) -> ModelsPlan:
        self.registry.refresh()
        return plan_models(self.registry, target, taint)

    def there(self) -> dict[str, list[int | None]]:
        """Steps of `main` of each model, newest first."""
        registry, found = self.site.registry(), {}
        for name in ("base", "tuned", "apart"):
            try:
                model = find_model(registry, name)
            except GoneError:
                continue
            found[name] = [line.meta.step for line in history(registry, model, ref_value(registry, model, "main"))]
        return found


ALL = {"base": [3, 2, 1], "tuned": [2, 1], "apart": [2, 1]}


@pytest.fixture
def family(tmp_path: Path) -> Family:
    return Family(tmp_path)


def goes(plan: ModelsPlan) -> dict[str, tuple[bool, list[int | None]]]:
    return {part.name: (part.whole, [one.step for one in part.goes]) for part in plan.parts}


# --- what goes --------------------------------------------------------------------------------------


def test_a_model_goes_whole_and_what_was_made_from_it_is_told(family: Family) -> None:
    plan = family.plan("base")
    assert goes(plan) == {"base": (True, [1, 2, 3])}
    names = {model.hex(): name for name in ALL for model in [find_model(family.registry, name)]}
    assert sorted(names[one.model] for one in plan.stays) == ["apart", "tuned", "tuned"]
    apply_models(family.registry, plan)
    assert family.there() == {"tuned": [2, 1], "apart": [2, 1]}
    restore_model(family.registry, find_restorable(family.registry, "base"))
    assert family.there() == ALL


def test_with_taint_goes_all_that_was_made_from_it_and_branches_move_back(family: Family) -> None:
    model = find_model(family.registry, "apart")
    move_ref(family.registry, model, "best", TAG, None, tip(family.registry, "apart")[1])
    plan = family.plan("base@step:2", taint=True)
    assert goes(plan) == {"base": (False, [2, 3]), "tuned": (True, [1, 2]), "apart": (False, [2])}
    refs = {part.name: [(ref.name, ref.to is None) for ref in part.refs] for part in plan.parts}
    assert refs == {"base": [("main", False)], "tuned": [], "apart": [("best", True), ("main", False)]}
    assert plan.stays == ()
    apply_models(family.registry, plan)
    assert family.there() == {"base": [1], "apart": [1]}
    assert [ref.name for ref in list_refs(family.site.registry(), model)] == ["main"]


def test_what_was_stopped_is_finished_by_the_same_command(family: Family) -> None:
    """At each change of the store; by the id, which means the same before and after."""
    for call in range(1, 20):
        again = Family(family.folder / str(call))
        target = f"base@{tip(again.registry, 'base@step:2')[1].hex()[:12]}"
        through = FaultyBackend(again.site.backend, [Crash(op="create", name="log/*", call=call)])
        with suppress(Stopped):
            registry = again.site.registry(through)
            apply_models(registry, plan_models(registry, target, taint=True))
        again.registry = again.site.registry(cold=True)
        try:
            apply_models(again.registry, again.plan(target, taint=True))
        except GoneError:
            assert call > 5
            return
        assert again.there() == {"base": [1], "apart": [1]}
    raise AssertionError("it never went through")


def test_what_is_made_from_it_meanwhile_stops_it(family: Family) -> None:
    """A branch goes on while it is moved back."""
    plan, late = family.plan("base@step:3", taint=True), Family.__new__(Family)
    late.folder, late.site, late.registry = family.folder, family.site, family.site.registry()
    meanwhile = interleaved(family.site.backend, lambda: late.commit("base", 4), op="create", name="log/*")
    with pytest.raises(ConflictError):
        apply_models(family.site.registry(meanwhile), plan)
    assert family.there()["base"] == [4, 3, 2, 1]


def test_a_hold_that_comes_meanwhile_is_told_with_what_was_done(family: Family) -> None:
    plan, holder = family.plan("tuned", taint=True), family.site.registry()

    def hold() -> None:
        add_hold(holder, find_model(holder, "tuned"), None, "case 9")

    clock = Rival(act=hold)
    late = family.site.registry(
        FaultyBackend(family.site.backend, [Delay(op="create", name="log/*", call=3, seconds=0, clock=clock)])
    )
    with pytest.raises(RefusedError, match=r"stays: hold .*; of 'apart' it was carried out, of the others nothing"):
        apply_models(late, plan)
    assert family.there() == {**ALL, "apart": [1]}


def test_refs_that_were_moved_before_a_hold_came_are_told(family: Family) -> None:
    plan, holder = family.plan("base@step:3", taint=True), family.site.registry()
    model, checkpoint = tip(holder, "base")
    clock = Rival(act=lambda: add_hold(holder, model, checkpoint, "case 9"))
    late = family.site.registry(
        FaultyBackend(family.site.backend, [Delay(op="create", name="log/*", call=2, seconds=0, clock=clock)])
    )
    with pytest.raises(RefusedError, match=r"stays: hold .*; nothing was deleted, and refs were .*: 'base@main'"):
        apply_models(late, plan)
    assert family.there() == {**ALL, "base": [2, 1]}


def test_a_branch_with_nothing_left_is_removed(family: Family) -> None:
    family.commit("apart", 3, "base@step:1", "fork")
    registry = family.registry
    commit_tree(registry, family.folder / "base-1", "apart", step=9, branch="side",
                parents=(DeclaredParent("base@step:1", "fork"),))  # fmt: skip
    plan = family.plan("base", taint=True)
    assert [(ref.name, ref.to is None) for part in plan.parts for ref in part.refs] == [("main", False), ("side", True)]
    apply_models(registry, plan)
    assert family.there() == {"apart": [1]}


def test_a_tenant_goes_model_by_model(family: Family) -> None:
    plan = family.plan(None)
    assert sorted(plan.whole) == sorted(family.registry.state.models)
    apply_models(family.registry, plan)
    assert family.there() == {} and len(deleted_models(family.registry)) == 3


def test_who_cannot_tell_what_was_made_from_what_deletes_nothing_of_it(family: Family) -> None:
    state = next(iter(family.registry.state.models[find_model(family.registry, "tuned")].checkpoints.values()))
    _damage(family.site, state)
    with pytest.raises(IntegrityError, match="cannot be read, so nobody can tell"):
        plan_models(family.site.registry(cold=True), "base", taint=True)


def _damage(site: Site, state: Checkpoint) -> None:
    name = state.body.object_name("body")
    site.backend.delete(name)
    site.backend.create(name, [b"torn"])


# --- files, and what changes meanwhile ----------------------------------------------------------------


def test_a_plan_is_written_and_read(family: Family) -> None:
    plan = family.plan("base", taint=True)
    assert decode_plan(encode_plan(plan)) == plan
    for bad in (b"{}", b"[", encode_plan(plan)[:-9], encode_plan(replace_model(plan, "zz"))):
        with pytest.raises(BadInput):
            decode_plan(bad)


@pytest.mark.parametrize("bad", ["zz", "ab cd", "AB", "ab\n"])
def test_what_a_plan_calls_an_id_is_one(family: Family, bad: str) -> None:
    """It is printed, and looked for."""
    plan = family.plan("base@step:2", taint=True)
    ref = msgspec.structs.replace(plan.parts[-1].refs[0], to=bad)
    part = msgspec.structs.replace(plan.parts[-1], refs=(ref,))
    stays = (Derived(plan.parts[0].model, bad),)
    for changes in ({"parts": (part,)}, {"stays": stays}, {"store": bad}):
        with pytest.raises(BadInput, match="this is no plan of deletion"):
            decode_plan(encode_plan(msgspec.structs.replace(plan, **changes)))


def replace_model(plan: ModelsPlan, model: str) -> ModelsPlan:
    part = msgspec.structs.replace(plan.parts[0], model=model)
    return msgspec.structs.replace(plan, parts=(part, *plan.parts[1:]))


@pytest.mark.parametrize("target", ["base", "base@step:1"])
def test_a_plan_is_void_once_what_it_speaks_of_has_changed(family: Family, target: str) -> None:
    plan = family.plan(target, taint=True)
    family.commit("apart", 3, "base", "fork")
    with pytest.raises(PlanVoid, match="nothing was deleted"):
        apply_models(family.registry, plan)
    assert family.there() == {**ALL, "apart": [3, 2, 1]}


def test_nothing_in_a_file_is_believed(family: Family) -> None:
    plan = family.plan("tuned")
    spread = msgspec.structs.replace(plan, parts=(*plan.parts, *family.plan("base").parts))
    for forged in (spread, msgspec.structs.replace(plan, stays=()), msgspec.structs.replace(plan, target="base")):
        with pytest.raises(PlanVoid):
            apply_models(family.registry, forged)
    assert family.there() == ALL


def test_a_model_that_is_gone_is_told_from_one_that_never_was(family: Family) -> None:
    model = find_model(family.registry, "base")
    apply_models(family.registry, family.plan("base"))
    for act in (lambda: find_model(family.registry, "base"), lambda: family.commit("base", 4)):
        with pytest.raises(GoneError, match="model 'base' was deleted at") as caught:
            act()
        assert caught.value.hint == "'cairn delete restore base' brings it back"
    assert find_deleted(family.registry, "base") == find_deleted(family.registry, model.hex()[:8]) == model
    with pytest.raises(ConflictError, match="is not deleted"):
        find_deleted(family.registry, "tuned")
    with pytest.raises(GoneError, match="log entry"):
        plan_retention(family.registry, model, "main", Retention(last=1))


def test_only_owners_delete_models(family: Family) -> None:
    writer = join(family.site, "writer", Role.WRITER).registry()
    with pytest.raises(NotAllowed, match="only owners may do this"):
        apply_models(writer, family.plan("base"))
    with pytest.raises(NotAllowed):
        add_hold(writer, find_model(family.registry, "base"), None, "no")


# --- a second owner -----------------------------------------------------------------------------------


def test_what_others_were_made_from_needs_a_second_owner(family: Family) -> None:
    second = join(family.site, "second", Role.OWNER).registry()
    set_policy(family.registry, DELETE_APPROVAL, "descendants")
    plan = family.plan("base")
    with pytest.raises(RefusedError, match="asks for a second owner") as caught:
        apply_models(family.registry, plan)
    assert "cairn delete approve" in caught.value.hint
    approve(family.registry, plan_hash(plan))
    with pytest.raises(RefusedError):
        apply_models(family.registry, plan)
    approve(second, plan_hash(plan))
    with pytest.raises(ConflictError, match="approved the plan already"):
        approve(second, plan_hash(plan))
    apply_models(family.registry, plan)
    restore_model(family.registry, find_restorable(family.registry, "base"))
    with pytest.raises(ConflictError, match="carried out before"):
        apply_models(family.registry, plan)
    assert family.there() == ALL
    apply_models(family.registry, family.plan("apart"))


def test_a_checkpoint_too_and_retention_leaves_it(family: Family) -> None:
    second = join(family.site, "second", Role.OWNER).registry()
    set_policy(family.registry, DELETE_APPROVAL, "descendants")
    model = find_model(family.registry, "base")
    plan = plan_deletion(family.registry, "base@step:2")
    with pytest.raises(RefusedError, match="asks for a second owner"):
        apply_deletion(family.registry, plan)
    kept = retain(family.registry, model, "main", Retention(last=1))
    assert [one.kept_by for one in kept.verdicts][1:] == [("second of main",), ("others were made from it",)]
    plan = plan_deletion(family.registry, "base@step:2")
    approve(second, plan_hash(plan))
    apply_deletion(family.registry, plan)
    assert 2 not in family.there()["base"]


@pytest.mark.parametrize("way", ["one by one", "taint", "all"])
def test_nobody_alone_deletes_what_others_were_made_from_and_brings_these_back(family: Family, way: str) -> None:
    """What can be restored may stay: a second owner is asked until nothing of it is left."""
    set_policy(family.registry, DELETE_APPROVAL, "descendants")
    if way == "one by one":
        for name in ("apart", "tuned"):
            if name == "tuned":
                shred_due(family.registry, lambda: None)  # nothing of "apart" comes back from here on
            apply_models(family.registry, family.plan(name))
    plan = family.plan(None if way == "all" else "base", taint=way == "taint")
    with pytest.raises(RefusedError, match="asks for a second owner"):
        apply_models(family.registry, plan)
    assert "base" in family.there()
    if way == "one by one":
        shred_due(family.registry, lambda: None)
        apply_models(family.registry, family.plan("base"))


def test_what_may_outlive_a_checkpoint_is_found_for_all_at_once(family: Family) -> None:
    for name in ("", "apart", "tuned"):
        if name:
            apply_models(family.registry, family.plan(name))
        every = [
            CheckpointId(one) for model in family.registry.state.kept_models().values() for one in model.checkpoints
        ]
        derivations = Derivations(family.registry)
        found = {one for one in every if derivations.may_outlive([one])}
        assert derivations.outlived() == found and 0 < len(found) < len(every)


def test_taint_goes_through_what_is_deleted(family: Family) -> None:
    apply_models(family.registry, family.plan("tuned"))
    assert goes(family.plan("base", taint=True)) == {"base": (True, [1, 2, 3]), "apart": (False, [2])}


def test_the_holder_of_the_root_key_is_nobody_in_particular(family: Family, tmp_path: Path) -> None:
    stranger = replace(family.site, home=replace(family.site.home, state=tmp_path / "elsewhere"))
    with pytest.raises(NotAllowed, match="nobody in particular"):
        approve(stranger.registry(), bytes(32))


# --- holds --------------------------------------------------------------------------------------------


def test_holds_are_set_listed_and_lifted(family: Family) -> None:
    registry, model = family.registry, find_model(family.registry, "base")
    checkpoint = tip(registry, "base@step:1")[1]
    one, other = add_hold(registry, model, checkpoint, "case 1"), add_hold(registry, model, None, "case 2")
    told = list_holds(family.site.registry())
    assert [(hold.id, hold.checkpoint, hold.reason) for hold in told] == [
        (one, checkpoint, "case 1"),
        (other, None, "case 2"),
    ]
    assert list_holds(registry, find_model(registry, "tuned")) == []
    with pytest.raises(RefusedError, match="model 'base' stays: holds"):
        apply_models(registry, family.plan("base"))
    with pytest.raises(RefusedError, match="stays: hold"):
        apply_models(registry, family.plan("base@step:2", taint=True))
    verdicts = plan_retention(registry, model, "main", Retention(last=1)).verdicts
    assert all(any(why.startswith("hold") for why in verdict.kept_by) for verdict in verdicts)
    assert lift_hold(registry, find_hold(registry, one.hex()[:6])).id == one
    lift_hold(registry, other)
    assert list_holds(registry) == []


def test_an_auditor_sees_that_there_is_a_hold_and_not_why(family: Family) -> None:
    add_hold(family.registry, find_model(family.registry, "base"), None, "a reason nobody else is to know")
    auditor: Registry = join(family.site, "auditor", Role.AUDITOR).registry()
    (hold,) = list_holds(auditor)
    assert hold.reason is None
