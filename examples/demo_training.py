"""`make demo`, second part: training that loses a process in the middle of a save, and goes on elsewhere.

Four processes train under FSDP2 and save every few steps. One is killed with `kill -9` while a save is under way. Three
processes resume from the last committed checkpoint in another layout. The losses stand beside those of a run that was
never interrupted. Dropout is off, so that all layouts compute the same up to rounding.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).with_name("train_gpt.py")
STEPS, SAVE_EVERY, KILL_AT = 18, 3, 9
OPTIONS = ("--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--global-batch", "12", "--dropout", "0")
VICTIM = 2
# Losses of layouts differ in rounding alone.
TOLERANCE = 1e-4


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory(prefix="cairn-demo-") as folder:
        run(Path(folder))


def run(folder: Path) -> None:
    """All steps, each checked."""
    environment = os.environ | {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("DATA", "STATE", "CACHE")}
    cairn(environment, "init", str(folder))
    store = folder / ".cairn"

    print(f"train on 4 processes with FSDP2, and kill -9 rank {VICTIM} in the save of step {KILL_AT}", flush=True)
    ranks = start(folder, environment, "fsdp", 4, "broken", store)
    kill_in_save(ranks[VICTIM], folder / "broken.out", store)
    codes = [wait(rank) for rank in ranks]
    assert codes[VICTIM] == -signal.SIGKILL and all(codes), codes
    tip = json.loads(cairn(environment, "--store", str(store), "show", "gpt", "--json"))
    print(f"  exit codes {codes}; last committed checkpoint: step {tip['step']}", flush=True)

    print("resume on 3 processes with data parallelism", flush=True)
    codes = [wait(rank) for rank in start(folder, environment, "ddp", 3, "resumed", store)]
    assert codes == [0, 0, 0], (folder / "resumed.out").read_text()
    print("  " + (folder / "resumed.out").read_text().splitlines()[0], flush=True)
    print("train without interruption on 1 process", flush=True)
    assert wait(start(folder, environment, "alone", 1, "unbroken", None)[0]) == 0

    broken, resumed, unbroken = (losses(folder / f"{name}.jsonl") for name in ("broken", "resumed", "unbroken"))
    assert min(resumed) == tip["step"] + 1 and max(resumed) == STEPS
    print("\nstep  4 x FSDP2, killed  3 x DDP, resumed  unbroken  difference")
    for step, loss in unbroken.items():
        seen = resumed.get(step, broken.get(step))
        assert seen is not None and abs(seen - loss) < TOLERANCE, (step, seen, loss)
        cells = [f"{run[step]:.6f}" if step in run else "" for run in (broken, resumed)]
        print(f"{step:>4}  {cells[0]:>17}  {cells[1]:>16}  {loss:.6f}  {abs(seen - loss):.1e}")
    print(cairn(environment, "--store", str(store), "log", "gpt"), end="")
    print(cairn(environment, "--store", str(store), "verify", "--full"), end="")


def cairn(environment: dict[str, str], *arguments: str) -> str:
    """Run one command and return what it prints."""
    command = [sys.executable, "-m", "cairn", *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def start(
    folder: Path, environment: dict[str, str], layout: str, ranks: int, name: str, store: Path | None
) -> list["subprocess.Popen[bytes]"]:
    """Start the ranks of one run by hand: torchrun would end the survivors itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(EXAMPLE), "--layout", layout, "--losses", str(folder / f"{name}.jsonl"), *OPTIONS]
    command += ["--store", str(store)] if store else []
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    started = []
    for rank in range(ranks):
        own = environment | (place | {"RANK": str(rank)} if layout != "alone" else {})
        with (folder / (f"{name}.out" if rank == 0 else f"{name}.{rank}.out")).open("wb") as output:
            started.append(subprocess.Popen(command, env=own, stdout=output, stderr=subprocess.STDOUT))
    return started


def kill_in_save(victim: "subprocess.Popen[bytes]", output: Path, store: Path) -> None:
    """Kill a rank as soon as a session shows that the save is under way."""
    end = time.monotonic() + 120
    while f"step {KILL_AT:5d}" not in output.read_text() or not list((store / "sessions").glob("*.open")):
        assert time.monotonic() < end and victim.poll() is None, output.read_text()
        time.sleep(0.001)
    victim.kill()


def wait(rank: "subprocess.Popen[bytes]") -> int:
    """Exit code of a rank; survivors of a lost one end by themselves."""
    return rank.wait(timeout=120)


def losses(path: Path) -> dict[int, float]:
    """Losses by step."""
    return {line["step"]: line["loss"] for line in map(json.loads, path.read_text().splitlines())}


if __name__ == "__main__":
    main()
