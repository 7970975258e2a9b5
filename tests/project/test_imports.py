"""What starting a command loads: nothing heavy for help, no torch for anything that needs none.

Each case runs in an interpreter of its own, since a module stays loaded for good. How fast help is, `make bench` says.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cairn.cli.app import COMMANDS
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

ROOT = Path(__file__).parents[2]
# Each costs more than all of Cairn.
HEAVY = {"fsspec", "numpy", "rich", "torch", "zstandard"}
# All that parsing arguments needs beside the standard library.
PARSING = {"cairn", "click"}
# What of the standard library costs milliseconds, and is of use only once a command works.
WORKING = {"asyncio", "concurrent", "email", "http", "multiprocessing", "socket", "sqlite3", "ssl", "subprocess"}
# Far above what help takes (under 0.1 s), far below what loading torch does on a busy machine.
HELP_SECONDS_MAX = 2.0

# Runs the code in argv[1], then prints the names of all top-level modules as the last line.
PROBE = """
import json, sys
try:
    exec(sys.argv.pop(1))
finally:
    print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded_by(code: str, *arguments: str, home: Path | None = None) -> set[str]:
    """Top-level modules that are loaded once `code` has run; with `home`, Cairn's folders lie below it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CAIRN_", "XDG_", "COV_"))}
    # Nothing but the interpreter, its installed packages, and this tree: no path of the test run.
    environment["PYTHONPATH"] = str(ROOT / "src")
    if home is not None:
        environment |= {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "DATA", "STATE")}
    command = [sys.executable, "-c", PROBE, code, *arguments]
    done = subprocess.run(command, env=environment, cwd=home or ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(modules)


RUN = "from cairn.cli.app import run\nassert run(sys.argv[1:]) == 0"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, and all that its user has; the store holds one small checkpoint."""
    folder = tmp_path_factory.mktemp("home")
    tree = write_files(folder / "tree", {"m.safetensors": safetensors({"layer": weights(1, 64, 64)})})
    loaded_by(RUN, "init", home=folder)
    loaded_by(RUN, "commit", str(tree), "net", home=folder)
    return folder


def test_imports_are_seen() -> None:
    assert "numpy" in loaded_by("import numpy") and "numpy" not in loaded_by("import json")


@pytest.fixture(scope="module")
def bare() -> set[str]:
    """What an interpreter has loaded once it runs: of the environment, too, such as hooks of its packages."""
    return loaded_by("")


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), *((name, "--help") for name in COMMANDS)], ids=" ".join
)
def test_starting_loads_click_alone(bare: set[str], arguments: tuple[str, ...]) -> None:
    new = loaded_by(RUN, *arguments) - bare
    assert new - sys.stdlib_module_names == PARSING
    assert new & WORKING == set()


@pytest.mark.parametrize(
    "arguments", [("log", "net"), ("ls",), ("ls", "net"), ("verify",), ("verify", "--full")], ids=" ".join
)
def test_reading_commands_need_no_torch(home: Path, arguments: tuple[str, ...]) -> None:
    assert "torch" not in loaded_by(RUN, *arguments, home=home)


def test_the_doctor_needs_no_numpy(home: Path) -> None:
    assert "numpy" not in loaded_by(RUN, "doctor", home=home)


def test_a_commit_needs_no_torch(home: Path) -> None:
    assert "torch" not in loaded_by(RUN, "commit", "tree", "net", home=home)


def test_looking_for_a_remembered_answer_loads_no_library() -> None:
    found = loaded_by("from cairn.cli.main import recall\nassert recall(sys.argv[1:]) is None", "commit", "tree", "net")
    assert found & (HEAVY | {"click", "cryptography", "lmdb", "msgspec"}) == set()


def test_help_is_quick() -> None:
    began = time.perf_counter()
    loaded_by(RUN, "--help")
    assert time.perf_counter() - began < HELP_SECONDS_MAX
