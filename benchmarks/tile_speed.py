"""How fast tiles are opened and sealed by the length of their rows in the tensor."""

import threading
import time
from collections.abc import Callable

import numpy as np
from report import binary, table

from cairn.core.clock import SystemEntropy
from cairn.core.ids import Digest, TenantId
from cairn.store.crypto.chunks import OVERHEAD_BYTES, open_into, seal_into
from cairn.store.crypto.tenant import ContentType, TenantKeys

KIB, MIB = 1 << 10, 1 << 20
ROWS = (512, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB)
TILES = (MIB, 2 * MIB)


class Bench:
    """Sealed tiles, and a destination that they are opened into by several threads."""

    def __init__(self, tile_bytes: int, total_bytes: int, threads: int) -> None:
        self.tile_bytes, self.threads = tile_bytes, threads
        self.count = total_bytes // tile_bytes
        self.keys = TenantKeys.from_secret(TenantId(bytes(16)), bytes(range(32)))
        self.plain = np.random.default_rng(1).integers(0, 256, self.count * tile_bytes, np.uint8)
        self.target = np.empty_like(self.plain)
        self.sealed = memoryview(bytearray(self.count * (tile_bytes + OVERHEAD_BYTES)))
        self.digests: list[Digest] = []
        for number in range(self.count):
            data = memoryview(self.plain[number * tile_bytes : (number + 1) * tile_bytes])
            self.digests.append(self.keys.chunk.digest(data))
            self._seal(data, self.digests[-1], self._stored(number))

    def opening(self, row_bytes: int | None) -> float:
        """Plaintext bytes a second: decrypt, recompute the digest, put rows in place; None: contiguous in place."""
        return self._rate(lambda number, scratch: self._open(number, row_bytes, scratch))

    def sealing(self, row_bytes: int | None) -> float:
        """Plaintext bytes a second: gather rows, digest, encrypt."""
        room = [memoryview(bytearray(self.tile_bytes + OVERHEAD_BYTES)) for _ in range(self.threads)]

        def work(number: int, scratch: memoryview) -> None:
            data = memoryview(np.ascontiguousarray(self._place(self.plain, number, row_bytes))).cast("B")
            self._seal(data, self.keys.chunk.digest(data), room[number % self.threads])

        return self._rate(work)

    def _open(self, number: int, row_bytes: int | None, scratch: memoryview) -> None:
        place = self._place(self.target, number, row_bytes)
        data = scratch if row_bytes else memoryview(place).cast("B")
        open_into(self.keys, self.digests[number], self._stored(number), data, "a tile")
        if self.keys.chunk.digest(data) != self.digests[number]:
            raise AssertionError("a tile came back with other bytes")
        if row_bytes:
            place[:] = np.frombuffer(data, np.uint8).reshape(place.shape)

    def _place(self, whole: np.ndarray, number: int, row_bytes: int | None) -> np.ndarray:
        """A tile's bytes in a row-major tensor whose rows hold eight tiles' rows side by side."""
        if row_bytes is None:
            return whole[number * self.tile_bytes : (number + 1) * self.tile_bytes]
        band, column = divmod(number, 8)
        rows = self.tile_bytes // row_bytes
        table_ = whole[: self.count // 8 * 8 * self.tile_bytes].reshape(-1, 8 * row_bytes)
        return table_[band * rows : (band + 1) * rows, column * row_bytes : (column + 1) * row_bytes]

    def _stored(self, number: int) -> memoryview:
        step = self.tile_bytes + OVERHEAD_BYTES
        return self.sealed[number * step : (number + 1) * step]

    def _seal(self, data: memoryview, digest: Digest, target: memoryview) -> None:
        seal_into(self.keys, ContentType.CHUNK, digest, 0, len(data), data, target, SystemEntropy())

    def _rate(self, work: Callable[[int, memoryview], None]) -> float:
        """Best of five."""
        count = self.count // 8 * 8

        def share(first: int) -> None:
            scratch = memoryview(bytearray(self.tile_bytes))
            for number in range(first, count, self.threads):
                work(number, scratch)

        best = 0.0
        for _ in range(5):
            workers = [threading.Thread(target=share, args=(first,)) for first in range(self.threads)]
            began = time.perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            best = max(best, count * self.tile_bytes / (time.perf_counter() - began))
        return best


def throughput_table(total_bytes: int, threads: int) -> str:
    """GB/s by tile size and row length."""
    rows = []
    for tile_bytes in TILES:
        bench = Bench(tile_bytes, total_bytes, threads)
        for what, measure in (("open and scatter", bench.opening), ("gather and seal", bench.sealing)):
            cells = [f"{measure(row) / 1e9:.2f}" for row in (*ROWS, None)]
            rows.append((f"{what}, tiles of {binary(tile_bytes)}", *cells))
    return table((f"GB/s, {threads} threads; rows of", *map(binary, ROWS), "contiguous"), rows)
