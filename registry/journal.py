"""What an interrupted transfer has uploaded, kept on this machine, so that the next run need not send it again.

A file in the user's state folder: records, each preceded by its length; the first names the session. A torn record at
the end, as a killed process leaves it, is as if it had not been written. Ids and names only: no secrets.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cairn.core.ids import ContentId, SessionId
from cairn.registry.heldfile import HeldFile
from cairn.store.index import PackRef
from cairn.store.pack import PackedChunk

_LENGTH_BYTES = 4


class Started(msgspec.Struct, frozen=True, array_like=True):
    """The session under which uploads lie."""

    session: bytes


class _Uploaded(msgspec.Struct, frozen=True, array_like=True):
    random: bytes
    size: int
    chunks: list[tuple[bytes, int, int]]


class Journal:
    """One transfer's journal; held by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create; where that cannot be done, or another process holds it, nothing is remembered."""
        self._file = HeldFile(path)

    @property
    def held(self) -> bool:
        """Whether this process may note anything."""
        return self._file.held

    def read(self) -> tuple[Started, list[tuple[PackRef, list[PackedChunk]]]] | None:
        """What was noted; None if that is nothing."""
        data = self._file.read()
        records, at = [], 0
        while at + _LENGTH_BYTES <= len(data):
            end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
            if end > len(data):
                break
            records.append(data[at + _LENGTH_BYTES : end])
            at = end
        self._file.truncate(at)
        try:
            started = msgspec.msgpack.decode(records[0], type=Started)
            packs = [msgspec.msgpack.decode(record, type=_Uploaded) for record in records[1:]]
        except (IndexError, msgspec.MsgspecError):
            return None
        session = SessionId(started.session)
        return started, [
            (
                PackRef(session, pack.random, pack.size),
                [PackedChunk(ContentId(identifier), offset, length) for identifier, offset, length in pack.chunks],
            )
            for pack in packs
        ]

    def start(self, session: SessionId) -> None:
        """Begin anew."""
        self._file.truncate()
        self._write(Started(session))

    def add(self, ref: PackRef, chunks: Sequence[PackedChunk]) -> None:
        """Note a pack that is durable."""
        self._write(_Uploaded(ref.random, ref.size, [(chunk.id, chunk.offset, chunk.length) for chunk in chunks]))

    def _write(self, record: Started | _Uploaded) -> None:
        data = msgspec.msgpack.encode(record)
        self._file.add(len(data).to_bytes(_LENGTH_BYTES, "little") + data, durable=True)

    def remove(self) -> None:
        """Forget all: the transfer is done."""
        self._file.remove()

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()
