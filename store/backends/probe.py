"""Measuring what a backend really does, once, when a store is created on it."""

from contextlib import suppress

from cairn.core.clock import Entropy
from cairn.core.errors import CairnError, ObjectExists, StorageError
from cairn.store.backends.contract import Backend, Capabilities

_FOLDER = "probe"
_FIRST, _SECOND = b"first", b"other"


def probe(backend: Backend, entropy: Entropy) -> Capabilities:
    """Try exclusive creation and ranged reads on an object that is removed again.

    Durability cannot be tried; it is what the backend says of itself.

    Raises:
        StorageError: the backend breaks a guarantee that a store cannot do without.
    """
    name = f"{_FOLDER}/{entropy.token(12).hex()}"
    try:
        backend.create(name, [_FIRST])
        try:
            backend.create(name, [_SECOND])
            exclusive = False
        except ObjectExists:
            exclusive = backend.read(name) == _FIRST
        ranged = backend.read(name, 1, 3) == _FIRST[1:4]
    finally:
        with suppress(CairnError):
            backend.delete(name)
    if not exclusive or not ranged:
        lacking = "exclusive creation" if not exclusive else "ranged reads"
        raise StorageError(f"{backend.url} lacks {lacking}, which a store needs", hint="put the store somewhere else")
    return Capabilities(exclusive, ranged, backend.capabilities.durable)
