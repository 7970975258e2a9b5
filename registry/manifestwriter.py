"""Writing a manifest's pages: entries become pages, pages become component roots."""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from cairn.core.canonical import encode
from cairn.core.ids import HASH_BYTES, ContentId, Digest
from cairn.core.limits import ENTRY_DIGEST_BYTES_MAX, ENTRY_REGIONS_MAX, FILE_BLOCK_BYTES, VALUE_INLINE_BYTES_MAX
from cairn.manifests.pages import bounds_of, check_page_size, paginate
from cairn.manifests.schema import (
    ComponentRoot,
    DigestPage,
    FileEntry,
    FilePage,
    Key,
    Page,
    Region,
    RegionPage,
    TensorEntry,
    TensorPage,
    ValueEntry,
    ValuePage,
)
from cairn.store.chunkstore import ChunkWriter
from cairn.store.crypto.tenant import ContentType, TenantKeys
from cairn.store.fills import fill_of


class ManifestWriter:
    """Puts pages through one chunk writer and gathers what they reach.

    Attributes:
        reachable: ids of the pages written, and of the chunks named by `reach`.
    """

    def __init__(self, writer: ChunkWriter, keys: TenantKeys) -> None:
        self._writer = writer
        self._keys = keys
        self.reachable: set[ContentId] = set()

    def reach(self, digests: Iterable[bytes]) -> None:
        """Count chunks among what the manifest reaches; fills have none."""
        self.reachable.update(self._keys.chunk.content_ids([one for one in digests if one[0] or fill_of(one) is None]))

    def component(
        self,
        tensors: Iterable[TensorEntry] = (),
        files: Iterable[FileEntry] = (),
        values: Iterable[ValueEntry] = (),
        bytes_logical: int = 0,
    ) -> ComponentRoot:
        """Write the pages of one component."""
        slim = [self._slim(entry) for entry in tensors]
        files, values = list(files), list(values)
        pages = [self._put(TensorPage(page)) for page in paginate(slim)]
        pages += [self._put(FilePage(page)) for page in paginate(files)]
        pages += [self._put(ValuePage(page)) for page in paginate(values)]
        return ComponentRoot(b"".join(pages), len(slim) + len(files) + len(values), bytes_logical, len(values))

    def value(self, key: Key, data: bytes) -> ValueEntry:
        """The entry of an encoded value; a long one is stored in blocks."""
        if len(data) <= VALUE_INLINE_BYTES_MAX:
            return ValueEntry(key, data)
        view = memoryview(data)
        blocks = [
            self._writer.put(ContentType.CHUNK, view[at : at + FILE_BLOCK_BYTES])
            for at in range(0, len(data), FILE_BLOCK_BYTES)
        ]
        self.reach(blocks)
        return ValueEntry(key, None, len(data), b"".join(blocks))

    def tensor(self, entry: TensorEntry) -> TensorEntry:
        """A fresh entry as it stands in its page: what it names is counted, and its long lists get their own pages."""
        self.reach(_digests(entry))
        return self._slim(entry)

    def _slim(self, entry: TensorEntry) -> TensorEntry:
        """The entry with long lists in pages of their own."""
        if entry.tiles is not None and len(entry.tiles) > ENTRY_DIGEST_BYTES_MAX:
            pieces = _batches(entry.tiles, ENTRY_DIGEST_BYTES_MAX)
            pages = b"".join(self._put(DigestPage(bytes(piece))) for piece in pieces)
            return msgspec.structs.replace(
                entry, tiles=None, tile_pages=pages, tiles_per_page=ENTRY_DIGEST_BYTES_MAX // HASH_BYTES
            )
        if len(entry.regions) > ENTRY_REGIONS_MAX:
            batches = list(_region_batches(entry.regions))
            pages = b"".join(self._put(RegionPage(batch)) for batch in batches)
            return msgspec.structs.replace(
                entry, regions=(), region_pages=pages, region_bounds=tuple(map(bounds_of, batches))
            )
        return entry

    def _put(self, page: Page) -> Digest:
        digest = self._writer.put(ContentType.PAGE, check_page_size(encode(page)))
        self.reachable.add(self._keys.page.content_id(digest))
        return digest


def _batches(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _region_batches(regions: Sequence[Region]) -> Iterable[tuple[Region, ...]]:
    remaining = iter(regions)
    while batch := tuple(islice(remaining, ENTRY_REGIONS_MAX)):
        yield batch


def _digests(entry: TensorEntry) -> Iterable[bytes]:
    if entry.regions:
        return [region.digest for region in entry.regions]
    return _batches(entry.tiles or b"", HASH_BYTES)
