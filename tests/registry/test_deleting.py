"""Deleting one checkpoint, branch or tag by name: what goes, what stays, and what happens beside others."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cairn.core.errors import BadInput, NotAllowed, NotFoundError, PlanVoid, RefusedError, UsageError
from cairn.registry.deleting import DeletionPlan, apply_deletion, decode_plan, plan_deletion
from cairn.registry.deletion import restore
from cairn.registry.fold import BRANCH, TAG
from cairn.registry.models import delete_ref, list_refs, move_ref
from cairn.registry.planfiles import encode_plan
from cairn.registry.registry import Registry
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Crash, FaultyBackend, Stopped
from tests.support.histories import History, drop_due
from tests.support.rivals import interleaved
from tests.support.stores import checkout_to, commit_tree
from tests.support.twins import clean, twin_of


class Forked(History):
    """Steps 1 to 4 on `main`; 5 and 6 on `side`, which left it at 3."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 4)
        self.branch(3, "side")
        self.commit(5, branch="side")
        self.commit(6, branch="side")

    def plan(self, text: str, **options: Any) -> DeletionPlan:
        return plan_deletion(self.registry, f"m@{text}", **options)

    def refs(self) -> list[str]:
        return [ref.name for ref in list_refs(self.site.registry(), self.model)]

    def there(self) -> list[int]:
        held = self.site.registry().state.models[self.model].checkpoints
        return sorted(step for step, one in self.ids.items() if one in held)

    def position(self) -> int:
        return self.registry.refresh().length


@pytest.fixture
def fork(tmp_path: Path) -> Forked:
    return Forked(tmp_path)


def steps_of(plan: DeletionPlan) -> tuple[list[int | None], dict[int | None, tuple[str, ...]]]:
    return [one.step for one in plan.goes], {one.step: one.reached_by for one in plan.stays}


# --- what goes ----------------------------------------------------------------------------------


def test_with_a_branch_goes_what_it_alone_reaches(fork: Forked) -> None:
    fork.tag(2, "good")
    plan = fork.plan("side")
    both = ("tag good", "branch main")
    assert steps_of(plan) == ([6, 5], {3: ("branch main",), 2: both, 1: both})
    assert apply_deletion(fork.registry, plan) == [fork.ids[6], fork.ids[5]]
    assert (fork.refs(), fork.there(), clean(fork.site)) == (["good", "main"], [1, 2, 3, 4], True)


def test_a_branch_whose_tip_is_tagged_leaves_all_that_the_tag_reaches(fork: Forked) -> None:
    fork.tag(5, "five")
    assert steps_of(fork.plan("side"))[0] == [6]
    apply_deletion(fork.registry, fork.plan("side"))
    assert fork.there() == [1, 2, 3, 4, 5]
    plan = fork.plan("five")
    assert steps_of(plan) == ([5], {})
    apply_deletion(fork.registry, plan)
    assert (fork.refs(), fork.there()) == (["main"], [1, 2, 3, 4])


def test_with_a_tag_goes_its_own_checkpoint_and_what_loses_its_last_name_is_told(fork: Forked) -> None:
    fork.tag(6, "six")
    assert steps_of(fork.plan("six")) == ([], {6: ("branch side",)})
    delete_ref(fork.registry, fork.model, "side", BRANCH)
    plan = fork.plan("six")
    assert steps_of(plan) == ([6], {5: ()})
    apply_deletion(fork.registry, plan)
    assert (fork.refs(), fork.there()) == (["main"], [1, 2, 3, 4, 5])


def test_a_tag_whose_checkpoint_others_reach_goes_alone(fork: Forked) -> None:
    fork.tag(2, "good")
    plan = fork.plan("good")
    assert steps_of(plan) == ([], {2: ("branch main", "branch side")})
    assert apply_deletion(fork.registry, plan) == []
    assert (fork.refs(), fork.there()) == (["main", "side"], [1, 2, 3, 4, 5, 6])


def test_a_checkpoint_goes_by_id_or_step_and_comes_back(fork: Forked, tmp_path: Path) -> None:
    apply_deletion(fork.registry, fork.plan("step:2"))
    apply_deletion(fork.registry, fork.plan(fork.ids[5].hex()[:12]))
    assert fork.there() == [1, 3, 4, 6] and clean(fork.site)
    assert restore(fork.registry, fork.model, [fork.ids[2]]) == [fork.ids[2]]
    checkout_to(fork.site.registry(), "m@step:2", tmp_path / "out")
    assert (tmp_path / "out" / "a").read_bytes() == b"step 2 " * 3000


def test_a_grace_keeps_what_went(fork: Forked) -> None:
    apply_deletion(fork.registry, fork.plan("side"), 60.0)
    assert drop_due(fork.registry) == []
    for seconds in (-1.0, float("nan")):
        with pytest.raises(UsageError, match="a grace of"):
            apply_deletion(fork.registry, fork.plan("step:1"), seconds)


def test_what_has_a_name_stays_unless_its_tags_go_too(fork: Forked) -> None:
    fork.tag(2, "a")
    fork.tag(2, "b")
    with pytest.raises(RefusedError, match="stays, since it is tagged: 'a', 'b'") as caught:
        fork.plan("step:2")
    assert "--with-tags" in caught.value.hint
    plan = fork.plan("step:2", with_tags=True)
    assert (plan.refs, len(plan.seen)) == (("a", "b"), 3)
    apply_deletion(fork.registry, plan)
    assert (fork.refs(), fork.there()) == (["main", "side"], [1, 3, 4, 5, 6])


@pytest.mark.parametrize("with_tags", [False, True])
@pytest.mark.parametrize(("step", "branch", "next_step"), [(4, "main", "--force"), (6, "side", "delete plan m@side")])
def test_the_tip_of_a_branch_stays(fork: Forked, step: int, branch: str, next_step: str, with_tags: bool) -> None:
    with pytest.raises(RefusedError, match=f"branch {branch!r} of 'm' ends in checkpoint") as caught:
        fork.plan(fork.ids[step].hex(), with_tags=with_tags)
    assert next_step in caught.value.hint


def test_what_cannot_be_deleted_by_name_is_refused(fork: Forked) -> None:
    for main in ("main", "latest"):
        with pytest.raises(RefusedError, match="'main' of 'm' is the default branch"):
            fork.plan(main)
    with pytest.raises(UsageError, match="--with-tags is for a checkpoint"):
        fork.plan("side", with_tags=True)
    with pytest.raises(NotFoundError):
        fork.plan("other")
    apply_deletion(fork.registry, fork.plan("step:2"))
    with pytest.raises(NotFoundError, match="was deleted"):
        fork.plan(fork.ids[2].hex())


def test_who_may_not_delete_checkpoints_removes_no_ref(fork: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, before = fork.plan("side"), fork.position()
    refresh = Registry.refresh

    def as_others_see_it(self: Registry) -> Any:
        state = refresh(self)
        state.owners = [b"somebody else".ljust(32)]
        return state

    monkeypatch.setattr(Registry, "refresh", as_others_see_it)
    monkeypatch.setattr(Registry, "signer", lambda self: self.opened.identity)
    with pytest.raises(NotAllowed, match="only owners may do this"):
        apply_deletion(fork.registry, plan)
    monkeypatch.undo()
    assert (fork.refs(), fork.site.registry().state.length) == (["main", "side"], before)


# --- one state ----------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Forked], object]] = {
    "commit": lambda fork: fork.commit(8, branch="side"),
    "ref moved": lambda fork: move_ref(fork.registry, fork.model, "side", BRANCH, fork.ids[6], fork.ids[4]),
    "tag": lambda fork: fork.tag(5, "late"),
    "deletion": lambda fork: fork.delete(1),
    "ref removed and made again elsewhere": lambda fork: (
        delete_ref(fork.registry, fork.model, "side", BRANCH),
        fork.branch(5, "side"),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_plan_is_void_once_its_model_has_changed(fork: Forked, change: Callable[[Forked], object]) -> None:
    plan = decode_plan(encode_plan(fork.plan("side")))
    change(fork)
    before, refs = fork.position(), fork.refs()
    with pytest.raises(PlanVoid, match=r"is void.*nothing was deleted") as caught:
        apply_deletion(fork.registry, plan)
    assert "cairn delete plan m@side" in caught.value.hint
    assert (fork.position(), fork.refs()) == (before, refs)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whoever_comes_between_plan_and_entry_keeps_all(fork: Forked, change: Callable[[Forked], object]) -> None:
    plan = fork.plan("side")
    backend = interleaved(fork.site.backend, lambda: change(fork), op="create", name="log/*")
    with pytest.raises(PlanVoid, match="nothing was deleted"):
        apply_deletion(fork.site.registry(backend), plan)
    assert "side" in fork.refs() and {5, 6} <= set(fork.there())


def test_a_plan_outlives_what_happens_to_other_models(fork: Forked) -> None:
    plan = fork.plan("side")
    commit_tree(fork.registry, fork.tree(1), model="other")
    assert len(apply_deletion(fork.registry, plan)) == 2
    with pytest.raises(PlanVoid):
        apply_deletion(fork.registry, plan)


def test_a_name_given_after_the_branch_went_keeps_its_checkpoint(fork: Forked) -> None:
    """Between the two entries: the second is refused, and the message says what the first did."""
    plan = fork.plan("side")
    rival = fork.site.registry()
    backend = late_to(fork, 1, partial(move_ref, rival, fork.model, "late", TAG, None, fork.ids[5]))
    with pytest.raises(PlanVoid, match="branch 'side' was removed, no checkpoint deleted"):
        apply_deletion(fork.site.registry(backend), plan)
    assert (fork.refs(), fork.there()) == (["late", "main"], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("text", ["side", "step:2"])
def test_of_two_appliers_one_deletes_whatever_the_order(fork: Forked, text: str) -> None:
    for name in ("a", "b"):
        fork.tag(2, name)
    plan = fork.plan(text, with_tags=text != "side")
    entries = len(plan.refs) + 1
    for late in range(entries):
        backend = late_to(fork, late, partial(apply_deletion, fork.site.registry(), plan))
        before = fork.position()
        with pytest.raises(PlanVoid, match="is void"):
            apply_deletion(fork.site.registry(backend), plan)
        assert fork.position() == before + entries, "each entry once"
        assert not set(plan.refs) & set(fork.refs())
        assert not {fork.ids[one] for one in fork.there()} & set(plan.removed)
        restore(fork.registry, fork.model, plan.removed)
        for name in plan.refs:
            (fork.branch(6, name) if text == "side" else fork.tag(2, name))
        plan = fork.plan(text, with_tags=text != "side")


def late_to(fork: Forked, entries: int, act: Callable[[], object]) -> Backend:
    """A backend whose user has written so many entries when somebody acts, just before the next one."""
    acts: Iterator[Callable[[], object]] = chain(repeat(lambda: None, entries), [act])
    return interleaved(fork.site.backend, lambda: next(acts)(), op="create", name="log/*", times=entries + 1)


@pytest.mark.parametrize("text", ["side", "step:2"])
def test_what_was_stopped_between_entries_goes_on(fork: Forked, text: str) -> None:
    fork.tag(2, "a")
    plan = decode_plan(encode_plan(fork.plan(text, with_tags=text != "side")))
    apply_stopped(fork, plan)
    assert plan.refs[0] not in fork.refs() and fork.there() == [1, 2, 3, 4, 5, 6]
    assert apply_deletion(fork.site.registry(), plan) == plan.removed
    assert not {fork.ids[one] for one in fork.there()} & set(plan.removed) and clean(fork.site)


def apply_stopped(fork: Forked, plan: DeletionPlan) -> None:
    """The process dies as it writes its second entry."""
    backend = FaultyBackend(fork.site.backend, [Crash(op="create", name="log/*", call=2)])
    with pytest.raises(Stopped):
        apply_deletion(fork.site.registry(backend), plan)


# --- files --------------------------------------------------------------------------------------


def test_nothing_in_a_file_is_trusted(fork: Forked) -> None:
    fork.tag(6, "six")
    plan = fork.plan("side")
    wider = fork.plan("step:2")
    forged = [
        msgspec.structs.replace(plan, goes=wider.goes),
        msgspec.structs.replace(plan, refs=("main",)),
        msgspec.structs.replace(plan, seen=("0" * 64, plan.seen[0]), goes=wider.goes),
        msgspec.structs.replace(wider, target=fork.ids[1].hex()),
        msgspec.structs.replace(wider, refs=("six",), with_tags=True),
    ]
    before = fork.position()
    for one in forged:
        with pytest.raises(PlanVoid):
            apply_deletion(fork.registry, one)
    for target in ("main", fork.ids[6].hex()):
        kind = "branch" if target == "main" else "checkpoint"
        with pytest.raises(RefusedError):
            apply_deletion(fork.registry, msgspec.structs.replace(plan, kind=kind, target=target, with_tags=True))
    for changed in ({"kind": "checkpoint", "target": "00" * 32}, {"kind": "tag"}, {"kind": "folder"}):
        with pytest.raises(NotFoundError):
            apply_deletion(fork.registry, msgspec.structs.replace(plan, **changed))
    with pytest.raises(UsageError, match="of store"):
        apply_deletion(twin_of(fork.site).registry(), plan)
    assert fork.position() == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"cairn deletion plan 1"', b'"cairn deletion plan 2"'),
        (b'"cairn deletion plan 1"', b'"cairn retention plan 1"'),
        (b'"goes"', b'"go"'),
        (b'"checkpoint":"', b'"checkpoint":"x'),
    ],
)
def test_what_is_no_plan_is_refused(fork: Forked, old: bytes, new: bytes) -> None:
    data = encode_plan(fork.plan("side"))
    assert encode_plan(decode_plan(data)) == data and old in data
    with pytest.raises(BadInput, match="no plan of deletion"):
        decode_plan(data.replace(old, new))
