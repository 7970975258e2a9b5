"""Both readers apply the rules of section 10 alike, to any sequence of entries in order and out of it."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.core.canonical import encode
from cairn.registry.entries import (
    TYPES,
    Commit,
    Condemn,
    Floor,
    MergeIndex,
    ModelCreate,
    ObjectRef,
    Payload,
    Quarantine,
    RefChange,
    RefDelete,
    RefMove,
    RootRef,
    RunOpen,
    Supply,
    Swept,
    Uncondemn,
    Verified,
)
from cairn.registry.entries_attest import Attest
from cairn.registry.entries_audit import Policy, Reads
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.numbers import Ranges, ranges, within
from cairn.registry.state import State
from tests.project.test_format_collected import fold_of
from tests.support.readers import BothReaders
from tests.vectors.format import reader_deletion, reader_rights
from tests.vectors.format.make_collected import describe_fold
from tests.vectors.format.reader_collection import Collection
from tests.vectors.format.reader_log import Log

OWNER = b"o" * 32
LENGTH = 100


def named(kind: str, number: int, length: int) -> bytes:
    """A name of a small pool."""
    return f"{kind}{number}".encode().ljust(length, b".")


class Writer:
    """Entries that are mostly in order, made of few names, so that rules meet."""

    def __init__(self, dice: random.Random, state: State) -> None:
        self._dice, self._state = dice, state

    def draw(self, n: int) -> Payload:
        """The entry at a position."""
        if n < 3:
            return ModelCreate(named("model", n - 1, 16), named("name", n, 16), b"", (), "wrap")
        makers: list[tuple[int, Callable[[int], Payload]]] = [
            (1, self._model), (8, self._commit), (2, self._supply), (1, self._run), (3, self._move), (1, self._unmove),
            (6, self._condemn), (4, self._floor), (4, self._swept), (2, self._uncondemn), (3, self._index),
            (4, self._tombstone), (2, self._restore), (3, self._drop), (1, self._verify), (1, self._quarantine),
            (1, self._policy), (1, self._reads), (3, self._attest),
        ]  # fmt: skip
        return self._dice.choices([make for _, make in makers], [weight for weight, _ in makers])[0](n)

    # --- Parts --------------------------------------------------------------------------------------

    def _rarely(self) -> bool:
        return self._dice.random() < 0.08

    def _one_model(self) -> bytes:
        return named("model", self._dice.randrange(3 if self._rarely() else 2), 16)

    def _checkpoint(self) -> bytes:
        return named("checkpoint", self._dice.randrange(16), 32)

    def _session(self) -> bytes:
        return named("session", self._dice.randrange(3), 16)

    def _object(self, kind: str) -> ObjectRef:
        return ObjectRef(self._session() + named(kind, self._dice.randrange(40), 12), 1, bytes(32))

    def _tag(self) -> bytes:
        return named("tag", self._dice.randrange(3), 16)

    def _value(self, model: bytes, tag: bytes) -> bytes | None:
        """What a ref points to; now and then something else."""
        held = self._state.models.get(model)
        ref = held.refs.get(tag) if held else None
        return self._checkpoint() if self._rarely() else ref.checkpoint if ref else None

    def _epoch(self) -> int:
        state, low = self._state, max(self._state.floor - 1, 0)
        return (
            self._dice.randint(low, state.epoch + 1) if self._rarely() else self._dice.randint(state.floor, state.epoch)
        )

    def _some(self, numbers: list[int]) -> Ranges:
        """Some of these packs, in order; now and then others, or out of order."""
        chosen = set(self._dice.sample(numbers, min(len(numbers), self._dice.randrange(4))))
        if self._rarely():
            chosen.add(self._dice.randrange(self._state.pack_count + 2))
        found = ranges(chosen)
        return found[::-1] if self._rarely() else found

    def _keys(self, keys: list[bytes]) -> bytes:
        chosen = self._dice.sample(keys, min(len(keys), self._dice.randrange(3)))
        if self._rarely():
            chosen.append(
                self._session() + named("body", self._dice.randrange(40), 12) + bytes((self._dice.randrange(9),))
            )
        joined = b"".join(sorted(chosen))
        return joined[:-1] if self._rarely() else joined

    def _upload(self, n: int) -> dict[str, Any]:
        epoch, count = self._epoch(), self._dice.randrange(3)
        session, began = self._session(), self._state.epochs.get(epoch, 0)
        names = {session + named("pack", self._dice.randrange(1000), 12) for _ in range(count)}
        pieces = (self._object("index"),) if bool(names) != self._rarely() else ()
        return {
            "sessions": (session,) if not self._rarely() else (self._session(),), "epoch": epoch,
            "hit_position": self._dice.randint(max(began - 1, 0), n) if self._rarely() else n - 1,
            "relied": self._some(self._reliable()), "pieces": pieces,
            "packs": b"".join(name + bytes(8) for name in sorted(names)) + (b"x" if self._rarely() else b""),
        }  # fmt: skip

    def _reliable(self) -> list[int]:
        """Packs that a commit may rely on."""
        state, (gone, _) = self._state, self._below()
        return [one for one in range(state.pack_count) if not within(state.swept, one) and one not in gone]

    def _below(self) -> tuple[list[int], list[bytes]]:
        state = self._state
        return (
            [one for one, epoch in state.condemned.items() if epoch <= state.floor],
            [one for one, epoch in state.condemned_objects.items() if epoch <= state.floor],
        )

    # --- Entries ------------------------------------------------------------------------------------

    def _model(self, n: int) -> ModelCreate:
        return ModelCreate(self._one_model(), named("name", self._dice.randrange(3), 16), b"", (), "wrap")

    def _commit(self, n: int) -> Commit:
        model, tag = self._one_model(), self._tag()
        change = RefChange(tag, b"", self._value(model, tag), self._dice.choice(("branch", "branch", "tag", "odd")))
        envelope = self._object("envelope") if self._rarely() else None
        return Commit(
            **self._upload(n), model=model, checkpoint=self._checkpoint(), body=self._object("body"),
            roots=(RootRef(4, 0, self._object("root")),), reachability=self._object("reach"), ref=change, meta=b"",
            run_epoch=1 if self._rarely() else None, envelope=envelope, partial=self._rarely(),
            parent=self._checkpoint() if self._rarely() else None,
        )  # fmt: skip

    def _supply(self, n: int) -> Supply:
        return Supply(
            **self._upload(n), model=self._one_model(), checkpoint=self._checkpoint(),
            reachability=self._object("reach"), partial=self._rarely(),
        )  # fmt: skip

    def _run(self, n: int) -> RunOpen:
        return RunOpen(self._one_model(), self._tag(), self._dice.randint(1, 2))

    def _move(self, n: int) -> RefMove:
        model, tag = self._one_model(), self._tag()
        kind = self._dice.choice(("branch", "branch", "tag", "odd"))
        return RefMove(model, tag, kind, b"", self._value(model, tag), self._checkpoint())

    def _unmove(self, n: int) -> RefDelete:
        model, tag = self._one_model(), self._tag()
        return RefDelete(model, tag, self._value(model, tag) or self._checkpoint())

    def _condemn(self, n: int) -> Condemn:
        state = self._state
        good = [number for number in range(state.pack_count) if state.in_force(number)]
        leftovers = [
            self._session() + named(kind, self._dice.randrange(40), 12) + bytes((code,))
            for code, kind in enumerate(("pack", "index", "body", "root", "reach"))
        ]
        upload = self._upload(n) if self._dice.random() < 0.4 else {
            "sessions": (), "epoch": 0, "hit_position": 0, "relied": (), "packs": b"", "pieces": (),
        }  # fmt: skip
        upload["relied"] = upload["relied"] if self._rarely() else ()
        marked = self._dice.randint(0, n + 1) if self._rarely() else n
        return Condemn(**upload, marked=marked, condemned=self._some(good), objects=self._keys(leftovers))

    def _floor(self, n: int) -> Floor:
        return Floor(self._dice.randint(0, self._state.epoch + self._rarely()))

    def _swept(self, n: int) -> Swept:
        packs, keys = self._below()
        return Swept(self._some(packs), self._keys(keys))

    def _uncondemn(self, n: int) -> Uncondemn:
        packs, keys = self._below()
        above = [one for one in self._state.condemned if one not in packs]
        return Uncondemn(
            self._some(above), self._keys([one for one in self._state.condemned_objects if one not in keys])
        )

    def _index(self, n: int) -> MergeIndex:
        pieces = self._state.pieces
        first = self._dice.choice([piece.first for piece in pieces] or [0])
        end = self._dice.choice([piece.first + piece.count for piece in pieces] or [1])
        shift = self._dice.randint(-1, 1) if self._rarely() else 0
        piece = self._object("index")
        owner = self._session() if self._rarely() else piece.name[:16]
        return MergeIndex((owner,), self._epoch(), piece, max(first + shift, 0), max(end - first, 0))

    def _chosen(self, known: list[bytes]) -> tuple[bytes, ...]:
        chosen = self._dice.sample(known, min(len(known), self._dice.randint(0 if self._rarely() else 1, 2)))
        return (*chosen, self._checkpoint()) if self._rarely() else tuple(chosen)

    def _tombstone(self, n: int) -> Tombstone:
        model = self._one_model()
        held = self._state.models.get(model)
        refs = {ref.checkpoint for ref in held.refs.values()} if held and not self._rarely() else set()
        return Tombstone(
            model, self._chosen([one for one in held.checkpoints if one not in refs] if held else []), 0, "x"
        )

    def _gone(self, model: bytes) -> tuple[bytes, ...]:
        held = self._state.models.get(model)
        return self._chosen([one for one in held.gone if held.gone[one].checkpoint or self._rarely()] if held else [])

    def _restore(self, n: int) -> Restore:
        model = self._one_model()
        return Restore(model, self._gone(model))

    def _drop(self, n: int) -> Drop:
        model = self._one_model()
        return Drop(model, self._gone(model))

    def _verify(self, n: int) -> Verified:
        depth = self._dice.choice(("quick", "sampled", "full", "odd"))
        return Verified(self._one_model(), tuple(self._checkpoint() for _ in range(self._dice.randrange(3))), depth)

    def _quarantine(self, n: int) -> Quarantine:
        return Quarantine(self._one_model(), self._checkpoint())

    def _policy(self, n: int) -> Policy:
        name = self._dice.choice(("audit_reads", "audit_reads", "other"))
        value = self._dice.choice(("required", "best_effort", "off", "odd"))
        return Policy({name: value} if not self._rarely() else {})

    def _reads(self, n: int) -> Reads:
        good = encode((b"record", bytes(64)))
        bad = (b"", good[:-1], encode((b"record", bytes(63))), encode((b"", b"", b"")), encode((1, bytes(64))), b"\xc0")
        count = 0 if self._rarely() else self._dice.randrange(1, 4)
        return Reads(tuple(self._dice.choice(bad) if self._rarely() else good for _ in range(count)))

    def _attest(self, n: int) -> Attest:
        tag = self._tag() if self._dice.random() < 0.7 else b"odd" if self._rarely() else b""
        signer = named("signer", self._dice.randrange(2), 31 if self._rarely() else 32)
        envelope = bytes(self._dice.choice((0, 65537)) if self._rarely() else 1)
        return Attest(self._one_model(), self._checkpoint(), tag, signer, self._dice.randrange(9), envelope)


def attested(state: State) -> dict[bytes, dict[tuple[bytes, bytes, bytes], tuple[int, int]]]:
    """Entries of statements about each checkpoint, by who wrote, who signed, and the ref's tag."""
    models = state.models.values()
    return {
        one: {kept.place: (kept.n, kept.signed_at) for kept in held.attestations}
        for model in models for one, held in model.checkpoints.items() if held.attestations
    }  # fmt: skip


def attested_again(log: Log) -> dict[bytes, dict[tuple[bytes, bytes, bytes], tuple[int, int]]]:
    """The same of the second reader."""
    models = log.models.values()
    return {
        one: body["attested"] for model in models for one, body in model["checkpoints"].items() if "attested" in body
    }


def both(seed: int) -> Counter[tuple[str, bool]]:
    """Apply entries by both readers and compare after each; returns how often each was in effect, and void."""
    readers = BothReaders(OWNER, OWNER)
    state, log = readers.state, readers.log
    writer, seen = Writer(random.Random(seed), state), Counter[tuple[str, bool]]()
    for n in range(1, LENGTH):
        done = readers.apply(OWNER, writer.draw(n))
        assert describe_fold(state) == fold_of(log), done.said
        assert state.policy == log.settings, done.said
        assert attested(state) == attested_again(log), done.said
        seen[done.type, done.void] += 1
    return seen


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_both_readers_apply_any_entries_alike(seed: int) -> None:
    both(seed)


def test_entries_of_each_type_are_met_in_effect_and_void() -> None:
    seen = sum((both(seed) for seed in range(60)), Counter[tuple[str, bool]]())
    kinds = set(TYPES.values()) - {"init", "abort"} - reader_rights.RULES.keys() - reader_deletion.RULES.keys()
    missing = [(kind, void) for kind in kinds for void in (False, True) if seen[kind, void] < 5]
    assert not missing, missing


@pytest.mark.parametrize("rule", ["condemns", "in_force", "refuses_epoch"])
def test_a_reader_that_forgets_a_rule_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule == "in_force":
        monkeypatch.setattr(Collection, "take", lambda self, body, n, brought: None)
    else:
        monkeypatch.setattr(Collection, rule, lambda self, one: False)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(60):
            both(seed)
