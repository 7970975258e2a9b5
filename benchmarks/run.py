"""`make bench`: Cairn beside restic and borg, in one run, on the same data and disk.

Each contender gets an empty, encrypted repository, commits a folder with one safetensors file, commits it again
unchanged in several ways, and restores it; repeats go round all contenders, so that a drift of the machine meets all.
Before each timed command dirty pages are written out, and what the command reads is read once into the page cache.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from filecmp import cmp
from pathlib import Path
from statistics import median

import report
from contenders import CACHED, COLD, FIRST, RESTORE, ROOT, Borg, Cairn, Contender, Restic, Step, fresh
from measure import Run, available_memory, cpu_model, file_system, run, touch_memory, warm

GIB = 1 << 30
_HERE = Path(__file__).parent
_INSTALL = "not installed; on Debian or Ubuntu: apt install restic borgbackup"
# A repository, its restored copy, the data, and as much again for what a run leaves behind.
_ROOM_FACTOR = 4


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where to work (default: build/)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds over all contenders (default: 3)")
    parser.add_argument("--sizes", default="1", metavar="GIB,..", help="the first is compared; for all: Cairn's memory")
    parser.add_argument("--quick", action="store_true", help="64 MiB and one round, to see that it works")
    parser.add_argument("--compress", action="store_true", help="let each compress (Cairn: --codec zstd; else none do)")
    parser.add_argument("--require", action="store_true", help="fail if restic or borg is missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    return parser.parse_args()


def main() -> int:
    """Measure and print; returns the exit code."""
    arguments = parse_arguments()
    sizes = [int(float(size) * GIB) for size in arguments.sizes.split(",")]
    if arguments.quick:
        sizes, arguments.repeats = [64 << 20], 1
    others = [kind for kind in (Restic, Borg) if shutil.which(kind.name)]
    missing = [kind.name for kind in (Restic, Borg) if kind not in others]
    for name in missing:
        print(f"{name}: {_INSTALL}. Its columns are left out.")
    if missing and arguments.require:
        return 1
    made = not arguments.dir.exists()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    room, needed = shutil.disk_usage(arguments.dir).free, _ROOM_FACTOR * max(sizes)
    if room < needed:
        print(f"{arguments.dir} has {room / GIB:.1f} GiB free, {needed / GIB:.1f} are needed: name another by --dir")
        return 1
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.dir) as name:
        work = Path(name).resolve()
        contenders: list[Contender] = [Cairn(work / "cairn", "zstd" if arguments.compress else "raw")]
        contenders += [kind(work / kind.name, arguments.compress) for kind in others]
        outcome = measure_all(contenders, sizes, arguments.repeats, work)
    if made:
        arguments.dir.rmdir()
    if arguments.json:
        arguments.json.write_text(json.dumps(outcome, indent=1) + "\n")
    return 0


def measure_all(contenders: list[Contender], sizes: list[int], repeats: int, work: Path) -> dict[str, object]:
    """Run and print everything; returns it for JSON."""
    touched = min(6 * max(sizes), available_memory() * 2 // 3)
    touch_memory(touched)
    data = make_data(work, sizes[0])
    facts = conditions(contenders, sizes[0], repeats, work) | {"memory touched before, bytes": str(touched)}
    for name, text in facts.items():
        print(f"{name}: {text}")
    steps = {contender.name: list(contender.steps(data)) for contender in contenders}
    print("\nWhat is timed:")
    for contender in contenders:
        for step in steps[contender.name]:
            print(f"  {contender.name}, {step.name}: {step.how}")
    results: report.Results = {contender.name: {} for contender in contenders}
    for number in range(repeats):
        for contender in contenders:
            tell(f"round {number + 1} of {repeats}: {contender.name}")
            for step, taken in one_round(contender, steps[contender.name], data):
                results[contender.name].setdefault(step.name, []).append(taken)
    facts["load average after"] = load()
    compared = report.ratios(name for name in results if name != "cairn")
    print(f"\n{report.steps_table(results)}\n\n{report.memory_table(results)}")
    if len(results) > 1:
        print(f"\n{report.ratio_table(results, compared)}")
    cairn = contenders[0]
    assert isinstance(cairn, Cairn)
    start = start_up(cairn, data, max(repeats, 3))
    print("\n" + report.table(("Cairn's start", "value"), [(name, _cell(found)) for name, found in start.items()]))
    memory = memory_by_size(cairn, sizes, work, {sizes[0]: results["cairn"]})
    print("\n" + report.table(("Cairn's peak memory, MiB", *memory), memory_rows(memory)))
    print(f"\nload average: {facts['load average before']} before, {facts['load average after']} after")
    return {
        "conditions": facts,
        "steps": {name: {step.name: step.how for step in found} for name, found in steps.items()},
        "results": {n: {s: [asdict(r) for r in runs] for s, runs in found.items()} for n, found in results.items()},
        "ratios": [asdict(ratio) | {"ratio": report.value(results, ratio)} for ratio in compared],
        "start": start,
        "memory": memory,
    }


def one_round(contender: Contender, steps: list[Step], data: Path) -> list[tuple[Step, Run]]:
    """All steps of one contender on an empty repository, which is removed afterwards."""
    fresh(contender)
    taken = []
    for step in steps:
        for folder in step.forget:
            shutil.rmtree(folder, ignore_errors=True)
        warm(contender.repository() if step.name == RESTORE else data)
        taken.append((step, run(step.command, contender.environment, step.folder or contender.folder)))
    for path in data.iterdir():
        if not cmp(path, contender.restored() / path.name, shallow=False):
            raise SystemExit(f"{contender.name} restored {path.name} with other bytes")
    shutil.rmtree(contender.folder)
    return taken


def make_data(work: Path, size: int) -> Path:
    """Write the data folder, in a process of its own: this one stays small."""
    folder = work / f"data-{size}" / "model"
    tell(f"writing {size / GIB:g} GiB of random weights")
    subprocess.run([sys.executable, str(_HERE / "sample.py"), str(folder), str(size)], check=True)
    return folder


def conditions(contenders: list[Contender], size: int, repeats: int, work: Path) -> dict[str, str]:
    """All that the numbers depend on."""
    facts = {contender.name: contender.version() for contender in contenders}
    return facts | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": f"{os.cpu_count()} x {cpu_model()}",
        "memory available": f"{available_memory() / GIB:.1f} GiB",
        "file system": file_system(work),
        "data": f"{size / GIB:g} GiB: one safetensors file of normal bfloat16 weights, and a note of 31 bytes",
        "rounds": str(repeats),
        "peak memory of a command that does nothing": f"{_floor(work) / 2**20:.0f} MiB (the floor of this method)",
        "load average before": load(),
    }


def start_up(cairn: Cairn, data: Path, repeats: int) -> dict[str, float | str]:
    """What starting costs: an unchanged commit as a command and inside a running process, and the help."""
    fresh(cairn)
    commit = _step(cairn, data, FIRST).command
    run(commit, cairn.environment, cairn.folder)
    repeated = median(run(commit, cairn.environment, cairn.folder).seconds for _ in range(repeats))
    command = median(_without_answers(cairn, data) for _ in range(repeats))
    inside = median(_inside(cairn, "commits", str(cairn.repository()), str(data), "bench", str(repeats)))
    helped = median(run(cairn.help(), cairn.environment, cairn.folder).seconds for _ in range(repeats))
    bare = median(run([sys.executable, "-c", ""], cairn.environment, cairn.folder).seconds for _ in range(repeats))
    loaded = _inside(cairn, "imports")
    shutil.rmtree(cairn.folder)
    return {
        "unchanged commit by its remembered answer, as a command, s": repeated,
        "unchanged commit by the file-digest cache, as a command, s": command,
        "the same inside a running process, s": inside,
        "start of the interpreter, imports and exit, s": command - inside,
        "`cairn --help` (target 0.200), s": helped,
        "`python -c ''`, s": bare,
        "heavy modules that the help loads": ", ".join(loaded) or "none",
    }


def memory_by_size(
    cairn: Cairn, sizes: list[int], work: Path, known: dict[int, dict[str, list[Run]]]
) -> dict[str, dict[str, int]]:
    """Peak bytes of Cairn's commands by file size; sizes that are not known yet are measured once."""
    found = {}
    for size in sizes:
        runs = known.get(size)
        if runs is None:
            data = make_data(work, size)
            tell(f"memory at {size / GIB:g} GiB")
            runs = {step.name: [taken] for step, taken in one_round(cairn, list(cairn.steps(data)), data)}
            shutil.rmtree(data.parent)
        found[f"{size / GIB:g} GiB"] = {step: report.peak(taken) for step, taken in runs.items()}
    return found


def memory_rows(memory: dict[str, dict[str, int]]) -> list[tuple[str, ...]]:
    """Rows of the memory table: a step each, a size a column."""
    return [
        (step, *(f"{found[step] / 2**20:.0f}" for found in memory.values())) for step in (FIRST, CACHED, COLD, RESTORE)
    ]


def load() -> str:
    """The load average of the last minute; well below 1 before a run that is to be trusted."""
    return f"{os.getloadavg()[0]:.2f}"


def tell(text: str) -> None:
    """Say what goes on."""
    print(text, file=sys.stderr, flush=True)


def _floor(work: Path) -> int:
    return run(["true"], dict(os.environ), work).peak_bytes


def _step(contender: Contender, data: Path, name: str) -> Step:
    return next(step for step in contender.steps(data) if step.name == name)


def _without_answers(cairn: Cairn, data: Path) -> float:
    step = _step(cairn, data, CACHED)
    for folder in step.forget:
        shutil.rmtree(folder, ignore_errors=True)
    return run(step.command, cairn.environment, cairn.folder).seconds


def _inside(cairn: Cairn, *arguments: str) -> list[float]:
    command = [sys.executable, str(_HERE / "inprocess.py"), *arguments]
    environment = {"PYTHONPATH": str(ROOT / "src")} | cairn.environment
    found: list[float] = json.loads(subprocess.check_output(command, env=environment, text=True))
    return found


def _cell(found: float | str) -> str:
    return f"{found:.3f}" if isinstance(found, float) else found


if __name__ == "__main__":
    sys.exit(main())
