"""Saying of a full storage what the store itself knows: what it uses, and what waits to be deleted."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from cairn.core.errors import StorageFull
from cairn.registry.registry import Registry

_FREE = "'cairn stats' tells what could go, 'cairn gc apply --yes' frees it"


@contextmanager
def telling_usage(registry: Registry) -> Iterator[None]:
    """Add to an error of a full storage what the log says of the store's use of it: no request is made.

    Raises:
        StorageFull: as it came, with more to say.
    """
    try:
        yield
    except StorageFull as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EFBIG:
            raise  # a limit on the size of files: nothing that could be freed would help
        state = registry.state
        pending = sum(state.pack(number).size for number in state.condemned)
        used = sum(state.pack(number).size for number in range(state.pack_count) if state.in_force(number))
        message = (
            f"{error.message}; this store's packs take {used} bytes, and condemned ones that wait to be deleted "
            f"{pending} bytes"
        )
        hint = f"{error.hint}; {_FREE}" if error.hint else _FREE
        raise StorageFull(message, hint=hint) from error
