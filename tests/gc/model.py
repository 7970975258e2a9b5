"""A store that many use at once, and what it must hold: a dictionary of what was committed.

Operations run in lanes (`tests/support/schedule.py`), one backend call at a time, and may be killed at any. What an
operation has reported counts; of one that was killed the log tells whether it took effect.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cairn.core.errors import CairnError, ConflictError, IntegrityError, NotFoundError, TryAgain
from cairn.core.ids import CheckpointId, ContentId, ModelId
from cairn.gc.collect import Collector, Options
from cairn.gc.merging import merge_pieces
from cairn.gc.operator import uncondemn_all
from cairn.manifests.schema import Key
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.entries import RefDelete, Supply
from cairn.registry.entries_deletion import Drop, Restore, Tombstone
from cairn.registry.manifestwriter import ManifestWriter
from cairn.registry.models import CommitMeta, ensure_model, open_meta, ref_value
from cairn.registry.numbers import ranges
from cairn.registry.pins import pinned
from cairn.registry.publish import Draft, publish
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import Checkpoint, State, name_of_key, named_keys
from cairn.registry.sync import SendOptions, send
from cairn.registry.uploads import Uploads
from cairn.store.chunkstore import ChunkSave
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.objects import ObjectKind
from cairn.store.crypto.tenant import ContentType
from cairn.store.index import encode_piece, pack_table, sorted_ids
from tests.support.schedule import Lane, LaneBackend
from tests.support.stores import Site, close_environments, new_site
from tests.support.twins import twin_of

# Longer than what stands in a page, so that it becomes a chunk.
_VALUE_BYTES = 17 << 10
_MODEL, _PUSHED = "m", "pushed"
# When the time to restore is over that is not to pass.
_FAR_NS = 10**18
# Branches of the other store.
PUSHES = 3
Values = dict[str, bytes]


def content(number: int) -> bytes:
    """The bytes of a number."""
    return random.Random(number).randbytes(_VALUE_BYTES)


@dataclass
class Saved:
    """What a lane does, for beats beside it."""

    lane: Lane
    session: Session | None = None
    registry: Registry | None = None


@dataclass
class Play:
    """The store, its lanes, and the dictionary.

    Attributes:
        expected: what the checkpoint of a step must hold, if it is there.
        promised: steps that were reported as committed.
        dropped: steps whose drop has begun.
        wrong: what went wrong in an operation and must not.
    """

    folder: Path
    collector: type[Collector] = Collector
    expected: dict[int, Values] = field(default_factory=dict)
    promised: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    lanes: list[Saved] = field(default_factory=list)
    _colds: int = 0

    def __post_init__(self) -> None:
        self.site: Site = new_site(self.folder / "home")
        registry = self.site.registry()
        self.model: ModelId = ensure_model(registry, _MODEL)
        self.silence = registry.state.silence_seconds
        registry.close()
        self.twin = twin_of(self.site)
        registry = self.twin.registry()
        self.pushed = ensure_model(registry, _PUSHED)
        for branch in range(PUSHES):
            numbers = [branch, branch + 2, branch + 10]
            self._save(Saved(Lane("")), registry, self.pushed, self._expect(numbers), numbers, str(branch))
        registry.close()

    # --- operations ------------------------------------------------------------------------------------

    def begin(self, name: str, work: Callable[[Saved, Registry], None], allowed: tuple[type[CairnError], ...]) -> Lane:
        """Start an operation on a registry of its own, with the caches that all share; it stands at its first call."""
        saved = Saved(Lane(name))

        def run() -> None:
            registry = self.site.registry(LaneBackend(self.site.backend, saved.lane))
            saved.registry = registry
            try:
                work(saved, registry)
            except allowed:
                pass
            except CairnError as error:
                self.wrong.append(f"{name}: {type(error).__name__}: {error}")
            finally:
                registry.close()

        self.lanes.append(saved)
        saved.lane.start(run)
        return saved.lane

    def save(self, numbers: list[int], branch: str = "main") -> Lane:
        """Begin to save contents, each in a pack of its own; a refused commit is tried once more."""
        step = self._expect(numbers)

        def work(saved: Saved, registry: Registry) -> None:
            for left in (1, 0):
                try:
                    self._save(saved, registry, self.model, step, numbers, branch)
                    self.promised.add(step)
                    return
                except ConflictError:
                    if not left:
                        raise

        return self.begin(f"save {step}", work, (ConflictError, TryAgain))

    def _expect(self, numbers: list[int]) -> int:
        """The step of a checkpoint of these contents."""
        step = len(self.expected) + 1
        self.expected[step] = {str(Key("s", (f"v{at}",))): content(number) for at, number in enumerate(numbers)}
        return step

    def _save(
        self, saved: Saved, registry: Registry, model: ModelId, step: int, numbers: list[int], branch: str
    ) -> None:
        registry.refresh()
        before = ref_value(registry, model, branch)
        with Session(registry) as session:
            saved.session = session
            save = session.save()
            with save.writer() as writer:
                pages = ManifestWriter(writer, registry.opened.keys)
                entries = []
                for place, number in enumerate(numbers):
                    entries.append(pages.value(Key("s", (f"v{place}",)), content(number)))
                    writer.flush()
                root = pages.component(values=entries)
            draft = Draft(
                model, branch, before, {ComponentClass.TRAINING: root}, pages.reachable, (),
                CommitMeta("", step), save.written,
            )  # fmt: skip
            publish(registry, session, draft)
            saved.session = None

    def push(self, which: int) -> Lane:
        """Begin to push a branch of the other store to this one, going on where an earlier push was killed."""

        def work(saved: Saved, registry: Registry) -> None:
            source = self.twin.registry()
            try:
                sent = send(source, registry, f"{_PUSHED}@{which % PUSHES}", SendOptions())
                self.promised |= {step for step, _, checkpoint in self._live(source) if checkpoint == sent.checkpoint}
            finally:
                source.close()

        return self.begin(f"push {which}", work, (ConflictError, NotFoundError, TryAgain))

    def read(self, which: int) -> Lane:
        """Begin to read one of the checkpoints under a pin."""

        def work(saved: Saved, registry: Registry) -> None:
            found = self._live(registry)
            if not found:
                return
            begun, (step, model, checkpoint) = self.site.clock.monotonic(), found[which % len(found)]
            with pinned(registry, model, checkpoint):
                try:
                    read = load(registry, model, checkpoint)
                except CairnError:
                    # Whoever watched for so long may have given it up.
                    if self.site.clock.monotonic() - begun < self.silence:
                        raise
                else:
                    if read != self.expected[step]:
                        self.wrong.append(f"step {step} was read as something else")

        return self.begin(f"read {which}", work, (NotFoundError, TryAgain))

    def collect(self, **options: Any) -> Lane:
        """Begin to collect."""

        def work(saved: Saved, registry: Registry) -> None:
            self.collector(registry, Options(**options)).run()

        return self.begin("collect", work, (TryAgain,))

    def merge(self) -> Lane:
        """Begin to merge index pieces."""
        return self.begin("merge", lambda saved, registry: void(merge_pieces(registry, least=2)), (TryAgain,))

    def take_back(self) -> Lane:
        """Begin to take back what is condemned."""
        return self.begin("take back", lambda saved, registry: void(uncondemn_all(registry)), (NotFoundError, TryAgain))

    def delete(self, which: int, *, due: bool = False) -> Lane:
        """Begin to delete one of the checkpoints that are no branch's own, or a pushed one and its branch.

        Args:
            due: any collector may drop it.
        """

        def work(saved: Saved, registry: Registry) -> None:
            tips = {ref.checkpoint for ref in registry.state.models[self.model].refs.values()}
            found = [one for one in self._live(registry) if one[2] not in tips]
            if not found:
                return
            step, model, checkpoint = found[which % len(found)]
            for tag, ref in registry.state.models[model].refs.items():
                if ref.checkpoint == checkpoint:
                    registry.append(partial(_deletion, model, tag, checkpoint))
            if due:
                self.dropped.add(step)
            due_at = 0 if due else self.site.clock.wall_ns() + _FAR_NS
            registry.append(lambda _: Tombstone(model, (checkpoint,), due_at, "test"))

        return self.begin(f"delete {which}", work, (ConflictError, TryAgain))

    def end_deletion(self, which: int, *, restore: bool) -> Lane:
        """Begin to restore or drop a deleted checkpoint."""

        def work(saved: Saved, registry: Registry) -> None:
            found = self._deleted(registry)
            if not found:
                return
            step, model, checkpoint = found[which % len(found)]
            if restore:
                registry.append(lambda _: Restore(model, (checkpoint,)))
            else:
                self.dropped.add(step)
                registry.append(lambda _: Drop(model, (checkpoint,)))

        return self.begin("restore" if restore else "drop", work, (ConflictError, TryAgain))

    def supply(self, which: int) -> Lane:
        """Begin to store a checkpoint's content anew, as repair does."""

        def work(saved: Saved, registry: Registry) -> None:
            found = self._live(registry)
            if not found:
                return
            step, model, checkpoint = found[which % len(found)]
            held = registry.state.models[model].checkpoints[checkpoint]
            with Session(registry) as session:
                saved.session = session
                save = session.save()
                ids = set(read_reachability(registry.opened, held))
                with save.writer() as writer:
                    for data in self.expected[step].values():
                        writer.put(ContentType.CHUNK, data)
                if any(not save.rely(one) for one in ids if not save.claimed(one)):
                    return
                self._supply(registry, session, save, (model, checkpoint), ids)

        return self.begin(f"supply {which}", work, (ConflictError, IntegrityError, TryAgain))

    def _supply(
        self, registry: Registry, session: Session, save: ChunkSave, which: tuple[bytes, bytes], ids: set[ContentId]
    ) -> None:
        epoch, position = session.settle()
        uploads, k_index = Uploads(registry.opened, session), registry.opened.secrets.k_index
        plain = encode_piece(save.written.packs, save.written.entries)
        packs = pack_table(plain)
        pieces = (uploads.seal(k_index, ObjectKind.INDEX_PIECE, plain, "index"),) if packs else ()
        reach = uploads.seal(k_index, ObjectKind.REACHABILITY, sorted_ids(ids), "reach")
        supply = Supply(
            model=which[0], checkpoint=which[1], sessions=(session.id,), epoch=epoch, hit_position=position,
            relied=ranges(save.written.relied), packs=packs, pieces=pieces, reachability=reach,
        )  # fmt: skip
        registry.append(lambda _: supply)

    def beat(self, saved: Saved) -> None:
        """The heartbeat of a lane's session, while a call of the lane waits; nothing if that call holds a lock."""
        session, registry = saved.session, saved.registry
        if session is None or registry is None or saved.lane.done or session._heart is None:
            return
        if not session._lock.acquire(blocking=False):
            return
        session._lock.release()
        if not registry._lock.acquire(blocking=False):
            return
        registry._lock.release()
        # Suppressed as in the heartbeat's own thread.
        with saved.lane.aside(), suppress(CairnError):
            session._beat()

    # --- what must be so ---------------------------------------------------------------------------------

    def _live(self, registry: Registry) -> list[tuple[int, ModelId, CheckpointId]]:
        return self._steps(registry, {model: held.checkpoints for model, held in registry.state.models.items()})

    def _deleted(self, registry: Registry) -> list[tuple[int, ModelId, CheckpointId]]:
        return self._steps(
            registry,
            {
                model: {one: gone.checkpoint for one, gone in held.gone.items() if gone.checkpoint is not None}
                for model, held in registry.state.models.items()
            },
        )

    def _steps(
        self, registry: Registry, held: dict[bytes, dict[bytes, Checkpoint]]
    ) -> list[tuple[int, ModelId, CheckpointId]]:
        return sorted(
            (open_meta(registry, ModelId(model), state).step or 0, ModelId(model), CheckpointId(checkpoint))
            for model, checkpoints in held.items()
            for checkpoint, state in checkpoints.items()
        )

    def check(self) -> None:
        """Everything that was committed and not dropped is there, read by a newcomer who has no cache."""
        assert not self.wrong, self.wrong
        self._colds += 1
        home = replace(self.site.home, cache=self.folder / f"cold-{self._colds}")
        site = replace(self.site, home=home)
        registry = site.registry()
        live, deleted = self._live(registry), self._deleted(registry)
        missing = self.promised - self.dropped - {step for step, _, _ in (*live, *deleted)}
        assert not missing, f"steps {sorted(missing)} were committed and are not in the log"
        for step, model, checkpoint in live:
            assert load(registry, model, checkpoint) == self.expected[step], f"step {step} holds something else"
        names = set(self.site.names())
        for step, model, checkpoint in deleted:
            held = registry.state.models[model].gone[checkpoint].checkpoint
            assert held is not None
            for one in read_reachability(registry.opened, held):
                places = registry.index().locations(one)
                assert any(registry.state.pack(at.pack).name in names for at in places), f"step {step} cannot come back"
        registry.close()
        shutil.rmtree(home.cache)

    def end(self) -> None:
        """All processes are gone; after their silence a collection leaves nothing that nobody needs."""
        for saved in self.lanes:
            saved.lane.stop()
        self.check()
        registry = self.site.registry()
        for _, model, checkpoint in self._deleted(registry):
            registry.append(partial(_restoration, model, checkpoint))
        self.collector(registry).plan()
        self.site.clock.sleep(self.silence)
        self.collector(registry, Options(unused=0.0)).run()
        self.check()
        state = self.site.registry().state
        kept = {name_of_key(key) for key in named_keys(state)}
        kept -= {state.pack(number).name for number in range(state.pack_count) if not state.in_force(number)}
        found = {name for name in self.site.names() if name.startswith("objects/")}
        assert found == kept, f"left over: {sorted(found - kept)}; lost: {sorted(kept - found)}"
        assert not state.condemned and not state.condemned_objects
        assert not [name for name in self.site.names() if name.startswith(("sessions/", "pins/"))]
        again = self.collector(self.site.registry(), Options(unused=0.0)).run()
        assert (again.rounds, again.objects_deleted) == (0, 0)

    def close(self) -> None:
        """Let go of threads and caches."""
        for saved in self.lanes:
            saved.lane.stop()
        close_environments()


def load(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> Values:
    """A checkpoint's values by their keys."""
    manifest = CheckpointManifest(registry, model, checkpoint)
    return {str(entry.key): manifest.value_bytes(entry) for entry in manifest.values()}


def _deletion(model: bytes, tag: bytes, checkpoint: bytes, _: State) -> RefDelete:
    return RefDelete(model, tag, checkpoint)


def _restoration(model: bytes, checkpoint: bytes, _: State) -> Restore:
    return Restore(model, (checkpoint,))


def void(_: object) -> None:
    """Nothing."""
