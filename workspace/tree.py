"""Scanning a file or folder: what is there, and what must not be.

Folders, regular files and symbolic links that stay inside the tree are kept, with permission bits. Links that
lead out, sockets, pipes and devices are refused: silently leaving something out would be a broken checkpoint. The
one thing left out is a Cairn store that lies inside the tree (`.cairn/`, as a rule), as git leaves out `.git`.
"""

import os
import stat
from pathlib import Path

import msgspec

from cairn.core.errors import BadInput, InputChanged, NotAllowed, NotFoundError
from cairn.core.limits import SYMLINK_BYTES_MAX
from cairn.registry.location import is_store
from cairn.workspace.links import link_stays_inside
from cairn.workspace.source import FileStamp

PERMISSIONS = 0o777


class Node(msgspec.Struct, frozen=True):
    """One path of a tree: `path` relative, as bytes; `kind` is `file`, `folder` or `link`; `stamp` as of the scan."""

    path: bytes
    kind: str
    mode: int
    stamp: FileStamp
    size: int = 0
    target: bytes = b""


class Tree(msgspec.Struct, frozen=True):
    """A scanned tree.

    Args:
        root: the folder that paths are relative to, or the one file of a single-file tree.
        stores: Cairn stores in it, which are left out.
    """

    root: bytes
    root_stamp: FileStamp
    nodes: tuple[Node, ...]
    single: bool = False
    stores: tuple[bytes, ...] = ()

    def absolute(self, path: bytes) -> bytes:
        """Path on disk of a node."""
        return self.root if self.single else os.path.join(self.root, path)


def scan(path: Path) -> Tree:
    """Scan a file or folder; a single file is a tree of one file, also where `path` is a link to it.

    Raises:
        NotFoundError: nothing there.
        BadInput: something in it cannot be stored.
    """
    root = os.path.realpath(os.fsencode(path))
    try:
        status = os.stat(root)
    except FileNotFoundError:
        raise NotFoundError(f"there is nothing at {path}", hint="check the path; it stands before the model") from None
    except OSError as error:
        raise NotAllowed(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        node = _node(root, os.path.basename(os.path.abspath(os.fsencode(path))), status)
        return Tree(root, node.stamp, (node,), single=True)
    if is_store(root):
        raise BadInput(f"{path} is a Cairn store itself", hint="name the folder whose files you want to commit")
    nodes, stores = _scan_folder(root)
    return Tree(root, FileStamp.of(status), tuple(sorted(nodes, key=lambda node: node.path)), stores=tuple(stores))


def _scan_folder(root: bytes) -> tuple[list[Node], list[bytes]]:
    """All nodes below a folder, and the stores left out; no recursion, since a path may hold two thousand folders."""
    nodes: list[Node] = []
    stores: list[bytes] = []
    folders = [b""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(root, folder) if folder else root) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            raise NotAllowed(f"folder {_show(folder) or '.'} cannot be read: {error.strerror}") from None
        for entry in entries:
            path = os.path.join(folder, entry.name) if folder else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                raise InputChanged(
                    f"{_show(path)} went away while the folder was scanned", hint="repeat the command"
                ) from None
            node = _node(os.path.join(root, path), path, status)
            if node.kind == "folder":
                if is_store(os.path.join(root, path)):
                    stores.append(path)
                    continue
                folders.append(path)
            nodes.append(node)
    return nodes, stores


def _node(absolute: bytes, path: bytes, status: os.stat_result) -> Node:
    mode, stamp = stat.S_IMODE(status.st_mode) & PERMISSIONS, FileStamp.of(status)
    if stat.S_ISREG(status.st_mode):
        return Node(path, "file", mode, stamp, status.st_size)
    if stat.S_ISDIR(status.st_mode):
        return Node(path, "folder", mode, stamp)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(absolute)
        if len(target) > SYMLINK_BYTES_MAX or not link_stays_inside(path, target):
            raise BadInput(
                f"link {_show(path)} -> {_show(target)} leads out of the folder",
                hint="replace the link by what it points to, or leave it out",
            )
        return Node(path, "link", PERMISSIONS, stamp, 0, target)
    raise BadInput(f"{_show(path)} is neither a file, a folder nor a link", hint="leave it out of the folder")


def _show(path: bytes) -> str:
    return ascii(os.fsdecode(path))[1:-1]
