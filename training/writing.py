"""One attempt to save: from captured memory to a committed checkpoint, on all ranks at once.

Order: packs of every rank -> fragments -> index piece -> roots, body, reachability list -> log entry `commit`, by the
coordinator. No collective runs here. Until the last step nothing has changed for anybody.
"""

import contextlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from blake3 import blake3

from cairn.core.canonical import decode, encode
from cairn.core.errors import CairnError, IntegrityError, RankLost, SaveFailed, StateMismatch
from cairn.core.ids import OBJECT_RANDOM_BYTES, RANDOM_ID_BYTES, CheckpointId, ModelId, SessionId, object_name, short
from cairn.core.limits import ATTEMPT_SECONDS, PACK_BYTES_TARGET
from cairn.core.pool import threads_within_budget
from cairn.manifests.schema import Parent
from cairn.registry.entries import ObjectRef
from cairn.registry.indexing import read_object
from cairn.registry.manifestwriter import ManifestWriter
from cairn.registry.models import CommitMeta
from cairn.registry.outcomes import commit_of_session
from cairn.registry.publish import Draft, publish
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.chunkstore import ChunkSave, WriteCounts, Written
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.index import PieceEntry, decode_piece, encode_piece
from cairn.training.capture import Capture
from cairn.training.encode import Encoder, yield_to_training
from cairn.training.envelope import Envelope, RankReport
from cairn.training.fragment import ContributedValue, Fragment
from cairn.training.handle import SaveHandle
from cairn.training.leaves import TensorLeaf
from cairn.training.merge import Merged, Merger, stored_digests
from cairn.training.ranks import COORDINATOR, Ranks

# What one thread holds at most: an open pack, and a job's copy of what is not contiguous.
_WORKER_BYTES = PACK_BYTES_TARGET + (8 << 20)


@dataclass(slots=True, eq=False)
class Task:
    """One rank's part of one save, captured or about to be."""

    number: int
    step: int
    message: str
    leaves: Sequence[TensorLeaf]
    values: Sequence[ContributedValue]
    capture: Capture
    handle: SaveHandle
    started: float
    coordinates: str
    exactness: str
    replan: bool
    notes: list[str] = field(default_factory=list)
    cancelled: bool = False

    @property
    def name(self) -> str:
        """What its messages stand under."""
        return f"save/{self.number}"


class Outcome(msgspec.Struct, frozen=True):
    """What the coordinator tells of a committed save."""

    checkpoint: bytes
    replan: bool
    notes: tuple[str, ...]


class _Announced(msgspec.Struct, frozen=True):
    """Where a rank's fragment lies, or the fragment itself if there is one rank."""

    ref: ObjectRef


@dataclass(slots=True)
class Branch:
    """Where saves go, and what the coordinator knows of it from save to save."""

    model: ModelId
    name: str
    expected: CheckpointId | None
    run_epoch: int
    relation: str = "continue"
    previous_weights: bytes = b""
    previous_step: int | None = None


class Writer:
    """Carries out saves of one rank, one after the other."""

    def __init__(
        self, registry: Registry, ranks: Ranks, attempt_key: bytes, codec: CodecPolicy, seconds: float
    ) -> None:
        self._registry, self._ranks, self._key, self._codec = registry, ranks, attempt_key, codec
        self._seconds = seconds or ATTEMPT_SECONDS
        self._clock = registry.opened.clock

    def run(self, task: Task, branch: Branch | None) -> Outcome:
        """Save; all ranks return the same outcome or raise.

        Args:
            branch: on the coordinator; brought up to date.
        """
        yield_to_training()
        registry, ranks = self._registry, self._ranks
        try:
            state = registry.refresh()
            with Session(registry.opened, state.epoch, state.heartbeat_seconds) as session:
                save = registry.chunks().save(session, self._codec, self._clock)
                fragment = self._contribute(task, save, session, state.length - 1)
                if ranks.count > 1:
                    self._announce(task, fragment, session)
                if branch is not None:
                    outcome = self._commit(task, branch, fragment, save, session)
                    ranks.tell(task.name, "outcome", encode(outcome))
                    return outcome
                told = ranks.wait(task.name, "outcome", [COORDINATOR], self._seconds)[COORDINATOR]
                return decode(told, Outcome, "the outcome of a save")
        except BaseException as error:
            ranks.fail(task.name, error)
            raise self._explained(task, error, session if "session" in locals() else None, state.length) from error

    # --- this rank's part ---------------------------------------------------------------------------

    def _contribute(self, task: Task, save: ChunkSave, session: Session, hit_position: int) -> Fragment:
        task.handle.captured.result(self._seconds)
        stages, begun = task.handle.stages, self._clock.monotonic()
        session.ensure_open()
        encoder = Encoder(save, task.capture.plan, task.leaves, task.capture.array(), lambda: task.cancelled)
        tensors = encoder.run(threads_within_budget(_WORKER_BYTES))
        now = self._clock.monotonic()
        stages.write, stages.total = now - begun, now - task.started
        written = save.written
        seconds = written.seconds
        stages.digest, stages.encode, stages.seal, stages.store = (
            seconds.digest, seconds.encode, seconds.seal, seconds.store,
        )  # fmt: skip
        pieces = encode_piece(written.packs, written.entries) if self._ranks.count > 1 else b""
        return Fragment(
            self._ranks.rank, task.step, session.id, session.epoch, hit_position, tuple(tensors), tuple(task.values),
            pieces, tuple(sorted(written.relied)), written.counts, stages, platform.node(), task.replan,
            tuple(task.notes),
        )  # fmt: skip

    def _announce(self, task: Task, fragment: Fragment, session: Session) -> None:
        opened = self._registry.opened
        random = opened.entropy.token(OBJECT_RANDOM_BYTES)
        stored = seal_object(self._key, opened.store, ObjectKind.FRAGMENT, encode(fragment), opened.entropy)
        ref = ObjectRef(session.id + random, len(stored), blake3(stored).digest())
        opened.backend.create(ref.object_name("fragment"), [stored])
        self._ranks.tell(task.name, "fragment", encode(_Announced(ref)))

    # --- the coordinator's --------------------------------------------------------------------------

    def _commit(self, task: Task, branch: Branch, own: Fragment, save: ChunkSave, session: Session) -> Outcome:
        opened, begun = self._registry.opened, self._clock.monotonic()
        merger, reports = Merger(), list[RankReport]()
        gathered = _Gathered(save.written)
        for rank in range(self._ranks.count):
            fragment = own if rank == self._ranks.rank else self._fragment_of(task, rank)
            if fragment.step != task.step:
                raise StateMismatch(
                    f"rank {rank} saves step {fragment.step} while rank {self._ranks.rank} saves step {task.step}",
                    hint="call save with the same step on every rank",
                )
            merger.add(fragment)
            gathered.add(fragment, own=fragment is own)
            reports.append(RankReport(rank, fragment.host, fragment.stages, fragment.counts, fragment.notes))
        with save.writer() as writer:
            merged = merger.finish(writer)
            pages = ManifestWriter(writer, opened.keys)
            components = {}
            for component in sorted(merged.tensors.keys() | merged.values.keys()):
                tensors = merged.tensors.get(component, [])
                pages.reach(stored_digests(tensors))
                values = [pages.value(key, data) for key, data in merged.values.get(component, [])]
                components[component] = pages.component(
                    tensors, values=values, bytes_logical=merged.bytes_logical.get(component, 0)
                )
        notes = [*merged.notes, *_stale(branch, merged, task.step)]
        task.handle.stages.merge = self._clock.monotonic() - begun
        parents = (Parent(branch.relation, branch.expected),) if branch.expected is not None else ()
        envelope = Envelope(opened.clock.wall_ns(), tuple(reports), tuple(notes))
        draft = Draft(
            branch.model, branch.name, branch.expected, components, pages.reachable, parents,
            CommitMeta(task.message, task.step), gathered.written(save.written), gathered.hit_position,
            tuple(gathered.sessions), gathered.epoch, task.exactness, branch.run_epoch, encode(envelope),
        )  # fmt: skip
        checkpoint = publish(self._registry, session, draft)
        branch.expected, branch.relation = checkpoint, "continue"
        return Outcome(checkpoint, gathered.replan, tuple(notes))

    def _fragment_of(self, task: Task, rank: int) -> Fragment:
        what = f"fragment of rank {rank}"
        told = self._ranks.wait(task.name, "fragment", [rank], self._seconds)[rank]
        ref = decode(told, _Announced, what).ref
        stored = read_object(self._registry.opened, ref, "fragment")
        plain = open_object(self._key, self._registry.opened.store, ObjectKind.FRAGMENT, stored, what)
        fragment = decode(plain, Fragment, what)
        if fragment.rank != rank:
            raise IntegrityError(f"{what} says that it is rank {fragment.rank}'s")
        # Of no use any more; what stays of one after a crash is a leftover that collection removes.
        with contextlib.suppress(CairnError):
            name = object_name(SessionId(ref.name[:RANDOM_ID_BYTES]), ref.name[RANDOM_ID_BYTES:], "fragment")
            self._registry.opened.backend.delete(name)
        return fragment

    def _explained(self, task: Task, error: BaseException, session: Session | None, since: int) -> BaseException:
        """What to raise: if others were waited for, say whether the checkpoint exists all the same."""
        if not isinstance(error, RankLost | SaveFailed):
            return error
        fate = "no checkpoint of it was committed"
        with contextlib.suppress(CairnError):
            if session is not None and (found := commit_of_session(self._registry, session.id, since)) is not None:
                fate = f"its checkpoint {short(found)} had been committed before"
        kind = type(error)
        return kind(f"save of step {task.step}: {error.message}; {fate}", hint=error.hint)


class _Gathered:
    """Uploads of all ranks as those of one save."""

    def __init__(self, own: Written) -> None:
        self.sessions: list[bytes] = []
        self.epoch: int | None = None
        self.hit_position = -1
        self.replan = False
        self._packs, self._entries, self._relied = list(own.packs), list(own.entries), set(own.relied)
        self._others = Written()

    def add(self, fragment: Fragment, own: bool) -> None:
        """Take up one rank's."""
        self.replan = self.replan or fragment.replan
        known = self.hit_position
        self.hit_position = fragment.hit_position if known < 0 else min(known, fragment.hit_position)
        if own:
            return
        self.epoch = fragment.epoch if self.epoch is None else min(self.epoch, fragment.epoch)
        self.sessions.append(fragment.session)
        packs, entries = decode_piece(fragment.pieces, f"fragment of rank {fragment.rank}")
        first = len(self._others.packs)
        self._others.packs += packs
        self._others.entries += [PieceEntry(e.id, first + e.pack, e.offset, e.length) for e in entries]
        self._others.relied.update(fragment.relied)

    def written(self, own: Written) -> Written:
        """Everything, the coordinator's own pages included."""
        first = len(own.packs)
        shifted = [PieceEntry(e.id, first + e.pack, e.offset, e.length) for e in self._others.entries]
        return Written(
            [*own.packs, *self._others.packs], [*own.entries, *shifted], own.relied | self._others.relied, WriteCounts()
        )


def _stale(branch: Branch, merged: Merged, step: int) -> list[str]:
    """The alarm for training that does not train: the weights are those of the save before."""
    trainable = set(merged.trainable)
    entries = merged.tensors.get(ComponentClass.WEIGHTS, [])
    weights = b"".join(encode(entry) for entry in sorted(entries, key=lambda e: e.key) if entry.key in trainable)
    fingerprint = blake3(weights).digest() if weights else b""
    same = fingerprint and fingerprint == branch.previous_weights and branch.previous_step != step
    notes = [f"trainable weights are identical to those of step {branch.previous_step}"] if same else []
    branch.previous_weights, branch.previous_step = fingerprint, step
    return notes
