"""How long a store with a long log takes to open without a cache: by entries, by bundles, and from a fold snapshot.

The log is a real one, of signed commits; the objects that they name are not there, and they bring no packs, so that no
index piece has to be read (those cost a read each, with shortcuts as without). Storage is the memory of this process:
first as it is, which leaves the product's own work (in seconds of the processor, which other work on the machine hardly
changes), then with a wait before each request, as over a network (in seconds of the clock).
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import cpu_model
from cairn.core.clock import SystemClock
from cairn.registry.entries import Commit, ObjectRef, RefChange, RootRef
from cairn.registry.models import ensure_model
from cairn.registry.shortcuts import write_shortcuts
from cairn.store.backends.faults import Delay, Fail, Fault
from tests.support.counting import CountingBackend
from tests.support.longlogs import append_all
from tests.support.stores import Site, close_environments, new_site

# Entries behind the snapshot: half of what makes the next one due.
BEHIND = 512
WAYS = {"by entries": ("bundles", "snapshots"), "by bundles": ("snapshots",), "from a snapshot": ()}


@dataclass(frozen=True, slots=True)
class Opening:
    """What one cold opening took."""

    seconds: float
    cpu_seconds: float
    requests: int
    bytes_read: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--wait", type=float, default=0.01, help="seconds that each request waits in the second round")
    parser.add_argument("--repeats", type=int, default=3, help="openings without a wait, of which the fastest counts")
    options = parser.parse_args()
    print(f"{cpu_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for entries in options.entries:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), entries, options.wait, options.repeats)
    print(f"load {os.getloadavg()[0]:.1f}")


def _compare(folder: Path, entries: int, wait: float, repeats: int) -> None:
    site = new_site(folder, clock=SystemClock())
    model = ensure_model(site.registry(), "m")
    _grow(site, model, entries - BEHIND)
    registry = site.registry()
    begun = time.perf_counter()
    written = write_shortcuts(registry)
    seconds = time.perf_counter() - begun
    _grow(site, model, entries)
    sizes = {listed.name: listed.size for listed in site.backend.list()}
    snapshot = sum(size for name, size in sizes.items() if name.startswith("snapshots/"))
    log = sum(size for name, size in sizes.items() if name.startswith("log/"))
    print(f"\n{entries} entries, {log >> 20} MiB; {written.bundles} bundles and a snapshot of {snapshot >> 20} MiB,")
    print(f"written in {seconds:.1f} s; {BEHIND} entries behind the snapshot")
    titles = ("way", "processor seconds", "times as fast", "requests", "MiB read", f"seconds at {wait * 1000:.0f} ms")
    print("| " + " | ".join((*titles, "times as fast")) + " |")
    print("|---|---|---|---|---|---|---|")
    first: tuple[float, float] | None = None
    for way, hidden in WAYS.items():
        fast = min((_open(site, hidden, 0) for _ in range(repeats)), key=lambda one: one.cpu_seconds)
        slow = _open(site, hidden, wait)
        first = first or (fast.cpu_seconds, slow.seconds)
        cells = [
            way, f"{fast.cpu_seconds:.2f}", f"{first[0] / fast.cpu_seconds:.1f}", fast.requests, fast.bytes_read >> 20,
            f"{slow.seconds:.2f}", f"{first[1] / slow.seconds:.1f}",
        ]  # fmt: skip
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _open(site: Site, hidden: tuple[str, ...], wait: float) -> Opening:
    """Open through a backend that refuses to list some folders and makes each request wait."""
    close_environments()
    script: list[Fault] = [Fail(op="list", name=folder) for folder in hidden]
    if wait:
        script.append(Delay(seconds=wait, clock=SystemClock()))
    backend = CountingBackend(site.backend, script)
    begun, used = time.perf_counter(), time.process_time()
    registry = site.registry(backend, cold=True)
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    assert registry.state.damaged_from is None and not registry.state.voids
    registry.close()
    return Opening(seconds, used, backend.requests, backend.bytes_read)


def _grow(site: Site, model: bytes, length: int) -> None:
    registry = site.registry()
    state = registry.state.copy()
    append_all(registry.opened, state, _commits(model, state.length, length))
    registry.close()


def _commits(model: bytes, first: int, end: int) -> Iterator[Commit]:
    """Commits to one branch, one after the other, of a checkpoint with all its components."""
    for n in range(first, end):
        before = _checkpoint(n - 1) if n > 2 else None
        yield Commit(
            model=model, checkpoint=_checkpoint(n), sessions=(os.urandom(16),), epoch=0, hit_position=n - 1, relied=(),
            packs=b"", pieces=(), body=_object(), roots=tuple(RootRef(one, 0, _object()) for one in range(1, 6)),
            reachability=_object(), ref=RefChange(b"main" * 4, os.urandom(100), before), meta=os.urandom(120),
            envelope=_object(),
        )  # fmt: skip


def _checkpoint(n: int) -> bytes:
    return n.to_bytes(32, "big")


def _object() -> ObjectRef:
    return ObjectRef(os.urandom(28), 4096, os.urandom(32))


if __name__ == "__main__":
    main()
