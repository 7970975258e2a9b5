"""Jobs of several ranks: real processes, gloo, and a function that each of them runs.

A job starts its processes once and may go through several *phases*, each a process group of its own size; ranks
beyond the size sit that phase out. Starting a process and importing torch costs seconds, a phase milliseconds.
"""

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]


class Job:
    """Processes that run `function(rank, *arguments)` of a module; their results are gathered by `results`."""

    def __init__(self, folder: Path, ranks: int, function: str, *arguments: Any, phases: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ranks = folder, ranks
        ports = free_ports(phases)
        call = {"function": function, "arguments": arguments, "ports": ports}
        (folder / "call").write_bytes(pickle.dumps(call))
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(ranks):
            with (folder / f"{rank}.log").open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.support.ranks", str(folder), str(rank), str(ranks)],
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
                        cwd=ROOT,
                    )
                )

    def log(self, rank: int) -> str:
        """What a rank has printed so far."""
        return (self.folder / f"{rank}.log").read_text(errors="replace")

    def kill(self, rank: int) -> None:
        """Kill a rank as the kernel does when memory is short."""
        self.processes[rank].send_signal(signal.SIGKILL)

    def wait_for(self, mark: str, rank: int, seconds: float = 60) -> None:
        """Wait until a rank has printed a mark."""
        end = time.monotonic() + seconds
        while mark not in self.log(rank):
            if time.monotonic() > end or self.processes[rank].poll() is not None:
                raise AssertionError(f"rank {rank} never printed {mark!r}:\n{self.log(rank)}")
            time.sleep(0.02)

    def results(self, seconds: float = 120, lost: tuple[int, ...] = ()) -> list[Any]:
        """What each rank returned, None for those that are `lost`; fails with the output of a rank that failed."""
        end = time.monotonic() + seconds
        found: list[Any] = []
        try:
            for rank, process in enumerate(self.processes):
                code = process.wait(max(end - time.monotonic(), 0.1))
                if rank in lost:
                    found.append(None)
                    continue
                assert code == 0, f"rank {rank} ended with {code}:\n{self.log(rank)}"
                found.append(pickle.loads((self.folder / f"{rank}.result").read_bytes()))
        except subprocess.TimeoutExpired:
            logs = "\n".join(f"--- rank {rank}\n{self.log(rank)[-3000:]}" for rank in range(self.ranks))
            raise AssertionError(f"the job is not done after {seconds} s:\n{logs}") from None
        finally:
            self.end()
        return found

    def end(self) -> None:
        """Leave no process behind."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def run_ranks(
    folder: Path, ranks: int, function: str, *arguments: Any, phases: int = 1, seconds: float = 120
) -> list[Any]:
    """Run a job to its end."""
    return Job(folder, ranks, function, *arguments, phases=phases).results(seconds)


_ports: list[int] = []


@contextlib.contextmanager
def group(number: int, rank: int, size: int, barrier: bool = True) -> Iterator[bool]:
    """Phase `number` of a job: a process group of the first `size` ranks; False on the others.

    Args:
        barrier: leave it together.
    """
    import torch.distributed as dist

    if rank >= size:
        yield False
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_ports[number]), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    try:
        yield True
        if barrier:
            dist.barrier()
    finally:
        dist.destroy_process_group()


def _main() -> None:
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    call = pickle.loads((folder / "call").read_bytes())
    import torch

    torch.set_num_threads(1)
    module, _, name = call["function"].partition(":")
    # This very file runs as __main__; the functions import it by its name.
    importlib.import_module("tests.support.ranks")._ports.extend(call["ports"])
    result = getattr(importlib.import_module(module), name)(rank, ranks, *call["arguments"])
    (folder / f"{rank}.result").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    _main()
