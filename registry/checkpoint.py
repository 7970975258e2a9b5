"""Reading a committed checkpoint's manifest: body, component roots, pages."""

from collections.abc import Iterator

from blake3 import blake3

from cairn.core.canonical import decode
from cairn.core.errors import IntegrityError, NotFoundError
from cairn.core.ids import HASH_BYTES, CheckpointId, Digest, ModelId, short
from cairn.manifests.dtypes import nbytes
from cairn.manifests.schema import Body, ComponentRoot, DigestPage, FileEntry, FilePage, Page, TensorEntry, TensorPage
from cairn.manifests.tiling import RULE, TILE_BYTES_MAX, grid
from cairn.registry.indexing import read_object
from cairn.registry.registry import Registry
from cairn.registry.state import Checkpoint
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.components import ComponentClass, component_class
from cairn.store.crypto.objects import ObjectKind, open_object
from cairn.store.crypto.tenant import ContentType


class CheckpointManifest:
    """The manifest of one checkpoint, read lazily and checked at every step."""

    def __init__(self, registry: Registry, model: ModelId, checkpoint: CheckpointId) -> None:
        """Read and check the body.

        Raises:
            IntegrityError: the body is missing, damaged, or not the one that the id speaks for.
        """
        self.model, self.id = model, checkpoint
        self.chunks: ChunkStore = registry.chunks()
        self._registry, self._opened = registry, registry.opened
        self.what = f"checkpoint {short(checkpoint)}"
        self.state = _committed(registry, model, checkpoint)
        opened = self._opened
        sealed = read_object(opened, self.state.body, "body")
        plain = open_object(opened.secrets.k_ckpt, opened.store, ObjectKind.BODY, sealed, f"body of {self.what}")
        if checkpoint_id(opened.secrets.k_ckpt, plain) != checkpoint:
            raise IntegrityError(f"the body of {self.what} is another checkpoint's")
        self.body = decode(plain, Body, f"body of {self.what}")
        if self.body.model != model or self.body.rule != RULE:
            raise IntegrityError(f"the body of {self.what} belongs to another model, or uses an unknown tiling rule")
        if {(c.component, c.generation, c.hash) for c in self.body.components} != {
            (r.component, r.generation, r.object.hash) for r in self.state.roots
        }:
            raise IntegrityError(f"the body of {self.what} names other component roots than its commit")

    @property
    def components(self) -> list[ComponentClass]:
        """Classes that this checkpoint has."""
        return [component_class(root.component, self.what) for root in self.state.roots]

    def root(self, component: ComponentClass) -> ComponentRoot:
        """The opened root of a component.

        Raises:
            NotFoundError: the checkpoint has no such component.
        """
        for ref in self.state.roots:
            if ref.component == component:
                what = f"{component.name.lower()} root of {self.what}"
                sealed = read_object(self._opened, ref.object, "root")
                keys = self._registry.model_keys(self.model)
                return decode(keys.pair(component).open_root(sealed, what), ComponentRoot, what)
        raise NotFoundError(f"{self.what} has no {component.name.lower()} component")

    def page_digests(self, component: ComponentClass) -> list[Digest]:
        """Digests of a component's pages, in order; empty if it has no such component."""
        return split_digests(self.root(component).pages, self.what) if component in self.components else []

    def read_page(self, digest: Digest) -> Page:
        """Read one page of any kind."""
        plain = self.chunks.read(ContentType.PAGE, digest)
        return decode(plain, Page, f"a page of {self.what}")  # type: ignore[arg-type]  # a union is a type to msgspec

    def tensors(self, pages: list[Digest] | None = None) -> Iterator[TensorEntry]:
        """Tensor entries of the weights component (or of the given pages of it), sorted by key."""
        for digest in self.page_digests(ComponentClass.WEIGHTS) if pages is None else pages:
            page = self.read_page(digest)
            if not isinstance(page, TensorPage):
                raise IntegrityError(f"a weights page of {self.what} holds something else")
            yield from page.entries

    def files(self, pages: list[Digest] | None = None) -> Iterator[FileEntry]:
        """File entries (or those of the given pages), sorted by path and part."""
        for digest in self.page_digests(ComponentClass.FILES) if pages is None else pages:
            page = self.read_page(digest)
            if not isinstance(page, FilePage):
                raise IntegrityError(f"a files page of {self.what} holds something else")
            yield from page.entries

    def tiles(self, entry: TensorEntry) -> list[Digest]:
        """Digests of an entry's whole grid; empty for inline bytes.

        Raises:
            IntegrityError: their number is not the grid's.
        """
        if entry.inline is not None:
            return []
        # Before the grid is laid out: a shape is a claim, digests are bytes at hand.
        size, joined = nbytes(entry.dtype, entry.shape), entry.tiles
        if joined is None:
            pages = [self.read_page(digest) for digest in split_digests(entry.tile_pages or b"", self.what)]
            if not all(isinstance(page, DigestPage) for page in pages):
                raise IntegrityError(f"a digest page of {self.what} holds something else")
            joined = b"".join(page.digests for page in pages if isinstance(page, DigestPage))
        digests = split_digests(joined, self.what)
        if size > len(digests) * TILE_BYTES_MAX:
            raise IntegrityError(f"tensor {entry.key} of {self.what} has fewer tiles than its shape wants")
        if len(digests) != grid(entry.dtype, entry.shape).tile_count:
            raise IntegrityError(f"tensor {entry.key} of {self.what} has another number of tiles than its grid")
        return digests


def _committed(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> Checkpoint:
    state = registry.state.models.get(model)
    if state is None or checkpoint not in state.checkpoints:
        raise NotFoundError(f"model {model.hex()} has no checkpoint {checkpoint.hex()}")
    return state.checkpoints[checkpoint]


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
