"""Reading a committed checkpoint's manifest: body, component roots, pages."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from blake3 import blake3

from cairn.core.canonical import decode
from cairn.core.errors import IntegrityError, MissingData, NotAllowed, NotFoundError
from cairn.core.ids import HASH_BYTES, CheckpointId, Digest, ModelId, short
from cairn.core.limits import FILE_BLOCK_BYTES, PAGE_READS_AT_ONCE
from cairn.core.pool import Pool
from cairn.manifests.dtypes import nbytes
from cairn.manifests.pages import bounds_of
from cairn.manifests.schema import (
    Body,
    ComponentRoot,
    DigestPage,
    FileEntry,
    FilePage,
    Literal,
    Page,
    Region,
    RegionPage,
    TensorEntry,
    TensorPage,
    ValueEntry,
    ValuePage,
)
from cairn.manifests.tiling import RULE, TILE_BYTES_MAX, Box, grid
from cairn.registry.gone import gone_error
from cairn.registry.indexing import read_object
from cairn.registry.registry import Registry
from cairn.registry.state import Checkpoint
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.components import ComponentClass, component_class
from cairn.store.crypto.objects import ObjectKind, open_object
from cairn.store.crypto.tenant import ContentType
from cairn.store.together import read_together

# Pages that are read first to see how fast it goes. Below a millisecond each, threads cost more than they save.
_FIRST_PAGES, _FAST_SECONDS = 4, 0.001
_STATE_PAGES = (TensorPage, ValuePage)
# What kinds of pages a component's root may name.
PAGES_OF: dict[ComponentClass, tuple[type[Page], ...]] = {
    ComponentClass.WEIGHTS: _STATE_PAGES,
    ComponentClass.OPTIMIZER: _STATE_PAGES,
    ComponentClass.TRAINING: _STATE_PAGES,
    ComponentClass.PROVENANCE: _STATE_PAGES,
    ComponentClass.FILES: (FilePage,),
}


class CheckpointManifest:
    """The manifest of one checkpoint, read lazily and checked at every step."""

    def __init__(
        self,
        registry: Registry,
        model: ModelId,
        checkpoint: CheckpointId,
        *,
        readable_only: bool = False,
        state: Checkpoint | None = None,
    ) -> None:
        """Read and check the body.

        Args:
            readable_only: leave out the components that this user was not granted, unless those are all; `hidden` then
                names them.
            state: of a checkpoint that is deleted and can be restored.

        Raises:
            GoneError: it was deleted, and no state is given.
            IntegrityError: the body is missing, damaged, or not the one that the id speaks for.
        """
        self.model, self.id = model, checkpoint
        self.chunks: ChunkStore = registry.chunks()
        self._registry, self._opened = registry, registry.opened
        self.what = f"checkpoint {short(checkpoint)}"
        self.state = state or committed(registry, model, checkpoint)
        self.body = read_body(registry, model, checkpoint, self.state)
        lacking = self._not_granted() if readable_only else []
        self.hidden = lacking if len(lacking) < len(self.state.roots) else []

    @property
    def components(self) -> list[ComponentClass]:
        """Classes that this checkpoint has, but for hidden ones."""
        classes = [component_class(root.component, self.what) for root in self.state.roots]
        return [component for component in classes if component not in self.hidden]

    def refuse(self, component: ComponentClass) -> None:
        """Raise for a component that this user was not granted.

        Raises:
            NotAllowed: always.
        """
        name = component.name.lower()
        raise NotAllowed(
            f"{name} of {self.what} was not granted to you",
            hint=f"ask an owner to run: cairn grant MODEL IDENTITY --read {name}",
        )

    def _not_granted(self) -> list[ComponentClass]:
        keys = self._registry.model_keys(self.model)
        named = [(component_class(root.component, self.what), root.generation) for root in self.state.roots]
        return [one for one, generation in named if keys.pair_of(one, generation, self.what).private is None]

    def root(self, component: ComponentClass) -> ComponentRoot:
        """The opened root of a component.

        Raises:
            NotFoundError: the checkpoint has no such component.
        """
        for ref in self.state.roots:
            if ref.component == component:
                what = f"{component.name.lower()} root of {self.what}"
                sealed = read_object(self._opened, ref.object, "root")
                key = self._registry.model_keys(self.model).pair_of(component, ref.generation, what)
                return decode(key.open_root(sealed, what), ComponentRoot, what)
        raise NotFoundError(f"{self.what} has no {component.name.lower()} component")

    def page_digests(self, component: ComponentClass) -> list[Digest]:
        """Digests of a component's pages, in order; empty if it has no such component."""
        return split_digests(self.root(component).pages, self.what) if component in self.components else []

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say of content that is not here that it was not brought, if that is why.

        Raises:
            NotFoundError: the checkpoint is here in part.
        """
        try:
            yield
        except MissingData as error:
            if not self.state.partial:
                raise
            raise NotFoundError(
                f"{self.what} is here in part, without what is asked for: {error.message}",
                hint="'cairn pull MODEL@REF' brings the rest",
            ) from error

    def read_page(self, digest: Digest) -> Page:
        """Read one page of any kind."""
        with self.explained():
            return self._page(self.chunks.read(ContentType.PAGE, digest))

    def _page(self, plain: bytes) -> Page:
        return decode(plain, Page, f"a page of {self.what}")  # type: ignore[arg-type]  # a union is a type to msgspec

    def tensors(self, component: ComponentClass | None = None, skip: Collection[Digest] = ()) -> Iterator[TensorEntry]:
        """Tensor entries of one component, or of all, component by component, sorted by key.

        Args:
            skip: pages to leave unread.
        """
        for page in self._pages(component, skip):
            if isinstance(page, TensorPage):
                yield from page.entries

    def absent(self) -> list[ComponentClass]:
        """Components of which this store has no page, since the checkpoint was brought in part."""
        if not self.state.partial:
            return []
        index, keys = self.chunks.index, self._opened.keys.page
        pages = {component: self.page_digests(component)[:1] for component in self.components}
        return [one for one, first in pages.items() if first and not index.locations(keys.content_id(first[0]))]

    def entries(self) -> Iterator[TensorEntry | ValueEntry]:
        """Tensor entries and plain values of all components that are here, each page read once."""
        absent = self.absent()
        for component in self.components:
            if component is not ComponentClass.FILES and component not in absent:
                for page in self._pages(component, ()):
                    if isinstance(page, TensorPage | ValuePage):
                        yield from page.entries

    def values(self, component: ComponentClass | None = None, skip: Collection[Digest] = ()) -> Iterator[ValueEntry]:
        """Plain values, likewise."""
        for page in self._pages(component, skip):
            if isinstance(page, ValuePage):
                yield from page.entries

    def files(self, skip: Collection[Digest] = ()) -> Iterator[FileEntry]:
        """File entries, sorted by path and part."""
        for page in self._pages(ComponentClass.FILES, skip):
            if isinstance(page, FilePage):
                yield from page.entries

    def _pages(self, component: ComponentClass | None, skip: Collection[Digest]) -> Iterator[Page]:
        for one in self.components if component is None else [component]:
            wanted = [digest for digest in self.page_digests(one) if digest not in skip]
            for at in range(0, len(wanted), PAGE_READS_AT_ONCE):
                batch = wanted[at : at + PAGE_READS_AT_ONCE]
                pages = self.fetch(batch)
                for digest in batch:
                    page = pages[digest]
                    if not isinstance(page, PAGES_OF[one]):
                        raise IntegrityError(f"a {one.name.lower()} page of {self.what} holds something else")
                    yield page

    def value_bytes(self, entry: ValueEntry) -> bytes:
        """Encoding of a plain value.

        Raises:
            IntegrityError: its blocks are not as long as it says.
        """
        if entry.inline is not None:
            return entry.inline
        digests = split_digests(entry.digests, self.what)
        if not digests or not (len(digests) - 1) * FILE_BLOCK_BYTES < entry.length <= len(digests) * FILE_BLOCK_BYTES:
            raise IntegrityError(f"value {entry.key} of {self.what} has another length than its blocks")
        whole = b"".join(self.chunks.content(digest, FILE_BLOCK_BYTES) for digest in digests[:-1])
        last = self.chunks.content(digests[-1], entry.length - len(whole))
        if len(whole) + len(last) != entry.length:
            raise IntegrityError(f"value {entry.key} of {self.what} has another length than its blocks")
        return whole + last

    def split(self, joined: bytes | None) -> list[Digest]:
        """Cut a string of digests, which may be absent."""
        return split_digests(joined or b"", self.what)

    def fetch(self, digests: Iterable[Digest]) -> dict[Digest, Page]:
        """Read pages: neighbours by one request, many requests at once where the storage lets one wait."""
        wanted, found = list(dict.fromkeys(digests)), dict[Digest, Page]()

        def work(jobs: Iterable[Sequence[Digest]]) -> None:
            for some in jobs:
                with self.explained():
                    plains = read_together(self.chunks, ContentType.PAGE, some)
                found.update((digest, self._page(plain)) for digest, plain in plains.items())

        first, rest = wanted[:_FIRST_PAGES], wanted[_FIRST_PAGES:]
        begun = self._opened.clock.monotonic()
        work([first])
        if not rest or self._opened.clock.monotonic() - begun < len(first) * _FAST_SECONDS:
            work([rest])
        else:
            step = max(len(rest) // PAGE_READS_AT_ONCE, _FIRST_PAGES)
            jobs = (rest[at : at + step] for at in range(0, len(rest), step))
            Pool[Sequence[Digest]](min(PAGE_READS_AT_ONCE, -(-len(rest) // step)), work).run(jobs)
        return found

    def regions(self, entry: TensorEntry, pages: Mapping[Digest, Page] | None = None) -> tuple[Region, ...]:
        """Stored boxes of an entry that has no grid; empty for one that has.

        Args:
            pages: some that have been read.

        Raises:
            IntegrityError: they do not cover its shape exactly once, or lie in other pages than the entry says.
        """
        of_pages = [self.page_regions([digest], pages or {}) for digest in self.split(entry.region_pages)]
        regions = entry.regions or tuple(region for some in of_pages for region in some)
        if not regions:
            return ()
        from cairn.manifests.coverage import uncovered  # numpy, which few commands need

        nbytes(entry.dtype, entry.shape)
        rank = len(entry.shape)
        if any(not len(r.offsets) == len(r.lengths) == rank or len(r.digest) != HASH_BYTES for r in regions):
            raise IntegrityError(f"a region of tensor {entry.key} of {self.what} has another rank than its shape")
        if entry.region_bounds and entry.region_bounds != tuple(map(bounds_of, of_pages)):
            raise IntegrityError(
                f"the region pages of tensor {entry.key} of {self.what} have other bounds than it says"
            )
        try:
            fault = uncovered(entry.shape, [Box(region.offsets, region.lengths) for region in regions])
        except ValueError as error:
            fault = str(error)
        if fault:
            raise IntegrityError(f"the regions of tensor {entry.key} of {self.what} are not its shape: {fault}")
        return regions

    def page_regions(self, digests: Iterable[Digest], pages: Mapping[Digest, Page]) -> list[Region]:
        """Regions of some region pages, joined; their form is unchecked.

        Raises:
            IntegrityError: a page holds something else.
        """
        found: list[Region] = []
        for digest in digests:
            page = pages.get(digest) or self.read_page(digest)
            if not isinstance(page, RegionPage) or not page.regions:
                raise IntegrityError(f"a region page of {self.what} holds something else")
            found += page.regions
        return found

    def boxes(self, entry: TensorEntry) -> dict[Box, bytes]:
        """Digest (or, in line, bytes) of every stored box of an entry."""
        tiles = self.tiles(entry)
        if tiles:
            layout = grid(entry.dtype, entry.shape)
            return {layout.tile(number): digest for number, digest in enumerate(tiles)}
        if entry.inline is not None:
            return {Box((0,) * len(entry.shape), entry.shape): entry.inline}
        return {Box(region.offsets, region.lengths): region.digest for region in self.regions(entry)}

    def chunk_digests(self, entry: TensorEntry | FileEntry | ValueEntry) -> list[Digest]:
        """Digests of all chunks that an entry points at, fills included.

        Raises:
            IntegrityError: the entry's parts do not fit together.
        """
        if isinstance(entry, FileEntry):
            literals = [segment for segment in entry.segments if isinstance(segment, Literal)]
            return [digest for one in literals for digest in split_digests(one.digests, self.what)]
        if isinstance(entry, ValueEntry):
            return split_digests(entry.digests, self.what)
        return self.tiles(entry) or [Digest(region.digest) for region in self.regions(entry)]

    def tiles(self, entry: TensorEntry) -> list[Digest]:
        """Digests of an entry's whole grid; empty for inline bytes and regions.

        Raises:
            IntegrityError: their number is not the grid's.
        """
        if entry.inline is not None or entry.regions or entry.region_pages is not None:
            return []
        # Before the grid is laid out: a shape is a claim, digests are bytes at hand.
        size, joined = nbytes(entry.dtype, entry.shape), entry.tiles
        if joined is None:
            pages = [self.read_page(digest) for digest in self.split(entry.tile_pages)]
            if not all(isinstance(page, DigestPage) for page in pages):
                raise IntegrityError(f"a digest page of {self.what} holds something else")
            lengths = {len(page.digests) for page in pages[:-1] if isinstance(page, DigestPage)}
            if entry.tiles_per_page and lengths - {entry.tiles_per_page * HASH_BYTES}:
                raise IntegrityError(f"the digest pages of tensor {entry.key} of {self.what} are not cut as it says")
            joined = b"".join(page.digests for page in pages if isinstance(page, DigestPage))
        digests = split_digests(joined, self.what)
        if size > len(digests) * TILE_BYTES_MAX:
            raise IntegrityError(f"tensor {entry.key} of {self.what} has fewer tiles than its shape wants")
        if len(digests) != grid(entry.dtype, entry.shape).tile_count:
            raise IntegrityError(f"tensor {entry.key} of {self.what} has another number of tiles than its grid")
        return digests


def committed(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> Checkpoint:
    """What the fold says of a checkpoint.

    Raises:
        NotFoundError: the model holds no such checkpoint.
    """
    state = registry.state.models.get(model)
    if state is not None and checkpoint in state.gone:
        raise gone_error(registry, model, checkpoint)
    if state is None or checkpoint not in state.checkpoints:
        raise NotFoundError(f"model {model.hex()} has no checkpoint {checkpoint.hex()}")
    return state.checkpoints[checkpoint]


def read_body(registry: Registry, model: ModelId, checkpoint: CheckpointId, state: Checkpoint) -> Body:
    """The body of a checkpoint, which may be deleted as long as it can be restored.

    Raises:
        IntegrityError: it is missing, damaged, or not the one that the id speaks for.
        NotAllowed: this user may read no manifest.
    """
    opened, what = registry.opened, f"checkpoint {short(checkpoint)}"
    sealed = read_object(opened, state.body, "body")
    plain = open_object(opened.secrets.k_ckpt, opened.store, ObjectKind.BODY, sealed, f"body of {what}")
    if checkpoint_id(opened.secrets.k_ckpt, plain) != checkpoint:
        raise IntegrityError(f"the body of {what} is another checkpoint's")
    body = decode(plain, Body, f"body of {what}")
    if body.model != model or body.rule != RULE:
        raise IntegrityError(f"the body of {what} belongs to another model, or uses an unknown tiling rule")
    if {(c.component, c.generation, c.hash) for c in body.components} != {
        (r.component, r.generation, r.object.hash) for r in state.roots
    }:
        raise IntegrityError(f"the body of {what} names other component roots than its commit")
    return body


def checkpoint_id(k_ckpt: bytes, body: bytes) -> CheckpointId:
    """Id of a checkpoint from the encoding of its body."""
    return CheckpointId(blake3(body, key=k_ckpt).digest())


def split_digests(joined: bytes, what: str) -> list[Digest]:
    """Cut a string of digests.

    Raises:
        IntegrityError: the length is not a multiple of a digest's.
    """
    if len(joined) % HASH_BYTES:
        raise IntegrityError(f"{what} holds a broken list of digests")
    return [Digest(joined[i : i + HASH_BYTES]) for i in range(0, len(joined), HASH_BYTES)]
