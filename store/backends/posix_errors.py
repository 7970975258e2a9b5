"""What a POSIX system says, as the contract's errors: each names the object, the rule and the next step."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from cairn.core.errors import NotAllowed, StorageError, StorageFull

_FREE = "free space, inodes or quota where the store is, then repeat"
_ENLARGE = "nothing needs to be freed: raise the limit on file sizes (`ulimit -f`), then repeat"
_ASK = "ask the store's owner for the right, or use another account"
_UNLINK = "an object is a plain file: find out who put a symbolic link in its place, and remove it"
# Which error an error number becomes, and the next step; all others are plain storage errors.
_MEANINGS: dict[int | None, tuple[type[StorageError | NotAllowed], str]] = {
    errno.ENOSPC: (StorageFull, _FREE),
    errno.EDQUOT: (StorageFull, _FREE),
    errno.EFBIG: (StorageFull, _ENLARGE),
    errno.EACCES: (NotAllowed, _ASK),
    errno.EPERM: (NotAllowed, _ASK),
    errno.EROFS: (NotAllowed, _ASK),
    errno.ELOOP: (StorageError, _UNLINK),
}


@contextmanager
def failures(action: str, name: str) -> Iterator[None]:
    """Turn what the system says into the contract's errors; messages name the object, never the path."""
    try:
        yield
    except OSError as error:
        kind, hint = _MEANINGS.get(error.errno, (StorageError, ""))
        raise kind(f"cannot {action} {name}: {error.strerror}; nothing was changed", hint=hint) from error
