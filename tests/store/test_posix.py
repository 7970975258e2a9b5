"""The suite for folders, with and without hard links, then what only a file system can do wrong."""

import ctypes
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cairn.core.errors import (
    CairnError,
    NotAllowed,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
)
from cairn.store.backends.contract import Backend
from cairn.store.backends.posix import PosixBackend
from tests.contracts.backend import BackendContract

# What a child process starts with: a store, and its arguments after that.
CHILD = """
import ctypes, os, resource, sys
from pathlib import Path
from cairn.core.errors import CairnError, ObjectExists
from cairn.store.backends.posix import PosixBackend
backend, arguments = PosixBackend(Path(sys.argv[1])), sys.argv[2:]
"""


class TestPosix(BackendContract):
    @pytest.fixture
    def backend(self, root: Path) -> Backend:
        return PosixBackend(root)


class TestPosixWithoutLinks_D23(BackendContract):
    @pytest.fixture
    def backend(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))
        return PosixBackend(root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def posix(root: Path) -> PosixBackend:
    return PosixBackend(root)


def refuse(code: int) -> Callable[..., Any]:
    """Stands in for a system call that always fails."""

    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "/secret/path")

    return call


def files(root: Path) -> list[str]:
    """Every file below `root`, hidden ones too."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def child(script: str, root: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", CHILD + script, str(root), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def output(script: str, root: Path, *arguments: str) -> str:
    process = child(script, root, *arguments)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return printed


RACER = """
for number in range(int(arguments[1])):
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        backend.create(arguments[0].format(number=number), [arguments[2].encode() * 500])
        print("won", flush=True)
    except ObjectExists:
        print("lost", flush=True)
"""


def race(root: Path, name: str, processes: int, rounds: int) -> Iterator[list[str]]:
    """Let processes create `name` together, round after round; gives what each reports."""
    racers = [child(RACER, root, name.replace("{who}", str(who)), str(rounds), str(who)) for who in range(processes)]
    inputs, outputs = [r.stdin for r in racers if r.stdin], [r.stdout for r in racers if r.stdout]
    for _ in range(rounds):
        assert [stream.readline() for stream in outputs] == ["ready\n"] * processes
        # Nobody always hears it first.
        inputs.reverse()
        for start in inputs:
            start.write("\n")
            start.flush()
        yield [stream.readline().strip() for stream in outputs]
    for racer in racers:
        racer.communicate(timeout=60)
        assert racer.returncode == 0


# --- Exclusive names and folders --------------------------------------------------------------


def test_of_two_processes_exactly_one_creates(posix: PosixBackend, root: Path) -> None:
    winners = set()
    for number, reports in enumerate(race(root, "log/{number}", processes=2, rounds=150)):
        assert sorted(reports) == ["lost", "won"]
        assert posix.read(f"log/{number}") == str(reports.index("won")).encode() * 500
        winners.add(reports.index("won"))
    assert winners == {0, 1}, "one process won every round: this was no race"


def test_D16_many_processes_make_the_same_folder(posix: PosixBackend, root: Path) -> None:
    for reports in race(root, "objects/{number}/x/{who}", processes=16, rounds=12):
        assert reports == ["won"] * 16
    assert len(list(posix.list("objects"))) == 16 * 12


def test_D16_a_folder_made_by_somebody_else_is_as_good(posix: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.mkdir

    def make_twice(path: str, *, dir_fd: int) -> None:
        make(path, dir_fd=dir_fd)
        make(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", make_twice)
    posix.create("a/b/c", [b"x"])
    assert posix.read("a/b/c") == b"x"


def test_a_folder_removed_while_empty_is_made_again(
    posix: PosixBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open
    removed: list[str] = []

    def remove_first(path: str, *arguments: Any, **keywords: Any) -> int:
        if path.startswith(".tmp-") and not removed:
            (root / "a/b").rmdir()
            (root / "a").rmdir()
            removed.append(path)
        return open_file(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", remove_first)
    posix.create("a/b/c", [b"x"])
    assert removed
    assert posix.read("a/b/c") == b"x"


def test_D23_without_links_and_exclusive_rename_nothing_is_created(
    posix: PosixBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse(errno.ENOTSUP))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(StorageError, match=r"a/b.*renameat2.*exactly one") as caught:
        posix.create("a/b", [b"x"])
    assert caught.value.hint
    assert files(root) == []


def test_an_answer_lost_by_nfs_is_no_conflict(posix: PosixBackend, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(*arguments: Any, **keywords: Any) -> None:
        link(*arguments, **keywords)
        link(*arguments, **keywords)

    monkeypatch.setattr(os, "link", link_twice)
    posix.create("a", [b"x"])
    with pytest.raises(ObjectExists):
        posix.create("a", [b"y"])
    assert posix.read("a") == b"x"
    assert files(root) == ["a"]


def test_a_name_remembered_as_absent_by_nfs_is_asked_for_again(
    posix: PosixBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posix.create("a/b", [b"x"])
    open_file, opened = os.open, []

    def forgetful(path: str, flags: int, *arguments: Any, **keywords: Any) -> int:
        opened.append(path)
        if path.endswith("/b") and str(root / "a") not in opened:
            raise FileNotFoundError(errno.ENOENT, "absent")
        return open_file(path, flags, *arguments, **keywords)

    monkeypatch.setattr(os, "open", forgetful)
    assert posix.read("a/b") == b"x"


# --- Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["writev", "fsync", "link"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        *((errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EFBIG, StorageFull)),
        *((errno.EACCES, NotAllowed), (errno.EROFS, NotAllowed), (errno.EIO, StorageError)),
    ],
)
def test_a_refusal_leaves_nothing(
    posix: PosixBackend, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, error: type[CairnError]
) -> None:
    posix.create("a/b", [b"x"])
    monkeypatch.setattr(os, call, refuse(code))
    with pytest.raises(error, match=r"a/c: .*nothing was changed") as caught:
        posix.create("a/c", [b"y"])
    assert type(caught.value) is error
    assert "/secret" not in str(caught.value)
    assert error is StorageError or caught.value.hint
    assert files(root) == ["a/b"]


def test_a_file_size_limit_is_a_full_storage(root: Path) -> None:
    script = """
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
backend.create("a/small", [bytes(65536)])
try:
    backend.create("a/large", [bytes(40000)] * 3)
except CairnError as error:
    print(type(error).__name__, error)
"""
    printed = output(script, root)
    assert printed.startswith("StorageFull") and "a/large" in printed and "ulimit" in printed
    assert files(root) == ["a/small"]


def test_reading_needs_no_right_to_write(posix: PosixBackend, root: Path) -> None:
    posix.create("a/b", [b"content"])
    places = [root, root / "a"]
    (root / "a/b").chmod(0o444)
    for place in places:
        place.chmod(0o555)
    script = """
# Without capabilities, permissions bind root too.
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
backend.settle("a/b")
print(backend.read("a/b"), backend.size("a/b"), backend.read_into("a/b", 1, bytearray(9)), end=" ")
print([o.name for o in backend.list()], backend.folders(), backend.reclaim(""), end=" ")
for change in (lambda: backend.create("a/c", [b"x"]), lambda: backend.delete("a/b")):
    try:
        change()
    except CairnError as error:
        print(type(error).__name__, end=" ")
"""
    printed = output(script, root)
    for place in places:
        place.chmod(0o755)
    assert printed == "b'content' 7 6 ['a/b'] ['a'] 0 NotAllowed NotAllowed "
    assert files(root) == ["a/b"]


def test_D27_modes_follow_umask_and_group(posix: PosixBackend, root: Path) -> None:
    group = 4242 if os.geteuid() == 0 else os.getegid()
    root.mkdir()
    os.chown(root, -1, group)
    root.chmod(0o2775)
    for umask, name in [(0o002, "shared/a/b"), (0o077, "private/a/b")]:
        before = os.umask(umask)
        try:
            posix.create(name, [b"x"])
        finally:
            os.umask(before)
        for path in [root / name, *(root / name).parents[:2]]:
            status = path.stat()
            assert stat.S_IMODE(status.st_mode) == (0o2777 if path.is_dir() else 0o666) & ~umask
            assert status.st_gid == group


def test_links_and_devices_are_no_objects(posix: PosixBackend, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    posix.create("a", [b"x"])
    (root / "link").symlink_to(tmp_path / "outside/secret")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "Foreign File").touch()
    os.mkfifo(root / "fifo")
    for ask in (posix.read, posix.size, posix.settle):
        with pytest.raises(StorageError, match=r"link"):
            ask("link")
        with pytest.raises(ObjectNotFound, match="fifo"):
            ask("fifo")
    assert [listed.name for listed in posix.list()] == ["a"]
    assert [*posix.list("folder"), *posix.folders()] == []
    with pytest.raises(StorageError, match="folder/x"):
        posix.create("folder/x", [b"x"])
    assert os.listdir(tmp_path / "outside") == ["secret"]


# --- Leftovers --------------------------------------------------------------------------------


def test_D12_a_dead_writers_leftover_blocks_nobody_and_is_reclaimed(posix: PosixBackend, root: Path) -> None:
    script = """
os.fsync = lambda file: (os.path.isdir(f"/proc/self/fd/{file}") or print("written", flush=True) or sys.stdin.read())
backend.create("a/b", [bytes(1000)])
"""
    writer = child(script, root)
    assert writer.stdout and writer.stdout.readline() == "written\n"
    assert len(files(root)) == 1
    assert posix.reclaim("") == 0, "it lives"
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=60)
    assert list(posix.list()) == []
    posix.create("a/b", [b"x"])
    assert len(files(root)) == 2
    assert posix.reclaim("absent") == 0
    assert posix.reclaim("a") == 1000
    assert files(root) == ["a/b"]


def test_a_leftover_with_two_names_frees_nothing(posix: PosixBackend, root: Path) -> None:
    posix.create("a", [b"x" * 1000])
    os.link(root / "a", root / ".tmp-killed-after-link")
    assert posix.reclaim("") == 0
    assert files(root) == ["a"]


def test_reclaim_spares_a_writer_of_the_same_process(posix: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, freed = os.fsync, []

    def reclaim_first(file: int) -> None:
        freed.append(posix.reclaim(""))
        sync(file)

    monkeypatch.setattr(os, "fsync", reclaim_first)
    posix.create("a/b", [b"x"])
    assert set(freed) == {0}
    assert posix.read("a/b") == b"x"


def test_a_temporary_file_lost_before_its_lock_is_replaced(
    posix: PosixBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    removed: list[list[str]] = []

    def remove_first(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not removed:
            removed.append(files(root))
            posix.reclaim("")
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    posix.create("a", [b"x"])
    assert removed
    assert files(root) == ["a"]


# --- Bytes ------------------------------------------------------------------------------------


def test_short_writes_and_reads_go_on(posix: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(200))
    read_part, read_whole = os.preadv, os.pread
    monkeypatch.setattr(os, "writev", lambda file, parts: os.write(file, b"".join(parts)[:7]))
    monkeypatch.setattr(os, "pread", lambda file, count, offset: read_whole(file, min(count, 9), offset))
    monkeypatch.setattr(os, "preadv", lambda file, views, offset: read_part(file, [views[0][:9]], offset))
    posix.create("a", [data[:3], data[3:20], data[20:]])
    assert posix.read("a", 5, 100) == data[5:105]
    target = bytearray(100)
    assert posix.read_into("a", 5, target) == 100
    assert target == data[5:105]


def test_a_pack_is_written_without_a_copy(posix: PosixBackend) -> None:
    parts = [bytes(1 << 20)] * 64
    tracemalloc.start()
    try:
        posix.create("objects/a.pack", parts)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert posix.size("objects/a.pack") == 64 << 20
