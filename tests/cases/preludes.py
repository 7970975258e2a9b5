"""Python that runs before a command, in its process, to break something there."""

from pathlib import Path

_KILL_WRITES = """
import os, signal
left = {left}
whole = os.writev
def writev(file, parts):
    global left
    data = b"".join(parts)
    if len(data) > left:
        os.write(file, data[:left])
        os.kill(os.getpid(), signal.SIGKILL)
    left -= len(data)
    return whole(file, parts)
os.writev = writev
"""

_AT_CREATE = """
import os, signal
from cairn.core.errors import StorageError
from cairn.store.backends.posix import PosixBackend
whole, calls = PosixBackend.create, 0
def create(self, name, parts):
    global calls
    if name.{method}({word!r}):
        calls += 1
        if calls == {call}:
            {action}
    return whole(self, name, parts)
PosixBackend.create = create
"""

_AT_DELETE = """
from pathlib import Path
from cairn.core.errors import StorageError
from cairn.store.backends.posix import PosixBackend
deleting, deletes = PosixBackend.delete, 0
def delete(self, name):
    global deletes
    if name.startswith({start!r}):
        deletes += 1
        if deletes == {call}:
            raise StorageError(f"cannot delete {{name}}: a fault was injected")
        if deletes > {call}:
            Path({mark!r}).touch()
    return deleting(self, name)
PosixBackend.delete = delete
"""

KILL_IN_CACHE = """
import os, signal
from cairn.store.cache import Cache
def write(self, *ignored):
    with self._live().begin(write=True) as transaction:
        transaction.put(b"k" * 32, b"half", db=self._ids)
        os.kill(os.getpid(), signal.SIGKILL)
Cache._write = write
"""

# What a checkout does last is to publish its folder.
KILL_IN_CHECKOUT = """
import os, signal
from cairn.workspace import destination
destination._publish = lambda partial, destination: os.kill(os.getpid(), signal.SIGKILL)
"""

NO_LINKS = """
import errno, os
def refuse(*arguments, **options):
    raise OSError(errno.{code}, os.strerror(errno.{code}))
os.link = os.symlink = refuse
"""

# As on a network file system mounted without locks, or with locks of each host for itself.
LOCKS_THAT_ALWAYS_SUCCEED = """
import fcntl
fcntl.flock = fcntl.lockf = lambda *arguments: None
"""

SMALL_PACKS = """
from cairn.store import chunkstore
chunkstore.PACK_BYTES_TARGET = 1 << 20
"""


def kill_after(written: int) -> str:
    """Kill the process when it has written so many bytes of objects; the last write is cut."""
    return _KILL_WRITES.format(left=written)


def stopped(prelude: str) -> str:
    """Stop the process where the prelude kills it; a thread runs on for a moment after the signal, hence the sleep."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    assert kill in prelude
    return prelude.replace(kill, 'os.kill(os.getpid(), signal.SIGSTOP), __import__("time").sleep(1)')


def kill_at_create(*, start: str = "", end: str = "", call: int = 1) -> str:
    """Kill the process when it is about to create an object whose name starts or ends so."""
    return _at_create(start, end, call, "os.kill(os.getpid(), signal.SIGKILL)")


def fail_at_create(*, start: str = "", end: str = "", call: int = 1) -> str:
    """Let the storage refuse that object."""
    return _at_create(start, end, call, 'raise StorageError(f"cannot create {name}: a fault was injected")')


def fail_at_delete(*, start: str, call: int, mark: Path) -> str:
    """Let the storage refuse that delete of objects whose names start so; a file marks that others came after it."""
    return _AT_DELETE.format(start=start, call=call, mark=str(mark))


def _at_create(start: str, end: str, call: int, action: str) -> str:
    method, word = ("startswith", start) if start else ("endswith", end)
    return _AT_CREATE.format(method=method, word=word, call=call, action=action)
