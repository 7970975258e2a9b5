"""How fast tiles are opened and sealed by the length of their rows in the tensor."""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from report import binary, table

from cairn.core.clock import SystemEntropy
from cairn.core.ids import Digest, TenantId
from cairn.store.crypto.chunks import OVERHEAD_BYTES, open_into, parse_header, seal_into
from cairn.store.crypto.tenant import ContentType, TenantKeys

KIB, MIB = 1 << 10, 1 << 20
ROWS = (512, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB)
TILES = (MIB, 2 * MIB)
# Linux takes no more pieces in one call.
_IOV_MAX = 1024


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
        """Plaintext bytes by processor second: decrypt, recompute the digest, put rows in place; None: contiguous."""
        return self._rate(lambda number, scratch: self._open(number, row_bytes, scratch), self._scratch, self._tiles())

    def sealing(self, row_bytes: int | None) -> float:
        """Plaintext bytes by processor second: gather rows, digest, encrypt."""

        def work(number: int, scratch: memoryview) -> None:
            data = memoryview(np.ascontiguousarray(self._place(self.plain, number, row_bytes))).cast("B")
            self._seal(data, self.keys.chunk.digest(data), scratch)

        return self._rate(work, self._scratch, self._tiles())

    def reading(self, row_bytes: int | None) -> float:
        """Bytes by processor second: read a file that lies in the page cache, rows scattered to tiles by the kernel."""
        with tempfile.TemporaryFile() as file:
            file.write(self.plain)
            file.flush()
            band_bytes = 8 * self.tile_bytes

            def work(number: int, views: list[memoryview]) -> None:
                at = number * band_bytes
                for first in range(0, len(views), _IOV_MAX):
                    at += os.preadv(file.fileno(), views[first : first + _IOV_MAX], at)

            def room() -> list[memoryview]:
                whole = memoryview(bytearray(band_bytes))
                tiles = [whole[i : i + self.tile_bytes] for i in range(0, band_bytes, self.tile_bytes)]
                step = row_bytes or self.tile_bytes
                return [tile[i : i + step] for i in range(0, self.tile_bytes, step) for tile in tiles]

            return self._rate(work, room, self.count // 8) * 8

    def _open(self, number: int, row_bytes: int | None, scratch: memoryview) -> None:
        place = self._place(self.target, number, row_bytes)
        data = scratch[: self.tile_bytes] if row_bytes else memoryview(place).cast("B")
        sealed = self._stored(number)
        open_into(self.keys, parse_header(sealed, "a tile"), self.digests[number], sealed, data, "a tile")
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

    def _rate(self, work: Callable[[int, Any], None], room: Callable[[], Any], count: int) -> float:
        """Tiles' bytes by processor second of `work(number, room)` for so many numbers; each thread has a room."""

        def share(first: int, own: Any) -> None:
            for number in range(first, count, self.threads):
                work(number, own)

        workers = [threading.Thread(target=share, args=(first, room())) for first in range(self.threads)]
        began = time.process_time()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return count * self.tile_bytes / (time.process_time() - began)

    def _tiles(self) -> int:
        return self.count // 8 * 8

    def _scratch(self) -> memoryview:
        return memoryview(bytearray(self.tile_bytes + OVERHEAD_BYTES))


def throughput_table(total_bytes: int, threads: int, rounds: int) -> str:
    """GB by processor second, by tile size and row length: the best of all rounds, which go round the row lengths.

    Processor time, not wall time, since other work on the machine lengthens only the latter.
    """
    rows = []
    for tile_bytes in TILES:
        bench = Bench(tile_bytes, total_bytes, threads)
        measures = {
            "open and scatter": bench.opening,
            "gather and seal": bench.sealing,
            "read scattered (preadv)": bench.reading,
        }
        for what, measure in measures.items():
            found = [[measure(row) / 1e9 for row in (*ROWS, None)] for _ in range(rounds)]
            cells = [f"{max(column):.2f}" for column in zip(*found, strict=True)]
            rows.append((f"{what}, tiles of {binary(tile_bytes)}", *cells))
    headings = f"GB by processor second, {threads} threads; rows of", *map(binary, ROWS), "contiguous"
    return table(headings, rows)
