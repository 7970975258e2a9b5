"""Delivering one checkpoint to another store: everything durable first, visible last.

Order: session -> packs -> index piece -> roots, body, reachability list -> log entry `commit` (or `supply`, if the
checkpoint is there and lacks something). What an interrupted delivery has uploaded is taken over by the next, as long
as its session's object exists.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from cairn.core.errors import (
    BadName,
    IntegrityError,
    NotFoundError,
    ObjectNotFound,
    Overtaken,
    RefMoved,
    RefusedError,
)
from cairn.core.ids import CheckpointId, ContentId, ModelId, SessionId, parse_object_name, short
from cairn.core.limits import PUSH_RACES_MAX
from cairn.core.progress import Progress
from cairn.manifests.schema import TensorEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.contents import Entry, Named, contents
from cairn.registry.entries import Commit, RefChange, Supply
from cairn.registry.fold import BRANCH
from cairn.registry.gone import check_may_return
from cairn.registry.indexing import read_object
from cairn.registry.journal import Journal
from cairn.registry.models import walk
from cairn.registry.names import ref_tag
from cairn.registry.numbers import ranges
from cairn.registry.pins import pinned
from cairn.registry.publish import ENVELOPE
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import State, pack_key
from cairn.registry.transfer import Transfer
from cairn.registry.uploads import Uploads
from cairn.store.chunkstore import ChunkSave
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.objects import ObjectKind, open_object
from cairn.store.index import PackRef
from cairn.store.pack import PackedChunk, read_footer
from cairn.store.written import WriteCounts

# Name and kind of a ref, and what it points to before.
_Ref = tuple[str, str, CheckpointId | None]


class Selection(msgspec.Struct, frozen=True):
    """What is sent of a checkpoint: by default all.

    Args:
        components: these alone, beside its files.
        tensors: patterns; of tensors, those alone whose name matches one.
    """

    components: frozenset[ComponentClass] = frozenset()
    tensors: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return not self.components and not self.tensors

    def has(self, component: ComponentClass) -> bool:
        """Whether a component is sent."""
        return not self.components or component in self.components or component is ComponentClass.FILES

    def wants(self, entry: Entry) -> bool:
        """Whether an entry's content is sent."""
        if not self.tensors or not isinstance(entry, TensorEntry):
            return True
        names = str(entry.key), ".".join(map(str, entry.key.path))
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.tensors)


class Delivery:
    """One try.

    Attributes:
        partial: whether the target's checkpoint lacks something after it.
    """

    def __init__(
        self, source: Registry, target: Registry, model: ModelId, checkpoint: CheckpointId, progress: Progress
    ) -> None:
        self._source, self._target = source, target
        self._model, self._checkpoint, self._progress = model, checkpoint, progress
        self._manifest = CheckpointManifest(source, model, checkpoint)
        self._held = target.state.live_model(model).checkpoints.get(checkpoint)
        self.partial = self._held.partial if self._held else self._manifest.state.partial
        self.counts, self.bytes_resumed = WriteCounts(), 0
        # What an earlier run has noted; None if this one begins anew.
        self._uploaded: list[tuple[PackRef, list[PackedChunk]]] | None = None

    def needed(self, selection: Selection, repair: bool) -> bool:
        """Whether there is anything to bring.

        Raises:
            RefusedError: all is wanted of what the source has in part.
        """
        if self._manifest.state.partial and selection.whole:
            raise RefusedError(
                f"{self._manifest.what} is in {self._source.opened.backend.url} in part only",
                hint="bring the rest there first, or name what is to travel with --only or --tensors",
            )
        return self._held is None or self._held.partial or repair

    def forget(self) -> None:
        """Remove what a delivery noted that was interrupted after its commit."""
        with suppress(OSError):
            self._journal_file().unlink(missing_ok=True)

    def _journal_file(self) -> Path:
        opened = self._target.opened
        return opened.home.transfer_file(opened.store, self._checkpoint)

    def run(self, selection: Selection, repair: bool, ref: _Ref) -> bool:
        """Deliver; True if the checkpoint was made and the ref moved, False if one that was there was completed.

        Raises:
            RefMoved, ConflictError: the log does not take it; nothing was changed.
            IntegrityError: the source lacks something, or holds it damaged.
        """
        with pinned(self._source, self._model, self._checkpoint):
            # The index that it was read by before may offer what is deleted since.
            self._manifest = CheckpointManifest(self._source, self._model, self._checkpoint)
            return self._run(selection, repair, ref)

    def _run(self, selection: Selection, repair: bool, ref: _Ref) -> bool:
        journal = Journal(self._journal_file())
        try:
            session = self._session(journal)
            try:
                created = self._deliver(session, journal, selection, repair, ref)
            except Overtaken:
                session.end()
                journal.remove()
                raise
            except BaseException:
                # With a journal the next run goes on; the session's silence ends it if there is none.
                if journal.held:
                    session.abandon()
                else:
                    session.end()
                raise
            session.end()
            journal.remove()
            return created
        finally:
            journal.close()

    # --- what an earlier run has sent --------------------------------------------------------------

    def _session(self, journal: Journal) -> Session:
        state = self._target.state
        noted = journal.read()
        if noted is not None:
            started, packs = noted
            with suppress(NotFoundError, IntegrityError, Overtaken):
                session = Session(self._target, SessionId(started.session))
                if state.floor <= session.epoch <= state.epoch:
                    session.ensure_open()
                    self._uploaded = packs
                    return session
        session = Session(self._target)
        journal.start(session.ensure_open())
        return session

    def _take_over(self, save: ChunkSave, session: Session) -> None:
        if self._uploaded is None:
            return
        listed = self._target.opened.backend.list(f"objects/{session.id.hex()}")
        sizes = {one.name: one.size for one in listed}
        known = {self._target.index().pack(number).key for number in range(self._target.state.pack_count)}
        noted = {ref.name for ref, _ in self._uploaded}
        unnoted = self._described({name: size for name, size in sizes.items() if name not in noted})
        for ref, chunks in (*self._uploaded, *unnoted):
            condemned = pack_key(ref) in self._target.state.condemned_objects
            if sizes.get(ref.name) == ref.size and ref.key not in known and not condemned:
                save.take_over(ref, chunks)
                self.bytes_resumed += sum(chunk.length for chunk in chunks)

    def _described(self, sizes: Mapping[str, int]) -> Iterator[tuple[PackRef, list[PackedChunk]]]:
        """Packs that were stored right before the interruption, too late to be noted: they say what they hold.

        Their names become durable with the next object of the session, and nothing is committed before.
        """
        opened = self._target.opened
        for name, size in sizes.items():
            with suppress(BadName, IntegrityError, ObjectNotFound):
                session, random, kind = parse_object_name(name)
                if kind == "pack":
                    chunks = read_footer(opened.backend, name, opened.secrets.k_index, opened.store)
                    yield PackRef(session, random, size), chunks

    # --- content, then manifest ---------------------------------------------------------------------

    def _deliver(self, session: Session, journal: Journal, selection: Selection, repair: bool, ref: _Ref) -> bool:
        target, progress = self._target, self._progress
        save = session.save()
        self._take_over(save, session)
        save.uploaded = journal.add
        progress.stage("send")
        transfer = Transfer(self._source, target, save, progress, repair)
        transfer.bring(self._named(selection))
        progress.stage("publish")
        self.counts = save.written.counts
        reachable = transfer.reachable
        # What is brought whole needs no old list, which may be what is damaged.
        if self._held is not None and not selection.whole:
            reachable |= set(read_reachability(target.opened, self._held))
        complete = self._is_complete(reachable)
        self.partial = not complete
        good, uploads = session.settle(), Uploads(target.opened, session)
        if self._held is not None:
            self._supply(uploads, save, good, reachable)
            return False
        self._commit(uploads, save, good, reachable, ref)
        return True

    def _named(self, selection: Selection) -> Iterator[Named]:
        for component in self._manifest.components:
            if selection.has(component):
                yield from contents(self._manifest, component, selection.wants)

    def _is_complete(self, reachable: set[ContentId]) -> bool:
        state = self._manifest.state
        return not state.partial and reachable >= set(read_reachability(self._source.opened, state))

    # --- manifest -----------------------------------------------------------------------------------

    def _supply(self, uploads: Uploads, save: ChunkSave, good: tuple[int, int], reachable: set[ContentId]) -> None:
        packs, pieces = uploads.index(save.written)
        reach = uploads.reachability(reachable)

        def build(state: State) -> Supply:
            return Supply(
                model=self._model,
                checkpoint=self._checkpoint,
                sessions=(uploads.session.id,),
                epoch=good[0],
                hit_position=good[1],
                relied=ranges(save.written.relied),
                packs=packs,
                pieces=pieces,
                reachability=reach,
                partial=self.partial,
            )

        self._target.append(build)

    def _commit(
        self, uploads: Uploads, save: ChunkSave, good: tuple[int, int], reachable: set[ContentId], ref: _Ref
    ) -> None:
        source, secrets = self._source.opened, self._target.opened.secrets
        state, (name, kind, before) = self._manifest.state, ref
        packs, pieces = uploads.index(save.written)
        roots = tuple(
            msgspec.structs.replace(root, object=uploads.put(read_object(source, root.object, "root"), "root"))
            for root in state.roots
        )
        sealed = read_object(source, state.body, "body")
        what = f"body of {self._manifest.what}"
        body = uploads.seal(
            secrets.k_ckpt, ObjectKind.BODY,
            open_object(source.secrets.k_ckpt, source.store, ObjectKind.BODY, sealed, what), "body",
        )  # fmt: skip
        envelope = None
        if state.envelope is not None:
            envelope = uploads.put(read_object(source, state.envelope, ENVELOPE), ENVELOPE)
        reach = uploads.reachability(reachable)
        tag = ref_tag(secrets.k_log, self._model, name)
        expected, races = before, 0

        def build(state_now: State) -> Commit:
            nonlocal expected, races
            check_may_return(self._target, self._model, self._checkpoint)
            now = state_now.live_model(self._model).refs.get(tag)
            actual = CheckpointId(now.checkpoint) if now else None
            if actual != expected:
                races += 1
                if kind != BRANCH or races > PUSH_RACES_MAX:
                    raise RefMoved(
                        f"{kind} {name!r} of {self._target.opened.backend.url} was moved by others {races} times "
                        f"({short(actual or b'')} there, {short(self._checkpoint)} in {source.backend.url})",
                        hint="repeat the command",
                    )
                expected = actual
            sealed_name = self._target.model_keys(self._model).seal_name(name)
            return Commit(
                model=self._model,
                checkpoint=self._checkpoint,
                sessions=(uploads.session.id,),
                epoch=good[0],
                hit_position=good[1],
                relied=ranges(save.written.relied),
                packs=packs,
                pieces=pieces,
                body=body,
                roots=roots,
                reachability=reach,
                ref=RefChange(tag, sealed_name, expected, kind),
                meta=state.meta,
                envelope=envelope,
                partial=self.partial,
                parent=self._nearest(state_now) if expected is None else None,
                carried=True,
            )

        self._target.append(build)

    def _nearest(self, target: State) -> bytes | None:
        """The nearest checkpoint of the source's history that the target has, or had."""
        there = target.live_model(self._model)
        behind = (one.parent for one in walk(self._source, self._model, self._checkpoint))
        return next((at for at in behind if at in there.checkpoints or at in there.gone), None)
