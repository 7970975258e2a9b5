"""What is installed is the whole package: links resolved, nothing left behind, everything importable."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = ROOT / "src/cairn"
# Folders with Python in them that are not part of the package.
UNPACKAGED = {"benchmarks", "docs", "examples", "src", "tests", "tools"}

IMPORT_ALL = """
import importlib, importlib.metadata, pkgutil, sys
import cairn

assert cairn.__file__.startswith(sys.argv[1]), cairn.__file__
def fail(name):
    raise
names = [m.name for m in pkgutil.walk_packages(cairn.__path__, "cairn.", fail) if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
distribution = importlib.metadata.distribution("cairn-store")
assert distribution.version == cairn.__version__
(command,) = distribution.entry_points.select(group="console_scripts", name="cairn")
assert callable(command.load())
(system,) = distribution.entry_points.select(group="fsspec.specs", name="cairn")
assert system.load().protocol == "cairn"
print("\\n".join(["cairn", *names]))
"""


@dataclass(frozen=True, slots=True)
class Built:
    """A source distribution, and the wheel made from it (not from the tree)."""

    sdist: Path
    wheel: Path


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run without network; what it printed, or a failed test with all it said."""
    variables = os.environ | {"PIP_NO_INDEX": "1"} | environment
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def packaged_files() -> set[str]:
    """Files below `src/cairn/` through its links, as `cairn/...`."""
    found = set()
    for folder, folders, names in os.walk(LINKS, followlinks=True):
        folders[:] = [f for f in folders if f != "__pycache__"]
        found |= {(Path(folder) / name).relative_to(LINKS.parent).as_posix() for name in names}
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy, so that nothing is written into the tree and no stale file of an earlier build counts."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ["pyproject.toml", "LICENSE", "README.md"]:
        shutil.copy(ROOT / name, copy)
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ["src", *(link.name for link in LINKS.iterdir() if link.is_symlink())]:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=leave)
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy, cwd=copy)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Built(sdist, wheel)


def test_packaging_links_point_to_the_folders() -> None:
    links = {path.name for path in LINKS.iterdir() if path.is_symlink()}
    folders = {path.parent.name for path in ROOT.glob("[a-z]*/__init__.py")} - UNPACKAGED
    assert links == folders
    for name in links:
        assert (LINKS / name).readlink() == Path("../..") / name
        assert (LINKS / name).resolve() == ROOT / name


@pytest.mark.slow
def test_packaging_wheel_holds_the_package(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == packaged_files()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_packaging_sdist_holds_the_package(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = archive.getmembers()
    assert all(member.isfile() or member.isdir() for member in members), "a link points out of the archive"
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert {name.removeprefix("src/") for name in names if name.startswith("src/cairn/")} == packaged_files()
    assert {"pyproject.toml", "LICENSE", "README.md"} <= names


@pytest.mark.slow
def test_packaging_wheel_installs_and_imports(built: Built, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, built.wheel, cwd=tmp_path)
    printed = run(sys.executable, "-c", IMPORT_ALL, target, cwd=tmp_path, PYTHONPATH=str(target))
    modules = {name.removesuffix(".py") for name in packaged_files() if name.endswith(".py")}
    expected = {name.replace("/", ".").removesuffix(".__init__") for name in modules if not name.endswith("__main__")}
    assert set(printed.split()) == expected
