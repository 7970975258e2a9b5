"""Manifests, tensors, values and files: sections 13 to 16 of `docs/format/v1.md`. Imports nothing of Cairn."""

import struct
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from tests.vectors.format.reader import (
    BODY,
    CHUNK,
    FILES,
    META,
    MIB,
    PAGE,
    REACHABILITY,
    Damaged,
    Fields,
    Vault,
    decode,
    encode,
    hash_of,
    open_gcm,
    require,
)
from tests.vectors.format.reader_attest import read_statement
from tests.vectors.format.reader_content import Content
from tests.vectors.format.reader_log import Log
from tests.vectors.format.reader_values import Key, read_value

# Of the element types only those that the golden stores use.
BITS = {
    "float4_e2m1fn": 4, "bool": 8, "int8": 8, "uint8": 8, "float8_e4m3fn": 8, "int16": 16, "bfloat16": 16,
    "float32": 32, "int64": 64, "float64": 64, "complex64": 64,
}  # fmt: skip
CONTENT = ("inline", "tiles", "tile_pages", "regions", "region_pages")


class Store:
    """A store by the names that people give."""

    def __init__(self, folder: Path, key_text: bytes | None, passphrase: str = "", vault: Vault | None = None) -> None:
        self.vault = vault or Vault(folder, key_text, passphrase)
        self.log = Log(self.vault)
        self.content = Content(self.vault, self.log)
        self._private = {model: self.vault.model_keys(model, held) for model, held in self.log.models.items()}

    def _meta(self, model: bytes, purpose: str, sealed: bytes) -> bytes:
        """What is sealed to a model's meta key, which does not say of which generation: the newest comes first."""
        keys = sorted((key for key in self._private[model] if key[0] == META), reverse=True)
        for key in keys:
            try:
                return self.vault.open_hpke(model, key, self._private[model][key], purpose, sealed)
            except Damaged:
                continue
        raise Damaged("no meta key opens it")

    def name(self, model: bytes, sealed: bytes) -> str:
        """A sealed model or ref name."""
        return self._meta(model, "name", sealed).decode()

    def models(self) -> dict[str, bytes]:
        """Model ids by name."""
        return {self.name(model, held["sealed_name"]): model for model, held in self.log.models.items()}

    def refs(self, model: bytes) -> dict[str, bytes]:
        """Checkpoints of a model by ref name."""
        return {self.name(model, sealed): value for _, value, sealed in self.log.models[model]["refs"].values()}

    def message(self, model: bytes, checkpoint: bytes) -> Fields:
        """Message and step of a commit."""
        sealed = self.log.models[model]["checkpoints"][checkpoint]["meta"]
        return dict(decode(self._meta(model, "commit-meta", sealed)))

    def envelope(self, model: bytes, checkpoint: bytes) -> Fields | None:
        """Times and places of a save, if its commit names any."""
        reference = self.log.models[model]["checkpoints"][checkpoint].get("envelope")
        if reference is None:
            return None
        sealed = self.vault.read_named(reference, "envelope")
        return dict(decode(self._meta(model, "envelope", sealed)))

    def statements(self, model: bytes, checkpoint: bytes) -> list[tuple[Fields, Fields]]:
        """Payloads of entries that hold signed statements about a checkpoint, and the statements."""
        found = []
        for n, _ in self.log.models[model]["checkpoints"][checkpoint].get("attested", {}).values():
            body = decode(self.log.entry(n)["payload"])
            envelope = self._meta(model, "attestation", body["envelope"])
            found.append((body, read_statement(envelope, body["signer"])))
        return found

    def checkpoint(self, model: bytes, checkpoint: bytes) -> "Checkpoint":
        """Open a checkpoint."""
        return Checkpoint(self, model, checkpoint)

    def root(self, model: bytes, reference: Fields) -> Fields:
        """A component root, opened."""
        sealed = self.vault.read_named(reference["object"], "root")
        key = reference["component"], reference["generation"]
        head = b"CRNR\x01" + struct.pack("<BH", *key)
        require(len(sealed) >= 104 and sealed[:8] == head, "header of a root")
        require(key in self._private[model], "a component that was not granted")
        fresh = self.vault.open_hpke(model, key, self._private[model][key], "root", sealed[8:88])
        return dict(decode(open_gcm(fresh, bytes(12), sealed[88:], sealed[:88])))


class Checkpoint:
    """A manifest, checked against its commit, and what it describes."""

    def __init__(self, store: Store, model: bytes, checkpoint: bytes) -> None:
        vault, commit = store.vault, store.log.models[model]["checkpoints"][checkpoint]
        plain = vault.open(vault.k_ckpt, BODY, vault.read_named(commit["body"], "body"))
        require(hash_of(plain, vault.k_ckpt) == checkpoint, "body of another checkpoint")
        self.body = decode(plain)
        named = [{**root, "object": None, "hash": root["object"]["hash"]} for root in commit["roots"]]
        hashes = [{**part, "object": None} for part in self.body["components"]]
        require(self.body["model"] == model and self.body["rule"] == 1 and hashes == named, "body and commit differ")
        self._content, self._vault = store.content, vault
        self.used: set[bytes] = set()
        self.tensors: dict[bytes, Fields] = {}
        self.values: dict[bytes, Fields] = {}
        self.files: list[Fields] = []
        self.components: dict[int, int] = {}
        for reference in commit["roots"]:
            self._component(reference["component"], store.root(model, reference))
        joined = vault.open(vault.k_index, REACHABILITY, vault.read_named(commit["reachability"], "reach"))
        self.reachable = split(joined)
        require(self.reachable == sorted(set(self.reachable)), "reachability list is not sorted")

    def _component(self, component: int, root: Fields) -> None:
        """Take up the entries of a component: of files, or of tensors and then of values."""
        entries: dict[str, list[Fields]] = {"tensors": [], "values": [], "files": []}
        for digest in split(root["pages"]):
            page = self._page(digest)
            kind = page["type"]
            require(kind == "files" if component == FILES else kind in ("tensors", "values"), "page of another kind")
            require(kind != "tensors" or not entries["values"], "tensors after values")
            entries[kind] += page["entries"]
        for held, found in ((self.tensors, entries["tensors"]), (self.values, entries["values"])):
            keys = [encode([entry["key"]["scope"], entry["key"]["path"]]) for entry in found]
            require(all(a < b for a, b in pairwise(keys)), "entries are not in order")
            held.update((encode(entry["key"]), entry) for entry in found)
        self.files += entries["files"]
        self.components[component] = sum(map(len, entries.values()))
        require(self.components[component] == root["entries"], "number of entries")
        require(len(entries["values"]) == root.get("values", 0), "number of values")

    def _page(self, digest: bytes) -> Fields:
        self._use(PAGE, digest)
        return dict(decode(self._content.read(PAGE, digest)))

    def _use(self, kind: int, digest: bytes) -> None:
        self.used.add(hash_of(digest, self._vault.content[kind][1]))

    def chunk(self, digest: bytes, length: int) -> bytes:
        """A chunk, or the fill that its digest stands for."""
        if digest[:31] == bytes(31):
            return digest[31:] * length
        self._use(CHUNK, digest)
        plain = self._content.read(CHUNK, digest)
        require(len(plain) == length, "chunk of another length")
        return plain

    def tensor(self, entry: Fields) -> bytes:
        """Row-major bytes of a tensor (section 15)."""
        shape, bits = entry["shape"], BITS[entry["dtype"]]
        total = prod(shape) * bits // 8
        require(sum(field in entry for field in CONTENT) == 1, "one field says where the bytes are")
        if "inline" in entry:
            require(len(entry["inline"]) == total, "length of inline bytes")
            return bytes(entry["inline"])
        if "regions" in entry or "region_pages" in entry:
            require(bits % 8 == 0, "regions of elements narrower than a byte")
            return from_regions(shape, bits // 8, self._regions(entry), self.chunk)
        joined = entry.get("tiles") or self._tiles(entry)
        shape, item = ([total], 1) if bits % 8 else (shape, bits // 8)
        return assemble(shape, item, split(joined), self.chunk)

    def _tiles(self, entry: Fields) -> bytes:
        pages = [self._page(digest)["digests"] for digest in split(entry["tile_pages"])]
        step = 32 * entry.get("tiles_per_page", 0)
        require(not step or all(len(page) == step for page in pages[:-1]), "tiles of a page")
        require(not step or len(pages[-1]) <= step, "tiles of the last page")
        return b"".join(pages)

    def _regions(self, entry: Fields) -> list[Any]:
        pages = [self._page(digest)["regions"] for digest in split(entry.get("region_pages", b""))]
        bounds = entry.get("region_bounds", [])
        require(len(bounds) in (0, len(pages)), "bounds of each page of regions")
        for (offsets, lengths), page in zip(bounds, pages, strict=False):
            low = [min(starts) for starts in zip(*(region[0] for region in page), strict=True)]
            ends = zip(*(map(sum, zip(*region[:2], strict=True)) for region in page), strict=True)
            require(offsets == low and lengths == [max(e) - at for e, at in zip(ends, low, strict=True)], "bounds")
        return [*entry.get("regions", []), *(region for page in pages for region in page)]

    def value(self, entry: Fields) -> Any:
        """A plain value (section 15)."""
        require(("inline" in entry) != ("digests" in entry), "a value is in line or in blocks")
        return read_value(entry["inline"] if "inline" in entry else self._blocks(entry["digests"], entry["length"]))

    def state(self) -> tuple[dict[Key, bytes], dict[Key, Any]]:
        """Tensors as their bytes, and values as plain data, by scope and path."""
        tensors = {key_of(entry): self.tensor(entry) for entry in self.tensors.values()}
        values = {key_of(entry): self.value(entry) for entry in self.values.values()}
        require(tensors.keys().isdisjoint(values), "a tensor and a value have one key")
        return tensors, values

    def file(self, path: bytes) -> bytes:
        """Content of a file (section 16)."""
        parts = sorted((e for e in self.files if e["path"] == path), key=lambda entry: entry.get("part", 0))
        require([part.get("part", 0) for part in parts] == list(range(len(parts))) != [], "parts of a file")
        content = b"".join(self._segment(segment) for part in parts for segment in part.get("segments", []))
        require(len(content) == parts[0].get("size", 0), "size of a file")
        return content

    def _segment(self, segment: Fields) -> bytes:
        if segment["type"] == "inline":
            return bytes(segment["data"])
        if segment["type"] == "tensor":
            return self.tensor(self.tensors[encode(segment["key"])])
        require(segment["type"] == "bytes", "unknown segment")
        return self._blocks(segment["digests"], segment["length"])

    def _blocks(self, joined: bytes, length: int) -> bytes:
        digests = split(joined)
        require(len(digests) == -(-length // MIB), "number of blocks")
        return b"".join(self.chunk(digest, min(MIB, length - i * MIB)) for i, digest in enumerate(digests))


def key_of(entry: Fields) -> Key:
    """Scope and path of an entry."""
    return entry["key"]["scope"], tuple(entry["key"]["path"])


def split(joined: bytes) -> list[bytes]:
    """Digests or ids of a byte string."""
    require(len(joined) % 32 == 0, "broken list of digests")
    return [joined[at : at + 32] for at in range(0, len(joined), 32)]


# --- Section 15: tiling rule 1 -----------------------------------------------------------------


def edges(shape: list[int], item: int) -> list[list[int]]:
    """Cut positions along each axis."""
    total, last = prod(shape) * item, len(shape) - 1
    if total <= MIB:
        return [[0, length] if length else [0] for length in shape]
    columns = 1
    for parts in (2, 4, 8) if last and shape[last] >= shape[last - 1] else ():
        wide = shape[last] % parts == 0 and shape[last] // parts * item >= 2048
        columns = parts if wide and total >= 8 * parts * MIB else columns
    cut, unit = last, shape[last] // columns * item
    if unit > 2 * MIB or last == 0:
        unit = item
    else:
        cut = last - 1
        while cut > 0 and unit * shape[cut] <= 2 * MIB:
            unit *= shape[cut]
            cut -= 1
    found = [list(range(shape[axis] + 1)) for axis in range(cut)]
    found.append(_cut(shape[cut], unit))
    found += [[0, shape[axis]] for axis in range(cut + 1, last)]
    return found + ([list(range(0, shape[last] + 1, shape[last] // columns))] if cut < last else [])


def _cut(length: int, unit: int) -> list[int]:
    blocks = next((s for s in (8, 4, 2) if length % s == 0 and length // s * unit >= MIB), 1)
    block, pieces = length // blocks, 1
    while -(-block // pieces) * unit > 2 * MIB and pieces < block:
        pieces *= 2
    step = -(-block // pieces)
    starts = [start + at for start in range(0, length, block) for at in range(0, block, step)]
    return [*starts, length]


def assemble(shape: list[int], item: int, digests: list[bytes], fetch: Any) -> bytes:
    """Row-major bytes of a tensor from its tiles, which are numbered in row-major order of the grid."""
    cuts = edges(shape, item)
    require(len(digests) == prod(len(cut) - 1 for cut in cuts), "number of tiles")
    whole = bytearray(prod(shape) * item)
    for number, digest in enumerate(digests):
        box, rest = [], number
        for cut in reversed(cuts):
            rest, at = divmod(rest, len(cut) - 1)
            box.insert(0, (cut[at], cut[at + 1]))
        tile = fetch(digest, prod(end - start for start, end in box) * item)
        for at, start, length in _runs(shape, box):
            whole[start * item : (start + length) * item] = tile[at * item : (at + length) * item]
    return bytes(whole)


def from_regions(shape: list[int], item: int, regions: list[Any], fetch: Any) -> bytes:
    """Row-major bytes of a tensor from boxes, which hold each element once."""
    whole, seen = bytearray(prod(shape) * item), bytearray(prod(shape))
    for offsets, lengths, digest in regions:
        require(len(offsets) == len(lengths) == len(shape), "axes of a region")
        require(min(offsets + lengths, default=0) >= 0 and prod(lengths) * item <= 8 * MIB, "size of a region")
        box = [(start, start + length) for start, length in zip(offsets, lengths, strict=True)]
        require(all(end <= axis for (_, end), axis in zip(box, shape, strict=True)), "a region outside its tensor")
        data = fetch(digest, prod(lengths) * item)
        for at, start, length in _runs(shape, box):
            require(not any(seen[start : start + length]), "regions overlap")
            seen[start : start + length] = b"\1" * length
            whole[start * item : (start + length) * item] = data[at * item : (at + length) * item]
    require(all(seen), "regions leave a gap")
    return bytes(whole)


def _runs(shape: list[int], box: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Contiguous runs of a box: offset in the box, offset in the tensor, length; in elements."""
    if not box:
        yield 0, 0, 1
        return
    axis, length = len(box), 1
    while axis and (axis == len(box) or length == prod(shape[axis:])):
        axis -= 1
        length *= box[axis][1] - box[axis][0]
    count = prod(end - start for start, end in box[:axis])
    for number in range(count):
        rest, start, step = number, box[axis][0] * prod(shape[axis + 1 :]), prod(shape[axis:])
        for i in range(axis - 1, -1, -1):
            rest, at = divmod(rest, box[i][1] - box[i][0])
            start += (box[i][0] + at) * step
            step *= shape[i]
        yield number * length, start, length
