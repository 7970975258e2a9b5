"""Where a checkout may go: nothing is overwritten, nothing half-written is seen, nothing is left behind."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.core.errors import DestinationExists, IntegrityError, RefusedError, StorageError, StorageFull, UsageError
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Crash, Fail, FaultyBackend, Stopped
from cairn.workspace import casefold
from tests.support.stores import Site, checkout_to, commit_tree
from tests.support.trees import snapshot, write_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", {"a": os.urandom(100_000), "sub/b": b"y", "sub/deep/c": b""})


@pytest.fixture
def registry(site: Site, tree: Path) -> Registry:
    registry = site.registry()
    commit_tree(registry, tree)
    return registry


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A folder in which nothing else is."""
    (tmp_path / "room").mkdir()
    return tmp_path / "room"


@pytest.mark.parametrize("place", ["out", "new/folders/out", "empty", "ä ö", "-x", ".hidden", "x" * 200, "x" * 255])
def test_where_it_may_go(registry: Registry, tree: Path, room: Path, place: str) -> None:
    (room / "empty").mkdir()
    checkout_to(registry, "m", room / place)
    assert snapshot(room / place) == snapshot(tree)
    assert not list(room.rglob("*cairn-partial*"))


@pytest.mark.parametrize("place", [".", "./", "../room/.", "out/", "./out"])
def test_a_place_relative_to_where_one_is(
    registry: Registry, tree: Path, room: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(room)
    try:
        checkout_to(registry, "m", Path(place))
    except (UsageError, RefusedError):
        assert os.listdir(room) == []
    else:
        assert snapshot(room / place) == snapshot(tree)
    assert not list(room.parent.rglob("*cairn-partial*"))


OCCUPIED = ["file", "full", "link to empty", "dangling", "link to file"]


@pytest.mark.parametrize("what", OCCUPIED)
def test_what_is_there_is_never_overwritten(registry: Registry, room: Path, what: str) -> None:
    write_files(room, {"file": b"precious", "full/a": b"precious"})
    (room / "empty").mkdir()
    for name, target in (("link to empty", "empty"), ("dangling", "nowhere"), ("link to file", "file")):
        (room / name).symlink_to(target)
    before = snapshot(room)
    with pytest.raises(DestinationExists):
        checkout_to(registry, "m", room / what)
    assert snapshot(room) == before


@pytest.mark.parametrize("name", ["a", "b"])
def test_what_comes_there_meanwhile_is_not_overwritten(
    registry: Registry, room: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        write_files(room / "out", {name: b"precious"})
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(DestinationExists):
        checkout_to(registry, "m", room / "out")
    assert snapshot(room / "out") == {name.encode(): ("file", 0o644, b"precious")}
    assert os.listdir(room) == ["out"]


def test_a_place_below_a_file_is_no_place(registry: Registry, room: Path) -> None:
    write_files(room, {"file": b"x"})
    with pytest.raises((StorageError, RefusedError)):
        checkout_to(registry, "m", room / "file" / "out")
    assert os.listdir(room) == ["file"]


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5])
def test_a_failure_on_the_way_leaves_nothing(site: Site, registry: Registry, room: Path, call: int) -> None:
    reader = site.registry(FaultyBackend(site.backend, [Fail(op="read", name="objects/*", call=call)]))
    try:
        checkout_to(reader, "m", room / "out")
    except StorageError:
        assert os.listdir(room) == []
    else:
        assert call > 2, "it reads a body and two roots; pages that fail together are read one by one"


def test_damage_leaves_nothing(site: Site, registry: Registry, room: Path) -> None:
    name = max(site.names(".pack"), key=site.backend.size)
    data = bytearray(site.backend.read(name))
    data[50_000] ^= 1
    site.backend.delete(name)
    site.backend.create(name, [bytes(data)])
    with pytest.raises(IntegrityError):
        checkout_to(site.registry(), "m", room / "out")
    assert os.listdir(room) == []


def test_a_crash_leaves_nothing_at_the_destination(site: Site, registry: Registry, room: Path) -> None:
    for call in range(1, 12):
        reader = site.registry(FaultyBackend(site.backend, [Crash(op="read*", name="objects/*", call=call)]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shutil.rmtree", lambda *a, **k: None)  # a killed process cleans up nothing
            try:
                checkout_to(reader, "m", room / "out")
            except Stopped:
                assert not (room / "out").exists()
            else:
                break
    assert all(path.name.endswith(".cairn-partial") or path.name == "out" for path in room.iterdir())


@contextmanager
def no_file_over(limit: int) -> Iterator[None]:
    """As on a disk that is full."""
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)


def test_no_room_leaves_nothing(registry: Registry, room: Path) -> None:
    with no_file_over(1 << 16), pytest.raises(StorageFull, match="no room"):
        checkout_to(registry, "m", room / "out")
    assert os.listdir(room) == []


# --- File systems that fold case --------------------------------------------------------------

PAIRS = [
    ("Layer.W", "layer.w"),
    ("é", "É"),
    ("e\u0301", "é"),
    ("Maße", "MASSE"),
    ("sub/a", "sub/A"),
    ("Sub/x", "sub/y"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=ascii)
def test_D30_names_that_would_become_one_file_are_refused_before_anything_is_written(
    site: Site, tmp_path: Path, room: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str]
) -> None:
    tree = write_files(tmp_path / "pair", {name: name.encode() for name in pair})
    registry = site.registry()
    commit_tree(registry, tree)
    with monkeypatch.context() as patch:
        patch.setattr(casefold, "_folds_case", lambda folder: True)
        with pytest.raises(RefusedError, match="folds case"):
            checkout_to(registry, "m", room / "out")
    assert os.listdir(room) == []
    # The store is unaffected, and a place that keeps names apart takes them.
    checkout_to(registry, "m", room / "out")
    assert snapshot(room / "out") == snapshot(tree)


def test_names_that_do_not_clash_go_anywhere(
    registry: Registry, tree: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(casefold, "_folds_case", lambda folder: True)
    checkout_to(registry, "m", room / "out")
    assert snapshot(room / "out") == snapshot(tree)


def test_this_file_system_is_tried_not_guessed(tmp_path: Path) -> None:
    folder = tmp_path / "Folder"
    folder.mkdir()
    assert casefold._folds_case(os.fsencode(folder)) is (tmp_path / "fOLDER").exists()
    assert list(folder.iterdir()) == []
