"""The measurements behind the canonical grid (`manifests/tiling.py`, rule 1; `docs/adr/0003-tiling.md`).

`python benchmarks/tiling.py` prints how fast tiles are opened and sealed by row length, and what a grid costs readers:
tiles, manifest bytes and over-read for the tensors of real models, for other numbers in the same rule.

Over-read is exact and needs no run: a grid is a product of cuts along each axis, and so are the tiles that a box
touches; what a reader fetches over what it wants is therefore a product of one factor an axis.
"""

import argparse
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from os import cpu_count

from models import MODELS, Model, Shape
from report import binary, table
from tile_speed import KIB, MIB, throughput_table

from cairn.manifests import tiling

TILES = (MIB, 2 * MIB, 4 * MIB)
ROW_MINIMA = (KIB, 2 * KIB, 4 * KIB)
TENSOR_PARALLEL = (2, 4, 8)
DATA_PARALLEL = (8, 16, 64, 1024, 8960)


@contextmanager
def changed(**names: object) -> Iterator[None]:
    """The rule as coded, with other numbers or another step in it."""
    kept = {name: getattr(tiling, name) for name in names}
    for name, value in names.items():
        setattr(tiling, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(tiling, name, value)


def numbers(tile_bytes_max: int, row_bytes_min: int) -> AbstractContextManager[None]:
    """Other numbers; the smallest tile is half the largest."""
    return changed(TILE_BYTES_MIN=tile_bytes_max // 2, TILE_BYTES_MAX=tile_bytes_max, ROW_BYTES_MIN=row_bytes_min)


def _no_columns(shape: Shape, item: int, total: int) -> int:
    return 1


def _columns_always(shape: Shape, item: int, total: int) -> int:
    """Step 1 of the rule for tensors of every form."""
    for parts in (8, 4, 2) if len(shape) > 1 else ():
        wide_enough = shape[-1] % parts == 0 and shape[-1] // parts * item >= tiling.ROW_BYTES_MIN
        if wide_enough and total >= 8 * parts * tiling.TILE_BYTES_MIN:
            return parts
    return 1


def _columns_of_wide(shape: Shape, item: int, total: int) -> int:
    """The same, for tensors whose last axis is at least as long as the one to its left."""
    return _columns_always(shape, item, total) if len(shape) > 1 and shape[-1] >= shape[-2] else 1


_TP_LAYOUTS = ("megatron", "rows", "columns")
_RULES = {"columns always": _columns_always, "columns if wide": _columns_of_wide, "no columns": _no_columns}


def cuts(length: int, parts: int) -> list[tuple[int, int]]:
    """Shards of an axis as torch cuts it: equal but for the last ones; empty ones are left out."""
    step = -(-length // parts)
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def fetched(edges: Sequence[int], shards: Sequence[tuple[int, int]]) -> int:
    """Length along one axis of all tiles that each shard touches, summed over the shards."""
    return sum(edges[bisect_left(edges, end)] - edges[bisect_right(edges, start) - 1] for start, end in shards)


def whole(edges: Sequence[int], shards: Sequence[tuple[int, int]]) -> int:
    """Length along one axis of the tiles that lie in one shard."""
    inside = 0
    for start, end in shards:
        first, last = bisect_left(edges, start), bisect_right(edges, end) - 1
        inside += max(0, edges[last] - edges[first]) if last > first else 0
    return inside


def over_read(model: Model, layout: str, parts: int) -> float:
    """Bytes fetched over bytes wanted when every weight that a layout splits is split in so many parts."""
    got = wanted = 0.0
    for weight in model.weights:
        axis = weight.axis(layout)
        if axis is not None:
            length = weight.shape[axis]
            edges = tiling.grid("bfloat16", weight.shape).edges[axis]
            got += weight.times * prod(weight.shape) * fetched(edges, cuts(length, parts)) / length
            wanted += weight.times * prod(weight.shape)
    return got / wanted


def in_whole_tiles(model: Model, parts: int) -> float:
    """Share of the bytes that a save split along axis 0 stores as tiles; the rest are regions of its own."""
    inside = total = 0.0
    for weight in model.weights:
        length = weight.shape[0]
        edges = tiling.grid("bfloat16", weight.shape).edges[0]
        inside += weight.times * prod(weight.shape) * whole(edges, cuts(length, parts)) / length
        total += weight.times * prod(weight.shape)
    return inside / total


def tiles_of(model: Model, dtype: str) -> int:
    """Number of tiles of all weights."""
    return sum(weight.times * tiling.grid(dtype, weight.shape).tile_count for weight in model.weights)


def shapes_table() -> str:
    """How the rule cuts every shape."""
    rows = []
    for shape in sorted({weight.shape for model in MODELS for weight in model.weights}, key=lambda s: (len(s), s)):
        grid = tiling.grid("bfloat16", shape)
        tile = grid.tile(0)
        cut = len(shape) > 1 and grid.counts[-1] > 1
        cells = str(list(grid.counts)), str(list(tile.lengths)), binary(grid.tile_bytes(0))
        rows.append((str(list(shape)), *cells, binary(tile.lengths[-1] * 2) if cut else "contiguous"))
    return table(("shape, bfloat16", "grid", "first tile", "its size", "its rows"), rows)


def counts_table() -> str:
    """Tiles and manifest bytes of each model: its weights, and a training state with float32 master and moments."""
    rows = []
    for model in MODELS:
        size = sum(2 * weight.times * prod(weight.shape) for weight in model.weights)
        for tile_bytes, row_bytes in _settings():
            with numbers(tile_bytes, row_bytes):
                tiles = tiles_of(model, "bfloat16")
                state = tiles + 3 * tiles_of(model, "float32")
            cells = f"{tiles:,}", binary(size // tiles), f"{tiles * 32 / MIB:.2f}", f"{state * 32 / MIB:.1f}"
            rows.append((f"{model.name}, {_name(tile_bytes, row_bytes)}", *cells))
    return table(("weights in bfloat16", "tiles", "mean tile", "digests, MiB", "of a training state, MiB"), rows)


def over_read_table(model: Model) -> str:
    """Over-read of one model for other numbers in the rule."""
    rows = []
    for tile_bytes, row_bytes in _settings():
        with numbers(tile_bytes, row_bytes):
            found = [over_read(model, layout, n) for layout in _TP_LAYOUTS for n in TENSOR_PARALLEL]
            found += [over_read(model, "fsdp", n) for n in DATA_PARALLEL]
        rows.append((_name(tile_bytes, row_bytes), *(f"{one:.2f}" for one in found)))
    headings = [f"{layout} {n}" for layout in _TP_LAYOUTS for n in TENSOR_PARALLEL]
    return table((model.name, *headings, *(f"fsdp {n}" for n in DATA_PARALLEL)), rows)


def rules_table() -> str:
    """The rule as coded beside others: what readers fetch, and what a save stores as whole tiles."""
    rows = []
    for model in MODELS:
        for name, step in _RULES.items():
            with changed(_columns=step):
                found = [f"{over_read(model, 'megatron', n):.2f}" for n in TENSOR_PARALLEL]
                found.append(f"{over_read(model, 'columns', 8):.2f}")
                found += [f"{over_read(model, 'fsdp', n):.2f}" for n in DATA_PARALLEL]
                found += [f"{100 * in_whole_tiles(model, n):.0f} %" for n in DATA_PARALLEL]
            rows.append((f"{model.name}, {name}", *found))
    headings = [*(f"megatron {n}" for n in TENSOR_PARALLEL), "columns 8", *(f"fsdp {n}" for n in DATA_PARALLEL)]
    return table(("over-read; share saved as tiles", *headings, *(f"tiles {n}" for n in DATA_PARALLEL)), rows)


def _settings() -> Iterator[tuple[int, int]]:
    return ((tile_bytes, row_bytes) for tile_bytes in TILES for row_bytes in ROW_MINIMA)


def _name(tile_bytes: int, row_bytes: int) -> str:
    coded = " *" if (tile_bytes, row_bytes) == (tiling.TILE_BYTES_MAX, tiling.ROW_BYTES_MIN) else ""
    return f"tiles to {binary(tile_bytes)}, rows from {binary(row_bytes)}{coded}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mib", type=int, default=128, help="MiB of tiles for each throughput (default: 128)")
    parser.add_argument("--rounds", type=int, default=10, help="of which the best counts (default: 10)")
    parser.add_argument("--threads", type=int, default=cpu_count() or 1, help="default: one a core")
    arguments = parser.parse_args()
    print(throughput_table(arguments.mib * MIB, arguments.threads, arguments.rounds))
    print(f"\n{shapes_table()}\n\n{counts_table()}\n")
    print("Over-read: bytes fetched over bytes wanted. megatron: each weight along its usual axis; rows, columns: all")
    print("weights along the last axis but one, or the last; fsdp: all tensors along axis 0. * is the rule as it is.\n")
    for model in MODELS:
        print(f"{over_read_table(model)}\n")
    print(rules_table())


if __name__ == "__main__":
    main()
