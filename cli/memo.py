"""Answers remembered: the same `cairn commit` again, with nothing changed, costs a few dozen `stat` calls.

A memo says: in this folder, with these arguments and settings, when the log had this head, and what was committed had
this fingerprint, a commit would change nothing and print this. It is a file in the user's cache folder, and shows
neither names nor messages; whatever does not match to the letter goes the long way. Only the standard library's
lightest modules are imported here.
"""

import json
import os
import sys
from hashlib import blake2b

# Settings that choose store, key or cache; a passphrase never goes into a memo.
_SETTINGS = ("CAIRN_STORE", "CAIRN_KEY_FILE", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "HOME")
_VERSION = 1
# A store in the tree is no part of it.
_STORE = ".cairn"
# Beyond this many paths, reading the memo costs more than it saves.
PATHS_MAX = 20_000


def stamp(path: str) -> list[int] | None:
    """What tells one version of a path from another; None if it is not there."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return [
        status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    ]  # fmt: skip


def fingerprint(real: str, stamps: list[tuple[str, list[int]]]) -> str:
    """Hash of a tree's place and the stamps of all its paths, relative and in hexadecimal; the root's is empty."""
    return _hash([real, sorted(stamps)])


def recall(arguments: list[str]) -> int | None:
    """Print the remembered answer to a commit and return its exit code; None if there is none that holds."""
    if "CAIRN_PASSPHRASE" in os.environ:
        return None
    try:
        with open(_file(arguments), encoding="utf-8") as file:
            memo = json.load(file)
        head, following = memo["entries"]
        if memo["version"] != _VERSION or any(stamp(path) != seen for path, seen in memo["stamps"]):
            return None
        if not os.path.lexists(head) or any(map(os.path.lexists, [following, *memo["absent"]])):
            return None
        real = os.path.realpath(arguments[memo["argument"]])
        if fingerprint(real, _stamps(real)) != memo["tree"]:
            return None
        out = memo["stdout"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    sys.stdout.write(out)
    sys.stdout.flush()
    return 0


def remember(
    arguments: list[str],
    argument: int,
    tree: str,
    entries: tuple[str, str],
    absent: list[str],
    stamps: list[tuple[str, list[int]]],
    stdout: str,
) -> None:
    """Keep an answer; does nothing where the cache folder cannot be written.

    Args:
        argument: number of the one that names what was committed.
        tree: fingerprint of what it named, as it was before it was read.
        entries: paths of the newest log entry and of the next one, whose existence makes the answer stale.
        absent: paths whose existence would mean another store.
        stamps: of the parts of the store that the answer relies on, and of the key file.
    """
    if "CAIRN_PASSPHRASE" in os.environ or len(stamps) > PATHS_MAX:
        return
    try:
        place = _file(arguments)
        memo = {"version": _VERSION, "argument": argument, "tree": tree, "entries": entries, "absent": absent}
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        temporary = f"{place}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({**memo, "stamps": stamps, "stdout": stdout}, file)
        os.replace(temporary, place)
    except OSError:
        return


def _stamps(real: str) -> list[tuple[str, list[int]]]:
    """Stamps of a file, or of a folder and all below it but stores."""
    root = stamp(real)
    if root is None:
        raise FileNotFoundError(real)
    stamps = [("", root)]
    folders = [""] if os.path.isdir(real) else []
    while folders and len(stamps) <= PATHS_MAX:
        folder = folders.pop()
        with os.scandir(os.path.join(real, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and entry.name == _STORE:
                    continue
                if is_folder:
                    folders.append(path)
                stamps.append((os.fsencode(path).hex(), stamp(entry.path) or []))
    return stamps


def _file(arguments: list[str]) -> str:
    """Where the answer lies: named by a hash of the circumstances, so that no name stands in the cache."""
    circumstances = [os.getcwd(), arguments, [os.environ.get(name) for name in _SETTINGS], sys.stdout.isatty()]
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "cairn", "answers", _hash(circumstances))


def _hash(value: object) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()
