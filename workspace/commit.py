"""A tree becomes a checkpoint.

Order: scan -> parse and chunk each file (or take its record from the cache) -> pages -> compare with the tip ->
publish. Nothing is visible before the last step; interrupting earlier leaves uploads that a later collection removes.
"""

import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cairn.core.errors import BadName, ConflictError, IntegrityError, NotAllowed, NotFoundError, RefMoved, UsageError
from cairn.core.ids import CheckpointId, ContentId, ModelId
from cairn.core.limits import MESSAGE_BYTES_MAX, PACK_BYTES_TARGET, STEP_MAX
from cairn.core.pool import Pool, threads_within_budget
from cairn.core.progress import Progress, Silent
from cairn.core.shown import Shown
from cairn.formats.detect import INDEX_SUFFIXES
from cairn.manifests.dtypes import nbytes
from cairn.manifests.schema import ComponentRoot, FileEntry, Parent, TensorEntry
from cairn.registry.checkpoint import CheckpointManifest, split_digests
from cairn.registry.fold import TAG
from cairn.registry.fullness import telling_usage
from cairn.registry.lineage import DeclaredParent, declared_parents, parents_with
from cairn.registry.location import FOLDER
from cairn.registry.manifestwriter import ManifestWriter
from cairn.registry.metrics import checked_metrics
from cairn.registry.models import (
    CommitMeta,
    check_may_make_model,
    ensure_model,
    find_model,
    open_meta,
    ref_kind,
    ref_value,
)
from cairn.registry.names import MAIN, check_model_name, check_ref_name
from cairn.registry.publish import Draft, publish
from cairn.registry.registry import Registry
from cairn.registry.rootkeys import store_wrap_name
from cairn.registry.session import Session
from cairn.store.chunkstore import ChunkSave
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.components import ComponentClass
from cairn.store.fills import fill_of
from cairn.store.written import WriteCounts
from cairn.workspace.filecache import FileCache
from cairn.workspace.ingest import READ_BYTES_MAX, FileIngest, Job, batched
from cairn.workspace.layout import lay_out
from cairn.workspace.naming import choose_scopes, tensor_entries, told_variants
from cairn.workspace.parsing import OPAQUE, check_indices, parse_file
from cairn.workspace.record import FileRecord, chunks_of
from cairn.workspace.scatter import Scratch
from cairn.workspace.source import FileSource, FileStamp
from cairn.workspace.states import FoundState, StateEntries, checked_apart, entries_of, find_states, taken_paths
from cairn.workspace.tree import Node, Tree, scan

# What one worker holds at most: an open pack and the range that it read.
_WORKER_BYTES = PACK_BYTES_TARGET + READ_BYTES_MAX


class CommitOptions(msgspec.Struct, frozen=True):
    """How to commit.

    Args:
        opaque: keep all files as plain bytes, parse nothing.
        always: make a checkpoint even if the branch's tip has the same content, step, message and metrics.
        metrics: numbers that the checkpoint is told by; checked when it is committed.
        parents: what it was made from, beside the branch's tip.
    """

    branch: str = MAIN
    step: int | None = None
    message: str = ""
    opaque: bool = False
    always: bool = False
    codec: CodecPolicy = CodecPolicy.RAW
    metrics: dict[str, float] = {}
    parents: tuple[DeclaredParent, ...] = ()


class CommitResult(Shown, frozen=True):
    """What a commit did. `counts` are of data chunks; bytes are plaintext unless named stored.

    Args:
        tree: the tree as it was scanned; `settled` says whether its stamps prove that it did not change since.
        packs: names of the packs that the checkpoint's chunks lie in.
    """

    checkpoint: CheckpointId
    model: ModelId
    created: bool
    files: int
    tensors: int
    bytes_logical: int
    counts: WriteCounts
    manifest: WriteCounts
    warnings: tuple[str, ...]
    tree: Tree
    settled: bool
    packs: tuple[str, ...]

    def unchanged(self) -> "CommitResult":
        """What the same commit would say if it were repeated now."""
        counts, pages = self.counts, self.manifest
        return msgspec.structs.replace(self, created=False, counts=counts.all_reused(), manifest=pages.all_reused())


def commit(
    registry: Registry, path: Path, model_name: str, options: CommitOptions, progress: Progress | None = None
) -> CommitResult:
    """Commit a file or folder to a branch of a model, which is created if it does not exist.

    Raises:
        BadInput, InputChanged: the tree cannot be stored as it is.
        RefMoved: another writer moved the branch meanwhile.
        StorageFull: no room; nothing was changed, and what was uploaded is left over.
    """
    check_model_name(model_name)
    check_ref_name(options.branch)
    _check_options(options)
    registry.signer()
    with telling_usage(registry):
        for left in reversed(range(_TRIES)):
            try:
                return _Commit(registry, path, model_name, options, progress or Silent()).run()
            except ConflictError as error:
                # A collection that did not wait for this writer, having taken it for dead: what it took is stored anew.
                if isinstance(error, RefMoved) or not left:
                    raise
    raise AssertionError("unreachable")


def _check_options(options: CommitOptions) -> None:
    if options.step is not None and not 0 <= options.step <= STEP_MAX:
        raise UsageError(f"step {options.step} is not within 0 and {STEP_MAX}")
    try:
        length = len(options.message.encode())
    except UnicodeEncodeError:
        raise UsageError("the message is not Unicode text") from None
    if length > MESSAGE_BYTES_MAX:
        raise UsageError(f"a message of {length} bytes is over the limit of {MESSAGE_BYTES_MAX}")


# Commits that a collection overtakes are begun anew so often.
_TRIES = 3


class _Unread(msgspec.Struct, frozen=True):
    """A file that is being read: its path in the tree, its stamp, when reading it began."""

    path: bytes
    ingest: FileIngest
    stamp: FileStamp
    started: int


@dataclass(slots=True)
class _Commit:
    registry: Registry
    path: Path
    model_name: str
    options: CommitOptions
    progress: Progress
    save: ChunkSave = field(init=False)
    scanned_at_ns: int = field(init=False)
    records: dict[bytes, FileRecord] = field(default_factory=dict)
    unread: list[_Unread] = field(default_factory=list)
    states: list[FoundState] = field(default_factory=list)
    held: StateEntries = field(default_factory=StateEntries)
    manifest: WriteCounts = field(default_factory=WriteCounts)
    declared: tuple[Parent, ...] = ()

    def run(self) -> CommitResult:
        registry = self.registry
        registry.refresh()
        self.declared = declared_parents(registry, self.options.parents)
        model = self._existing_model()
        expected = None
        if model is not None:
            if ref_kind(registry, model, self.options.branch) == TAG:
                raise BadName(f"{self.options.branch!r} is a tag: a commit moves a branch", hint="name a branch")
            expected = ref_value(registry, model, self.options.branch)
        meta = CommitMeta(self.options.message, self.options.step, metrics=checked_metrics(self.options.metrics))
        self.scanned_at_ns = registry.opened.clock.wall_ns()
        tree = scan(self.path)
        self.states = [] if self.options.opaque else find_states(tree)
        with Session(registry) as session:
            self.save = session.save(self.options.codec)
            self._ingest(tree, model)
            tensors, files = self._entries(tree)
            self.held = entries_of(self.states)
            components, reachable = self._pages(tensors, files)
            if model is not None and expected is not None and self._same_as_tip(model, expected, components, meta):
                self._remember(tree, model)
                return self._result(tree, expected, model, False, tensors)
            model = model if model is not None else ensure_model(registry, self.model_name)
            self.progress.stage("publish")
            for record in self.records.values():
                reachable.update(self._ids(record))
            draft = Draft(
                model, self.options.branch, expected, components, reachable,
                parents_with(self.declared, expected), meta, self.save.written,
            )  # fmt: skip
            checkpoint = publish(registry, session, draft)
        self._remember(tree, model)
        return self._result(tree, checkpoint, model, True, tensors)

    def _existing_model(self) -> ModelId | None:
        try:
            model = find_model(self.registry, self.model_name)
        except NotFoundError:
            check_may_make_model(self.registry, self.model_name)
            return None
        self.registry.check_may_write(model)
        return model

    # --- files ---------------------------------------------------------------------------------

    def _ingest(self, tree: Tree, model: ModelId | None) -> None:
        taken = taken_paths(self.states)
        files = [node for node in tree.nodes if node.kind == "file" and node.path not in taken]
        size = sum(node.size for node in files) + self._bytes_of_states()
        self.progress.stage("read", size)
        threads = threads_within_budget(_WORKER_BYTES)
        try:
            # As much as a pack holds (the last job may be a long one), unless some workers would have nothing to do.
            length = min(size // (4 * threads), PACK_BYTES_TARGET - 2 * READ_BYTES_MAX)
            batches = batched(self._jobs(tree, files, model), max(length, READ_BYTES_MAX))
            Pool[list[Job]](threads, self._work).run(batches)
        finally:
            for one in self.unread:
                one.ingest.source.close()
        for one in self.unread:
            self.records[one.path] = one.ingest.record()

    def _work(self, batches: Iterable[list[Job]]) -> None:
        # Anonymous memory: a worker that finds no job, and pages that no job touches, cost nothing.
        scratch = Scratch(memoryview(mmap.mmap(-1, READ_BYTES_MAX)))
        with self.save.writer() as writer:
            for batch in batches:
                writer.keep_together(sum(job.length for job in batch))
                for job in batch:
                    before = writer.counts.bytes_new + writer.counts.bytes_reused
                    job.run(writer, scratch)
                    job.file.done()
                    self.progress.advance(writer.counts.bytes_new + writer.counts.bytes_reused - before)

    def _jobs(self, tree: Tree, files: list[Node], model: ModelId | None) -> Iterator[Job]:
        cache = FileCache(self.registry, model, self.options.opaque) if model is not None else None
        for state in self.states:
            yield from state.ingest.jobs()
        names: dict[bytes, set[bytes]] = {}
        for node in files:
            names.setdefault(os.path.dirname(node.path), set()).add(os.path.basename(node.path))
        for node in files:
            path = tree.absolute(node.path)
            started = self.registry.opened.clock.wall_ns()
            source = FileSource(path, os.fsdecode(node.path), started)
            # What an index says holds only together with its neighbours.
            fixed = cache is not None and not os.fsdecode(node.path).lower().endswith(INDEX_SUFFIXES)
            record = cache.get(node.path, path, source.stamp) if cache is not None and fixed else None
            if record is not None and self._known(record):
                source.close()
                self.records[node.path] = record
                self.progress.advance(record.size)
                continue
            try:
                neighbours = names[os.path.dirname(node.path)]
                parsed = OPAQUE if self.options.opaque else parse_file(source, node.path, neighbours)
                ingest = FileIngest(source, parsed, lay_out(parsed, source.size))
            except BaseException:
                source.close()
                raise
            self.unread.append(_Unread(node.path, ingest, source.stamp, started))
            yield from ingest.jobs()

    def _known(self, record: FileRecord) -> bool:
        """Whether the store still holds everything that a cached record names; counts it as reused if so."""
        chunks = list(chunks_of(record))
        if not all(map(self.save.rely, self._ids(record))):
            return False
        self.save.count(WriteCounts(chunks_reused=len(chunks), bytes_reused=sum(length for _, length in chunks)))
        return True

    def _ids(self, record: FileRecord) -> Iterator[ContentId]:
        """Ids of all stored chunks of a file."""
        keys = self.registry.opened.keys.chunk
        return (keys.content_id(digest) for digest, _ in chunks_of(record) if fill_of(digest) is None)

    def _remember(self, tree: Tree, model: ModelId) -> None:
        cache = FileCache(self.registry, model, self.options.opaque)
        for one in self.unread:
            cache.remember(one.path, tree.absolute(one.path), one.stamp, one.started, self.records[one.path])
        cache.save()

    # --- manifest ------------------------------------------------------------------------------

    def _entries(self, tree: Tree) -> tuple[list[TensorEntry], list[FileEntry]]:
        if not self.options.opaque:
            check_indices(tree, self.records)
        scopes = choose_scopes(self.records)
        files: list[FileEntry] = []
        for node in tree.nodes:
            if node.kind == "file" and node.path not in self.records:
                continue  # of a distributed checkpoint
            if node.kind == "file":
                files.extend(self.records[node.path].entries(node.path, node.mode, scopes[node.path]))
            else:
                files.append(FileEntry(node.path, node.kind, node.mode, target=node.target))
        return tensor_entries(self.records, scopes), files

    def _pages(
        self, tensors: list[TensorEntry], files: list[FileEntry]
    ) -> tuple[dict[ComponentClass, ComponentRoot], set[ContentId]]:
        with self.save.writer() as writer:
            pages = ManifestWriter(writer, self.registry.opened.keys)
            components: dict[ComponentClass, ComponentRoot] = {}
            if not self.states or any(entry.kind != "folder" for entry in files):
                size = sum(record.size for record in self.records.values())
                components[ComponentClass.FILES] = pages.component(files=files, bytes_logical=size)
            held = {ComponentClass.WEIGHTS: tensors} if tensors else {}
            for component, found in self.held.tensors.items():
                pages.reach(digest for entry in found for digest in split_digests(entry.tiles or b"", "a tensor"))
                held[component] = checked_apart([*held.get(component, ()), *found])
            for component in {**held, **self.held.values}:
                entries = held.get(component, [])
                values = [pages.value(key, data) for key, data in self.held.values.get(component, ())]
                size = sum(nbytes(entry.dtype, entry.shape) for entry in entries)
                components[component] = pages.component(entries, values=values, bytes_logical=size)
            # The counts of pages are reported apart from those of data.
            self.manifest, writer.counts = writer.counts, WriteCounts()
        return components, pages.reachable

    def _same_as_tip(
        self, model: ModelId, tip: CheckpointId, components: dict[ComponentClass, ComponentRoot], meta: CommitMeta
    ) -> bool:
        # What had to be stored anew was lost or damaged; it counts once a commit names it.
        if self.options.always or self.save.written.packs:
            return False
        try:
            manifest = CheckpointManifest(self.registry, model, tip)
            found = open_meta(self.registry, model, manifest.state)
            told = (found.message, found.step, found.metrics) == (meta.message, meta.step, meta.metrics)
            told = told and set(self.declared) <= set(manifest.body.parents)
            if not told or set(manifest.components) != set(components):
                return False
            return all(manifest.root(component) == root for component, root in components.items())
        except (IntegrityError, NotAllowed):  # a tip that cannot be read is no reason to refuse its content
            return False

    def _bytes_of_states(self) -> int:
        return sum(one.ingest.source.size for one in self.states)

    def _result(
        self, tree: Tree, checkpoint: CheckpointId, model: ModelId, created: bool, tensors: list[TensorEntry]
    ) -> CommitResult:
        warnings = [
            f"{os.fsdecode(path)}: {text}" for path, record in sorted(self.records.items()) for text in record.warnings
        ]
        warnings += [*told_variants(self.records), *self.held.warnings]
        # Nobody wonders where a store under its usual name has gone, no more than about `.git`.
        odd = [path for path in tree.stores if os.path.basename(path) != os.fsencode(FOLDER)]
        warnings += [f"{os.fsdecode(path)}: left out, since it is a Cairn store" for path in odd]
        written, index = self.save.written, self.registry.index()
        packs = {index.pack(number).name for number in written.relied} | {pack.name for pack in written.packs}
        stamps = [tree.root_stamp, *(node.stamp for node in tree.nodes)]
        return CommitResult(
            checkpoint=checkpoint,
            model=model,
            created=created,
            files=len(self.records),
            tensors=len(tensors) + sum(map(len, self.held.tensors.values())),
            bytes_logical=sum(record.size for record in self.records.values()) + self._bytes_of_states(),
            counts=written.counts,
            manifest=self.manifest,
            warnings=tuple(warnings),
            tree=tree,
            settled=all(stamp.is_settled(self.scanned_at_ns) for stamp in stamps),
            packs=tuple(sorted(packs)),
        )


def objects_behind(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> list[str]:
    """Names of all objects but packs that a checkpoint needs to be read."""
    state, of_model = registry.state, registry.state.live_model(model)
    of = of_model.checkpoints[checkpoint]
    names = [store_wrap_name(registry.opened.store, state.root_generation), of_model.wrap, of.body.object_name("body")]
    names += [of.reachability.object_name("reach"), *(root.object.object_name("root") for root in of.roots)]
    return names + [piece.object.object_name("index") for piece in state.pieces]
