"""Uploading a manifest's objects under a session."""

from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from cairn.core.ids import OBJECT_RANDOM_BYTES, ContentId
from cairn.registry.entries import ObjectRef
from cairn.registry.opened import OpenStore
from cairn.registry.session import Session
from cairn.store.crypto.objects import ObjectKind, seal_object
from cairn.store.index import encode_piece, pack_table, sorted_ids
from cairn.store.written import Written


@dataclass(frozen=True, slots=True)
class Uploads:
    """Puts collectable objects into a store."""

    opened: OpenStore
    session: Session

    def put(self, stored: bytes, kind: str) -> ObjectRef:
        """Upload bytes as they are; durable when this returns."""
        random = self.opened.entropy.token(OBJECT_RANDOM_BYTES)
        ref = ObjectRef(self.session.ensure_open() + random, len(stored), blake3(stored).digest())
        self.opened.backend.create(ref.object_name(kind), [stored])
        return ref

    def index_piece(self, plain: bytes) -> ObjectRef:
        """Seal and upload an encoded index piece."""
        return self.seal(self.opened.secrets.k_index, ObjectKind.INDEX_PIECE, plain, "index")

    def index(self, written: Written) -> tuple[bytes, tuple[ObjectRef, ...]]:
        """Records of the packs that were written, as an entry lists them, and the piece that says what is in them."""
        if not written.packs:
            return b"", ()
        plain = encode_piece(written.packs, written.entries)
        return pack_table(plain), (self.index_piece(plain),)

    def reachability(self, ids: Iterable[ContentId]) -> ObjectRef:
        """Seal and upload a checkpoint's list of all that it needs."""
        return self.seal(self.opened.secrets.k_index, ObjectKind.REACHABILITY, sorted_ids(ids), "reach")

    def seal(self, class_key: bytes, kind: ObjectKind, plain: bytes, suffix: str) -> ObjectRef:
        """Seal for this store, and upload."""
        return self.put(seal_object(class_key, self.opened.store, kind, plain, self.opened.entropy), suffix)
