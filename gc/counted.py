"""What checkpoints need, remembered from one collection to the next: only lists that came or went are read.

A file in the cache folder: for each first 8 bytes of an id, how many of the lists that were counted hold it. It is
bound to the store by a key and worth nothing once damaged; without it everything is counted anew.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from blake3 import blake3

from cairn.core.errors import CairnError
from cairn.core.ids import HASH_BYTES
from cairn.gc.liveness import Array, distinct, list_words, union, words_of_root
from cairn.gc.roots import Root
from cairn.registry.entries import ObjectRef
from cairn.registry.opened import OpenStore
from cairn.store.crypto.objects import OVERHEAD_BYTES
from cairn.store.crypto.tenant import derive

_VERSION = 1
_MAC_BYTES = 32


class _Head(msgspec.Struct, frozen=True, array_like=True):
    version: int
    store: bytes
    lists: list[ObjectRef]
    words: int


class Counted:
    """Ids by their first 8 bytes, and how many reachability lists hold each."""

    def __init__(self, opened: OpenStore) -> None:
        """Take up what an earlier collection of this user has counted."""
        self._opened = opened
        self._path = opened.home.cache_folder(opened.store) / "needed"
        self._key = derive(opened.secrets.k_index, "counted-lists")
        self._lists: dict[bytes, ObjectRef] = {}
        self._words, self._counts = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            self._load(self._path.read_bytes())

    def count(self, roots: Iterable[Root]) -> Array:
        """First 8 bytes of all ids that roots need, ascending; what is quarantined counts for nothing.

        Raises:
            IntegrityError: a list is missing, damaged, or not sorted; the message says what can be done.
        """
        by_list = {root.state.reachability.name: root for root in roots if not root.state.quarantined}
        wanted = {name: root.state.reachability for name, root in by_list.items()}
        gone = [ref for name, ref in self._lists.items() if wanted.get(name) != ref]
        try:
            for ref in gone:
                self._take(list_words(self._opened, ref), -1)
                del self._lists[ref.name]
        except CairnError:
            # A list that went with its checkpoint cannot be taken off: count anew.
            self._lists, self._words, self._counts = {}, self._words[:0], self._counts[:0]
        for name, ref in wanted.items():
            if name not in self._lists:
                self._take(words_of_root(self._opened, by_list[name]), 1)
                self._lists[name] = ref
        kept = self._counts > 0
        self._words, self._counts = self._words[kept], self._counts[kept]
        return self._words

    def keep(self) -> None:
        """Remember it for the next collection; does nothing where the cache folder cannot be written."""
        head = msgspec.msgpack.encode(_Head(_VERSION, self._opened.store, list(self._lists.values()), len(self._words)))
        data = b"".join((len(head).to_bytes(8, "little"), head, self._words.tobytes(), self._counts.tobytes()))
        temporary = Path(f"{self._path}.{os.getpid()}")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_bytes(blake3(data, key=self._key).digest() + data)
            temporary.replace(self._path)

    def _take(self, words: Array, sign: int) -> None:
        words = distinct(words)
        together = union(self._words, words)
        counts = np.zeros(len(together), np.int64)
        counts[np.searchsorted(together, self._words)] = self._counts
        counts[np.searchsorted(together, words)] += sign
        self._words, self._counts = together, np.maximum(counts, 0).astype(np.uint32)

    def _load(self, data: bytes) -> None:
        mac, data = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if blake3(data, key=self._key).digest() != mac:
            raise ValueError("damaged, or another store's")
        length = int.from_bytes(data[:8], "little")
        head = msgspec.msgpack.decode(data[8 : 8 + length], type=_Head)
        if head.version != _VERSION or head.store != self._opened.store:
            raise ValueError("of another version, or another store's")
        at = 8 + length
        self._words = np.frombuffer(data, np.uint64, head.words, at).copy()
        self._counts = np.frombuffer(data, np.uint32, head.words, at + 8 * head.words).copy()
        self._lists = {ref.name: ref for ref in head.lists}
        # As many as the lists are long: whatever went wrong with the counting shows here.
        if int(self._counts.sum()) != sum((ref.size - OVERHEAD_BYTES) // HASH_BYTES for ref in head.lists):
            raise ValueError("not what the lists hold")
