"""A backend that counts what is read of it."""

import threading
from collections.abc import Sequence

from cairn.core.buffers import Buffer
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Fault, FaultyBackend


class CountingBackend(FaultyBackend):
    """Records calls, and counts the bytes that reads brought. Lends nothing, as storage far away does not."""

    def __init__(self, inner: Backend, script: Sequence[Fault] = ()) -> None:
        super().__init__(inner, script)
        self.bytes_read = 0
        self._count_lock = threading.Lock()
        self._seen = 0

    @property
    def requests(self) -> int:
        """Calls of all kinds since `forget`."""
        return len(self.calls) - self._seen

    def forget(self) -> None:
        """Count from here on."""
        self._seen, self.bytes_read = len(self.calls), 0

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        with self._count_lock:
            self.bytes_read += len(data)
        return data

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        count = super().read_into(name, offset, target)
        with self._count_lock:
            self.bytes_read += count
        return count
