"""The protocol of collection over the real fold: nothing is lost in any interleaving, and each rule is needed for that.

`CAIRN_EXPLORER=all` visits larger worlds too, some minutes long.
"""

import os
from typing import Any

import pytest

from cairn.registry import fold, fold_collection, fold_uploads
from cairn.registry.entries import Entry, Uncondemn, Upload
from cairn.registry.state import State
from tests.gc.explorer_actors import explored

WORLDS: dict[str, dict[str, Any]] = {
    "writer, two collectors": {"collectors": 2, "deletes": True},
    "writer of its own, two collectors": {
        "collectors": 2, "finds": False, "takes_back": True, "late_puts": True, "resumes": True,
    },
    "writer tries twice": {"attempts": 2, "deletes": True, "rounds": 2},
    "two writers": {"writers": 2, "finds": False, "takes_back": True},
    "writer, two collectors that copy": {"collectors": 2, "finds": False, "repacks": True, "late_puts": True},
    "writer and reader, collector that copies": {"readers": 1, "deletes": True, "repacks": True, "takes_back": True},
    "reader, two collectors that copy": {"writers": 0, "readers": 1, "collectors": 2, "repacks": True, "rounds": 2},
    "reader, two rounds": {"readers": 1, "deletes": True, "rounds": 2},
    "two copies, two collectors": {"collectors": 2, "copies": 2},
    "merge beside a writer": {"merges": True, "finds": False, "rounds": 2},
    "merge, two collectors": {"merges": True, "collectors": 2, "writers": 0, "deletes": True},
}  # fmt: skip
LARGER: dict[str, dict[str, Any]] = {
    "two writers, two collectors": {"writers": 2, "collectors": 2, "finds": False},
    "two writers that rely": {"writers": 2, "deletes": True},
    "writer, reader, two collectors": {"readers": 1, "collectors": 2, "deletes": True},
    "writer of its own, two collectors, deletion": {"collectors": 2, "finds": False, "deletes": True, "resumes": True},
    "writer, two collectors that copy, all beside": {
        "collectors": 2, "finds": False, "repacks": True, "takes_back": True, "late_puts": True, "resumes": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("rules", WORLDS.values(), ids=WORLDS)
def test_nothing_is_lost(rules: dict[str, Any]) -> None:
    found = explored(**rules)
    print(f"{found.worlds} worlds")
    assert not found.loss, found.steps
    assert found.worlds > 500


@pytest.mark.slow
@pytest.mark.parametrize("rules", LARGER.values(), ids=LARGER)
def test_nothing_is_lost_in_larger_worlds(rules: dict[str, Any]) -> None:
    everything = os.environ.get("CAIRN_EXPLORER") == "all"
    found = explored(None if everything else 20_000, **rules)
    print(f"{found.worlds} worlds{'' if everything else ', the nearest'}")
    assert not found.loss, found.steps


# --- rules that actors keep --------------------------------------------------------------------------

OWN = {"finds": False}
LEFT_OUT: dict[str, tuple[dict[str, Any], str]] = {
    "advance: own packs are looked at": ({"checks_own_packs": False, **OWN}, "usable copy"),
    "advance: nor were any under way": ({"checks_packs_on_their_way": False, **OWN}, "usable copy"),
    "names are never used again": ({"names_are_new": False, "attempts": 2, "rounds": 2, **OWN}, "usable copy"),
    "a merge settles before its piece is stored": (
        {"settles_before_upload": False, "merges": True, "writers": 0}, "index piece",
    ),
    "one epoch from plan to condemnation": (
        {"follows_one_epoch": False, "writers": 0, "collectors": 2, "copies": 2}, "usable copy",
    ),
    "the plan is brought up to date": ({"updates_plan": False, "deletes": True}, "usable copy"),
    "deleted checkpoints are roots": ({"keeps_deleted": False, "writers": 0, "deletes": True}, "usable copy"),
    "the floor rises before deletion": ({"waits_for_floor": False, "deletes": True}, "of its own"),
    "only what is below the floor is deleted": (
        {"deletes_below_floor": False, "collectors": 2, "deletes": True}, "usable copy",
    ),
    "swept names what was deleted": (
        {"tells_what_it_deleted": False, "collectors": 2, "deletes": True, **OWN}, "usable copy",
    ),
    "pins are looked at": ({"sees_pins": False, "writers": 0, "readers": 1, "deletes": True}, "reader"),
    "pins defer by content, not by the index": (
        {"pins_by_content": False, "writers": 0, "readers": 1, "repacks": True}, "reader",
    ),
    "pins defer a checkpoint's own objects": (
        {"pins_objects": False, "writers": 0, "readers": 1, "deletes": True}, "reader",
    ),
    "readers look again once they have pinned": (
        {"rereads_after_pin": False, "writers": 0, "readers": 1, "deletes": True}, "reader",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "what"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_without_it_something_is_lost(rules: dict[str, Any], what: str) -> None:
    found = explored(**rules)
    print(f"{found.worlds} worlds: {found.loss}: {'; '.join(found.steps)}")
    assert what in found.loss


SPARED: dict[str, dict[str, Any]] = {
    "the head is read again once a session is open": {"rereads_head": False, "collectors": 2, "deletes": True},
    "advance: relied packs are looked at": {"checks_relied_packs": False, "collectors": 2, "deletes": True},
    "a stale plan says so": {"updates_plan": False, "tells_when_it_marked": True, "deletes": True},
    "only what is above the floor is taken back": {"takes_back": True, "takes_back_in_time": False, "deletes": True},
    "objects are listed before sessions": {"lists_objects_first": False, "collectors": 2, **OWN},
}


@pytest.mark.parametrize("rules", SPARED.values(), ids=SPARED)
def test_without_it_only_work_is_lost(rules: dict[str, Any]) -> None:
    """Defence in depth: the fold refuses what comes of it, so leaving one of these out costs retries and no data."""
    assert not explored(**rules).loss


# --- rules of the fold --------------------------------------------------------------------------------


def nothing_refused(*_: object) -> None:
    """A rule that is not there."""


def take_only_own(state: State, entry: Entry, payload: Upload, others: Any) -> None:
    """A commit that leaves the packs condemned which it relies on."""
    fold_uploads.add_packs(state, payload)
    fold_uploads.take_back(state, [*fold_uploads._own_keys(payload), *others])
    state.live_n = entry.n


def switch_off(patch: pytest.MonkeyPatch, name: str) -> None:
    """Leave a rule out wherever the fold applies it."""
    for module in (fold, fold_collection, fold_uploads):
        if name == "take_upload":
            patch.setattr(module, name, take_only_own, raising=False)
        elif hasattr(module, name):
            patch.setattr(module, name, nothing_refused)


FOLD: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "an epoch below the floor": (("epochs_refused",), OWN),
    "own objects are taken back": (("take_back",), OWN),
    "relied packs are taken back": (("take_upload",), {"deletes": True}),
    "relied packs, looked at by neither": (("_relied_refused",), {"deletes": True, "checks_relied_packs": False}),
    "own objects, looked at by neither": (("objects_refused",), {"checks_own_packs": False, **OWN}),
}


@pytest.mark.parametrize(("names", "rules"), FOLD.values(), ids=FOLD)
def test_without_a_rule_of_the_fold_something_is_lost(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], rules: dict[str, Any]
) -> None:
    for name in names:
        switch_off(monkeypatch, name)
    found = explored(**rules)
    print(f"{found.worlds} worlds: {found.loss}: {'; '.join(found.steps)}")
    assert found.loss


def test_without_a_limit_to_what_is_taken_back_something_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold must refuse it, for the collector may be deleting it."""

    def take_back_anything(state: State, entry: Entry, payload: Uncondemn) -> None:
        fold_collection._end_condemnation(state, payload.packs, payload.objects)
        state.live_n = entry.n

    monkeypatch.setitem(fold._RULES, Uncondemn, take_back_anything)
    assert explored(takes_back=True, takes_back_in_time=False, deletes=True).loss


@pytest.mark.parametrize(
    ("name", "rules"), [("_relied_refused", {"deletes": True, "collectors": 2}), ("objects_refused", OWN)]
)
def test_a_rule_of_the_fold_that_writers_keep_too(
    monkeypatch: pytest.MonkeyPatch, name: str, rules: dict[str, Any]
) -> None:
    """Defence in depth: honest writers look before they settle, and the floor stops the rest; above, both are out."""
    switch_off(monkeypatch, name)
    assert not explored(**rules).loss
