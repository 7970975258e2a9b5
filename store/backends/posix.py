"""A folder of a POSIX file system: local disks, NFS, Lustre, and whatever else can link or rename exclusively.

`create` has its effects in this order; until step 3 has happened, nobody sees anything:

1. Folders are made, and each is fsynced into its parent.
2. The bytes go to `.tmp-<random>` in the same folder, under a `flock`, and are fsynced.
3. `link` gives the file its name and fails if the name is taken (guarantee 3).
4. The temporary name is removed and the folder is fsynced (guarantee 2).

Readers take no lock and write nothing. No object is opened through a symbolic link in the place of its file,
and none is created or listed below one in the place of a folder.
"""

import ctypes
import errno
import fcntl
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cairn.core.buffers import Buffer
from cairn.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from cairn.core.errors import (
    AnswerLost,
    BadName,
    ObjectExists,
    ObjectNotFound,
    StorageError,
)
from cairn.store.backends.contract import Capabilities, Listed, check_name
from cairn.store.backends.mapped import map_range
from cairn.store.backends.posix_errors import failures

_TEMPORARY_PREFIX = ".tmp-"
# A younger time stamp proves nothing: writes through a memory map move none while their page is dirty, up to 35 s.
_SETTLED_NS = 60_000_000_000
# One call of writev takes this many parts.
_IOV_MAX = os.sysconf("SC_IOV_MAX")
# Each try that fails means that somebody removed a folder just made or a temporary file just opened.
_RACES_MAX = 100
# Folders remembered as durable; a store has one a session and one for each 4096 log entries.
_DURABLE_FOLDERS_MAX = 4096

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a fifo that somebody put there would wait for its writer.
_OBJECT_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_TEMPORARY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

# FAT and many shares say EPERM, FUSE says ENOSYS; EMLINK is a file system that admits one name a file.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_EXCLUSIVE_RENAME = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_RENAME_NOREPLACE = 1


@dataclass(slots=True)
class _Temporary:
    """A temporary file: its open folder, its name there, its open and locked file."""

    folder: int
    leaf: str
    file: int

    def unlink(self) -> None:
        """Remove the name. A leftover harms nobody and is what `reclaim` is for, hence failures pass."""
        if self.leaf:
            with suppress(OSError):
                os.unlink(self.leaf, dir_fd=self.folder)
            self.leaf = ""


class PosixBackend:
    """Objects as files below `root`, which the first `create` makes.

    File modes follow the umask and the folder's group. Holds no descriptor and no lock between calls, hence is safe
    in threads and across `fork`.
    """

    def __init__(self, root: Path, url: str = "", entropy: Entropy | None = None, clock: Clock | None = None) -> None:
        self.root = Path(os.path.abspath(root))
        self._root = str(self.root)
        self.url = url or Path(self._root).as_uri()
        self.capabilities = Capabilities(exclusive_create=True, ranged_read=True, durable=True)
        self._entropy = entropy or SystemEntropy()
        self._clock = clock or SystemClock()
        # Device and inode, by path, of folders whose names are known to be durable: one that somebody else removed
        # and made again shows by its inode. (Should that be the same, the name has its maker's own fsync.)
        self._durable: dict[str, tuple[int, int]] = {}

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        folder_path, leaf = os.path.split(self._path(name))
        pieces = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        with failures("create", name):
            for _ in range(_RACES_MAX):
                # Not found: where locks exclude nobody, another host may take the file for a dead writer's.
                with suppress(FileNotFoundError):
                    return self._create(folder_path, leaf, name, pieces)
            raise OSError(errno.ENOENT, "its temporary file is removed again each time it is made")

    def _create(self, folder_path: str, leaf: str, name: str, pieces: Sequence[memoryview]) -> None:
        with self._temporary(folder_path) as temporary:
            folder = temporary.folder
            _write_all(temporary.file, pieces)
            os.fsync(temporary.file)
            try:
                _publish(temporary, leaf, name)
            except FileExistsError:
                # The winner's object must last before it is said to exist. Not found: it was deleted since.
                with suppress(FileNotFoundError), _opened(leaf, _OBJECT_FLAGS, folder) as winner:
                    os.fsync(winner)
                sync_folder(folder)
                raise ObjectExists(f"{name} exists already") from None
            temporary.unlink()
            _sync_changed_folder(folder, "create", name)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._object(name) as (file, size):
            end = size if length is None else min(size, offset + length)
            pieces = []
            while offset < end and (piece := os.pread(file, end - offset, offset)):
                pieces.append(piece)
                offset += len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        with self._object(name) as (file, size):
            count = max(0, min(size - offset, memoryview(target).nbytes))
            # A view of no bytes cannot be cast.
            rest = memoryview(target).cast("B")[:count] if count else memoryview(b"")
            while rest and (read := os.preadv(file, [rest], offset)):
                rest, offset = rest[read:], offset + read
            return count - len(rest)

    def lend(self, name: str, offset: int, length: int) -> memoryview | None:
        with self._object(name) as (file, size):
            return map_range(file, offset, length) if offset + length <= size else None

    def size(self, name: str) -> int:
        with self._object(name) as (_, size):
            return size

    def list(self, prefix: str = "") -> Iterator[Listed]:
        return self._list(_with_slash(prefix))

    def folders(self, prefix: str = "") -> Sequence[str]:
        return sorted(leaf[:-1] for leaf in self._scan(_with_slash(prefix)) if leaf.endswith("/"))

    def delete(self, name: str) -> None:
        folder_path, leaf = os.path.split(self._path(name))
        absent = suppress(FileNotFoundError, NotADirectoryError)
        with failures("delete", name), absent, self._folder(folder_path) as folder:
            os.unlink(leaf, dir_fd=folder)
            _sync_changed_folder(folder, "delete", name)

    def settle(self, name: str) -> None:
        with self._object(name) as (file, _):
            os.fsync(file)
            with self._durable_folder(os.path.dirname(self._path(name)), make=False) as folder:
                sync_folder(folder)

    def reclaim(self, prefix: str) -> int:
        freed = 0
        for leaf in self._scan(prefix := _with_slash(prefix)):
            if leaf.endswith("/"):
                freed += self.reclaim(prefix + leaf[:-1])
            elif leaf.startswith("."):
                freed += _remove_if_dead(f"{self._root}/{prefix}{leaf}")
        return freed

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    def _list(self, prefix: str) -> Iterator[Listed]:
        found = self._scan(prefix)
        # With its slash a folder sorts as what is in it does: `a-b`, `a.b`, `a/b`.
        for leaf in sorted(found):
            if leaf.endswith("/"):
                yield from self._list(prefix + leaf)
            elif not leaf.startswith("."):
                yield Listed(prefix + leaf, *found[leaf])

    def _scan(self, prefix: str) -> dict[str, tuple[int, bytes]]:
        """Sizes and stamps, by name, of the files in a folder, temporary ones too; a folder has a slash at its end.

        An absent folder is empty. What vanishes meanwhile is left out, and so are links, devices and foreign names.
        """
        found: dict[str, tuple[int, bytes]] = {}
        settled_ns = self._clock.wall_ns() - _SETTLED_NS
        path = f"{self._root}/{prefix}".rstrip("/")
        during, absent = failures("list", prefix or "the store"), suppress(FileNotFoundError, NotADirectoryError)
        with during, absent, self._folder(path) as folder, os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError, BadName):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if is_folder or not entry.name.startswith(_TEMPORARY_PREFIX):
                        check_name(entry.name)
                    if is_folder:
                        found[entry.name + "/"] = 0, b""
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found[entry.name] = status.st_size, _stamp(status, settled_ns)
        return found

    @contextmanager
    def _object(self, name: str) -> Iterator[tuple[int, int]]:
        """An open object: its file and its size."""
        path = self._path(name)
        with failures("read", name), ExitStack() as stack:
            try:
                try:
                    file = stack.enter_context(_opened(path, _OBJECT_FLAGS))
                except FileNotFoundError:
                    # An NFS client may remember that the name was absent; opening the folder makes it ask anew.
                    with self._folder(os.path.dirname(path)):
                        file = stack.enter_context(_opened(path, _OBJECT_FLAGS))
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectNotFound(f"there is no object {name}") from None
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise ObjectNotFound(f"there is no object {name}, only a folder or device of that name")
            yield file, status.st_size

    def _folder(self, path: str) -> AbstractContextManager[int]:
        """An open folder; the root may be reached through a symbolic link, what is below it may not."""
        below = len(path) > len(self._root)
        return _opened(path, _FOLDER_FLAGS | (os.O_NOFOLLOW if below else 0))

    @contextmanager
    def _durable_folder(self, path: str, *, make: bool) -> Iterator[int]:
        """An open folder whose name, and each name above it in the store, survives a power cut.

        FileNotFoundError with `make` says that somebody removed it, or one above it, meanwhile.
        """
        parent_path, leaf = os.path.split(path)
        if make and not os.path.isdir(path):
            # A new folder may get the inode of one that was removed, and must not pass for that one.
            self._durable.pop(path, None)
            # Many may make the same folder at the same time.
            with self._durable_folder(parent_path, make=True) as parent, suppress(FileExistsError):
                os.mkdir(leaf, dir_fd=parent)
        with self._folder(path) as folder:
            status = os.fstat(folder)
            identity = (status.st_dev, status.st_ino)
            if self._durable.get(path) != identity:
                inside = len(parent_path) >= len(self._root)
                above = self._durable_folder(parent_path, make=False) if inside else self._folder(parent_path)
                # Whoever may not open the folder above the root did not make the root either.
                with suppress(*([] if inside else [PermissionError])), above as parent:
                    sync_folder(parent)
                if len(self._durable) >= _DURABLE_FOLDERS_MAX:
                    self._durable.clear()
                self._durable[path] = identity
            yield folder

    @contextmanager
    def _temporary(self, folder_path: str) -> Iterator[_Temporary]:
        """A new temporary file, locked for as long as it is open; removed at the end."""
        with ExitStack() as stack:
            for _ in range(_RACES_MAX):
                leaf = _TEMPORARY_PREFIX + self._entropy.token(16).hex()
                # Not found: somebody removed the folder while it was still empty.
                with suppress(FileNotFoundError):
                    folder = stack.enter_context(self._durable_folder(folder_path, make=True))
                    file = stack.enter_context(_opened(leaf, _TEMPORARY_FLAGS, folder))
                    temporary = _Temporary(folder, leaf, file)
                    stack.callback(temporary.unlink)
                    # Where there are no locks, `reclaim` gets none either and leaves the file alone.
                    with suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_EX)
                    # No name left: `reclaim` took the file for a dead writer's before it was locked.
                    if os.fstat(file).st_nlink:
                        break
                stack.close()
            else:
                raise OSError(errno.ENOENT, "the folder or temporary file is removed again each time it is made")
            yield temporary


def _stamp(status: os.stat_result, settled_ns: int) -> bytes:
    """What a file's every change changes, if its last one was before `settled_ns`; nobody sets a ctime."""
    version = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    return b"%d %d %d" % version if max(version[1:]) < settled_ns else b""


def _write_all(file: int, pieces: Sequence[memoryview]) -> None:
    """Write byte views one after the other, without joining them; a write may take less than it was given."""
    queue = deque(pieces)
    while queue:
        written = os.writev(file, list(islice(queue, _IOV_MAX)))
        while queue and written >= len(queue[0]):
            written -= len(queue.popleft())
        if written:
            queue[0] = queue[0][written:]


def _publish(temporary: _Temporary, leaf: str, name: str) -> None:
    """Give the file its name: this makes the object visible.

    Raises:
        FileExistsError: the name is taken.
        StorageError: there is no way here to take a name only if it is free.
    """
    folder, temporary_leaf = temporary.folder, temporary.leaf
    try:
        os.link(temporary_leaf, leaf, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        # An NFS client repeats a request whose answer was lost, and then meets the name that it made itself.
        if not _is_linked(temporary, leaf):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        code = _rename_exclusively(folder, temporary_leaf, leaf)
        if code in _NO_EXCLUSIVE_RENAME:
            raise StorageError(
                f"cannot create {name}: this file system has neither hard links nor renameat2(RENAME_NOREPLACE), so it"
                " cannot keep the rule that of several writers exactly one creates an object; nothing was changed",
                hint="put the store on a local disk, on NFS, or in an object store",
            ) from None
        if code:
            raise OSError(code, os.strerror(code)) from None


def _is_linked(temporary: _Temporary, leaf: str) -> bool:
    """Whether `leaf` is a second name of the temporary file."""
    # The name is looked up first: that renews what an NFS client remembers of the file.
    try:
        found = os.stat(leaf, dir_fd=temporary.folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    # Names are counted too, since some file systems give many files one inode number.
    written = os.fstat(temporary.file)
    return os.path.samestat(found, written) and written.st_nlink >= 2


def _rename_exclusively(folder: int, old: str, new: str) -> int:
    """Linux's `renameat2(RENAME_NOREPLACE)`, for file systems without hard links; returns an error number or 0."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return errno.ENOSYS
    failed = renameat2(folder, os.fsencode(old), folder, os.fsencode(new), ctypes.c_uint(_RENAME_NOREPLACE))
    return ctypes.get_errno() if failed else 0


def sync_folder(folder: int) -> None:
    """Make the names in an open folder durable."""
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems refuse to sync folders: they do not hold names back.
        if error.errno != errno.EINVAL:
            raise


def _sync_changed_folder(folder: int, action: str, name: str) -> None:
    """Sync a folder after a name in it came or went.

    Raises:
        AnswerLost: it failed; the change is visible but may not last.
    """
    try:
        sync_folder(folder)
    except OSError as error:
        message = f"could not {action} {name} for certain: its folder could not be made durable: {error.strerror}"
        raise AnswerLost(message, hint="look at the disk's health, then repeat") from error


def _remove_if_dead(path: str) -> int:
    """Remove a temporary file that nobody holds locked; returns the bytes freed.

    The lock asked for is a shared one, because on NFS an exclusive one needs a file open for writing. The file goes
    while the lock is held, so a writer that waits for its own lock sees afterwards that the name is gone.
    """
    # Refused: it is gone or another user's; its writer lives; there are no locks here and nobody can tell.
    with suppress(OSError), _opened(path, _OBJECT_FLAGS) as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        status = os.fstat(file)
        os.unlink(path)
        # Killed between `link` and `unlink`: the bytes live on under the object's name.
        return status.st_size if status.st_nlink == 1 else 0
    return 0


def _with_slash(prefix: str) -> str:
    return check_name(prefix) + "/" if prefix else ""


@contextmanager
def _opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    file = os.open(path, flags, 0o666, dir_fd=folder)
    try:
        yield file
    finally:
        # What matters is fsynced by now, so a late error says nothing new.
        with suppress(OSError):
            os.close(file)
