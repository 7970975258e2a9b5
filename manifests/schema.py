"""The records of a manifest. All are canonical MessagePack maps; a reader ignores fields it does not know.

`docs/format/v1.md` has the tables. Digests are secret and stand only here, inside sealed pages.
"""

import msgspec

Path = list[str | int]
# Offsets and lengths of a box.
Bounds = tuple[tuple[int, ...], tuple[int, ...]]


class Key(msgspec.Struct, frozen=True, order=True, gc=False):
    """Identity of a tensor: the folder (or file) that scopes it, and its key there, segment by segment."""

    scope: str
    path: tuple[str | int, ...]

    def __str__(self) -> str:
        """For people; injective, since separators inside segments are escaped."""
        name = "/".join(_escape(segment) for segment in self.path) if self.path else "~"
        scope = self.scope.replace("~", "~0").replace(":", "~3")
        return f"{scope}:{name}" if scope else name


class Region(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stored box: offsets and lengths in elements, and the digest of its row-major bytes."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    digest: bytes

    def __repr__(self) -> str:
        return f"Region({list(self.offsets)}, {list(self.lengths)}, <secret>)"


class TensorEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor: exactly one of the fields from `inline` to `region_pages` says where its bytes are.

    Args:
        inline: the row-major bytes themselves, up to `INLINE_BYTES_MAX`.
        tiles: digests of the whole canonical grid, 32 bytes each, in tile order.
        tile_pages: digests of pages that hold `tiles` in pieces.
        regions: boxes that cover the tensor without overlap, by offsets: of shards that cut tiles.
        region_pages: digests of pages that hold `regions` in pieces.
        tied_to: the first tensor of the group that shares memory with this one.
        tiles_per_page: tiles in each of `tile_pages` but the last, so that a reader can take those that it needs; 0
            if they are cut otherwise.
        region_bounds: for each of `region_pages` the box around its regions, for the same purpose; may be absent.
    """

    key: Key
    dtype: str
    shape: tuple[int, ...]
    inline: bytes | None = None
    tiles: bytes | None = None
    tile_pages: bytes | None = None
    tied_to: Key | None = None
    regions: tuple[Region, ...] = ()
    region_pages: bytes | None = None
    tiles_per_page: int = 0
    region_bounds: tuple[Bounds, ...] = ()

    def __repr__(self) -> str:
        return f"TensorEntry({self.key}, {self.dtype}, {list(self.shape)}, <secret>)"


class ValueEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One plain value (see `values.py`): its encoding, in line or as blocks of `FILE_BLOCK_BYTES` by digest.

    Args:
        length: bytes of the encoding, if it is in blocks.
        digests: digests of the blocks, 32 bytes each.
    """

    key: Key
    inline: bytes | None = None
    length: int = 0
    digests: bytes = b""

    def __repr__(self) -> str:
        return f"ValueEntry({self.key}, <secret>)"


class Literal(msgspec.Struct, frozen=True, tag="bytes"):
    """A run of a file's own bytes, in blocks of `FILE_BLOCK_BYTES` (the last may be shorter), by digest."""

    length: int
    digests: bytes

    def __repr__(self) -> str:
        return f"Literal({self.length}, <secret>)"


class Inline(msgspec.Struct, frozen=True, tag="inline"):
    """A short run of a file's own bytes."""

    data: bytes


class TensorBytes(msgspec.Struct, frozen=True, tag="tensor"):
    """The row-major bytes of a whole tensor of this checkpoint."""

    key: Key


Segment = Literal | Inline | TensorBytes


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file, folder or link of a tree. Long recipes continue in entries with `part` 1, 2, ...

    Args:
        path: relative, bytes as the file system has them, segments joined by `/`.
        kind: `file`, `folder` or `link`.
        mode: permission bits, 0..0o777.
        size: bytes of the whole file.
        segments: the recipe: what follows what.
        target: of a link.
        container: what the file was parsed as, if anything.
    """

    path: bytes
    kind: str
    mode: int = 0o644
    size: int = 0
    segments: tuple[Segment, ...] = ()
    target: bytes = b""
    container: str = ""
    part: int = 0


class TensorPage(msgspec.Struct, frozen=True, tag="tensors"):
    """A page of tensor entries, sorted by key."""

    entries: tuple[TensorEntry, ...]


class ValuePage(msgspec.Struct, frozen=True, tag="values"):
    """A page of plain values, sorted by key."""

    entries: tuple[ValueEntry, ...]


class FilePage(msgspec.Struct, frozen=True, tag="files"):
    """A page of file entries, sorted by path and part."""

    entries: tuple[FileEntry, ...]


class DigestPage(msgspec.Struct, frozen=True, tag="digests"):
    """A piece of a large tensor's grid."""

    digests: bytes

    def __repr__(self) -> str:
        return "DigestPage(<secret>)"


class RegionPage(msgspec.Struct, frozen=True, tag="regions"):
    """A piece of a large tensor's regions."""

    regions: tuple[Region, ...]


Page = TensorPage | FilePage | DigestPage | ValuePage | RegionPage


class ComponentRoot(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a component's key opens.

    Args:
        pages: digests of its pages, 32 bytes each, in entry order.
        entries: number of entries in them.
        bytes_logical: plaintext bytes of what they describe.
        values: how many of the entries are plain values.
    """

    pages: bytes
    entries: int
    bytes_logical: int
    values: int = 0

    def __repr__(self) -> str:
        return f"ComponentRoot({self.entries} entries, {self.bytes_logical} bytes, <secret>)"


class Parent(msgspec.Struct, frozen=True):
    """Lineage: what this checkpoint was made from, and how (see `relations.py`)."""

    relation: str
    checkpoint: bytes


class ComponentHash(msgspec.Struct, frozen=True):
    """BLAKE3 of a sealed component root."""

    component: int
    generation: int
    hash: bytes


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest body; the keyed hash of its encoding is the checkpoint's id.

    Args:
        exactness: how exactly training goes on from it, if it is one of a training run (see `exactness.py`).
    """

    format: int
    model: bytes
    rule: int
    components: tuple[ComponentHash, ...]
    parents: tuple[Parent, ...] = ()
    step: int | None = None
    exactness: str = ""


def _escape(segment: str | int) -> str:
    if isinstance(segment, int):
        return f"#{segment}"
    escaped = segment.replace("~", "~0").replace("/", "~1").replace(":", "~3")
    return "~2" + escaped[1:] if escaped.startswith("#") else escaped
