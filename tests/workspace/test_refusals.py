"""What cannot be stored is refused by name, before anything is visible."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.core.errors import BadInput, CairnError, NotFoundError
from cairn.workspace.links import is_plain_path, link_stays_inside
from tests.support.stores import Site, commit_tree
from tests.support.trees import write_files

OUT = [
    "/etc/passwd",
    "/",
    "..",
    "../x",
    "../../x",
    "a/../../x",
    "./../x",
    "sub/../../x",
    "sub/..",
    "a/..",
    "./a/../b",
    "sub/./../x",
]
INSIDE = ["a", "./a", "sub/a", "sub//a", "sub/", ".", "nowhere", "sub/./a", "..a", "...", "a/..b"]


def nothing_visible(site: Site) -> bool:
    return len(site.log()) == 1 and not site.registry(cold=True).state.models


@pytest.mark.parametrize("target", OUT)
def test_X17_a_link_that_leads_out_is_refused(site: Site, tmp_path: Path, target: str) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x", "sub/a": b"y"})
    (tree / "evil").symlink_to(target)
    with pytest.raises(BadInput, match=r"evil.*leads out"):
        commit_tree(site.registry(), tree)
    assert nothing_visible(site)


@pytest.mark.parametrize("target", INSIDE)
def test_a_link_that_stays_inside_is_kept(site: Site, tmp_path: Path, target: str) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x", "sub/a": b"y"})
    (tree / "link").symlink_to(target)
    assert commit_tree(site.registry(), tree).files == 2


def test_links_through_links_are_judged_one_by_one(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"d/e/a": b"x", "b": b"y"})
    (tree / "up").symlink_to("d/e")
    (tree / "d" / "back").symlink_to("../b")
    (tree / "d" / "e" / "top").symlink_to("../..")
    (tree / "chain").symlink_to("up/a")
    (tree / "loop").symlink_to("loop")
    commit_tree(site.registry(), tree)
    # `up` is d/e, so `up/../../..` would be above the tree: no `..` after a name.
    (tree / "climb").symlink_to("up/../../../x")
    with pytest.raises(BadInput, match="climb"):
        commit_tree(site.registry(), tree)


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        (b"a/b/c", b"../..", True), (b"a/b/c", b"../../x", True), (b"a/b/c", b"../../..", False),
        (b"a/b", b"../..", False), (b"a/b", b".././x", True), (b"a/b", b"x/..", False), (b"a", b"", False),
        (b"a", b"x\0y", False), (b"a", b"//x", False), (b"a", b"..\n", True),
    ],
)  # fmt: skip
def test_where_a_link_may_lead(path: bytes, target: bytes, inside: bool) -> None:
    assert link_stays_inside(path, target) is inside


@pytest.mark.parametrize("path", [b"", b"/", b"/a", b"a/", b"a//b", b".", b"..", b"a/../b", b"./a", b"a/.", b"a\0b"])
def test_what_is_no_plain_path(path: bytes) -> None:
    assert not is_plain_path(path)


@pytest.mark.parametrize("path", [b"a", b"a/b", b"...", b"a/..b", b" ", b"\xff/\n", b"-"])
def test_what_is_a_plain_path(path: bytes) -> None:
    assert is_plain_path(path)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("make", [make_fifo, make_socket])
@pytest.mark.parametrize("alone", [False, True])
def test_pipes_and_sockets_are_refused(site: Site, tmp_path: Path, make: object, alone: bool) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x", "sub/b": b"y"})
    make(tree / "sub" / "odd")  # type: ignore[operator]  # one of the two above
    with pytest.raises(BadInput, match=r"odd.*neither a file"):
        commit_tree(site.registry(), tree / "sub" / "odd" if alone else tree)
    assert nothing_visible(site)


class Late(BaseException):
    """It waited too long; no `except OSError` takes this for an answer."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """An error instead of waiting for ever."""

    def late(number: int, frame: object) -> None:
        raise Late

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("name", ["format", "sub/format", "m.safetensors", "config.json"])
def test_a_pipe_of_any_name_is_refused_and_not_waited_for(site: Site, tmp_path: Path, name: str) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x", "sub/b": b"y"})
    os.mkfifo(tree / name)
    with within(2), pytest.raises(BadInput, match="neither a file"):
        commit_tree(site.registry(), tree)
    assert nothing_visible(site)


def test_devices_are_refused(site: Site) -> None:
    with pytest.raises(BadInput, match="neither a file"):
        commit_tree(site.registry(), Path(os.devnull))
    assert nothing_visible(site)


def test_nothing_there_and_a_store_itself_are_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        commit_tree(site.registry(), tmp_path / "absent")
    with pytest.raises(NotFoundError):
        commit_tree(site.registry(), tmp_path / "absent" / "deeper")
    (tmp_path / "dangling").symlink_to("absent")
    with pytest.raises(NotFoundError):
        commit_tree(site.registry(), tmp_path / "dangling")
    write_files(tmp_path / "store", {"format": site.backend.read("format"), "log/0": b"x"})
    with pytest.raises(BadInput, match="store itself"):
        commit_tree(site.registry(), tmp_path / "store")
    assert nothing_visible(site)


def test_a_malformed_safetensors_file_is_refused_and_kept_as_bytes_on_request(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"m.safetensors": b"\x08\0\0\0\0\0\0\0{broken}" + b"x" * 50})
    with pytest.raises(BadInput, match=r"m\.safetensors"):
        commit_tree(site.registry(), tree)
    assert nothing_visible(site)
    assert commit_tree(site.registry(), tree, opaque=True).created


@pytest.mark.parametrize(
    "options",
    [
        {"message": "bad \udce9 text"}, {"step": 1 << 70}, {"message": "x" * (5 << 20)},
        {"branch": ""}, {"branch": "a@b"}, {"branch": "latest"},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_options_that_cannot_be_stored_are_refused_before_any_work(
    site: Site, tmp_path: Path, options: dict[str, object]
) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"some content"})
    with pytest.raises(CairnError):
        commit_tree(site.registry(), tree, **options)
    assert nothing_visible(site)
    assert not site.names(".pack"), "it worked before it refused"
