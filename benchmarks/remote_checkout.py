"""A checkout from S3 against plain parallel GETs of the same bytes, on a real server.

    .venv/bin/python -m benchmarks.remote_checkout [GIB]

GETs are ranges of 8 MiB of all packs, on as many threads as the checkout has, into buffers that are used again; once by
Cairn's backend, once by obstore. A checkout also opens what it reads and writes files.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.remote import MIB, Obstore, measured, spread
from cairn.core.pool import threads_within_budget
from cairn.registry.opened import KeySource, create_store, open_store
from cairn.registry.registry import Registry
from tests.support.s3 import Server, fresh_prefix, running
from tests.support.stores import checkout_to, commit_tree, home_in
from tests.support.tensors import safetensors

ROUNDS = 3
RANGE_BYTES = 8 * MIB


def main() -> None:
    """Measure and print."""
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else "1") * (1 << 30))
    with running() as server, tempfile.TemporaryDirectory(prefix="cairn-checkout-") as folder:
        measure(server, Path(folder), size)


def measure(server: Server, folder: Path, size: int) -> None:
    """Commit once; then rounds of a checkout and of GETs."""
    prefix, home = fresh_prefix(), home_in(folder / "home")
    create_store(server.backend(prefix), home, KeySource())
    tree = folder / "tree"
    tree.mkdir()
    draw = np.random.default_rng(1)
    tensors = {f"w{n}": draw.integers(0, 1 << 30, (4096, 4096), dtype=np.int32) for n in range(size >> 26)}
    (tree / "m.safetensors").write_bytes(safetensors(tensors))
    registry = Registry(open_store(server.backend(prefix), home, KeySource()))
    wall, busy = measured(lambda: commit_tree(registry, tree))
    print(f"commit: {wall:.2f} s, processor {busy:.2f} s")
    backend = server.backend(prefix)
    packs = [(one.name, one.size) for one in backend.list("objects") if one.name.endswith(".pack")]
    ranges = [(n, at, min(RANGE_BYTES, size - at)) for n, size in packs for at in range(0, size, RANGE_BYTES)]
    threads = threads_within_budget(24 * MIB)

    def get(backend: Obstore) -> None:
        spread(lambda n: backend.read_into(ranges[n][0], ranges[n][1], bytearray(ranges[n][2])), len(ranges), threads)

    def check_out() -> None:
        checkout_to(registry, "m", folder / "out")

    steps: dict[str, Callable[[], None]] = {
        "checkout": check_out,
        "GETs, cairn": partial(get, backend),
        "GETs, obstore": partial(get, Obstore(server, prefix)),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(measured(step))
            shutil.rmtree(folder / "out", ignore_errors=True)
    total = sum(size for _, size in packs)
    print(f"load {os.getloadavg()[0]:.1f}; {threads} threads, {len(packs)} packs, {total / MIB:.0f} MiB")
    for name, done in times.items():
        wall, busy = median(one[0] for one in done), median(one[1] for one in done)
        print(f"{name}: {wall:.2f} s ({total / MIB / wall:.0f} MiB/s), processor {busy:.2f} s")
    registry.close()


if __name__ == "__main__":
    main()
