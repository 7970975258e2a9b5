"""The life of the golden store `collected`: saved, deleted, collected, restored. `make.py` calls this.

Every entry of collection occurs in it, once in effect and once void, and it ends in the midst of everything: with
content that is condemned above and below the floor, a reader's pin, and a writer's session that has advanced.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from blake3 import blake3

from cairn.core.clock import Entropy
from cairn.core.ids import CheckpointId
from cairn.core.process import ProcessMark
from cairn.gc.collect import Collector, Options
from cairn.gc.merging import merge_pieces
from cairn.gc.operator import uncondemn_all
from cairn.registry.entries import (
    Commit,
    Condemn,
    Floor,
    MergeIndex,
    Payload,
    Quarantine,
    Supply,
    Swept,
    Uncondemn,
    Verified,
    open_entry,
    payload_of,
)
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.models import move_ref
from cairn.registry.names import entry_name
from cairn.registry.pins import Pin
from cairn.registry.publish import publish
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import State, object_key
from cairn.store.crypto.tenant import ContentType
from cairn.workspace.commit import CommitResult
from tests.vectors.format.make_training import append_as

MODEL = "collected"
PROCESS = ProcessMark("a machine that nobody has", 7, 42)
# Packs of a few chunks each, so that many are needed in part.
SMALL = (
    ("cairn.store.chunkstore.PACK_BYTES_TARGET", 6000),
    ("cairn.manifests.pages._MIN_BYTES", 64),
    ("cairn.manifests.pages.PAGE_BYTES_TARGET", 256),
)
Save = Callable[[dict[str, bytes], str, int], CommitResult]


def files_of(step: int) -> dict[str, bytes]:
    """A tree: something all steps share, something two share, something of its own."""
    seeds = {"shared": "shared", "often": f"often {step // 2}", "own": f"own {step}"}
    return {name: _noise(seed, 2500) for name, seed in seeds.items()}


def _noise(seed: str, length: int) -> bytes:
    return blake3(f"collected {seed}".encode()).digest(length=length)


def live(registry: Registry, entropy: Entropy, save: Save) -> None:
    """Make the store what it is.

    Args:
        save: commits files to a branch of `MODEL`, at a step.
    """
    with ExitStack() as stack:
        for target, value in SMALL:
            stack.enter_context(patch(target, value))
        _Life(registry, entropy, save).live()


class _Life:
    def __init__(self, registry: Registry, entropy: Entropy, save: Save) -> None:
        self._registry, self._entropy, self._save = registry, entropy, save

    def live(self) -> None:
        first = [self._commit("main", step) for step in range(6)]
        model = first[0].model
        self._model, ids = model, [one.checkpoint for one in first]
        move_ref(self._registry, model, "side", "branch", None, ids[1])
        self._add(Verified(model, (ids[5],), "full"), Verified(model, (ids[1], ids[3]), "sampled"))
        self._delete(ids[0], ids[2])
        self._add(Tombstone(model, (ids[3], ids[4]), 1_700_000_000_000_000_000, "retention"), Restore(model, (ids[3],)))
        merge_pieces(self._registry, least=3)
        self._collect(dead=[self._leave_upload()])
        self._void_before(ids)
        self._commit("again", 0)
        sixth = self._commit("main", 6).checkpoint
        seventh = self._commit("main", 7).checkpoint
        self._delete(sixth)
        self._collect(condemn_only=True)
        uncondemn_all(self._registry)
        with self._collected_amid_commits():
            # Needs what goes at the same time, and takes it back.
            eighth = self._commit("main", 6).checkpoint
        self._pin(seventh)
        ninth = self._commit("main", 9).checkpoint
        self._delete(seventh, eighth)
        self._collect()
        self._delete(self._commit("main", 10).checkpoint, ninth, moved=True)
        self._add(Quarantine(model, ids[1]), Quarantine(model, ids[5]), self._supply_of(ids[5]))
        session = Session(self._registry)
        session.ensure_open()
        self._collect(condemn_only=True)
        session._beat()
        session.abandon()
        self._void_after(ids)

    def _commit(self, branch: str, step: int) -> CommitResult:
        return self._save(files_of(step), branch, step)

    def _add(self, *payloads: Payload) -> None:
        for payload in payloads:
            self._registry.append(lambda state, payload=payload: payload)  # type: ignore[misc]  # bound at once

    def _add_void(self, *payloads: Payload) -> None:
        for payload in payloads:
            append_as(self._registry, self._registry.opened.identity, payload, self._entropy)

    def _delete(self, *ids: CheckpointId, moved: bool = False) -> None:
        """Delete for good; `moved`: after the branch has gone back to what can be restored no more."""
        if moved:
            state = self._registry.refresh().models[self._model]
            oldest = next(iter(state.checkpoints))
            move_ref(self._registry, self._model, "main", "branch", ids[0], CheckpointId(oldest))
        self._add(Tombstone(self._model, ids, 0, "deleted"), Drop(self._model, ids))

    def _collect(self, **options: Any) -> None:
        Collector(self._registry, Options(unused=0.0, **options)).run()

    def _leave_upload(self) -> Any:
        """What a killed writer leaves."""
        session = Session(self._registry)
        with session.save().writer() as writer:
            writer.put(ContentType.CHUNK, _noise("leftover", 3000))
        session.abandon()
        return session.id

    @contextmanager
    def _collected_amid_commits(self) -> Iterator[None]:
        """Whatever is committed, another collector condemns just before."""

        def late(registry: Registry, *arguments: Any) -> Any:
            Collector(Registry(registry.opened), Options(unused=0.0, condemn_only=True)).run()
            return publish(registry, *arguments)

        with patch("cairn.workspace.commit.publish", late):
            yield

    def _pin(self, checkpoint: CheckpointId) -> None:
        """What a reader that is at work holds."""
        pin = Pin(self._registry, self._model, checkpoint)
        pin._heart.cease()

    def _supply_of(self, checkpoint: CheckpointId) -> Supply:
        """Says again what list a checkpoint has, which ends its quarantine."""
        state = self._registry.refresh()
        held = state.models[self._model].checkpoints[checkpoint]
        return Supply(
            sessions=(), epoch=state.epoch, hit_position=state.length - 1, relied=(), packs=b"", pieces=(),
            model=self._model, checkpoint=checkpoint, reachability=held.reachability,
        )  # fmt: skip

    # --- What is void -------------------------------------------------------------------------------

    def _void_before(self, ids: list[CheckpointId]) -> None:
        """Entries that break a rule of deletion or of epochs; the floor is 1 or more."""
        state, model = self._registry.refresh(), self._model
        low = state.swept[0][0]
        self._add_void(
            Tombstone(model, (ids[5],), 0, "a branch names it"), Tombstone(model, (ids[3], ids[3]), 0, "twice"),
            Restore(model, (ids[0],)), Restore(model, ()), Drop(model, (ids[3],)), Drop(model, (ids[0],)),
            Verified(model, (ids[5],), "deep"), Verified(model, (ids[0],), "full"), Quarantine(model, ids[0]),
            Floor(state.epoch + 1), Swept(((low, low),), b""), Swept((), b"no key"), Uncondemn(((low, low),), b""),
            self._commit_again(epoch=state.floor - 1), self._commit_again(relied=((low, low),)),
        )  # fmt: skip

    def _void_after(self, ids: list[CheckpointId]) -> None:
        """Entries that break a rule of collection, while much is condemned."""
        state = self._registry.refresh()
        held = state.models[self._model].checkpoints[ids[5]]
        below = [number for number, epoch in state.condemned.items() if epoch <= state.floor]
        above = [number for number, epoch in state.condemned.items() if epoch > state.floor]
        good = next(number for number in range(state.pack_count) if state.in_force(number))
        body, now = object_key(held.body, "body"), state.length + 20
        piece = next(piece for piece in state.pieces if piece.count > 1)
        self._add_void(
            _condemnation(state.live_n, ((good, good),)), _condemnation(now + 20, ((good, good),)),
            *(_condemnation(state.length, ((one, one),)) for one in (below[0], above[0], state.swept[0][0])),
            _condemnation(state.length, (), body), _condemnation(state.length, (), body + body[:5]),
            _condemnation(state.length, ((good, state.pack_count),)),
            Uncondemn(((below[0], below[0]),), b""), Swept(((above[0], above[0]),), b""),
            self._commit_again(relied=((below[0], below[0]),)),
            MergeIndex((), state.epoch, piece.object, piece.first, piece.count),
            MergeIndex((piece.object.name[:16],), state.epoch, piece.object, piece.first, piece.count - 1),
            MergeIndex((piece.object.name[:16],), state.floor - 1, piece.object, piece.first, piece.count),
        )  # fmt: skip

    def _commit_again(self, **changes: Any) -> Commit:
        """A commit that would be in order but for what is changed."""
        opened, state = self._registry.opened, self._registry.refresh()
        ref = next(iter(state.models[self._model].refs.values()))
        n = state.models[self._model].checkpoints[ref.checkpoint].n
        entry = open_entry(opened.backend.read(entry_name(n)), n, opened.tenant, opened.store, opened.secrets.k_log)
        before = payload_of(entry)
        assert isinstance(before, Commit)
        tag = self._entropy.token(16)
        change = type(before.ref)(tag, before.ref.sealed_name, None)
        fields = {name: getattr(before, name) for name in before.__struct_fields__} | {
            "checkpoint": self._entropy.token(32), "packs": b"", "pieces": (), "relied": (), "ref": change,
            "epoch": state.epoch, "hit_position": state.length - 1, "run_epoch": None,
        }  # fmt: skip
        return Commit(**(fields | changes))


def _condemnation(marked: int, packs: tuple[tuple[int, int], ...], objects: bytes = b"") -> Condemn:
    return Condemn(
        sessions=(), epoch=0, hit_position=0, relied=(), packs=b"", pieces=(), marked=marked, condemned=packs,
        objects=objects,
    )  # fmt: skip


def describe_fold(state: State) -> dict[str, Any]:
    """What both readers must find in the log, in a form for `collected.json`."""
    return {
        "epoch": state.epoch, "floor": state.floor, "live n": state.live_n, "packs": state.pack_count,
        "began": {str(epoch): n for epoch, n in sorted(state.epochs.items())},
        "condemned": {str(number): epoch for number, epoch in sorted(state.condemned.items())},
        "condemned objects": {key.hex(): epoch for key, epoch in sorted(state.condemned_objects.items())},
        "swept": [number for low, high in state.swept for number in range(low, high + 1)],
        "pieces": [[piece.object.name.hex(), piece.first, piece.count] for piece in state.pieces],
        "checkpoints": {
            one.hex(): [held.reachability.name.hex(), held.quarantined, held.verified]
            for model in state.models.values() for one, held in sorted(model.checkpoints.items())
        },
        "deleted": {
            one.hex(): gone.checkpoint is not None
            for model in state.models.values() for one, gone in sorted(model.gone.items())
        },
        "void": [void.n for void in state.voids],
    }  # fmt: skip
