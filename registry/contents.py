"""What a manifest names: its pages and the stored chunks behind them, in the order of its entries."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from cairn.core.ids import Digest
from cairn.manifests.schema import DigestPage, FileEntry, Literal, RegionPage, TensorEntry, ValueEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType
from cairn.store.fills import fill_of

Entry = TensorEntry | FileEntry | ValueEntry
# Pages opened at once: 16 MiB of them at most.
_PAGES = 256


class Named(NamedTuple):
    """One content object that a manifest names."""

    kind: ContentType
    digest: Digest


def everything(entry: Entry) -> bool:
    """No entry is left out."""
    return True


def contents(
    manifest: CheckpointManifest, component: ComponentClass, wanted: Callable[[Entry], bool] = everything
) -> Iterator[Named]:
    """All pages of a component, and the content of its wanted entries; some may come twice, fills do not come.

    Raises:
        IntegrityError: a page cannot be read.
    """
    remaining = iter(manifest.page_digests(component))
    while digests := list(islice(remaining, _PAGES)):
        pages = manifest.fetch(digests)
        for digest in digests:
            yield Named(ContentType.PAGE, digest)
            page = pages[digest]
            entries = () if isinstance(page, DigestPage | RegionPage) else page.entries
            for entry in filter(wanted, entries):
                yield from _of_entry(manifest, entry)


def pages_of(manifest: CheckpointManifest, entry: Entry) -> list[Digest]:
    """Digests of the pages that an entry points at."""
    if not isinstance(entry, TensorEntry):
        return []
    return manifest.split((entry.tile_pages or b"") + (entry.region_pages or b""))


def _of_entry(manifest: CheckpointManifest, entry: Entry) -> Iterator[Named]:
    nested = pages_of(manifest, entry)
    for digest in nested:
        yield Named(ContentType.PAGE, digest)
    for digest in _chunks(manifest, entry, nested):
        if fill_of(digest) is None:
            yield Named(ContentType.CHUNK, digest)


def _chunks(manifest: CheckpointManifest, entry: Entry, nested: list[Digest]) -> Iterator[Digest]:
    if isinstance(entry, FileEntry):
        for segment in entry.segments:
            if isinstance(segment, Literal):
                yield from manifest.split(segment.digests)
    elif isinstance(entry, ValueEntry):
        yield from manifest.split(entry.digests)
    else:
        yield from manifest.split(entry.tiles)
        yield from (Digest(region.digest) for region in entry.regions)
        pages = manifest.fetch(nested)
        for page in map(pages.__getitem__, nested):
            if isinstance(page, DigestPage):
                yield from manifest.split(page.digests)
            elif isinstance(page, RegionPage):
                yield from (Digest(region.digest) for region in page.regions)
