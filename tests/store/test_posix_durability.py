"""What a folder survives: which system calls come in which order."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cairn.core.errors import (
    AnswerLost,
    ObjectExists,
)
from cairn.store.backends.posix import PosixBackend


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def posix(root: Path) -> PosixBackend:
    return PosixBackend(root)


@pytest.fixture
def events(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Calls that matter to durability, with paths from the folder above the store."""
    seen: list[tuple[str, str]] = []

    def path_of(target: int | str, folder: int | None = None) -> str:
        if isinstance(target, int):
            path = os.readlink(f"/proc/self/fd/{target}")
        else:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), target)
        return os.path.relpath(path, root.parent)

    def record(call: str, place: Callable[..., str]) -> None:
        real = getattr(os, call)

        def recorded(*arguments: Any, **keywords: Any) -> Any:
            seen.append((call, place(*arguments, **keywords)))
            return real(*arguments, **keywords)

        monkeypatch.setattr(os, call, recorded)

    record("mkdir", lambda path, dir_fd: path_of(path, dir_fd))
    record("writev", lambda file, _: path_of(file))
    record("fsync", lambda file: path_of(file))
    record("link", lambda _, new, dst_dir_fd, **__: path_of(new, dst_dir_fd))
    record("unlink", lambda path, dir_fd: path_of(path, dir_fd))
    return seen


def test_D33_fsync_order_of_the_first_object(posix: PosixBackend, events: list[tuple[str, str]]) -> None:
    posix.create("a/b", [b"x"])
    temporary = next(path for call, path in events if call == "writev")
    assert events == [
        *(("fsync", ".."), ("mkdir", "store"), ("fsync", ".")),
        *(("mkdir", "store/a"), ("fsync", "store")),
        *(("writev", temporary), ("fsync", temporary)),
        ("link", "store/a/b"),
        *(("unlink", temporary), ("fsync", "store/a")),
    ]
    assert os.path.dirname(temporary) == "store/a"


def test_D33_folders_are_synced_once_by_each_process(root: Path, events: list[tuple[str, str]]) -> None:
    PosixBackend(root).create("a/b/c", [b"x"])
    # A process that finds folders cannot know whether their maker came to sync them.
    posix = PosixBackend(root)
    for name, parents in [("a/b/d", [".", "store", "store/a"]), ("a/b/e", [])]:
        events.clear()
        posix.create(name, [b"x"])
        synced = [path for call, path in events if call == "fsync"]
        assert synced[: len(parents)] == parents
        assert synced[len(parents) + 1 :] == ["store/a/b"]


def test_D33_a_folder_made_again_is_synced_again(posix: PosixBackend, root: Path, events: list[Any]) -> None:
    for name in ["a/b", "a/c", "a/d"]:
        events.clear()
        posix.create(name, [b"x"])
        steps = [events.index(step) for step in [("mkdir", "store/a"), ("fsync", "store"), ("link", f"store/{name}")]]
        assert steps == sorted(steps)
        posix.delete(name)
        assert events[-1] == ("fsync", "store/a")
        (root / "a").rmdir()


def test_D33_an_object_exists_only_when_it_lasts(root: Path, events: list[tuple[str, str]]) -> None:
    PosixBackend(root).create("a/b", [b"x"])
    other = PosixBackend(root)
    events.clear()
    with pytest.raises(ObjectExists):
        other.create("a/b", [b"y"])
    lost = events.index(("link", "store/a/b"))
    assert {("fsync", "."), ("fsync", "store")} <= set(events[:lost])
    assert events[lost + 1 : lost + 3] == [("fsync", "store/a/b"), ("fsync", "store/a")]
    events.clear()
    PosixBackend(root).settle("a/b")
    assert events == [("fsync", path) for path in ["store/a/b", ".", "store", "store/a"]]


def test_a_folder_that_cannot_be_synced_leaves_the_answer_open(
    posix: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    posix.create("a", [b"x"])
    sync = os.fsync

    def fail_on_folders(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(file)

    monkeypatch.setattr(os, "fsync", fail_on_folders)
    with pytest.raises(AnswerLost, match=r"b .*durable"):
        posix.create("b", [b"x"])
    assert posix.read("b") == b"x"
    with pytest.raises(AnswerLost, match=r"a .*durable"):
        posix.delete("a")
