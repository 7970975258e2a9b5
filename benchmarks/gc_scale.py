"""What a collection costs in a store of a tebibyte: marking, choosing, condemning; time and memory.

Simulated: the index and the reachability lists are real, sealed objects with random ids; the packs are named in them
and in listings without being there, so nothing is copied or deleted. Half of the checkpoints are deleted before it.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cairn.core.clock import SystemClock, SystemEntropy
from cairn.gc.collect import Collector, Options
from cairn.gc.drops import drop, due_to_drop
from cairn.registry.entries import Commit, RefChange
from cairn.registry.entries_deletion import Tombstone
from cairn.registry.localfiles import KeyHome
from cairn.registry.models import ensure_model
from cairn.registry.opened import KeySource, create_store, open_store
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import pack_records
from cairn.registry.uploads import Uploads
from cairn.store.backends.contract import Listed
from cairn.store.backends.posix import PosixBackend
from cairn.store.crypto.objects import ObjectKind
from cairn.store.index import PackRef, piece_of_columns

PACK_CHUNKS, SEALED = 64, (1 << 20) + 68


class Pretending(PosixBackend):
    """Lists packs that do not exist, and lets them be deleted."""

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """Objects, and what is pretended."""
        yield from super().list(prefix)
        path = Path(self.url.removeprefix("file://") if "://" in self.url else self.url).parent / "packs"
        if prefix == "objects" and path.exists():
            for line in path.read_text().splitlines():
                name, size = line.split()
                yield Listed(name, int(size))


def open_here(folder: Path) -> Registry:
    """The store of the benchmark."""
    home = KeyHome(folder / "data", folder / "state", folder / "cache")
    backend = Pretending(str(folder / "store"))
    if not (folder / "store" / "format").exists():
        (folder / "store").mkdir(parents=True, exist_ok=True)
        create_store(backend, home, KeySource(), SystemClock(), SystemEntropy())
    return Registry(open_store(backend, home, KeySource()))


def build(folder: Path, chunks: int, checkpoints: int) -> None:
    """Checkpoints of half of all chunks each: from one to the next so many change that the store has `chunks`."""
    registry = open_here(folder)
    model = ensure_model(registry, "m")
    size, random = chunks // 2, np.random.default_rng(1)
    new = (chunks - size) // max(checkpoints - 1, 1)
    ids = np.frombuffer(random.bytes(32 * size), "S32").copy()
    fresh, expected = ids, None
    for number in range(checkpoints):
        if number:
            fresh = np.frombuffer(random.bytes(32 * new), "S32").copy()
            ids[random.choice(size, new, replace=False)] = fresh
        with Session(registry) as session:
            uploads, opened = Uploads(registry.opened, session), registry.opened
            count = -(-len(fresh) // PACK_CHUNKS)
            packs = [
                PackRef(session.ensure_open(), os.urandom(12), PACK_CHUNKS * (SEALED + 44) + 116) for _ in range(count)
            ]
            with (folder / "packs").open("a") as file:
                file.writelines(f"{pack.name} {pack.size}\n" for pack in packs)
            rows = np.arange(len(fresh))
            columns = [fresh, rows // PACK_CHUNKS, 8 + rows % PACK_CHUNKS * SEALED, np.full(len(fresh), SEALED)]
            plain = piece_of_columns(pack_records(packs), columns)
            piece = uploads.seal(opened.secrets.k_index, ObjectKind.INDEX_PIECE, plain, "index")
            reach = uploads.seal(opened.secrets.k_index, ObjectKind.REACHABILITY, np.sort(ids).tobytes(), "reach")
            body = uploads.put(os.urandom(100), "body")
            epoch, position = session.settle()
            before = expected
            expected = os.urandom(32)
            commit = Commit(
                model=model, checkpoint=expected, sessions=(session.id,), epoch=epoch, hit_position=position,
                relied=(), packs=pack_records(packs), pieces=(piece,), body=body, roots=(), reachability=reach,
                ref=RefChange(b"main", b"sealed", before), meta=b"",
            )  # fmt: skip
            registry.append(lambda _, commit=commit: commit)


def measure(folder: Path) -> None:
    """Plan, delete half, plan again, condemn; in a process of its own."""
    registry = open_here(folder)
    stages = []

    def stage(name: str, begun: float) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        stages.append(f"{name}: {time.perf_counter() - begun:.1f} s, {peak} MiB at most so far")

    begun = time.perf_counter()
    first = Collector(registry, Options())
    plan = first.plan()
    first._counted.keep()
    stage("first plan, everything read", begun)
    assert plan.empty
    model = next(iter(registry.state.models))
    held = registry.state.models[model].checkpoints
    old = tuple(held)[: len(held) // 2]
    registry.append(lambda state: Tombstone(model, old, 0, "benchmark"))
    drop(registry, due_to_drop(registry))
    begun = time.perf_counter()
    again = Collector(registry, Options(condemn_only=True))
    plan, marked = again._observe_and_plan()
    stage(
        f"plan after half of the checkpoints were deleted ({len(plan.dead)} packs, {len(plan.repacked)} to repack)",
        begun,
    )
    plan.repacked = []
    begun = time.perf_counter()
    again._condemn(plan, marked)
    stage("condemn", begun)
    begun = time.perf_counter()
    Collector(registry, Options()).plan()
    stage("plan when little has changed", begun)
    print("\n".join(stages))


def main() -> None:
    """Build in one process, measure in another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=1 << 20)
    parser.add_argument("--checkpoints", type=int, default=16)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    with tempfile.TemporaryDirectory() as place:
        build(Path(place), options.chunks, options.checkpoints)
        print(f"{options.chunks} chunks of 1 MiB, {options.checkpoints} checkpoints of half of them each", flush=True)
        subprocess.run([sys.executable, __file__, "--measure", place], check=True)


if __name__ == "__main__":
    main()
