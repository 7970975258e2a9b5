"""No way of reading tensors believes a manifest: what breaks a rule is refused, before memory is taken for it."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import cairn
from cairn.core.canonical import encode
from cairn.core.errors import CairnError
from cairn.manifests.schema import DigestPage, Key, Page, Region, RegionPage, TensorEntry, TensorPage
from cairn.registry.registry import Registry
from cairn.store.crypto.components import ComponentClass
from tests.support.hostile import publish_pages
from tests.support.stores import Site

ZERO = bytes(32)
W, OTHER = Key("", ("w",)), Key("", ("v",))
# What a reader may take while it refuses: far below what these entries speak of.
MEMORY_BYTES_MAX = 256 << 20

BOXES: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "overlapping": [((0, 0), (3, 4)), ((2, 0), (2, 4))],
    "twice the same": [((0, 0), (4, 4)), ((0, 0), (4, 4))],
    "a hole": [((0, 0), (1, 4)), ((2, 0), (2, 4))],
    "beyond the end": [((0, 0), (4, 5))],
    "before the beginning": [((-1, 0), (5, 4))],
    "another rank": [((0,), (16,))],
    "no axis": [((), ())],
    "negative lengths": [((4, 4), (-4, -4))],
    "absurd": [((0, 0), (1 << 62, 1 << 62))],
    "past 64 bits": [((0, 0), ((1 << 63) + 4, 4))],
}
SHAPES: dict[str, TensorEntry] = {
    "tiles for an absurd shape": TensorEntry(W, "float32", (1 << 40, 1 << 20), tiles=ZERO * 8),
    "tiles past 64 bits": TensorEntry(W, "float32", (1 << 32, 1 << 32, 1 << 32), tiles=ZERO),
    "no bytes in many tiles": TensorEntry(W, "float32", (0, 1 << 62), tiles=ZERO * 4),
    "in line and absurd": TensorEntry(W, "float32", (1 << 50,), inline=b"1234"),
    "tied to nothing": TensorEntry(W, "float32", (1,), tied_to=OTHER),
    "packed and past 64 bits": TensorEntry(W, "float4_e2m1fn_x2", (1 << 62, 1 << 62), tiles=ZERO),
}


def hostile(boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> TensorEntry:
    return TensorEntry(W, "float32", (4, 4), regions=tuple(Region(*box, ZERO) for box in boxes))


ENTRIES = {f"regions: {name}": hostile(boxes) for name, boxes in BOXES.items()} | SHAPES


@pytest.fixture
def registry(site: Site) -> Registry:
    return site.registry()


def by_slices(registry: Registry, folder: Path) -> None:
    with cairn.open("m", registry) as opened:
        for name in opened:
            opened[name][...]


def by_slice_of_one(registry: Registry, folder: Path) -> None:
    with cairn.open("m", registry) as opened:
        for name in opened:
            opened[name][:1]


def by_export(kind: str) -> Callable[[Registry, Path], None]:
    def read(registry: Registry, folder: Path) -> None:
        cairn.export(registry, *cairn.resolve(registry, "m"), folder / "out", cairn.ExportOptions(kind))

    return read


def by_training(registry: Registry, folder: Path) -> None:
    with cairn.Checkpointer(registry, "m") as checkpointer:
        checkpointer.load({"w": torch.zeros(4, 4)}, resume=False)


WAYS = {
    "slices": by_slices, "a slice": by_slice_of_one, "training": by_training,
    **{kind: by_export(kind) for kind in ("safetensors", "torch", "dcp")},
}  # fmt: skip


def refused(registry: Registry, read: Callable[[Registry, Path], None], folder: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CairnError):
            read(registry, folder)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()
    assert not (folder / "out").exists() or os.listdir(folder / "out") == []


@pytest.mark.parametrize("read", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_tensors_that_do_not_fit_are_refused_by_all_who_read(
    registry: Registry, tmp_path: Path, entry: TensorEntry, read: Callable[[Registry, Path], None]
) -> None:
    publish_pages(registry, {ComponentClass.WEIGHTS: [TensorPage((entry,))]})
    refused(registry, read, tmp_path)


PAGES: dict[str, Callable[[Registry], TensorEntry]] = {
    "of another kind": lambda registry: paged(registry, DigestPage(ZERO)),
    "of no region": lambda registry: paged(registry, RegionPage(())),
    "that overlap": lambda registry: paged(registry, RegionPage((Region((0, 0), (4, 4), ZERO),)), times=2),
}


def paged(registry: Registry, page: Page, times: int = 1) -> TensorEntry:
    digest = registry.opened.keys.page.digest(encode(page))
    return TensorEntry(W, "float32", (4, 4), region_pages=bytes(digest) * times)


@pytest.mark.parametrize("read", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_pages_of_regions_that_do_not_fit_are_refused(
    registry: Registry, tmp_path: Path, make: Callable[[Registry], TensorEntry], read: Callable[[Registry, Path], None]
) -> None:
    pages: list[Page] = [RegionPage((Region((0, 0), (4, 4), ZERO),)), RegionPage(()), DigestPage(ZERO)]
    publish_pages(registry, {ComponentClass.OPTIMIZER: pages, ComponentClass.WEIGHTS: [TensorPage((make(registry),))]})
    with pytest.raises(CairnError):
        read(registry, tmp_path)
