"""The file-digest cache: what a file held when it was last read, by its stamp.

Records hold digests, which open chunks; so they are sealed under a key that is derived from the model's own
private key and dies with it. A stamp proves nothing while it is as young as the file system's clock tick, so files
written within that window of being read are not remembered.
"""

import os

import msgspec
from blake3 import blake3

from cairn.core.canonical import decode, encode
from cairn.core.errors import IntegrityError
from cairn.core.ids import ModelId
from cairn.registry.registry import Registry
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.workspace.record import FileRecord
from cairn.workspace.source import FileStamp

# Changes whenever the same bytes would be cut or named in another way.
_RULES_VERSION = 1


class FileCache:
    """Records of one model's files; none for who may not read its files."""

    def __init__(self, registry: Registry, model: ModelId, opaque: bool) -> None:
        self._registry = registry
        self._opaque = opaque
        self._key = registry.model_keys(model).cache_key(ComponentClass.FILES)
        self._fresh: dict[bytes, bytes] = {}

    def get(self, name: bytes, path: bytes, stamp: FileStamp) -> FileRecord | None:
        """The record of a file that has not changed since, if it is known.

        Args:
            name: what it was called when it was parsed; a link may give one file several names.
            path: where it lies.
        """
        if self._key is None:
            return None
        sealed = self._registry.cache.get_file(self._key_of(self._key, name, path, stamp))
        if sealed is None:
            return None
        opened = self._registry.opened
        try:
            plain = open_object(self._key, opened.store, ObjectKind.CACHE, sealed, "a file record")
            return decode(plain, FileRecord, "a file record")
        except IntegrityError:
            return None

    def remember(self, name: bytes, path: bytes, stamp: FileStamp, read_at_ns: int, record: FileRecord) -> None:
        """Note a record; `read_at_ns` is when its reading began."""
        if self._key is not None and stamp.is_settled(read_at_ns):
            opened = self._registry.opened
            plain = encode(record)
            sealed = seal_object(self._key, opened.store, ObjectKind.CACHE, plain, opened.entropy)
            self._fresh[self._key_of(self._key, name, path, stamp)] = sealed

    def save(self) -> None:
        """Write what was noted."""
        if self._fresh:
            self._registry.cache.put_files(self._fresh)
            self._fresh = {}

    def _key_of(self, key: bytes, name: bytes, path: bytes, stamp: FileStamp) -> bytes:
        place = os.path.basename(name), os.path.abspath(path)
        facts = [_RULES_VERSION, self._opaque, *place, *msgspec.structs.astuple(stamp)]
        return blake3(encode(facts), key=key).digest()
