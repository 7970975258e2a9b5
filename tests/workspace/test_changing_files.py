"""Files that change while they are read: nothing of them becomes visible."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cairn.core.errors import CairnError, InputChanged
from cairn.workspace import commit as module
from cairn.workspace.source import FileSource
from tests.support.stores import Site, checkout_to, commit_tree, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot, write_files

SIZE = 3 << 20


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def shrink(path: Path) -> None:
    os.truncate(path, SIZE // 2)


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"other")


def rewrite_quietly(path: Path) -> None:
    status = path.stat()
    rewrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"y" * SIZE)
    other.replace(path)


def change_mode(path: Path) -> None:
    path.chmod(0o600)


CHANGES = [grow, shrink, rewrite, rewrite_quietly, replace, change_mode]


FILES = {
    "victim": os.urandom(SIZE),
    "victim.safetensors": safetensors({"w": weights(1, 900, 900), "v": weights(2, 900)}),
}


@pytest.fixture(params=FILES)
def victim(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file among others."""
    tree = write_files(tmp_path / "tree", {"a-first": b"untouched", request.param: FILES[request.param]})
    return tree / request.param


def after_first_read(monkeypatch: pytest.MonkeyPatch, path: Path, change: Callable[[Path], None]) -> None:
    """Let the change happen once part of the file is read."""
    real = FileSource.read_into
    changes = [change]

    def read_into(self: FileSource, offset: int, target: memoryview) -> None:
        real(self, offset, target)
        if changes and self.shown == path.name:
            changes.pop()(path)

    monkeypatch.setattr(FileSource, "read_into", read_into)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_while_a_file_is_read_is_refused_and_nothing_visible(
    site: Site, victim: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    registry = site.registry()
    after_first_read(monkeypatch, victim, change)
    with pytest.raises(InputChanged, match="victim"):
        commit_tree(registry, victim.parent)
    assert (len(site.log()), site.names(".body")) == (1, [])
    assert [name for name in site.names() if name.startswith("sessions/")] == []


def test_the_next_try_takes_what_is_there(
    site: Site, victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = site.registry()
    commit_tree(registry, victim.parent)
    before = tip(registry)
    with monkeypatch.context() as patch:
        after_first_read(patch, victim, rewrite)
        with pytest.raises(InputChanged):
            commit_tree(site.registry(cold=True), victim.parent)
    assert tip(site.registry(cold=True)) == before
    commit_tree(registry, victim.parent)
    assert tip(registry) != before
    checkout_to(registry, "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(victim.parent)


@pytest.mark.parametrize("what", ["gone", "a folder", "a pipe", "a link"])
def test_a_file_that_is_something_else_when_its_turn_comes(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x" * 500, "b": b"y" * 500})
    real = module.scan

    def scan(path: Path) -> object:
        found = real(path)
        (tree / "b").unlink()
        if what == "a folder":
            (tree / "b").mkdir()
        elif what == "a pipe":
            os.mkfifo(tree / "b")
        elif what == "a link":
            (tree / "b").symlink_to("a")
        return found

    monkeypatch.setattr(module, "scan", scan)
    with pytest.raises(InputChanged, match="b"):
        commit_tree(site.registry(), tree)
    assert len(site.log()) == 1


def test_a_disk_that_cannot_read_is_an_error_of_ours(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preadv(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    tree = write_files(tmp_path / "tree", {"a": b"x" * 500})
    registry = site.registry()
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(CairnError, match="a"):
        commit_tree(registry, tree)
    assert len(site.log()) == 1


def test_what_was_written_lately_is_flushed_before_its_stamp_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores through a memory map to a dirty page move no time stamp; to a clean one they do."""
    path = tmp_path / "f"
    path.write_bytes(b"x")
    flushed: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    written = path.stat().st_mtime_ns
    for age_ns, flushes in ((0, 1), (59 * 10**9, 2), (61 * 10**9, 2)):
        FileSource(os.fsencode(path), "f", written + age_ns).close()
        assert len(flushed) == flushes


def test_a_file_that_holds_more_than_it_says_is_refused(site: Site) -> None:
    """As those under /proc, which the kernel makes up."""
    with pytest.raises(InputChanged):
        commit_tree(site.registry(), Path("/proc/self/status"))
