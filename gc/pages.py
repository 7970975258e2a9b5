"""Reading manifest pages once, whatever number of checkpoints share them, for the ids and digests that they name."""

from collections.abc import Iterator
from dataclasses import dataclass

from cairn.core.errors import CairnError, IntegrityError, NotAllowed, StorageError
from cairn.core.ids import ContentId, Digest, short
from cairn.gc.places import Damage, Places
from cairn.manifests.schema import DigestPage, Page, RegionPage
from cairn.registry.checkpoint import PAGES_OF, CheckpointManifest
from cairn.registry.contents import Entry, pages_of
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType, TenantKeys
from cairn.store.fills import fill_of


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What a page says.

    Args:
        ids: of all content that it names, itself first.
        whole: all that it names is known; False where it, or a digest page, cannot be read.
        fault: what is wrong with it though its bytes are those that were written; empty if nothing is.
    """

    ids: tuple[ContentId, ...]
    entries: int = 0
    whole: bool = False
    fault: str = ""


class PageReader:
    """Reads pages and remembers what they name.

    Memory: about 250 bytes a distinct chunk, hence 150 MiB for a TiB of content.
    """

    def __init__(self, keys: TenantKeys, places: Places) -> None:
        self._keys = keys
        self._places = places
        self._facts: dict[ContentId, PageFacts] = {}
        self._digests: dict[ContentId, bytes] = {}

    def digest(self, identifier: ContentId) -> tuple[ContentType, Digest] | None:
        """Type and digest of an id that some page or root named."""
        known = self._digests.get(identifier)
        return None if known is None else (ContentType(known[0]), Digest(known[1:]))

    def facts(self, manifest: CheckpointManifest, component: ComponentClass, digest: Digest) -> PageFacts:
        """What a page of a component names."""
        identifier = self._name(ContentType.PAGE, digest)
        if identifier not in self._facts:
            self._facts[identifier] = self._read(manifest, component, digest, identifier)
        return self._facts[identifier]

    def _read(
        self, manifest: CheckpointManifest, component: ComponentClass, digest: Digest, identifier: ContentId
    ) -> PageFacts:
        try:
            page = manifest.read_page(digest)
            if not isinstance(page, PAGES_OF[component]):
                raise IntegrityError(f"page {short(identifier)} is not one of {component.name.lower()}")
        except CairnError as error:
            if error.retryable:
                raise
            if isinstance(error, StorageError | NotAllowed):
                for at in self._places.locations(identifier):
                    self._places.note(Damage(identifier, at, f"page {short(identifier)} cannot be read"))
            # A page that is nowhere whole is a problem of its packs; these are blamed once all are known.
            return PageFacts((identifier,), fault=error.message if self._places.serves(identifier) else "")
        return self._entries(manifest, page, identifier)

    def _entries(self, manifest: CheckpointManifest, page: Page, identifier: ContentId) -> PageFacts:
        entries = () if isinstance(page, DigestPage | RegionPage) else page.entries
        ids, whole, fault = {identifier: None}, True, ""
        for entry in entries:
            try:
                for kind, digest in pointed_at(manifest, entry):
                    ids[self._name(kind, digest)] = None
            except CairnError as error:
                if error.retryable:
                    raise
                whole = False
                fault = fault or ("" if self._lost(manifest, entry) else error.message)
        return PageFacts(tuple(ids), len(entries), whole, fault)

    def _lost(self, manifest: CheckpointManifest, entry: Entry) -> bool:
        """Whether a digest or region page of an entry is nowhere whole."""
        pages = pages_of(manifest, entry)
        return not all(self._places.serves(self._keys.page.content_id(page)) for page in pages)

    def _name(self, kind: ContentType, digest: Digest) -> ContentId:
        identifier = self._keys.of(kind).content_id(digest)
        self._digests.setdefault(identifier, bytes((kind,)) + digest)
        return identifier


def pointed_at(manifest: CheckpointManifest, entry: Entry) -> Iterator[tuple[ContentType, Digest]]:
    """Pages and stored chunks that an entry points at, in this order.

    Raises:
        CairnError: a page cannot be read, or the entry's parts do not fit together.
    """
    for digest in pages_of(manifest, entry):
        yield ContentType.PAGE, digest
    for digest in manifest.chunk_digests(entry):
        if fill_of(digest) is None:
            yield ContentType.CHUNK, digest
