"""A file layer that remembers what was made durable, and what a power cut leaves of the rest.

* **recorded os** - stands in a module for `os`: does what it is asked on real folders, and notes what changes there.
* **cut** - a moment between two notes. What was synced by then is there afterwards; of the rest:
  the bytes of a file are lost, torn, or others of the same length; each change of a folder (a name made, removed or
  renamed) has taken place or not, whatever became of those before it. A folder's own sync makes its names durable,
  and nobody else's.
* **tree** - one of the states that a cut may leave: bytes of files by path, None for folders.

The model is that of ALICE (Pillai et al., OSDI 2014), with a folder's changes as free as POSIX leaves them.
"""

import errno
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

Tree = dict[str, bytes | None]
# Names that come and go in one step: None takes a name away.
_Change = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True)
class Note:
    """Something that happened: `kind` is `file`, `folder`, `write`, `sync`, `change` or `mark`."""

    kind: str
    node: int = 0
    data: bytes = b""
    change: _Change = ()
    mark: object = None


class RecordedOs:
    """`os`, for files below `root`; what else is asked of it goes to the real one.

    Args:
        root: an empty folder, durable from the beginning.
        links: whether the file system has hard links.
    """

    def __init__(self, root: Path, *, links: bool = True) -> None:
        self.root = root
        self.notes: list[Note] = []
        self._links = links
        self._nodes = {_identity(os.stat(root)): 0}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def mark(self, mark: object) -> None:
        """Note that something was said to be done."""
        self.notes.append(Note("mark", mark=mark))

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        made = flags & os.O_CREAT and not _exists(path, dir_fd)
        file = os.open(path, flags, mode, dir_fd=dir_fd)
        if made:
            self._made("file", os.fstat(file), path, dir_fd)
        return file

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        os.mkdir(path, mode, dir_fd=dir_fd)
        self._made("folder", os.stat(path, dir_fd=dir_fd), path, dir_fd)

    def write(self, file: int, data: Any) -> int:
        return self.writev(file, [data])

    def writev(self, file: int, parts: Sequence[Any]) -> int:
        count = os.writev(file, parts)
        self._note("write", self._nodes.get(_identity(os.fstat(file))), data=b"".join(parts)[:count])
        return count

    def fsync(self, file: int) -> None:
        self._note("sync", self._nodes.get(_identity(os.fstat(file))))

    def link(
        self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **_: Any
    ) -> None:
        if not self._links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        node = self._nodes.get(_identity(os.stat(old, dir_fd=src_dir_fd)))
        os.link(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=False)
        self._changed(new, dst_dir_fd, ((os.path.basename(new), node),))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        os.unlink(path, dir_fd=dir_fd)
        self._changed(path, dir_fd, ((os.path.basename(path), None),))

    def replace(self, old: Any, new: Any) -> None:
        node = self._nodes.get(_identity(os.stat(old)))
        os.replace(old, new)
        self._changed(new, None, ((os.path.basename(old), None), (os.path.basename(new), node)))

    def rename_exclusively(self, folder: int, old: str, new: str) -> int:
        """As `posix._rename_exclusively`."""
        if _exists(new, folder):
            return errno.EEXIST
        node = self._nodes.get(_identity(os.stat(old, dir_fd=folder)))
        os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)
        self._changed(new, folder, ((old, None), (new, node)))
        return 0

    def _made(self, kind: str, status: os.stat_result, path: Any, dir_fd: int | None) -> None:
        # The number may have been that of a file which is gone.
        node = self._nodes[_identity(status)] = len(self.notes) + 1
        self._note(kind, node)
        self._changed(path, dir_fd, ((os.path.basename(path), node),))

    def _changed(self, path: Any, dir_fd: int | None, change: _Change) -> None:
        above = os.path.dirname(path) or "."
        folder = os.stat(above, dir_fd=dir_fd)
        self._note("change", self._nodes.get(_identity(folder)), change=change)

    def _note(self, kind: str, node: int | None, **more: Any) -> None:
        if node is not None:
            self.notes.append(Note(kind, node, **more))


@dataclass
class _Node:
    """A file or folder: what is durable of it, and what is not yet."""

    folder: bool
    data: bytes = b""
    written: bytes = b""
    names: dict[str, int] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)

    def sync(self) -> None:
        self.data = self.written
        for change in self.changes:
            _apply(self.names, change)
        self.changes = []


class Disk:
    """What stands and what is pending at a cut.

    Attributes:
        marks: what was said to be done by then; `after_mark` if nothing has happened since the last.
    """

    def __init__(self, notes: Sequence[Note]) -> None:
        self.after_mark = bool(notes) and notes[-1].kind == "mark"
        self._nodes = {0: _Node(True)}
        self.marks: list[Any] = []
        for note in notes:
            if note.kind in ("file", "folder"):
                self._nodes[note.node] = _Node(note.kind == "folder")
            elif note.kind == "write":
                self._nodes[note.node].written += note.data
            elif note.kind == "change":
                self._nodes[note.node].changes.append(note.change)
            elif note.kind == "sync":
                self._nodes[note.node].sync()
            else:
                self.marks.append(note.mark)

    def trees(self, draw: random.Random, most: int) -> Iterator[Tree]:
        """States that a cut may leave: all of them, or the extreme ones and then some at random, if there are more."""
        pending = [(number, at) for number, node in self._nodes.items() for at in range(len(node.changes))]
        unsynced = [number for number, node in self._nodes.items() if not node.folder and node.data != node.written]
        contents = {number: self._contents(number, draw) for number in unsynced}
        kinds = range(len(_KINDS))
        if 2 ** len(pending) * len(kinds) ** len(unsynced) <= most:
            choices = product(product((False, True), repeat=len(pending)), product(kinds, repeat=len(unsynced)))
        else:
            choices = islice(_some(len(pending), len(unsynced), draw), most)
        for kept, kind in choices:
            chosen = {where for where, keep in zip(pending, kept, strict=True) if keep}
            data = {number: contents[number][one] for number, one in zip(unsynced, kind, strict=True)}
            tree: Tree = {}
            self._walk(0, "", chosen, data, tree)
            yield tree

    def _contents(self, number: int, draw: random.Random) -> Sequence[bytes]:
        node = self._nodes[number]
        tail = node.written[len(node.data) :]
        return [
            node.data,
            node.data + tail[: draw.randrange(len(tail))],
            node.data + draw.choice([bytes(len(tail)), draw.randbytes(len(tail))]),
            node.written,
        ]

    def _walk(
        self, number: int, path: str, chosen: set[tuple[int, int]], data: Mapping[int, bytes], tree: Tree
    ) -> None:
        node = self._nodes[number]
        names = dict(node.names)
        for at, change in enumerate(node.changes):
            if (number, at) in chosen:
                _apply(names, change)
        for name, each in names.items():
            place = f"{path}{name}"
            below = self._nodes[each]
            if below.folder:
                tree[place] = None
                self._walk(each, place + "/", chosen, data, tree)
            else:
                tree[place] = data.get(each, below.data)


# Of bytes that were not synced: none, a first part, others, all.
_KINDS = ("lost", "torn", "garbage", "whole")


def cuts(notes: Sequence[Note]) -> Iterator[Disk]:
    """The disk at each moment."""
    for count in range(len(notes) + 1):
        yield Disk(notes[:count])


def put(tree: Tree, root: Path) -> None:
    """Write a tree into an empty folder."""
    for place, data in tree.items():
        if data is None:
            (root / place).mkdir(parents=True, exist_ok=True)
        else:
            (root / place).write_bytes(data)


def _some(changes: int, files: int, draw: random.Random) -> Iterator[tuple[Sequence[bool], Sequence[int]]]:
    """Choices without end: first nothing kept, then every name with each kind of bytes."""
    yield [False] * changes, [0] * files
    for kind in range(len(_KINDS)):
        yield [True] * changes, [kind] * files
    while True:
        yield [draw.random() < 0.5 for _ in range(changes)], [draw.randrange(len(_KINDS)) for _ in range(files)]


def _apply(names: dict[str, int], change: _Change) -> None:
    for name, node in change:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _exists(path: Any, dir_fd: int | None) -> bool:
    try:
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
