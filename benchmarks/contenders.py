"""Who is measured, and by which commands.

* **contender** - a program with a repository and caches of its own, all in one folder.
* **step** - one timed command of it, what happens before (untimed), and what it leaves.

Steps have the same names for all, and run in this order; one that a contender has no command for is left out.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from measure import clean_environment

FIRST = "first"
REPEATED = "unchanged, the same command again"
CACHED = "unchanged, known by time stamp"
REREAD = "unchanged, read again, caches warm"
COLD = "unchanged, read again, caches cold"
RESTORE = "restore"
STEPS = (FIRST, REPEATED, CACHED, REREAD, COLD, RESTORE)

ROOT = Path(__file__).resolve().parents[1]
_MODEL = "bench"
_PASSWORD = "benchmark"


@dataclass(frozen=True, slots=True)
class Step:
    """One timed command; `how` says in words what is done, `forget` are folders to delete before."""

    name: str
    command: tuple[str, ...]
    how: str
    forget: tuple[Path, ...] = ()
    folder: Path | None = None


class Contender(Protocol):
    """One program. `folder` is its own; `environment` is what its commands get."""

    name: str
    folder: Path
    environment: dict[str, str]

    def version(self) -> str:
        """What it says of itself."""
        ...

    def init(self) -> list[str]:
        """Command that makes an empty, encrypted repository."""
        ...

    def repository(self) -> Path:
        """Where its repository lies."""
        ...

    def restored(self) -> Path:
        """Where `restore` puts the data folder."""
        ...

    def steps(self, data: Path) -> Iterator[Step]:
        """Its steps for a data folder."""
        ...


def _said(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.strip()


class Cairn:
    """This project, by its command as installed, else by the sources beside this file."""

    name = "cairn"

    def __init__(self, folder: Path, codec: str = "raw") -> None:
        self.folder = folder
        self.environment = clean_environment(folder)
        self._codec = codec
        script = Path(sys.executable).with_name("cairn")
        self._program = [str(script)]
        if not script.exists():
            self._program = [sys.executable, "-m", "cairn"]
            self.environment["PYTHONPATH"] = str(ROOT / "src")

    def version(self) -> str:
        names = ("blake3", "cryptography", "lmdb", "msgspec", "click", "numpy")
        return f"{_said([*self._program, '--version'], self.environment)} ({', '.join(map(_package, names))})"

    def init(self) -> list[str]:
        return [*self._program, "init", str(self.folder)]

    def repository(self) -> Path:
        return self.folder / ".cairn"

    def restored(self) -> Path:
        return self.folder / "restored"

    def command(self, name: str, *arguments: str) -> tuple[str, ...]:
        """A command on its store."""
        return (*self._program, name, "--store", str(self.repository()), *arguments)

    def help(self) -> tuple[str, ...]:
        """The command that only starts."""
        return (*self._program, "--help")

    def steps(self, data: Path) -> Iterator[Step]:
        commit = self.command("commit", str(data), _MODEL, "-q", "--codec", self._codec)
        cache = Path(self.environment["XDG_CACHE_HOME"])
        answers = cache / "cairn" / "answers"
        yield Step(FIRST, commit, f"cairn commit --codec {self._codec} into an empty store")
        yield Step(REPEATED, commit, "the same cairn commit; its remembered answer holds (stamps of files and packs)")
        yield Step(CACHED, commit, "cairn commit without remembered answers, by the file-digest cache", (answers,))
        yield Step(COLD, commit, "cairn commit after deleting its cache folder (index, fold, file digests)", (cache,))
        yield Step(RESTORE, self.command("checkout", _MODEL, str(self.restored()), "-q"), "cairn checkout")


class Restic:
    """https://restic.net"""

    name = "restic"

    def __init__(self, folder: Path, compress: bool = False) -> None:
        self.folder = folder
        self._cache = folder / "cache"
        self._compression = "auto" if compress else "off"
        extra = {"RESTIC_PASSWORD": _PASSWORD, "RESTIC_CACHE_DIR": str(self._cache)}
        self.environment = clean_environment(folder) | extra

    def version(self) -> str:
        return _said(["restic", "version"], self.environment)

    def init(self) -> list[str]:
        return [*self._restic(), "init"]

    def repository(self) -> Path:
        return self.folder / "repository"

    def restored(self) -> Path:
        return self.folder / "restored" / "model"

    def _restic(self) -> list[str]:
        return ["restic", "-q", "-r", str(self.repository()), "--compression", self._compression]

    def steps(self, data: Path) -> Iterator[Step]:
        # A relative path, so that `restored` does not depend on where the data lies.
        backup = (*self._restic(), "backup", data.name)
        force = (*backup, "--force")
        how = f"restic --compression {self._compression} backup"
        yield Step(FIRST, backup, f"{how} into an empty repository", folder=data.parent)
        yield Step(CACHED, backup, f"{how} again; the parent snapshot knows the file", folder=data.parent)
        yield Step(REREAD, force, f"{how} --force", folder=data.parent)
        yield Step(COLD, force, f"{how} --force after deleting its cache folder", (self._cache,), data.parent)
        target = self.restored().parent
        yield Step(RESTORE, (*self._restic(), "restore", "latest", "--target", str(target)), "restic restore latest")


class Borg:
    """https://www.borgbackup.org"""

    name = "borg"

    def __init__(self, folder: Path, compress: bool = False) -> None:
        self.folder = folder
        self._cache = folder / "borg" / "cache"
        self._compression = "lz4" if compress else "none"
        extra = {"BORG_BASE_DIR": str(folder / "borg"), "BORG_CACHE_DIR": str(self._cache)}
        extra["BORG_PASSPHRASE"] = _PASSWORD
        self.environment = clean_environment(folder) | extra

    def version(self) -> str:
        return _said(["borg", "--version"], self.environment)

    def init(self) -> list[str]:
        return ["borg", "init", "--encryption", "repokey-blake2", str(self.repository())]

    def repository(self) -> Path:
        return self.folder / "repository"

    def restored(self) -> Path:
        return self.folder / "restored" / "model"

    def steps(self, data: Path) -> Iterator[Step]:
        create, how = ["borg", "create", "--compression", self._compression], f"borg create -C {self._compression}"

        def archive(name: str, *options: str) -> tuple[str, ...]:
            return (*create, *options, f"{self.repository()}::{name}", data.name)

        unread = "--files-cache=disabled"
        yield Step(FIRST, archive("first"), f"{how} into an empty repository (repokey-blake2)", folder=data.parent)
        yield Step(CACHED, archive("again"), f"{how} again; its files cache knows the file", folder=data.parent)
        yield Step(REREAD, archive("reread", unread), f"{how} {unread}", folder=data.parent)
        cold = f"{how} {unread} after deleting its cache folder"
        yield Step(COLD, archive("cold", unread), cold, (self._cache,), data.parent)
        extract = ("borg", "extract", f"{self.repository()}::first")
        yield Step(RESTORE, extract, "borg extract", folder=self.restored().parent)


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} not installed"


def fresh(contender: Contender) -> None:
    """Give a contender an empty repository and empty caches.

    Raises:
        CalledProcessError: it cannot make one.
    """
    shutil.rmtree(contender.folder, ignore_errors=True)
    contender.folder.mkdir(parents=True)
    contender.restored().parent.mkdir(exist_ok=True)
    subprocess.run(contender.init(), env=contender.environment, check=True, capture_output=True)
    os.sync()
