"""Names of the tensors and files that lost content belongs to; walks a manifest again, on the way to an error only."""

from cairn.core.errors import CairnError
from cairn.core.ids import ContentId, Digest
from cairn.gc.pages import pointed_at
from cairn.gc.roots import Root
from cairn.gc.scrub_manifests import ManifestScrub
from cairn.manifests.schema import DigestPage, FileEntry, Key, RegionPage, TensorBytes, TensorEntry, ValueEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import TenantKeys

# Kind (`tensor`, `file`, `page`) and name of what is affected, in the order found.
Names = dict[tuple[str, str], None]
# For a lost id, what it belongs to. Lost pages share one `Names`, of what they may have listed.
Labels = dict[ContentId, list[Names]]


def affected_names(manifests: ManifestScrub, root: Root, lost: set[ContentId]) -> Labels:
    """What each lost id belongs to in a checkpoint, as far as its manifest can be read."""
    labels: Labels = {}
    try:
        manifest = manifests.open(root)
        walk = _Walk(manifest, manifest.chunks.access.keys, lost, labels)
        # Files come last: a file is hit where a tensor in it is.
        for component in sorted(manifest.components, key=lambda one: one is ComponentClass.FILES):
            pages = manifest.page_digests(component)
            for number, digest in enumerate(pages, 1):
                walk.page(digest, f"{number} of {len(pages)} of {component.name.lower()}")
    except CairnError:
        pass  # what could be named is; the manifest's own damage is reported elsewhere
    return labels


class _Walk:
    def __init__(self, manifest: CheckpointManifest, keys: TenantKeys, lost: set[ContentId], labels: Labels) -> None:
        self._manifest = manifest
        self._keys = keys
        self._lost = lost
        self._labels = labels
        self._tensors: dict[Key, list[ContentId]] = {}
        self._listed_by_lost_pages: Names = {}
        self._page_lost = False

    def page(self, digest: Digest, place: str) -> None:
        """Label what a page names; a lost page itself is labelled by its place."""
        identifier = self._keys.page.content_id(digest)
        if identifier in self._lost:
            self._page_lost = True
            self._labels[identifier] = [{("page", place): None}, self._listed_by_lost_pages]
            return
        try:
            page = self._manifest.read_page(digest)
        except CairnError:
            return
        for entry in () if isinstance(page, DigestPage | RegionPage) else page.entries:
            if isinstance(entry, FileEntry):
                self._file(entry)
                continue
            hit = self._hit(entry)
            if isinstance(entry, TensorEntry):
                self._tensors[entry.key] = hit
            for one in hit:
                self._label(one, "tensor" if isinstance(entry, TensorEntry) else "value", str(entry.key))

    def _file(self, entry: FileEntry) -> None:
        hit, path = self._hit(entry), entry.path.decode("utf-8", "backslashreplace")
        for segment in entry.segments:
            if isinstance(segment, TensorBytes) and segment.key in self._tensors:
                hit += self._tensors[segment.key]
            elif isinstance(segment, TensorBytes) and self._page_lost:
                self._listed_by_lost_pages["tensor", str(segment.key)] = None
                self._listed_by_lost_pages["file", path] = None
        for one in hit:
            self._label(one, "file", path)

    def _hit(self, entry: TensorEntry | FileEntry | ValueEntry) -> list[ContentId]:
        """Lost ids that an entry points at."""
        found = []
        try:
            for kind, digest in pointed_at(self._manifest, entry):
                identifier = self._keys.of(kind).content_id(digest)
                if identifier in self._lost:
                    found.append(identifier)
        except CairnError:
            pass  # a digest page is lost; it was yielded before
        return found

    def _label(self, identifier: ContentId, kind: str, name: str) -> None:
        self._labels.setdefault(identifier, [{}])[0][kind, name] = None
