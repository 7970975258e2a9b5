"""How long `cairn audit verify` and an export take, by entries: the log in a folder, replayed from entry 0.

In seconds of the processor, which other work on the machine hardly changes; the fastest of some runs counts.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import cpu_model
from cairn.registry.audit import KnownHead, verify_log
from cairn.registry.auditexport import Export
from cairn.registry.logview import LogView
from cairn.registry.models import ensure_model
from cairn.store.backends.posix import PosixBackend
from tests.support.longlogs import grow_to
from tests.support.stores import close_environments, new_site


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{cpu_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'entries':>8} {'verify s':>9} {'export s':>9} {'export MiB':>11}")
    for entries in options.entries:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), entries, options.repeats)


def measure(folder: Path, entries: int, repeats: int) -> None:
    """Measure a log of so many entries and print a line."""
    site = new_site(folder / "home", PosixBackend(folder / "store"))
    registry = site.registry()
    ensure_model(registry, "m")
    registry.close()
    grow_to(site, entries)
    opened = site.open()
    view = LogView.of(opened)
    known = [KnownHead(verify_log(view).head, "before")]

    def verify(run: int) -> None:
        assert verify_log(view, known).ok

    def export(run: int) -> None:
        Export(view, known).write(folder / f"tiles-{run}", folder / f"{run}.jsonl", lambda owners: opened.identity)

    seconds = [fastest(work, repeats) for work in (verify, export)]
    size = sum(path.stat().st_size for path in (folder / "tiles-0").rglob("*") if path.is_file())
    print(f"{entries:>8} {seconds[0]:>9.2f} {seconds[1]:>9.2f} {size / (1 << 20):>11.1f}")
    close_environments()


def fastest(work: Callable[[int], None], repeats: int) -> float:
    """Seconds of the processor of the fastest run."""
    taken = []
    for run in range(repeats):
        begun = time.process_time()
        work(run)
        taken.append(time.process_time() - begun)
    return min(taken)


if __name__ == "__main__":
    main()
