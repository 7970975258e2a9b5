"""Timing of child processes, the same way for every contender.

* **run** - one command: wall and processor seconds, and its largest resident set.
* **warm** - what must be in the page cache before a run.

Keep the calling process small: on Linux a child's peak starts from what its parent held when it was started.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """What one command took; `peak_bytes` is the largest resident set of it or of one of its children."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


class CommandFailed(Exception):
    """A measured command ended with an error."""


def run(command: Sequence[str], environment: dict[str, str], folder: Path) -> Run:
    """Run a command to its end, its output discarded.

    Raises:
        CommandFailed: it did not exit with 0; the message holds the end of what it said.
    """
    with (folder / "output.log").open("w+b") as output:
        began = time.perf_counter()
        child = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            said = output.read()[-2000:].decode(errors="replace")
            raise CommandFailed(f"{' '.join(command)} ended with {child.returncode}:\n{said}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def clean_environment(home: Path) -> dict[str, str]:
    """An environment in which every contender keeps its files below `home`, and Python keeps its compiled modules."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
    }


def warm(*roots: Path) -> None:
    """Write out what is dirty, then read every file below `roots` once, so that each run starts from the same state."""
    os.sync()
    for path in _files(roots):
        with path.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def _files(roots: Sequence[Path]) -> Iterator[Path]:
    for root in roots:
        yield from (path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())


def touch_memory(count: int) -> None:
    """Touch `count` bytes of memory once, in a process of its own.

    A virtual machine gets its memory from the host page by page, at the first touch; without this the contender that
    happens to be first pays for all.
    """
    code = "import sys, mmap\nm = mmap.mmap(-1, int(sys.argv[1]))\nfor i in range(0, len(m), 4096): m[i] = 1"
    subprocess.run([sys.executable, "-c", code, str(count)], check=False)


def available_memory() -> int:
    """Bytes that can be had without swapping; 0 where the system does not say."""
    with _proc("meminfo") as text:
        for line in text.splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_model() -> str:
    """The processor's name."""
    with _proc("cpuinfo") as text:
        names = {line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")}
    return ", ".join(sorted(names)) or os.uname().machine


def file_system(path: Path) -> str:
    """Type and device of the file system that holds `path`."""
    best = ("", "unknown")
    with _proc("self/mounts") as text:
        for line in text.splitlines():
            device, point, kind = line.split()[:3]
            if path.resolve().is_relative_to(point) and len(point) >= len(best[0]):
                best = point, f"{kind} on {device}"
    return best[1]


@contextmanager
def _proc(name: str) -> Iterator[str]:
    path = Path("/proc") / name
    yield path.read_text(errors="replace") if path.exists() else ""
