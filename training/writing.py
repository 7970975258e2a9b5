"""One attempt to save: from captured memory to a committed checkpoint, on all ranks at once.

Order: packs of every rank -> fragments -> index piece -> roots, body, reachability list -> log entry `commit`, by the
coordinator. No collective runs here. Until the last step nothing has changed for anybody.
"""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from blake3 import blake3

from cairn.core.canonical import decode, encode
from cairn.core.clock import ThreadClock
from cairn.core.errors import CairnError, RankLost, SaveFailed, StateMismatch
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.core.limits import ATTEMPT_SECONDS, FRAGMENT_READS_AT_ONCE, RANK_SILENCE_SECONDS
from cairn.core.pool import threads_within_budget
from cairn.manifests.relations import CONTINUE
from cairn.registry.entries import ObjectRef
from cairn.registry.models import CommitMeta
from cairn.registry.outcomes import commit_of_session
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.backends.contract import waits
from cairn.store.chunkstore import ChunkSave
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.components import ComponentClass
from cairn.training.capture import Capture
from cairn.training.encode import WORKER_BYTES, Encoder, yield_to_training
from cairn.training.fragment import ContributedValue, Fragment
from cairn.training.gathering import Gathering, Goal, leave_fragment, make_fragment, take_fragments
from cairn.training.handle import SaveHandle
from cairn.training.leaves import TensorLeaf
from cairn.training.merge import Merged
from cairn.training.ranks import COORDINATOR, Ranks
from cairn.training.turns import Turns


@dataclass(slots=True, eq=False)
class Task:
    """One rank's part of one save, captured or about to be."""

    number: int
    step: int
    meta: CommitMeta
    leaves: Sequence[TensorLeaf]
    values: Sequence[ContributedValue]
    capture: Capture
    handle: SaveHandle
    started: float
    coordinates: str
    exactness: str
    replan: bool
    trainer: ThreadClock | None
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
    relation: str = CONTINUE
    previous_weights: bytes = b""
    previous_step: int | None = None


class Pending(NamedTuple):
    """A save under way, and the thread that carries it out."""

    task: Task
    thread: threading.Thread


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
        session: Session | None = None
        since = registry.state.length
        try:
            state = registry.refresh()
            since = state.length
            with Session(registry) as session:
                save = session.save(self._codec, self._clock)
                fragment = self._contribute(task, save, session)
                if branch is None:
                    self._announce(task, fragment)
                else:
                    outcome = self._commit(task, branch, fragment, save, session, since)
                    ranks.tell(task.name, "outcome", encode(outcome))
                    return outcome
                # The coordinator knows better whom it waits for, so it is the first to give up.
                patience = self._seconds * 1.5 + RANK_SILENCE_SECONDS
                told = ranks.wait(task.name, "outcome", [COORDINATOR], patience)[COORDINATOR]
                return decode(told, Outcome, "the outcome of a save")
        except BaseException as error:
            ranks.fail(task.name, error)
            raise self._explained(task, error, session, since) from error

    # --- this rank's part ---------------------------------------------------------------------------

    def _contribute(self, task: Task, save: ChunkSave, session: Session) -> Fragment:
        task.handle.captured.result(self._seconds)
        stages, begun = task.handle.stages, self._clock.monotonic()
        session.ensure_open()
        turns = None
        if task.trainer is not None and not waits(save.chunks.access.backend):  # who waits for a network leaves it one
            turns = Turns(task.trainer, self._clock)
        encoder = Encoder(save, task.capture.plan, task.leaves, task.capture.array(), lambda: task.cancelled, turns)
        tensors = encoder.run(threads_within_budget(WORKER_BYTES))
        now = self._clock.monotonic()
        stages.write, stages.total = now - begun, now - task.started
        return make_fragment(
            self._ranks.rank, task.step, session, tensors, task.values, save.written, stages,
            stays=self._ranks.count == 1, replan=task.replan, notes=task.notes,
        )  # fmt: skip

    def _announce(self, task: Task, fragment: Fragment) -> None:
        ref = leave_fragment(self._registry.opened, self._key, fragment)
        self._ranks.tell(task.name, "fragment", encode(_Announced(ref)))

    # --- the coordinator's --------------------------------------------------------------------------

    def _commit(
        self, task: Task, branch: Branch, own: Fragment, save: ChunkSave, session: Session, since: int
    ) -> Outcome:
        begun, gathering = self._clock.monotonic(), Gathering(self._registry, session, save)
        gathering.add(own, own=True)
        others = [rank for rank in range(self._ranks.count) if rank != self._ranks.rank]
        for at in range(0, len(others), FRAGMENT_READS_AT_ONCE):
            for fragment in self._fragments_of(task, others[at : at + FRAGMENT_READS_AT_ONCE]):
                if fragment.step != task.step:
                    raise StateMismatch(
                        f"rank {fragment.rank} saves step {fragment.step} while rank {self._ranks.rank} saves step "
                        f"{task.step}",
                        hint="call save with the same step on every rank",
                    )
                gathering.add(fragment, own=False)
        merged = gathering.merge()
        notes = [*merged.notes, *_stale(branch, merged, task.step)]
        task.handle.stages.merge = self._clock.monotonic() - begun
        goal = Goal(
            branch.model, branch.name, branch.expected, task.meta, branch.relation,
            task.exactness, branch.run_epoch,
        )  # fmt: skip
        if self._clock.monotonic() > task.started + self._seconds:
            raise SaveFailed(
                f"its ranks took longer than {self._seconds:.0f} s to write their parts",
                hint="look at the storage: a slow or hung file system or network shows like this",
            )
        # Ranks that gave up must not find the checkpoint later, short of a race that the log settles.
        self._ranks.check(task.name)
        try:
            checkpoint = gathering.publish(goal, notes)
        except CairnError:
            # What failed may have come after the entry: then the save is committed, and the log says so.
            found = None
            with contextlib.suppress(CairnError):
                found = commit_of_session(self._registry, session.id, since)
            if found is None:
                raise
            checkpoint = found
        branch.expected, branch.relation = checkpoint, CONTINUE
        return Outcome(checkpoint, gathering.replan, tuple(notes))

    def _fragments_of(self, task: Task, ranks: Sequence[int]) -> list[Fragment]:
        left = task.started + self._seconds - self._clock.monotonic()
        told = self._ranks.wait(task.name, "fragment", ranks, max(left, 0.0))
        refs = [decode(told[rank], _Announced, f"what rank {rank} announced").ref for rank in ranks]
        return take_fragments(
            self._registry.opened, [(self._key, ref, rank) for ref, rank in zip(refs, ranks, strict=True)]
        )

    def _explained(self, task: Task, error: BaseException, session: Session | None, since: int) -> BaseException:
        """What to raise: if others were waited for, say whether the checkpoint exists all the same."""
        if not isinstance(error, RankLost | SaveFailed):
            return error
        fate = "no checkpoint of it has been committed"
        with contextlib.suppress(CairnError):
            if session is not None and (found := commit_of_session(self._registry, session.id, since)) is not None:
                fate = f"its checkpoint {short(found)} had been committed before"
        kind = type(error)
        return kind(f"save of step {task.step}: {error.message}; {fate}", hint=error.hint)


def _stale(branch: Branch, merged: Merged, step: int) -> list[str]:
    """The alarm for training that does not train: the weights are those of the save before."""
    trainable = set(merged.trainable)
    entries = merged.tensors.get(ComponentClass.WEIGHTS, [])
    weights = b"".join(encode(entry) for entry in sorted(entries, key=lambda e: str(e.key)) if entry.key in trainable)
    fingerprint = blake3(weights).digest() if weights else b""
    same = fingerprint and fingerprint == branch.previous_weights and branch.previous_step != step
    notes = [f"trainable weights are identical to those of step {branch.previous_step}"] if same else []
    branch.previous_weights, branch.previous_step = fingerprint, step
    return notes
