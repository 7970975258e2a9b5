"""`make bench`, second part: saving and loading from a training loop, beside torch.distributed.checkpoint and files.

Each measurement runs in a process of its own and in a fresh folder; contenders take turns, and medians are printed with
ratios. `training_cases.py` says what is measured.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from measure import cpu_model, file_system, touch_memory
from report import table

_HERE = Path(__file__).parent
STALL = ("cairn-eager", "cairn-overlap", "dcp-async", "dcp-reused")
DURABLE = ("cairn", "dcp.save", "torch.save", "safetensors")
LOAD = ("cairn", "cairn-aead", "dcp.load", "primitives", "primitives-aead", "torch.save", "safetensors")
Found = dict[str, dict[str, list[dict[str, float]]]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1200, help="size of the state")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="a case: stall, durable, load, memory, interpreter")
    parser.add_argument("--json", type=Path, help="write all measurements there")
    options = parser.parse_args()
    cases = {
        "stall": STALL, "durable": DURABLE, "load": LOAD, "memory": ("cairn-eager", "cairn-overlap"),
        "interpreter": ("cairn-eager",),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as work:
        touch_memory(4 * options.megabytes * 10**6)
        found = {
            case: measure(case, contenders, options, Path(work))
            for case, contenders in cases.items()
            if not options.only or case in options.only
        }
        print(conditions(options, Path(work), found))
    for case, results in found.items():
        print(f"\n{case}\n{TABLES[case](results)}")
    if options.json:
        options.json.write_text(json.dumps(found))


def measure(
    case: str, contenders: Iterable[str], options: argparse.Namespace, work: Path
) -> dict[str, list[dict[str, float]]]:
    """Every contender in turn, round after round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for number in range(options.rounds if case in ("stall", "durable", "load") else 1):
        for name in found:
            print(f"{case}: {name}, round {number + 1}", file=sys.stderr, flush=True)
            folder = work / "run"
            folder.mkdir()
            places = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("DATA", "STATE", "CACHE")}
            command = [sys.executable, "-W", "ignore", str(_HERE / "training_cases.py"), case, name, str(folder)]
            done = subprocess.run(
                [*command, str(options.megabytes)],
                env=os.environ | places,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            shutil.rmtree(folder)
            os.sync()
    return found


def conditions(options: argparse.Namespace, work: Path, found: Found) -> str:
    """What the figures hold for."""
    import torch

    sizes = {run["bytes"] for results in found.values() for runs in results.values() for run in runs}
    size = f"{max(sizes) / 1e9:.2f} GB of float32 state (model and AdamW)" if sizes else "no state"
    return (
        f"{size}; {os.cpu_count()} processors, {cpu_model()}; {file_system(work)}; torch {torch.__version__}; "
        f"medians of {options.rounds} rounds; load {os.getloadavg()[0]:.2f}"
    )


def middle(runs: list[dict[str, float]], key: str) -> float | None:
    """Median of one figure; None where it was not measured."""
    return median(run[key] for run in runs) if key in runs[0] else None


def columns(results: dict[str, list[dict[str, float]]], keys: dict[str, str], base: str) -> str:
    """Seconds of each contender, and how many times those of `base` they are."""
    rows = []
    for key, label in keys.items():
        own = middle(results[base], key)
        cells = []
        for runs in results.values():
            value = middle(runs, key)
            ratio = f" ({value / own:.2f}x)" if value is not None and own and own > 0 else ""
            cells.append("-" if value is None else f"{value:.3f}{ratio}")
        rows.append((label, *cells))
    return table((f"seconds (times {base})", *results), rows)


def stall_table(results: dict[str, list[dict[str, float]]]) -> str:
    """Stall of one save, the first apart."""
    keys = {
        "first": "first save, blocked", "blocked": "later save, blocked", "added": "added to 10 steps",
        "durable": "until durable, steps included", "step": "one step", "memcpy": "copy of the state, warm",
    }  # fmt: skip
    return columns(results, keys, "dcp-async")


def durable_table(results: dict[str, list[dict[str, float]]]) -> str:
    """Durable saves."""
    keys = {"all": "all changed", "half": "half changed", "tenth": "a tenth changed"}
    size = next(iter(results.values()))[0]["bytes"]
    rows = [
        (label, *(f"{(middle(runs, f'{key}_written') or 0) / size:.2f}" for runs in results.values()))
        for key, label in keys.items()
    ]
    return columns(results, keys, "cairn") + "\n" + table(("bytes written, of the state's", *results), rows)


def load_table(results: dict[str, list[dict[str, float]]]) -> str:
    """Loads, page cache warm."""
    keys = {"same": "same layout", "rows": "rank 1 of 4, rows", "columns": "rank 1 of 4, columns"}
    return columns(results, keys, "dcp.load")


def memory_table(results: dict[str, list[dict[str, float]]]) -> str:
    """Peaks above the state."""
    rows = [
        (
            name,
            *(f"{runs[0][key] / 2**20:.0f}" for key in ("bytes", "save", "load", "after_10", "after_30")),
        )
        for name, runs in results.items()
    ]
    return table(("MiB", "state", "extra, saving", "extra, loading", "after 10 saves", "after 30"), rows)


def interpreter_table(results: dict[str, list[dict[str, float]]]) -> str:
    """The loop of small operations."""
    rows = [
        (
            name,
            f"{1e6 * runs[0]['alone']:.3f}",
            f"{1e6 * runs[0]['busy']:.3f}",
            f"{runs[0]['busy'] / runs[0]['alone']:.3f}",
        )
        for name, runs in results.items()
    ]
    return table(("microseconds per operation", "alone", "while saving", "ratio"), rows)


TABLES = {
    "stall": stall_table, "durable": durable_table, "load": load_table, "memory": memory_table,
    "interpreter": interpreter_table,
}  # fmt: skip


if __name__ == "__main__":
    main()
