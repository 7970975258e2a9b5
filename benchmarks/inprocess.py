"""What one process shows from inside.

`python benchmarks/inprocess.py commits STORE DATA MODEL N` opens the store and commits DATA, N times after one that
is not counted, and prints the seconds of each as JSON. `python benchmarks/inprocess.py imports` prints which heavy
modules `cairn --help` loads.
"""

import contextlib
import io
import json
import sys
import time
from pathlib import Path

HEAVY = ("torch", "numpy", "rich", "zstandard", "fsspec", "cryptography", "lmdb", "msgspec")


def commits(store: Path, data: Path, model: str, repeats: int) -> list[float]:
    """Seconds of each commit, opening the store included."""
    from cairn.core.settings import Settings
    from cairn.registry.localfiles import KeyHome
    from cairn.registry.opened import KeySource, open_store
    from cairn.registry.registry import Registry
    from cairn.store.backends.posix import PosixBackend
    from cairn.workspace.commit import CommitOptions, commit

    settings = Settings.from_environment()
    home = KeyHome(settings.data, settings.state, settings.cache)
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        registry = Registry(open_store(PosixBackend(store), home, KeySource()))
        result = commit(registry, data, model, CommitOptions())
        registry.close()
        seconds.append(time.perf_counter() - began)
        if result.created:
            raise SystemExit("the content was said to be unchanged, but a checkpoint was made")
    return seconds[1:]


def loaded_by_help() -> list[str]:
    """Heavy modules that are loaded once the help has been printed."""
    from cairn.cli.app import run

    with contextlib.redirect_stdout(io.StringIO()):
        run(["--help"])
    return [name for name in HEAVY if name in sys.modules]


if __name__ == "__main__":
    if sys.argv[1] == "imports":
        print(json.dumps(loaded_by_help()))
    else:
        print(json.dumps(commits(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))))
