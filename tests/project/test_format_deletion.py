"""Both readers apply the entries about deleted models, holds and approvals alike, in order and out of it."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.registry.entries import (
    Commit,
    Condemn,
    ModelCreate,
    ObjectRef,
    Payload,
    Quarantine,
    RefChange,
    RefDelete,
    RootRef,
)
from cairn.registry.entries_audit import Policy
from cairn.registry.entries_deletion import (
    Approve,
    Confirm,
    Content,
    Destroyed,
    Drop,
    HoldLift,
    HoldSet,
    ModelDelete,
    ModelRestore,
    Restore,
    Shred,
    Tombstone,
)
from cairn.registry.entries_rights import Given, RootRotate
from cairn.registry.state import Model, State
from cairn.store.crypto.provider import ROOT_KEY_ID_BYTES
from tests.project.test_format_collected import fold_of
from tests.support.readers import BothReaders
from tests.vectors.format import reader_deletion
from tests.vectors.format.make_collected import describe_fold
from tests.vectors.format.reader_deletion import RULES
from tests.vectors.format.reader_log import Log

FOUNDER, PARTNER, RECOVERY, STRANGER = (one * 32 for one in (b"f", b"p", b"r", b"s"))
MODELS = [bytes((97 + number,)) * 16 for number in range(4)]
PLANS = [bytes((49 + number,)) * 32 for number in range(3)]
NOTHING = Content(0, 0, bytes(32))
LENGTH = 120


class Writer:
    """Entries of some owners, mostly in order, made of few names."""

    def __init__(self, dice: random.Random, state: State) -> None:
        self._dice, self._state, self._number = dice, state, 0

    def draw(self, n: int) -> tuple[bytes, Payload]:
        """Who writes the next entry, and what."""
        makers: list[tuple[int, Callable[[int], Payload]]] = [
            (6, self._model), (12, self._commit), (6, self._unref), (6, self._tombstone), (4, self._drop),
            (1, self._restore), (1, self._quarantine), (1, self._condemn), (4, self._root), (2, self._policy),
            (5, self._hold), (8, self._lift), (8, self._delete), (2, self._undelete), (5, self._shred),
            (4, self._destroyed), (1, self._confirm), (4, self._approve),
        ]  # fmt: skip
        make = self._dice.choices([make for _, make in makers], [weight for weight, _ in makers])[0]
        actors = [FOUNDER, FOUNDER, PARTNER, RECOVERY] + ([STRANGER] if self._rarely() else [])
        return self._dice.choice(actors), make(n)

    def _rarely(self) -> bool:
        return self._dice.random() < 0.1

    def _of(self, known: Any) -> bytes:
        """One of these models; now and then any."""
        known = list(known)
        return self._dice.choice(known if known and not self._rarely() else MODELS)

    def _held(self) -> tuple[bytes, Model | None]:
        identifier = self._of(self._state.models)
        return identifier, self._state.models.get(identifier)

    def _one(self, known: Any) -> bytes:
        known = list(known)
        return self._dice.choice(known) if known and not self._rarely() else b"c" * 32

    def _model(self, n: int) -> ModelCreate:
        model, self._number = self._dice.choice(MODELS), self._number + 1
        tag = self._dice.choice(MODELS) if self._rarely() else self._number.to_bytes(16, "big")
        return ModelCreate(model, tag, b"", (), f"wrap-{self._number}")

    def _commit(self, n: int) -> Commit:
        model, self._number = self._of(self._state.models), self._number + 1
        place = ObjectRef(self._number.to_bytes(28, "big"), 1, bytes(32))
        checkpoint = (
            bytes(31) + bytes((self._dice.randrange(8),)) if self._rarely() else self._number.to_bytes(32, "big")
        )
        return Commit(
            model=model, checkpoint=checkpoint, sessions=(), epoch=self._state.epoch, hit_position=n - 1, relied=(),
            packs=b"", pieces=(), body=place, roots=(RootRef(1, 0, place),), reachability=place,
            ref=RefChange(self._number.to_bytes(16, "big"), b"", None), meta=b"",
        )  # fmt: skip

    def _unref(self, n: int) -> RefDelete:
        model, held = self._held()
        tag = next(iter(held.refs), b"t" * 16) if held else b"t" * 16
        return RefDelete(model, tag, held.refs[tag].checkpoint if held and tag in held.refs else b"c" * 32)

    def _tombstone(self, n: int) -> Tombstone:
        model, held = self._held()
        named = {ref.checkpoint for ref in held.refs.values()} if held else set()
        plan, descendants = self._plan()
        return Tombstone(
            model, (self._one(held.checkpoints.keys() - named if held else ()),), 0, "x", plan, descendants
        )

    def _drop(self, n: int) -> Drop:
        model, held = self._held()
        return Drop(model, (self._one(held.gone if held else ()),))

    def _restore(self, n: int) -> Restore:
        model, held = self._held()
        return Restore(model, (self._one(held.gone if held else ()),))

    def _quarantine(self, n: int) -> Quarantine:
        model, held = self._held()
        return Quarantine(model, self._one(held.checkpoints if held else ()))

    def _condemn(self, n: int) -> Condemn:
        """Of what may be needed by a deleted model only."""
        number = self._dice.randint(1, self._number + 1)
        return Condemn(
            sessions=(), epoch=0, hit_position=0, relied=(), packs=b"", pieces=(), marked=n, condemned=(),
            objects=number.to_bytes(28, "big") + b"\2",
        )  # fmt: skip

    def _root(self, n: int) -> RootRotate:
        kept = list(self._state.kept_models())
        chosen = kept[1:] if self._dice.random() < 0.3 else kept
        return RootRotate(
            self._state.root_generation + 1, bytes(ROOT_KEY_ID_BYTES), tuple(Given(one, f"{n}") for one in chosen)
        )

    def _policy(self, n: int) -> Policy:
        return Policy({"delete_approval": "odd" if self._rarely() else self._dice.choice(("off", "descendants"))})

    def _plan(self) -> tuple[bytes, bool]:
        return self._dice.choice([b"", *PLANS]), self._dice.random() < 0.4

    def _hold(self, n: int) -> HoldSet:
        model = self._of(self._state.kept_models())
        held = self._state.kept_models().get(model)
        checkpoint = self._one([*held.checkpoints, *held.gone] if held else ()) if self._dice.random() < 0.6 else b""
        holds = [one for other in self._state.kept_models().values() for one in other.holds]
        identifier = holds[0] if holds and self._rarely() else n.to_bytes(15 if self._rarely() else 16, "big")
        return HoldSet(identifier, model, checkpoint, b"")

    def _lift(self, n: int) -> HoldLift:
        holds = [(one, i) for i, other in self._state.kept_models().items() for one in other.holds]
        hold, model = self._dice.choice(holds) if holds and not self._rarely() else (b"h" * 16, self._of(()))
        return HoldLift(hold, model)

    def _delete(self, n: int) -> ModelDelete:
        plan, descendants = self._plan()
        return ModelDelete(
            self._of(self._state.models), self._dice.choice((0, 0, 10 * n + 100)), "x", plan, descendants
        )

    def _undelete(self, n: int) -> ModelRestore:
        return ModelRestore(self._of(self._state.deleted))

    def _shred(self, n: int) -> Shred:
        packs = ((0, 0),) if self._rarely() else ()
        marked = self._dice.randint(0, n + 1) if self._rarely() else n
        return Shred(self._of(self._state.deleted), marked, 1, NOTHING, packs, ())

    def _destroyed(self, n: int) -> Destroyed:
        known = [one for one, gone in self._state.deleted.items() if gone.shredded_n and not gone.destroyed_n]
        chosen = self._dice.sample(known, min(len(known), self._dice.randint(1, 2)))
        return Destroyed((*chosen, *chosen[:1]) if self._rarely() else tuple(chosen))

    def _confirm(self, n: int) -> Confirm:
        return Confirm(self._of(self._state.deleted), "a backup")

    def _approve(self, n: int) -> Approve:
        return Approve(b"short" if self._rarely() else self._dice.choice(PLANS))


def described(state: State) -> dict[str, Any]:
    """What the fold says of deletion."""
    return {
        "deleted": {
            one: (sorted(gone.model.checkpoints) if gone.model else None, gone.destroyed_n is not None)
            for one, gone in state.deleted.items()
        },
        "holds": {one: {k: h.checkpoint for k, h in m.holds.items()} for one, m in state.kept_models().items()},
        "approved": {plan: one.actors for plan, one in state.approvals.items()},
        "done": {(plan, model) for plan, one in state.approvals.items() for model in one.done},
    }


def described_again(log: Log) -> dict[str, Any]:
    """The same of the second reader."""
    held = log.deletion
    return {
        "deleted": {
            one: (sorted(gone["held"]["checkpoints"]) if gone["held"] else None, gone["destroyed"])
            for one, gone in held.models.items()
        },
        "holds": {one: model["holds"] for one, model in reader_deletion.kept(log).items()},
        "approved": held.approved,
        "done": held.done,
    }


def both(seed: int) -> Counter[tuple[str, bool]]:
    """Apply entries by both readers and compare after each; returns how often each was in effect, and void."""
    readers = BothReaders(FOUNDER, RECOVERY, PARTNER, recovery=RECOVERY)
    state, log = readers.state, readers.log
    writer, seen = Writer(random.Random(seed), state), Counter[tuple[str, bool]]()
    for n in range(1, LENGTH):
        done = readers.apply(*writer.draw(n), 10 * n)
        assert describe_fold(state) == fold_of(log), done.said
        assert described(state) == described_again(log), done.said
        seen[done.type, done.void] += 1
    return seen


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_both_readers_delete_alike(seed: int) -> None:
    both(seed)


def test_entries_of_each_type_are_met_in_effect_and_void() -> None:
    seen = sum((both(seed) for seed in range(60)), Counter[tuple[str, bool]]())
    kinds = (*RULES, "tombstone", "drop", "quarantine", "model.create", "root.rotate")
    missing = [(kind, void) for kind in kinds for void in (False, True) if seen[kind, void] < 5]
    assert not missing, missing


@pytest.mark.parametrize("rule", ["is_held", "unapproved", "carried_out"])
def test_a_reader_that_forgets_a_rule_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("reader_deletion", "reader_collection"):
        monkeypatch.setattr(f"tests.vectors.format.{module}.{rule}", lambda *_: None)
    with pytest.raises(AssertionError):
        for seed in range(60):
            both(seed)
