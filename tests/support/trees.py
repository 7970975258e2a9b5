"""Trees on disk: written from a short description, drawn at random, and compared whole."""

import os
import random
from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below `root`, making folders as needed; returns `root`."""
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def snapshot(root: Path) -> dict[bytes, tuple[object, ...]]:
    """All that a checkout promises to bring back: kinds, permission bits, contents, link targets, by path."""
    found: dict[bytes, tuple[object, ...]] = {}
    base = os.fsencode(root)
    for folder, folders, files in os.walk(base):
        for name in folders + files:
            path = os.path.join(folder, name)
            place = os.path.relpath(path, base)
            mode = os.lstat(path).st_mode & 0o777
            if os.path.islink(path):
                found[place] = "link", os.readlink(path)
            elif os.path.isdir(path):
                found[place] = "folder", mode
            else:
                with open(path, "rb") as file:
                    found[place] = "file", mode, file.read()
    return found


def random_tree(draw: random.Random, root: Path) -> None:
    """Folders in folders, empty ones too; files of up to two blocks; links that stay inside; odd names and modes."""
    names = [b"a", b"b.bin", b"\xff\xfe", "ä ö".encode(), b"-n", b"new\nline", b"\\xff", b"x" * 200, b"...", b"\x01"]
    root.mkdir(parents=True)
    folders = [b""]
    for _ in range(draw.randrange(8)):
        folder = os.path.join(draw.choice(folders), draw.choice(names))
        if folder not in folders:
            folders.append(folder)
            os.mkdir(_below(root, folder))
    files: list[bytes] = []
    for _ in range(draw.randrange(12)):
        path = os.path.join(draw.choice(folders), draw.choice(names) + b".%d" % draw.randrange(4))
        if not os.path.lexists(_below(root, path)):
            with open(_below(root, path), "wb") as file:
                file.write(_content(draw))
            files.append(path)
    for number in range(draw.randrange(4)):
        place = draw.choice(folders)
        up = b"/".join([b".."] * place.count(b"/") + ([b".."] if place else []))
        target = os.path.join(up, draw.choice([*files, *folders[1:], b"nowhere"]))
        os.symlink(target, _below(root, os.path.join(place, b"link%d" % number)))
    for path in files + folders[1:]:
        if draw.random() < 0.5:
            os.chmod(
                _below(root, path),
                draw.choice([0o400, 0o444, 0o600, 0o640, 0o755, 0o777]) | (0o700 if path in folders else 0),
            )


def _content(draw: random.Random) -> bytes:
    length = draw.choice([0, 1, 127, 128, 129, 4096, 70_000, (1 << 20) - 1, (1 << 20) + 1])
    return draw.choice([draw.randbytes(length), bytes(length), b"\xff" * length, b"ab" * (length // 2)])


def _below(root: Path, path: bytes) -> bytes:
    return os.path.join(os.fsencode(root), path)
