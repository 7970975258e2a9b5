"""The verified fake: objects in a dictionary. It passes the suite that every backend passes.

It stands for storage that outlives its clients: a test "restarts" by opening the same backend again.
"""

import threading
from collections.abc import Iterator, Sequence

from cairn.core.buffers import Buffer
from cairn.core.errors import ObjectExists, ObjectNotFound, StorageError
from cairn.store.backends.contract import Capabilities, Listed, check_name

_EVERYTHING = Capabilities(exclusive_create=True, ranged_read=True, durable=True)


class MemoryBackend:
    """Objects in memory, for tests.

    Args:
        capabilities: what to claim; a test may claim less than all.
    """

    def __init__(self, url: str = "memory://", capabilities: Capabilities = _EVERYTHING) -> None:
        self.url = url
        self.capabilities = capabilities
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        check_name(name)
        data = b"".join(parts)
        with self._lock:
            if name in self._objects:
                raise ObjectExists(f"{name} exists already")
            self._objects[name] = data

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._stored(name)
        if offset < 0:
            raise StorageError(f"cannot read {name} at byte {offset}: there is no such place")
        return data[offset:] if length is None else data[offset : max(0, offset + length)]

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        view = memoryview(target)
        data = self.read(name, offset, view.nbytes)
        if data:
            view.cast("B")[: len(data)] = data
        return len(data)

    def size(self, name: str) -> int:
        return len(self._stored(name))

    def list(self, prefix: str = "") -> Iterator[Listed]:
        return iter([Listed(name, len(data), b"%d" % hash(data)) for name, data in self._below(prefix)])

    def folders(self, prefix: str = "") -> Sequence[str]:
        start = len(prefix) + 1 if prefix else 0
        tails = (name[start:].split("/") for name, _ in self._below(prefix))
        return sorted({tail[0] for tail in tails if len(tail) > 1})

    def delete(self, name: str) -> None:
        check_name(name)
        with self._lock:
            self._objects.pop(name, None)

    def settle(self, name: str) -> None:
        self._stored(name)

    def reclaim(self, prefix: str) -> int:
        self._below(prefix)
        return 0

    def _stored(self, name: str) -> bytes:
        check_name(name)
        with self._lock:
            if name not in self._objects:
                raise ObjectNotFound(f"there is no object {name}")
            return self._objects[name]

    def _below(self, prefix: str) -> Sequence[tuple[str, bytes]]:
        start = check_name(prefix) + "/" if prefix else ""
        with self._lock:
            return sorted((name, data) for name, data in self._objects.items() if name.startswith(start))
