"""The local cache: index, fold and file digests of one store, on this host (LMDB).

Everything in it can be computed again, so it may be deleted at any time, and a cache that cannot be written
(full disk, read-only home) costs speed, never correctness: what does not fit is kept in memory.
It is bound to one store's init entry, advances by whole positions of the log, and never moves back.
One environment per process and path; a forked child opens its own.
"""

import contextlib
import os
import shutil
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import lmdb
import msgspec

from cairn.core.buffers import Buffer
from cairn.core.errors import StorageError
from cairn.core.ids import ContentId
from cairn.store.environments import open_environment, remove_environment
from cairn.store.index import Location, blocks_of, find_in_piece

_LOCATION = struct.Struct("<IQI")
_NO_PIECES: Mapping[int, bytes] = {}
_BOUND, _POSITION, _FOLD, _BAD, _PIECES = b"bound", b"position", b"fold", b"bad", b"pieces"
_SEEN = b"seen"


class CachedFold(msgspec.Struct, frozen=True):
    """The fold as of a log position, in the registry's own (authenticated) encoding."""

    position: int
    fold: bytes


class Cache:
    """Index, fold and file records of one store. Safe for threads; processes share it through LMDB."""

    def __init__(self, folder: Path | None, bound: bytes) -> None:
        """Open or create.

        Args:
            folder: where the environment lies; `None` keeps it in a temporary folder of this process.
            bound: hash of the init entry; a cache bound to anything else is emptied.
        """
        self._lock = threading.RLock()
        self._overlay: dict[bytes, bytes] = {}
        self._held_pieces: dict[int, bytes] = {}
        self._remove_temporary: Callable[[], object] | None = None
        self._bound = bound
        self._environment, self._pid = self._open(folder), os.getpid()

    # --- the log's fold and the index, moving together ---------------------------------------

    def fold(self) -> CachedFold | None:
        """The cached fold, if any."""
        with self._read() as transaction:
            if transaction is None:
                return None
            position, fold = transaction.get(_POSITION, db=self._meta), transaction.get(_FOLD, db=self._meta)
        if position is None or fold is None:
            return None
        return CachedFold(int.from_bytes(position, "big"), bytes(fold))

    def advance(
        self,
        base: int,
        to: int,
        fold: bytes,
        added: Iterable[tuple[ContentId, Location]],
        pieces: Mapping[int, bytes] = _NO_PIECES,
        seen: Mapping[int, bytes] = _NO_PIECES,
    ) -> bool:
        """Move from log position `base` to `to`, adding index entries; -1 stands for an empty cache.

        Args:
            pieces: long index pieces, to be searched as they are, by the number of their first pack.
            seen: as for `note_seen`.

        Returns:
            False if another process moved the cache meanwhile, or it cannot be written; the new entries are
            then kept in memory and the cache stays as it is.
        """
        additions = _joined(added)
        with self._lock:
            try:
                stored = self._write(base, to, fold, additions, pieces, seen)
            except (lmdb.Error, OSError):
                stored = False
            if not stored:
                self._hold(additions, pieces)
            return stored

    def hold(self, added: Iterable[tuple[ContentId, Location]], pieces: Mapping[int, bytes] = _NO_PIECES) -> None:
        """Add index entries in memory only, for this object's life."""
        with self._lock:
            self._hold(_joined(added), pieces)

    def _hold(self, additions: dict[bytes, bytes], pieces: Mapping[int, bytes]) -> None:
        self._held_pieces.update(pieces)
        for key, records in additions.items():
            self._overlay[key] = self._overlay.get(key, b"") + records

    def _write(
        self,
        base: int,
        to: int,
        fold: bytes,
        additions: dict[bytes, bytes],
        pieces: Mapping[int, bytes],
        seen: Mapping[int, bytes],
    ) -> bool:
        environment = self._live()
        if environment is None:
            return False
        with environment.begin(write=True) as transaction:
            at = transaction.get(_POSITION, db=self._meta)
            if (-1 if at is None else int.from_bytes(at, "big")) != base or to < base:
                return False
            for key, records in additions.items():
                old = transaction.get(key, b"", db=self._ids)
                transaction.put(key, bytes(old) + records, db=self._ids)
            for first, plain in pieces.items():
                start = first.to_bytes(8, "big")
                cursor = transaction.cursor(db=self._pieces)
                # Blocks come in order, so where nothing follows LMDB need not look for their places. Of several under
                # one key all but the first hold nothing but further places of that id.
                cursor.putmulti(
                    ((start + last_id, block) for last_id, block in blocks_of(plain)),
                    overwrite=False,
                    append=not cursor.set_range(start),
                )
                transaction.put(_PIECES, transaction.get(_PIECES, b"", db=self._meta) + start, db=self._meta)
            self._put_seen(seen, transaction)
            transaction.put(_POSITION, to.to_bytes(8, "big"), db=self._meta)
            transaction.put(_FOLD, fold, db=self._meta)
        return True

    def clear(self) -> None:
        """Forget everything."""

        with self._lock:
            self._overlay.clear()
            self._held_pieces.clear()
            self._try_write(self._empty)

    def locations(self, identifier: ContentId, marked: bool = False) -> list[Location]:
        """Every known place of a content id, best first: newest first, and those marked bad last, if asked for."""
        return self.locations_of((identifier,), marked)[0]

    def locations_of(self, identifiers: Iterable[ContentId], marked: bool = False) -> list[list[Location]]:
        """As `locations`, of many: one after the other, as of one moment."""
        with self._lock, self._read() as transaction:
            pieces: list[tuple[bytes, lmdb.Cursor]] = []
            any_bad = False
            if transaction is not None:
                firsts = bytes(transaction.get(_PIECES, b"", db=self._meta))
                starts = [firsts[at : at + 8] for at in range(0, len(firsts), 8)]
                pieces = [(start, transaction.cursor(db=self._pieces)) for start in starts]
                meta = transaction.cursor(db=self._meta)
                any_bad = meta.set_range(_BAD) and bytes(meta.key()).startswith(_BAD)
            return [self._find(transaction, pieces, any_bad, one, marked) for one in identifiers]

    def _find(
        self,
        transaction: lmdb.Transaction | None,
        pieces: list[tuple[bytes, lmdb.Cursor]],
        any_bad: bool,
        identifier: ContentId,
        marked: bool,
    ) -> list[Location]:
        records, marks = self._overlay.get(identifier, b""), b""
        for first, plain in self._held_pieces.items():
            records = _found(first, plain, identifier) + records
        for start, cursor in reversed(pieces):
            records = _in_piece(start, cursor, identifier) + records
        if transaction is not None:
            records = bytes(transaction.get(identifier, b"", db=self._ids)) + records
            if any_bad:
                marks = bytes(transaction.get(_BAD + identifier, b"", db=self._meta))
        if len(records) > _LOCATION.size or marks:
            bad = _records(marks)
            known = list(reversed(dict.fromkeys(_records(records))))
            records = b"".join(one for one in known if one not in bad)
            records += b"".join(one for one in known if marked and one in bad)
        return [Location(*fields) for fields in _LOCATION.iter_unpack(records)]

    def blocks(self, most: int) -> list[tuple[int, bytes]]:
        """All long pieces, block by block, each with the number of its piece's first pack.

        None of them where more than `most` bytes would come, or where places are marked bad, which these do not tell.
        """
        found: list[tuple[int, bytes]] = []
        with self._lock, self._read() as transaction:
            if transaction is None:
                return found
            meta = transaction.cursor(db=self._meta)
            if meta.set_range(_BAD) and bytes(meta.key()).startswith(_BAD):
                return found
            size = 0
            for key, value in transaction.cursor(db=self._pieces):
                size += len(value)
                if size > most:
                    return []
                found.append((int.from_bytes(bytes(key)[:8], "big"), bytes(value)))
        return found

    def mark(self, identifier: ContentId, location: Location, bad: bool) -> None:
        """Note that a place's bytes failed (new content is then stored anew), or that they are good again."""
        record = _LOCATION.pack(location.pack, location.offset, location.length)
        if not bad:  # as after every read: not worth the lock that all writers share
            with self._lock, self._read() as transaction:
                if transaction is None or transaction.get(_BAD + identifier, db=self._meta) is None:
                    return

        def change(transaction: lmdb.Transaction) -> None:
            old = _records(bytes(transaction.get(_BAD + identifier, b"", db=self._meta)))
            new = [one for one in old if one != record] + ([record] if bad else [])
            if new:
                transaction.put(_BAD + identifier, b"".join(new), db=self._meta)
            else:
                transaction.delete(_BAD + identifier, db=self._meta)

        self._try_write(change)

    def bad_places(self) -> list[tuple[bytes, int, int]]:
        """Content id, pack and offset of every place that is marked bad."""
        found = []
        with self._lock, self._read() as transaction:
            if transaction is not None:
                cursor = transaction.cursor(db=self._meta)
                there = cursor.set_range(_BAD)
                while there and bytes(cursor.key()).startswith(_BAD):
                    identifier = bytes(cursor.key())[len(_BAD) :]
                    for pack, offset, _ in _LOCATION.iter_unpack(bytes(cursor.value())):
                        found.append((identifier, pack, offset))
                    there = cursor.next()
        return found

    # --- log entries -----------------------------------------------------------------------------

    def seen(self, span: int) -> bytes | None:
        """What was noted of a span of the log's entries, if anything."""
        with self._read() as transaction:
            value = None if transaction is None else transaction.get(_SEEN + span.to_bytes(8, "big"), db=self._meta)
        return None if value is None else bytes(value)

    def note_seen(self, spans: Mapping[int, bytes]) -> None:
        """Note anew what was seen of spans of the log; silently does nothing where the cache cannot be written."""
        self._try_write(partial(self._put_seen, spans))

    def _put_seen(self, spans: Mapping[int, bytes], transaction: lmdb.Transaction) -> None:
        for span, value in spans.items():
            transaction.put(_SEEN + span.to_bytes(8, "big"), value, db=self._meta)

    # --- files ---------------------------------------------------------------------------------

    def get_file(self, key: bytes) -> bytes | None:
        """The sealed record of a file seen before, by keyed hash of its identity."""
        with self._read() as transaction:
            value = None if transaction is None else transaction.get(key, db=self._files)
        return None if value is None else bytes(value)

    def put_files(self, records: dict[bytes, bytes]) -> None:
        """Remember sealed file records; silently does nothing where the cache cannot be written."""

        def add(transaction: lmdb.Transaction) -> None:
            for key, value in records.items():
                transaction.put(key, value, db=self._files)

        self._try_write(add)

    def close(self) -> None:
        """Let go of the environment; others in this process may still use it. A temporary one is removed."""
        with self._lock:
            self._environment = None
            if self._remove_temporary is not None:
                self._remove_temporary()

    # --- environment ---------------------------------------------------------------------------

    def _open(self, folder: Path | None) -> lmdb.Environment | None:
        if folder is not None:
            with contextlib.suppress(OSError, lmdb.Error):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                return self._bind(folder)
        with contextlib.suppress(OSError, lmdb.Error):
            from tempfile import mkdtemp  # 5 ms that whoever has a cache folder saves

            temporary = Path(mkdtemp(prefix="cairn-cache-"))
            self._remove_temporary = weakref.finalize(self, _remove_temporary, temporary, os.getpid())
            return self._bind(temporary)
        return None

    def _bind(self, folder: Path) -> lmdb.Environment:
        """Open the environment of a folder and empty it if it is another store's; one that is damaged is made anew."""
        try:
            return self._bound_environment(folder)
        except lmdb.Error:
            remove_environment(folder)
            return self._bound_environment(folder)

    def _bound_environment(self, folder: Path) -> lmdb.Environment:
        self._folder = folder
        environment, databases = open_environment(folder, (b"meta", b"ids", b"files", b"pieces"))
        self._meta, self._ids, self._files, self._pieces = databases
        with environment.begin() as transaction:
            same = transaction.get(_BOUND, db=self._meta) == self._bound
        if not same:
            with environment.begin(write=True) as transaction:
                self._empty(transaction)
        return environment

    def _empty(self, transaction: lmdb.Transaction) -> None:
        for database in (self._meta, self._ids, self._files, self._pieces):
            transaction.drop(database, delete=False)
        transaction.put(_BOUND, self._bound, db=self._meta)

    def _live(self) -> lmdb.Environment | None:
        if self._environment is not None and self._pid != os.getpid():
            self._environment, self._pid = self._open(self._folder), os.getpid()
        return self._environment

    @contextlib.contextmanager
    def _read(self) -> Iterator[lmdb.Transaction | None]:
        with self._lock:
            environment = self._live()
            if environment is None:
                yield None
                return
            try:
                with environment.begin() as transaction:
                    yield transaction
            except lmdb.Error as error:
                raise StorageError(
                    f"the local cache in {self._folder} cannot be read: {error}",
                    hint="remove that folder and repeat the command; nothing in it is needed",
                ) from None

    def _try_write(self, work: Callable[[lmdb.Transaction], None]) -> None:
        with self._lock:
            environment = self._live()
            if environment is None:
                return
            with contextlib.suppress(lmdb.Error, OSError), environment.begin(write=True) as transaction:
                work(transaction)


def _remove_temporary(folder: Path, owner: int) -> None:
    if owner == os.getpid():
        with contextlib.suppress(OSError, lmdb.Error):
            remove_environment(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _joined(added: Iterable[tuple[ContentId, Location]]) -> dict[bytes, bytes]:
    """Records by id, each once."""
    additions: dict[bytes, bytes] = {}
    for identifier, location in added:
        record = _LOCATION.pack(location.pack, location.offset, location.length)
        if record not in _records(additions.get(identifier, b"")):
            additions[identifier] = additions.get(identifier, b"") + record
    return additions


def _in_piece(start: bytes, cursor: lmdb.Cursor, identifier: ContentId) -> bytes:
    """Records of an id in a long piece. A block stands under its last id, so the one that is sought is next."""
    records, there = b"", cursor.set_range(start + identifier)
    while there:
        key = bytes(cursor.key())
        if key[:8] != start:
            break
        records += _found(int.from_bytes(start, "big"), cursor.value(), identifier)
        there = key[8:] == identifier and cursor.next()
    return records


def _found(first: int, piece: Buffer, identifier: ContentId) -> bytes:
    """Records of an id in a piece whose first pack has the number `first`."""
    records = b""
    for pack, offset, length in find_in_piece(piece, identifier):
        records += _LOCATION.pack(first + pack, offset, length)
    return records


def _records(joined: bytes) -> list[bytes]:
    return [joined[i : i + _LOCATION.size] for i in range(0, len(joined), _LOCATION.size)]
