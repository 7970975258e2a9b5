"""Scrubbing manifests: body, component roots, pages, and the reachability list that must name the same ids."""

from collections.abc import Mapping

from cairn.core.errors import IntegrityError
from cairn.core.ids import CheckpointId, ContentId, ModelId
from cairn.gc.pages import PageReader
from cairn.gc.places import Places
from cairn.gc.report import Findings
from cairn.gc.roots import Root
from cairn.registry.checkpoint import CheckpointManifest, split_digests
from cairn.registry.entries import RootRef
from cairn.registry.indexing import read_object
from cairn.registry.modelkeys import ModelKeys
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.components import ComponentClass


class ManifestScrub:
    """Walks the manifests of checkpoints, deleted ones that can be restored too, and gathers what they need.

    Attributes:
        needed: ids of all chunks and pages of live checkpoints.
        restorable: what only deleted checkpoints need that can be restored.
        unplaced: those of both that neither an index piece nor a footer lists.
        forgotten: number of those that are placed, but not in this machine's own index.
        closed: number of component roots that the keys at hand do not open.
        packs: those that hold what is needed, in the order in which it was asked for.
        unlisted: of a checkpoint whose reachability list is bad: what its manifest names, if all of it could be read.
    """

    def __init__(
        self, registry: Registry, places: Places, readable: Mapping[ModelId, ModelKeys], findings: Findings
    ) -> None:
        self._registry = registry
        self._places = places
        self._readable = readable
        self._findings = findings
        self.pages = PageReader(registry.opened.keys, places)
        self.needed: set[ContentId] = set()
        self.restorable: set[ContentId] = set()
        self.unplaced: set[ContentId] = set()
        self.forgotten = self.closed = 0
        self.packs: dict[int, None] = {}
        self.unlisted: dict[tuple[ModelId, CheckpointId], set[ContentId] | None] = {}

    def open(self, root: Root) -> CheckpointManifest:
        """A manifest that reads its pages from where the store itself says that they are."""
        manifest = CheckpointManifest(self._registry, root.model, root.checkpoint, state=root.state)
        manifest.chunks = ChunkStore(self._registry.opened.access, self._places)
        return manifest

    def _opens(self, model: ModelId, ref: RootRef) -> bool:
        """Whether a component root can be looked into with the keys at hand."""
        keys = self._readable.get(model)
        pairs = keys.all() if keys is not None else []
        opens = any((one.component, one.generation) == (ref.component, ref.generation) for one in pairs if one.private)
        self.closed += keys is not None and not opens
        return opens

    def check(self, root: Root) -> None:
        """Check everything that makes up a live checkpoint, its chunks' bytes excepted."""
        self._place(self._named_by(root), self.needed)

    def check_deleted(self, root: Root) -> None:
        """The same of a deleted checkpoint that can be restored; after all others."""
        self._place(self._named_by(root) - self.needed, self.restorable)

    def keeps(self, identifier: ContentId) -> bool:
        """Whether anybody needs a chunk or page, or would if he were restored."""
        return identifier in self.needed or identifier in self.restorable

    def _named_by(self, root: Root) -> set[ContentId]:
        """What a checkpoint needs, as far as that can be read; what is wrong with it becomes a finding."""
        target = (root.model.hex(), root.checkpoint.hex())
        manifest = None
        with self._findings.about(root.state.body.object_name("body"), [target]):
            manifest = self.open(root)
        named, whole = set[ContentId](), True
        for ref in root.state.roots:
            complete = False
            with self._findings.about(ref.object.object_name("root"), [target]):
                if manifest is None or root.state.partial or not self._opens(root.model, ref):
                    read_object(self._registry.opened, ref.object, "root")
                else:
                    complete = self._component(manifest, ref, root, named)
            whole = whole and complete
        if root.state.envelope is not None:
            with self._findings.about(root.state.envelope.object_name("envelope"), [target]):
                read_object(self._registry.opened, root.state.envelope, "envelope")
        self.unlisted[root.model, root.checkpoint] = set(named) if whole else None
        with self._findings.about(root.state.reachability.object_name("reach"), [target]):
            listed = set(read_reachability(self._registry.opened, root.state))
            # Of a checkpoint that is here in part, the list says what is.
            lacking, surplus = len(named - listed), len(listed - named) if whole else 0
            named.update(listed)
            if lacking or surplus:
                raise IntegrityError(f"it lacks {lacking} ids that the manifest names and lists {surplus} others")
            del self.unlisted[root.model, root.checkpoint]
        return named

    def _component(self, manifest: CheckpointManifest, ref: RootRef, root: Root, named: set[ContentId]) -> bool:
        """Read a component's pages; True if all that they name is known."""
        component = ComponentClass(ref.component)
        opened = manifest.root(component)
        whole, entries = True, 0
        for digest in split_digests(opened.pages, manifest.what):
            facts = self.pages.facts(manifest, component, digest)
            named.update(facts.ids)
            entries, whole = entries + facts.entries, whole and facts.whole
            if facts.fault:
                target = (root.model.hex(), root.checkpoint.hex())
                self._findings.add(ref.object.object_name("root"), facts.fault, [target])
        if whole and entries != opened.entries:
            raise IntegrityError(f"it counts {opened.entries} entries where its pages hold {entries}")
        return whole

    def _place(self, named: set[ContentId], known: set[ContentId]) -> None:
        """Find the packs of what is named, which joins what is known."""
        fresh = named - known
        known.update(fresh)
        packs = set[int]()
        for one in fresh:
            places = self._places.locations(one, marked=True)
            if not places:
                self.unplaced.add(one)
                continue
            packs.add(places[0].pack)
            self.forgotten += not self._places.known_here(one)
        self.packs.update(dict.fromkeys(number for number in sorted(packs) if number not in self.packs))
