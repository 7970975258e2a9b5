"""A user at a shell: folders of their own, a store in the working folder, and the command line.

Calling a `Shell` runs a command in this process, through the same function as the `cairn` command; `spawn` runs one in
a process of its own, which may be limited, damaged or killed.
"""

import ctypes
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cairn.cli.app import run
from cairn.manifests.schema import Key, TensorEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve
from cairn.registry.stores import open_store
from tests.support.trees import write_files

ROOT = Path(__file__).parents[2]
PASSPHRASE_MARK = "correct-horse-battery"
_CLEARED = ("CAIRN_STORE", "CAIRN_KEY_FILE", "CAIRN_PASSPHRASE")
_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


_RUN_ALL = """
import contextlib, io, json, sys
from cairn.cli.app import run
done = []
for words in json.loads({words!r}):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
sys.exit(0)
"""


@dataclass(frozen=True)
class Done:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Shell:
    """One user; `folder` is all theirs."""

    folder: Path
    _names: "count[int]" = field(default_factory=count)
    _registries: list[Registry] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def store(self) -> Path:
        return self.work / ".cairn"

    @property
    def key_file(self) -> Path:
        (path,) = (self.folder / "data" / "cairn" / "keys").iterdir()
        return path

    @property
    def environment(self) -> dict[str, str]:
        """The user's environment."""
        kept = {name: value for name, value in os.environ.items() if name not in _CLEARED}
        homes = {f"XDG_{name.upper()}_HOME": str(self.folder / name) for name in ("data", "state", "cache")}
        return {**kept, **homes, "TMPDIR": str(self.folder / "tmp"), "PYTHONPATH": str(ROOT / "src")}

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make this process the user's."""
        for folder in (self.work, self.folder / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        for name in _CLEARED:
            monkeypatch.delenv(name, raising=False)
        for name, value in self.environment.items():
            if name.startswith("XDG_"):
                monkeypatch.setenv(name, value)
        monkeypatch.chdir(self.work)

    def any(self, *arguments: str | Path) -> Done:
        """Run a command here, whatever comes of it."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run([str(one) for one in arguments])
        return Done(code, out.getvalue(), err.getvalue())

    def __call__(self, *arguments: str | Path, code: int = 0) -> Done:
        """Run a command here; its exit code must be `code`."""
        done = self.any(*arguments)
        words = " ".join(map(str, arguments))
        assert done.code == code, f"cairn {words}: exit code {done.code}, not {code}\n{done.out}{done.err}"
        return done

    def spawn(
        self,
        *arguments: str | Path,
        code: int | None = 0,
        prelude: str = "",
        env: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> Done:
        """Run a command in a process of its own; `None` admits any exit code.

        Args:
            prelude: Python that runs first, to break something.
            before: runs in the child before Python starts.
            prefix: words before the command, such as a wrapper that limits it.
        """
        done = subprocess.run(
            [*prefix, *command(prelude), *map(str, arguments)],
            cwd=self.work, env={**self.environment, **(env or {})}, preexec_fn=before, capture_output=True, text=True,
            timeout=120, check=False, errors="surrogateescape", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert code in (None, done.returncode), f"exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
        return Done(done.returncode, done.stdout, done.stderr)

    def spawn_all(self, *commands: list[str | Path], **options: Any) -> list[Done]:
        """Run commands one after the other in one process of its own; takes the options of `spawn`."""
        words = json.dumps([[str(word) for word in one] for one in commands])
        run_all = f"{options.pop('prelude', '')}\n{_RUN_ALL.format(words=words)}"
        return [Done(*one) for one in json.loads(self.spawn(prelude=run_all, **options).out)]

    def start(self, *arguments: str | Path, prelude: str = "") -> "subprocess.Popen[str]":
        """Start a command and do not wait for it."""
        return subprocess.Popen(
            [*command(prelude), *map(str, arguments)], cwd=self.work, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    # --- What tests do all the time -------------------------------------------------------------

    def fresh(self, stem: str = "path") -> Path:
        """A path that nothing has used."""
        return self.folder / f"{stem}-{next(self._names)}"

    def tree(self, files: Mapping[str, bytes]) -> Path:
        """A new folder with files."""
        return write_files(self.fresh("tree"), files)

    def commit(self, files: Mapping[str, bytes] | Path, model: str = "m", *options: str) -> Any:
        """Commit files, or a folder; returns what `--json` prints."""
        tree = files if isinstance(files, Path) else self.tree(files)
        return self("commit", "--json", *options, "--", tree, model).json

    def refused(self, files: Mapping[str, bytes], *options: str, uploads: bool = False) -> str:
        """A commit that must be refused and change nothing; returns the error.

        Args:
            uploads: it is refused when all files have been read; what was uploaded by then may be left over.
        """
        before = stored(self.store)
        done = self("commit", *options, "--", self.tree(files), "refused", code=3)
        after = {name: data for name, data in stored(self.store).items() if not uploads or name[:8] != "objects/"}
        assert after == {name: before.get(name) for name in after}, "a refused commit changed the store"
        assert done.out == "" and "next: " in done.err
        return done.err

    def tensors(self, selector: str = "m") -> dict[str, Any]:
        """Rows of `show --tensors` by name."""
        rows = self("show", "--tensors", "--json", "--", selector).json["tensors"]
        named = {row["name"]: row for row in rows}
        assert len(named) == len(rows), "two tensors are shown under one name"
        return named

    def back(self, selector: str = "m") -> Path:
        """Check out to a new folder."""
        place = self.fresh("back")
        self("checkout", "--", selector, place)
        return place

    def registry(self) -> Registry:
        """The store's registry, for a look inside."""
        self._registries.append(open_store(self.work))
        return self._registries[-1]

    def entries(self, selector: str = "m") -> dict[Key, TensorEntry]:
        """Manifest entries of the tensors."""
        registry = self.registry()
        return {entry.key: entry for entry in CheckpointManifest(registry, *resolve(registry, selector)).tensors()}

    def close(self) -> None:
        """Let go of what was opened."""
        while self._registries:
            self._registries.pop().close()


def command(prelude: str = "") -> list[str]:
    """Words that start the command line, after a prelude."""
    if not prelude:
        return [sys.executable, "-m", "cairn"]
    return [sys.executable, "-c", f"{prelude}\nimport sys\nfrom cairn.cli.app import run\nsys.exit(run(sys.argv[1:]))"]


def stored(store: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path."""
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def peak_mib(shell: Shell, *arguments: str | Path, code: int = 0) -> tuple[Done, float]:
    """Run a command and measure its largest resident size.

    A child's peak counts what its parent held when it was forked, so a small process stands between.
    """
    meter = (
        "import resource, subprocess, sys\n"
        "code = subprocess.call(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = shell.spawn(*arguments, code=code, prefix=(sys.executable, "-c", meter))
    return done, int(done.err.splitlines()[-1]) / 1024


def without_override() -> None:
    """Make file modes count for root too; for `before`."""
    if os.getuid() == 0:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if prctl(_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "cannot drop a capability")


def file_size_limit(size: int) -> Callable[[], None]:
    """Files may not grow beyond `size` bytes: how a full disk looks to a program; for `before`."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit
