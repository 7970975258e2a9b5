"""How long a push takes to find out that the remote knows everything: so many chunks, none of which has to travel.

Simulated: the digests are random, and the packs are named in the remote's index and listings without being there.
Asking, looking up and planning are the product's own code.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cairn.core.clock import SystemClock, SystemEntropy
from cairn.core.ids import ContentId, Digest, SessionId
from cairn.core.progress import Silent
from cairn.registry.contents import Named
from cairn.registry.localfiles import KeyHome
from cairn.registry.opened import KeySource, create_store
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import pack_records
from cairn.registry.transfer import Transfer
from cairn.store.backends.contract import Listed
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto.tenant import ContentType
from cairn.store.index import PackRef, PieceEntry, check_piece, encode_piece

PACK_CHUNKS, CHUNK_BYTES = 64, 1 << 20


class Pretending(MemoryBackend):
    """Lists packs that do not exist."""

    def __init__(self) -> None:
        super().__init__()
        self.packs: list[PackRef] = []

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """Objects, and what is pretended."""
        yield from super().list(prefix)
        yield from (Listed(pack.name, pack.size) for pack in self.packs if pack.name.startswith(prefix))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=1_000_000)
    count = parser.parse_args().chunks
    with tempfile.TemporaryDirectory() as place:
        folder, backend = Path(place), Pretending()
        home = KeyHome(folder / "data", folder / "state", folder / "cache")
        opened, _ = create_store(backend, home, KeySource(), SystemClock(), SystemEntropy())
        registry = Registry(opened)
        digests = [Digest(b"\1" + os.urandom(31)) for _ in range(count)]
        _know(registry, backend, opened.keys.chunk.content_ids(digests))
        with Session(registry) as session:
            save = session.save()
            transfer = Transfer(registry, registry, save, Silent())
            begun, used = time.perf_counter(), time.process_time()
            transfer.bring(Named(ContentType.CHUNK, digest) for digest in digests)
            wall, used = time.perf_counter() - begun, time.process_time() - used
        assert len(transfer.reachable) == count and not save.written.packs
        print(f"{count} known chunks: {wall:.1f} s ({used:.1f} s of the processor), {_peak() >> 20} MiB in all at most")


def _know(registry: Registry, backend: Pretending, ids: list[ContentId]) -> None:
    session = SessionId(os.urandom(16))
    number = -(-len(ids) // PACK_CHUNKS)
    size = PACK_CHUNKS * CHUNK_BYTES
    backend.packs = [PackRef(session, os.urandom(12), size) for _ in range(number)]
    entries = [PieceEntry(one, n // PACK_CHUNKS, n % PACK_CHUNKS * 1000, 1000) for n, one in enumerate(ids)]
    piece = encode_piece(backend.packs, entries)
    check_piece(piece, "piece")
    registry.state.packs = pack_records(backend.packs)
    registry.cache.advance(0, 1, b"", [], {0: piece})


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
