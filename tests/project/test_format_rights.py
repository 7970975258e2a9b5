"""Both readers agree on who may write what, and on what entries about rights and keys do, in any sequence."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.registry.entries import (
    Abort,
    Commit,
    Floor,
    ModelCreate,
    ObjectRef,
    Payload,
    RefChange,
    RefDelete,
    RootRef,
)
from cairn.registry.entries_attest import Attest
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.entries_rights import ComponentPublic, Given, GrantSet, KeyRotate, MemberSet, PersonSet, RootRotate
from cairn.registry.rights import ALL_MODELS, Role, readable
from cairn.registry.state import State
from cairn.store.crypto.provider import ROOT_KEY_ID_BYTES
from tests.support.readers import BothReaders
from tests.vectors.format.reader_log import Log
from tests.vectors.format.reader_rights import RULES, Rights

FOUNDER, RECOVERY = b"f" * 32, b"r" * 32
ACTORS = [FOUNDER, *(bytes((65 + number,)) * 32 for number in range(5)), RECOVERY]
MODELS = [bytes((97 + number,)) * 16 for number in range(4)]
LENGTH = 120


class Writer:
    """Entries of some actors, mostly in order, made of few names."""

    def __init__(self, dice: random.Random, state: State) -> None:
        self._dice, self._state, self._number = dice, state, 0

    def draw(self) -> tuple[bytes, Payload]:
        """Who writes the next entry, and what."""
        makers: list[tuple[int, Callable[[], Payload]]] = [
            (3, self._model), (8, self._member), (8, self._grant), (5, self._rotate), (3, self._root),
            (6, self._commit), (1, self._tombstone), (1, self._drop), (1, lambda: Floor(0)), (1, Abort),
            (1, self._delete), (2, self._attest), (3, self._person),
        ]  # fmt: skip
        make = self._dice.choices([make for _, make in makers], [weight for weight, _ in makers])[0]
        owners = self._state.owners
        actor = self._dice.choice(ACTORS if self._dice.random() < 0.4 or not owners else owners)
        return actor, make()

    def _rarely(self) -> bool:
        return self._dice.random() < 0.1

    def _wrap(self) -> str:
        self._number += 1
        return f"wrap-{self._number}"

    def _keys(self, model: bytes) -> tuple[ComponentPublic, ...]:
        held = self._state.models.get(model)
        force = {key.component: key.generation for key in held.newest_keys().values()} if held else {}
        chosen = sorted(self._dice.sample(range(4), self._dice.randint(1, 4)))
        step = 0 if self._rarely() else 1
        return tuple(
            ComponentPublic(one, force.get(one, -1) + step, b"k" * 32) for one in chosen if step or one in force
        )

    def _given(self, whose: Any) -> tuple[Given, ...]:
        wanted = sorted(whose)
        if self._rarely():
            wanted.append(self._dice.choice([*ACTORS, *MODELS]))
        return tuple(Given(one, self._wrap()) for one in wanted)

    def _model(self) -> ModelCreate:
        model = self._dice.choice(MODELS)
        whole = {actor for actor, one in self._state.members.items() if readable(one, ALL_MODELS)}
        keys = tuple(ComponentPublic(one, 0, b"k" * 32) for one in range(4))
        return ModelCreate(
            model, model if not self._rarely() else MODELS[0], b"", keys, self._wrap(), self._given(whole)
        )

    def _set(self, actor: bytes, role: str) -> MemberSet:
        known = self._state.members.get(actor)
        generation = (known.generation if known else 0) + (0 if self._rarely() else 1)
        length = 31 if self._rarely() and self._rarely() else 32
        return MemberSet(actor, role, b"x" * 32, generation, b"h" * length)

    def _member(self) -> MemberSet:
        actor = self._dice.choice(ACTORS)
        if self._dice.random() < 0.15:
            return MemberSet(actor, "")
        roles = [*map(str, Role), "writer", "reader", "writer", "reader"] + (["king"] if self._rarely() else [])
        return self._set(actor, self._dice.choice(roles))

    def _person(self) -> PersonSet:
        actor = self._dice.choice(ACTORS)
        if self._dice.random() < 0.4:
            return PersonSet(actor[:31] if self._rarely() else actor)
        return PersonSet(actor, b"c" * (31 if self._rarely() else 32), b"n" * (15 if self._rarely() else 16))

    def _grant(self) -> GrantSet:
        state = self._state
        able = [actor for actor, one in state.members.items() if one.role in ("writer", "reader")]
        actor = self._dice.choice(able if able and not self._rarely() else ACTORS)
        model = self._dice.choice([*state.models, b""]) if not self._rarely() else self._dice.choice(MODELS)
        reads = tuple(sorted(self._dice.sample(range(4), self._dice.randrange(4))))
        member = state.members.get(actor)
        write = self._dice.random() < 0.5 and (self._rarely() or (member is not None and member.role == "writer"))
        due = [] if not reads else [model] if model else list(state.models)
        return GrantSet(actor, model, reads[::-1] if self._rarely() else reads, write, self._given(due))

    def _rotate(self) -> KeyRotate:
        model = self._dice.choice(list(self._state.models) if self._state.models and not self._rarely() else MODELS)
        held = self._state.models.get(model)
        return KeyRotate(model, self._keys(model), self._wrap(), self._given(held.readers if held else ()))

    def _root(self) -> RootRotate:
        state = self._state
        owners = [actor for actor, one in state.members.items() if one.role == "owner"]
        chosen = owners[:-1] if self._rarely() else owners
        members = tuple(self._set(actor, "reader" if self._rarely() else "owner") for actor in chosen)
        generation = state.root_generation + (2 if self._rarely() else 1)
        key = bytes(15 if self._rarely() else ROOT_KEY_ID_BYTES)
        return RootRotate(generation, key, self._given(state.models), members)

    def _commit(self) -> Commit:
        model, self._number = self._dice.choice(MODELS), self._number + 1
        held = self._state.models.get(model)
        force = held.newest_keys() if held else {}
        component = self._dice.randrange(5)
        newest = force[component].generation if component in force else 0
        generation = self._dice.randint(0, newest + 1) if self._dice.random() < 0.3 else newest
        place = ObjectRef(self._number.to_bytes(28, "big"), 1, bytes(32))
        return Commit(
            model=model, checkpoint=self._number.to_bytes(32, "big"), sessions=(), epoch=0, hit_position=0, relied=(),
            packs=b"", pieces=(), body=place, roots=(RootRef(component, generation, place),), reachability=place,
            ref=RefChange(self._number.to_bytes(16, "big"), b"", None), meta=b"", carried=self._dice.random() < 0.3,
        )  # fmt: skip

    def _some(self, gone: bool) -> tuple[bytes, tuple[bytes, ...]]:
        model = self._dice.choice(MODELS)
        held = self._state.models.get(model)
        known = list((held.gone if gone else held.checkpoints) if held else ())
        return model, tuple(known[:1]) or (b"c" * 32,)

    def _delete(self) -> RefDelete:
        model = self._dice.choice(MODELS)
        held = self._state.models.get(model)
        tag, ref = next(iter(held.refs.items()), (b"t" * 16, None)) if held else (b"t" * 16, None)
        return RefDelete(model, tag, ref.checkpoint if ref else b"c" * 32)

    def _attest(self) -> Attest:
        model, chosen = self._some(gone=False)
        return Attest(model, chosen[0], b"", b"s" * 32, 0, b"e")

    def _tombstone(self) -> Tombstone:
        model, chosen = self._some(gone=False)
        held = self._state.models.get(model)
        named = {ref.checkpoint for ref in held.refs.values()} if held else set()
        free = tuple(one for one in (held.checkpoints if held else ()) if one not in named)[:1]
        return Tombstone(model, free or chosen, self._dice.choice((0, 1000)), "x")

    def _drop(self) -> Drop:
        return Drop(*self._some(gone=True))


def described(state: State) -> dict[str, Any]:
    """What the fold says of rights and keys, and which checkpoints there are."""
    return {
        "owners": state.owners,
        "root": (state.root_generation, state.root_exposed),
        "people": {actor: (one.commitment, one.name) for actor, one in state.people.items()},
        "members": {
            actor: (one.role, one.generation, one.hash, {key: (g.reads, g.write) for key, g in one.grants.items()})
            for actor, one in state.members.items()
        },
        "models": {
            key: (
                [(one.component, one.generation) for one in model.keys], model.wrap, model.readers, model.exposed,
                sorted(model.checkpoints), sorted(model.gone),
            )
            for key, model in state.models.items()
        },
    }  # fmt: skip


def described_again(log: Log) -> dict[str, Any]:
    """The same of the second reader."""
    rights = log.rights
    return {
        "owners": log.owners,
        "root": (rights.root, rights.root_exposed),
        "people": rights.people,
        "members": {
            actor: (
                one["role"], one["generation"], one["hash"],
                {key: (tuple(g["reads"]), g["write"]) for key, g in one["grants"].items()},
            )
            for actor, one in rights.members.items()
        },
        "models": {
            key: (
                [(one["component"], one["generation"]) for one in model["keys"]], model["wrap"], model["readers"],
                sorted(model["exposed"]), sorted(model["checkpoints"]), sorted(model["deleted"]),
            )
            for key, model in log.models.items()
        },
    }  # fmt: skip


def both(seed: int) -> Counter[tuple[str, bool]]:
    """Apply entries by both readers and compare after each; returns how often each was in effect, and void."""
    readers, seen = BothReaders(FOUNDER, RECOVERY, recovery=RECOVERY), Counter[tuple[str, bool]]()
    writer = Writer(random.Random(seed), readers.state)
    for n in range(1, LENGTH):
        done = readers.apply(*writer.draw(), 10 * n)
        assert described(readers.state) == described_again(readers.log), done.said
        seen[done.type, done.void] += 1
    return seen


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_both_readers_give_rights_alike(seed: int) -> None:
    both(seed)


def test_entries_of_each_type_are_met_in_effect_and_void() -> None:
    seen = sum((both(seed) for seed in range(40)), Counter[tuple[str, bool]]())
    missing = [(kind, void) for kind in RULES for void in (False, True) if seen[kind, void] < 5]
    assert not missing, missing


@pytest.mark.parametrize("rule", ["refusal", "reads", "change"])
def test_a_reader_that_forgets_a_rule_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lax: dict[str, Callable[..., Any]] = {
        "refusal": lambda self, log, entry, body: None,
        "reads": lambda self, actor, model: set(),
        "change": lambda self, log, actor, member: self.members.__setitem__(actor, member),
    }
    monkeypatch.setattr(Rights, rule, lax[rule])
    with pytest.raises(AssertionError):
        for seed in range(40):
            both(seed)
