"""A checkout believes no manifest: each that breaks a rule is refused, and nothing appears anywhere."""

import os
from pathlib import Path

import pytest

from cairn.core.canonical import encode
from cairn.core.errors import CairnError, IntegrityError
from cairn.core.limits import FILE_BLOCK_BYTES
from cairn.manifests.schema import (
    DigestPage,
    FileEntry,
    FilePage,
    Inline,
    Key,
    Literal,
    TensorBytes,
    TensorEntry,
    TensorPage,
)
from cairn.registry.registry import Registry
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType
from cairn.workspace.checkout import checkout
from tests.support.hostile import publish_entries, publish_pages
from tests.support.stores import Site

ZERO = bytes(32)
W = Key("", ("w",))


def file(path: bytes = b"f", data: bytes = b"data", **facts: object) -> FileEntry:
    fields = {"size": len(data), "segments": (Inline(data),), **facts}
    return FileEntry(path, "file", **fields)  # type: ignore[arg-type]  # one field is wrong on purpose


@pytest.fixture
def registry(site: Site) -> Registry:
    return site.registry()


@pytest.fixture
def room(tmp_path: Path) -> Path:
    (tmp_path / "room").mkdir()
    return tmp_path / "room"


def refused(registry: Registry, room: Path, published: tuple[object, object]) -> CairnError:
    """The error of a checkout, which must leave nothing, here or above."""
    above = set(room.parent.iterdir())
    with pytest.raises(CairnError) as caught:
        checkout(registry, *published, room / "out")  # type: ignore[arg-type]  # ids, as published
    assert os.listdir(room) == []
    assert set(room.parent.iterdir()) == above
    return caught.value


def test_an_honest_manifest_by_hand_is_checked_out(registry: Registry, room: Path) -> None:
    entries = [file(), FileEntry(b"d", "folder", 0o755), FileEntry(b"l", "link", target=b"f")]
    checkout(registry, *publish_entries(registry, entries), room / "out")
    assert sorted(os.listdir(room / "out")) == ["d", "f", "l"]


PATHS = [b"../x", b"/abs", b"a/../b", b"a/../../x", b"", b".", b"..", b"a//b", b"a/", b"./a", b"a\0b", b"d/..", b"\0"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_X17_a_path_that_leads_out_is_refused(registry: Registry, room: Path, path: bytes, kind: str) -> None:
    entry = FileEntry(path, kind, target=b"f" if kind == "link" else b"")
    error = refused(registry, room, publish_entries(registry, [file(), entry]))
    assert isinstance(error, IntegrityError)


@pytest.mark.parametrize("target", [b"/etc/passwd", b"..", b"../x", b"a/../../x", b"", b"x\0y"])
def test_a_link_that_leads_out_is_refused(registry: Registry, room: Path, target: bytes) -> None:
    refused(registry, room, publish_entries(registry, [FileEntry(b"l", "link", target=target)]))


SHAPES = {
    "another kind": [FileEntry(b"f", "device")],
    "two files of one path": [file(), file()],
    "a file and a folder": [file(), FileEntry(b"f", "folder")],
    "a folder and a file": [FileEntry(b"f", "folder"), file()],
    "a link and a file": [FileEntry(b"f", "link", target=b"x"), file()],
    "a file below a file": [file(b"a"), file(b"a/b")],
    "a file through a link": [FileEntry(b"l", "link", target=b"."), file(b"l/x")],
    "a part without a beginning": [file(part=1)],
    "a name that is too long": [file(b"x" * 300)],
    "too small a size": [file(size=3)],
    "too large a size": [file(size=5)],
    "a negative size": [file(size=-1)],
    "an absurd size": [file(size=1 << 62)],
    "a set-user bit": [file(mode=0o4755)],
    "a negative mode": [file(mode=-1)],
    "a set-group bit of a folder": [FileEntry(b"d", "folder", 0o2755)],
    "no block": [file(segments=(Literal(5, b""),), size=5)],
    "half a digest": [file(segments=(Literal(5, ZERO[:16]),), size=5)],
    "a block too many": [file(segments=(Literal(5, ZERO * 2),), size=5)],
    "a block too few": [file(segments=(Literal(FILE_BLOCK_BYTES + 1, ZERO),), size=FILE_BLOCK_BYTES + 1)],
    "a negative run": [file(segments=(Literal(-1, b""), Inline(b"xy")), size=1)],
    "an unknown chunk": [file(segments=(Literal(5, b"\1" * 32),), size=5)],
    "an absurd run": [file(segments=(Literal(1 << 62, ZERO),), size=1 << 62)],
    "a tensor that is not there": [file(segments=(TensorBytes(W),), size=4)],
}


@pytest.mark.parametrize("entries", SHAPES.values(), ids=SHAPES)
def test_files_that_do_not_fit_are_refused(registry: Registry, room: Path, entries: list[FileEntry]) -> None:
    refused(registry, room, publish_entries(registry, entries))


def test_what_is_refused_was_not_run_with_special_rights_meanwhile(registry: Registry, room: Path) -> None:
    """Even if a bit were taken for a permission, no file may have it when it appears."""
    try:
        checkout(registry, *publish_entries(registry, [file(mode=0o6777)]), room / "out")
    except CairnError:
        return
    assert (room / "out" / "f").stat().st_mode & 0o7000 == 0


TENSORS = {
    "no form": TensorEntry(W, "float32", (1,)),
    "tiles too few": TensorEntry(W, "float32", (1,), tiles=b""),
    "tiles too many": TensorEntry(W, "float32", (1,), tiles=ZERO * 2),
    "half a tile": TensorEntry(W, "float32", (1,), tiles=ZERO[:9]),
    "inline too short": TensorEntry(W, "float32", (1,), inline=b"123"),
    "inline too long": TensorEntry(W, "float32", (1,), inline=b"12345"),
    "unknown type": TensorEntry(W, "float33", (1,), inline=b"1234"),
    "negative shape": TensorEntry(W, "float32", (-1,), inline=b"1234"),
    "absurd shape": TensorEntry(W, "float32", (1 << 40, 1 << 40), tiles=ZERO),
    "many dimensions": TensorEntry(W, "float32", (1,) * 70, inline=b"1234"),
    "unknown tile": TensorEntry(W, "float32", (1,), tiles=b"\1" * 32),
    "unknown page": TensorEntry(W, "float32", (1,), tile_pages=b"\1" * 32),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_tensors_that_do_not_fit_are_refused(registry: Registry, room: Path, tensor: TensorEntry) -> None:
    entry = file(segments=(TensorBytes(W),), size=4)
    refused(registry, room, publish_entries(registry, [entry], [tensor]))


def test_pages_of_another_kind_are_refused(registry: Registry, room: Path) -> None:
    tensors, files = TensorPage((TensorEntry(W, "int8", (1,), inline=b"x"),)), FilePage((file(),))
    for pages in (
        {ComponentClass.FILES: [tensors]},
        {ComponentClass.FILES: [DigestPage(ZERO)]},
        {ComponentClass.FILES: [files], ComponentClass.WEIGHTS: [files]},
    ):
        refused(registry, room, publish_pages(registry, pages))


def test_a_chunk_of_another_length_is_refused(registry: Registry, room: Path) -> None:
    digest = registry.opened.keys.chunk.digest(b"four")
    for size in (3, 5):
        entry = file(segments=(Literal(size, bytes(digest)),), size=size)
        published = publish_pages(registry, {ComponentClass.FILES: [FilePage((entry,))]}, chunks=[b"four"])
        assert isinstance(refused(registry, room, published), IntegrityError)


def test_a_page_is_no_chunk_of_a_file(registry: Registry, room: Path) -> None:
    """Digests of pages are made with other keys, so a page named as a chunk is not found."""
    page = FilePage((file(),))
    model, checkpoint = publish_pages(registry, {ComponentClass.FILES: [page]})
    digest = registry.opened.keys.of(ContentType.PAGE).digest(encode(page))
    entry = file(segments=(Literal(9, bytes(digest)),), size=9)
    refused(registry, room, publish_entries(registry, [entry]))
    checkout(registry, model, checkpoint, room / "out")
