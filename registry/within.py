"""What a reader needs of an entry's stored boxes: those that meet what it wants, from the pages that have them.

A tensor of a large job has hundreds of pages of digests or regions, and one rank wants some percent of its elements.
Where an entry does not say what stands in which page, all are read.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cairn.core.errors import IntegrityError
from cairn.core.ids import HASH_BYTES, Digest
from cairn.core.limits import ENTRY_DIGEST_BYTES_MAX
from cairn.manifests.dtypes import nbytes
from cairn.manifests.pieces import cached_grid, tile_numbers
from cairn.manifests.schema import DigestPage, Page, Region, TensorEntry
from cairn.manifests.tiling import TILE_BYTES_MAX, Box

if TYPE_CHECKING:
    from cairn.registry.checkpoint import CheckpointManifest

Pages = Mapping[Digest, Page]
# What is stored of a tensor within some boxes: digests by tile, or regions.
Within = tuple[Mapping[int, Digest], Sequence[Region]]


def pages_within(manifest: "CheckpointManifest", entry: TensorEntry, boxes: Sequence[Box]) -> list[Digest]:
    """Digests of the pages that tell what is stored within some boxes.

    Raises:
        IntegrityError: the entry's parts do not fit together.
    """
    if _told_tiles(manifest, entry):
        pages = manifest.split(entry.tile_pages)
        return [pages[number] for number in sorted({n // entry.tiles_per_page for n in _tiles(entry, boxes)})]
    if entry.region_pages is not None and entry.region_bounds:
        return _region_pages_within(manifest, entry, boxes, manifest.split(entry.region_pages))
    return manifest.split(entry.tile_pages) + manifest.split(entry.region_pages)


def stored_within(
    manifest: "CheckpointManifest", entry: TensorEntry, boxes: Sequence[Box], pages: Pages | None = None
) -> Within:
    """What is stored of an entry within some boxes; nothing for one in line.

    Args:
        pages: those of `pages_within`, if they have been read.

    Raises:
        IntegrityError: the entry's parts do not fit together, or its regions leave some of the boxes uncovered.
    """
    if entry.inline is not None:
        check_stored(manifest, entry)
        return {}, ()
    if _told_tiles(manifest, entry):
        return _tiles_within(manifest, entry, boxes, pages or {}), ()
    if entry.regions or entry.region_pages is not None:
        return {}, _regions_within(manifest, entry, boxes, pages or {})
    return dict(enumerate(manifest.tiles(entry))), ()


def check_stored(manifest: "CheckpointManifest", entry: TensorEntry) -> None:
    """Make sure that all that is stored of an entry fits its shape, before room is made for what that claims.

    Raises:
        IntegrityError: it does not.
    """
    size = nbytes(entry.dtype, entry.shape)
    if entry.inline is None:
        _ = manifest.tiles(entry) or manifest.regions(entry)
    elif len(entry.inline) != size:
        raise IntegrityError(f"tensor {entry.key} of {manifest.what} has {len(entry.inline)} bytes, and wants {size}")


def _told_tiles(manifest: "CheckpointManifest", entry: TensorEntry) -> bool:
    """Whether an entry says how many tiles are in a page; checked before a grid is laid out by its shape's claim."""
    per_page = entry.tiles_per_page
    if entry.tile_pages is None or not 0 < per_page <= ENTRY_DIGEST_BYTES_MAX // HASH_BYTES:
        return False
    most = len(manifest.split(entry.tile_pages)) * per_page
    if nbytes(entry.dtype, entry.shape) <= most * TILE_BYTES_MAX:
        count = cached_grid(entry.dtype, entry.shape).tile_count
        if most - per_page < count <= most:
            return True
    raise IntegrityError(f"tensor {entry.key} of {manifest.what} has another number of tiles than its grid")


def _tiles(entry: TensorEntry, boxes: Sequence[Box]) -> set[int]:
    layout = cached_grid(entry.dtype, entry.shape)
    return {number for box in boxes for number in tile_numbers(layout, box)}


def _tiles_within(
    manifest: "CheckpointManifest", entry: TensorEntry, boxes: Sequence[Box], pages: Pages
) -> dict[int, Digest]:
    all_pages, per_page = manifest.split(entry.tile_pages), entry.tiles_per_page
    count = cached_grid(entry.dtype, entry.shape).tile_count
    opened: dict[int, bytes] = {}
    found = {}
    for number in _tiles(entry, boxes):
        at = number // per_page
        if at not in opened:
            page = pages.get(all_pages[at]) or manifest.read_page(all_pages[at])
            opened[at] = page.digests if isinstance(page, DigestPage) else b""
            if len(opened[at]) != min(per_page, count - at * per_page) * HASH_BYTES:
                raise IntegrityError(f"a digest page of {manifest.what} holds something else")
        start = number % per_page * HASH_BYTES
        found[number] = Digest(opened[at][start : start + HASH_BYTES])
    return found


def _region_pages_within(
    manifest: "CheckpointManifest", entry: TensorEntry, boxes: Sequence[Box], pages: list[Digest]
) -> list[Digest]:
    """Those of an entry's region pages whose bounds meet some boxes."""
    from cairn.manifests.coverage import meeting_bounds

    if len(entry.region_bounds) != len(pages):
        raise IntegrityError(f"tensor {entry.key} of {manifest.what} has bounds of other pages than it has")
    try:
        return [pages[number] for number in meeting_bounds(len(entry.shape), entry.region_bounds, tuple(boxes))]
    except ValueError as error:
        raise IntegrityError(f"tensor {entry.key} of {manifest.what} has impossible bounds of pages: {error}") from None


def _regions_within(
    manifest: "CheckpointManifest", entry: TensorEntry, boxes: Sequence[Box], pages: Pages
) -> Sequence[Region]:
    from cairn.manifests.coverage import meeting, meeting_cover, rows_of

    if entry.region_pages is None or not entry.region_bounds:
        whole = manifest.regions(entry, pages)
        return [whole[number] for number in meeting(rows_of(len(entry.shape), whole), boxes)]
    nbytes(entry.dtype, entry.shape)
    digests = [digest for digest in manifest.split(entry.region_pages) if digest in pages]
    regions = manifest.page_regions(digests or pages_within(manifest, entry, boxes), pages)
    met: list[Region] = []
    try:
        bounds = tuple((region.offsets, region.lengths) for region in regions)
        numbers, fault = meeting_cover(len(entry.shape), bounds, tuple(boxes))
        met = [regions[number] for number in numbers]
    except ValueError as error:
        fault = str(error)
    if not fault and any(len(region.digest) != HASH_BYTES for region in met):
        fault = "one has no digest"
    if fault:
        raise IntegrityError(f"the regions of tensor {entry.key} of {manifest.what} are not its shape: {fault}")
    return met
