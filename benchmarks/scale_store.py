"""The store of `scale.py`: real, in memory, with fragments whose packs exist by name only."""

import os
from pathlib import Path

from scale_layouts import Share

from cairn.core.canonical import encode
from cairn.core.clock import SystemClock, SystemEntropy
from cairn.core.ids import Digest, SessionId
from cairn.core.limits import PACK_BYTES_TARGET
from cairn.registry.envelope import Stages
from cairn.registry.localfiles import KeyHome
from cairn.registry.opened import KeySource, OpenStore, create_store, open_store
from cairn.registry.registry import Registry
from cairn.store.backends.posix import PosixBackend
from cairn.store.crypto.chunks import OVERHEAD_BYTES
from cairn.store.crypto.objects import ObjectKind, seal_object
from cairn.store.index import PackRef, PieceEntry, encode_piece
from cairn.store.written import WriteCounts
from cairn.training.fragment import Fragment

_HEADER = 16


class CountingBackend(PosixBackend):
    """Counts what is read."""

    reads = 0
    bytes = 0

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        self.reads, self.bytes = self.reads + 1, self.bytes + len(data)
        return data

    def read_into(self, name: str, offset: int, target: memoryview) -> int:
        count = super().read_into(name, offset, target)
        self.reads, self.bytes = self.reads + 1, self.bytes + count
        return count

    def taken(self) -> tuple[int, int]:
        """Bytes and requests since the last call."""
        counted = self.bytes, self.reads
        self.bytes = self.reads = 0
        return counted


class CountingRendezvous:
    """A map in this process that counts what one rank asks of it."""

    def __init__(self, rank: int, ranks: int, values: dict[str, bytes]) -> None:
        self.rank, self.ranks, self._values = rank, ranks, values
        self.messages = self.bytes = 0

    def put(self, key: str, value: bytes) -> None:
        self._count(value)
        self._values[key] = value

    def peek(self, key: str) -> bytes | None:
        value = self._values.get(key)
        self._count(value or b"")
        return value

    def drop(self, key: str) -> None:
        self._values.pop(key, None)

    def _count(self, value: bytes) -> None:
        self.messages, self.bytes = self.messages + 1, self.bytes + len(value)


def open_site(folder: Path, *, cold: bool = False) -> Registry:
    """The store in a folder, made if there is none; `cold` with an empty cache."""
    backend = CountingBackend(folder / "store")
    cache = folder / (f"cache-{os.getpid()}" if cold else "cache")
    home = KeyHome(folder / "data", folder / "state", cache)
    if not (folder / "store").exists():
        (folder / "store").mkdir()
        create_store(backend, home, KeySource(), SystemClock(), SystemEntropy())
    registry = Registry(open_store(backend, home, KeySource()))
    registry.refresh()
    return registry


class FragmentMaker:
    """Makes sealed fragments of contributions, with an index piece of their chunks in packs of 64 MiB."""

    def __init__(self, opened: OpenStore, key: bytes) -> None:
        self._opened, self._key = opened, key

    def make(self, rank: int, share: Share) -> bytes:
        """The sealed bytes."""
        session, identify = SessionId(os.urandom(16)), self._opened.keys.chunk.content_id
        packs: list[PackRef] = []
        entries: list[PieceEntry] = []
        end = PACK_BYTES_TARGET
        for number, length in enumerate(share.lengths):
            if end + length > PACK_BYTES_TARGET:
                packs.append(PackRef(session, os.urandom(12), PACK_BYTES_TARGET + (4 << 20)))
                end = _HEADER
            digest = Digest(share.digests[32 * number : 32 * number + 32])
            entries.append(PieceEntry(identify(digest), len(packs) - 1, end, length + OVERHEAD_BYTES))
            end += length + OVERHEAD_BYTES
        fragment = Fragment(
            rank, 1, session, 0, 1, share.contribution, (), encode_piece(packs, entries), (), WriteCounts(), Stages(),
            f"host-{rank // 8:04d}",
        )  # fmt: skip
        return seal_object(self._key, self._opened.store, ObjectKind.FRAGMENT, encode(fragment), self._opened.entropy)
