"""Which library speaks to S3: Cairn's own backend, s3fs or obstore, each behind the contract, on a real server.

    .venv/bin/python -m benchmarks.remote                          # SeaweedFS, which it starts
    S3_SERVER=script .venv/bin/python -m benchmarks.remote         # what the script starts (see `make test-s3`)

Rounds go round all contenders, so that a drift of the machine meets all. Wall and processor seconds of this process,
medians; the server takes processors too, and all share them.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from cairn.core.buffers import Buffer
from cairn.core.errors import ObjectExists
from cairn.store.backends.filesystem import FilesystemBackend
from tests.support.s3 import BUCKET, REGION, Server, fresh_prefix, running

MIB = 1 << 20
PACK_BYTES = 64 * MIB
THREADS = 4
LISTED = 10_000


class Obstore:
    """As much of the contract over obstore as is measured."""

    def __init__(self, server: Server, prefix: str) -> None:
        import obstore
        from obstore.store import S3Store

        self._library = obstore
        self._store = S3Store(
            BUCKET,
            prefix=prefix,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
            endpoint=server.variables["AWS_ENDPOINT_URL"],
            region=REGION,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            self._library.put(self._store, name, data, mode="create", use_multipart=False)
        except self._library.exceptions.AlreadyExistsError:
            raise ObjectExists(name) from None

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        view = memoryview(target).cast("B")
        data = self._library.get_range(self._store, name, start=offset, length=view.nbytes)
        view[: len(data)] = memoryview(data)
        return len(data)

    def list(self) -> list[Any]:
        return [one for page in self._library.list(self._store, chunk_size=1000) for one in page]


def s3fs_backend(server: Server, prefix: str) -> FilesystemBackend:
    """s3fs as any file system of fsspec."""
    options = {
        "key": server.access_key,
        "secret": server.secret_key,
        "endpoint_url": server.variables["AWS_ENDPOINT_URL"],
        "config_kwargs": {"retries": {"total_max_attempts": 1}, "max_pool_connections": 64},
    }
    return FilesystemBackend(f"s3://{BUCKET}/{prefix}", "s3", f"{BUCKET}/{prefix}", options)


CONTENDERS: dict[str, Callable[[Server, str], Any]] = {
    "cairn": lambda server, prefix: server.backend(prefix),
    "obstore": Obstore,
    "s3fs": s3fs_backend,
}


def spread(work: Callable[[int], object], count: int, threads: int = THREADS) -> None:
    """Run `work` for each number, on some threads."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(count)))


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    began, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - busy


class Measure:
    """One contender's steps; the read steps use what `put` stored."""

    def __init__(self, server: Server, kind: str, packs: int, small: int, listed: str) -> None:
        self._server, self._kind, self._packs, self._small = server, kind, packs, small
        self._listed = listed
        self._data = memoryview(os.urandom(PACK_BYTES))
        self._local = threading.local()

    def round(self) -> dict[str, tuple[float, float]]:
        """All steps once, on objects of their own."""
        backend = CONTENDERS[self._kind](self._server, fresh_prefix())
        done = {"put": measured(lambda: spread(lambda n: backend.create(f"{n}.pack", [self._data]), self._packs))}
        for size in (1, 4, 8):
            done[f"read {size} MiB"] = measured(lambda size=size: self._read(backend, size * MIB))
        done["create 1 KiB"] = measured(
            lambda: [backend.create(f"one/{n}", [self._data[:1024]]) for n in range(self._small)]
        )
        many = 4 * self._small
        done["create 1 KiB, threads"] = measured(
            lambda: spread(lambda n: backend.create(f"many/{n}", [self._data[:1024]]), many)
        )
        try:
            backend.create("one/0", [b"x"])
            raise SystemExit(f"{self._kind} replaces objects")
        except ObjectExists:
            pass
        lister = CONTENDERS[self._kind](self._server, self._listed)
        done["list 10,000"] = measured(lambda: _list_all(lister))
        return done

    def _read(self, backend: Any, size: int) -> None:
        per_pack = PACK_BYTES // size

        def read(number: int) -> None:
            buffer = self._buffer(size)
            offset = number % per_pack * size
            assert backend.read_into(f"{number // per_pack}.pack", offset, buffer) == size
            assert buffer[:64] == self._data[offset : offset + 64]

        spread(read, self._packs * per_pack, 2 * THREADS)

    def _buffer(self, size: int) -> bytearray:
        """A buffer of the calling thread, as readers have one."""
        held: bytearray | None = getattr(self._local, "held", None)
        if held is None or len(held) != size:
            held = self._local.held = bytearray(size)
        return held


def _list_all(backend: Any) -> None:
    assert len(list(backend.list())) == LISTED


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--packs", type=int, default=4, metavar="N", help="objects of 64 MiB (default: 4)")
    parser.add_argument("--small", type=int, default=200, metavar="N", help="small objects (default: 200)")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="contenders, by comma")
    arguments = parser.parse_args()
    with running() as server:
        fill = server.backend(listed := fresh_prefix())
        spread(lambda n: fill.create(f"{n:05}", [b"x"]), LISTED, 8)
        kinds = arguments.only.split(",")
        measures = {kind: Measure(server, kind, arguments.packs, arguments.small, listed) for kind in kinds}
        rounds: dict[str, list[dict[str, tuple[float, float]]]] = {kind: [] for kind in measures}
        for _ in range(arguments.rounds):
            for kind, measure in measures.items():
                rounds[kind].append(measure.round())
    print(f"load {os.getloadavg()[0]:.1f}; {arguments.packs} packs, {arguments.rounds} rounds; seconds (processor)")
    print("| step | " + " | ".join(rounds) + " |\n|" + "---|" * (len(rounds) + 1))
    for step in next(iter(rounds.values()))[0]:
        cells = []
        for done in rounds.values():
            wall, busy = (median(one[step][place] for one in done) for place in (0, 1))
            cells.append(f"{wall:.2f} ({busy:.2f})")
        print(f"| {step} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
