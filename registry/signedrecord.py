"""Records that whoever makes them signs: the record's bytes, and an Ed25519 signature of a domain and these bytes."""

from typing import Protocol, TypeVar

import msgspec

from cairn.core.canonical import decode, encode
from cairn.core.errors import IntegrityError
from cairn.core.ids import ActorId
from cairn.store.crypto.signing import Identity, verify_signature


class Acted(Protocol):
    """What says who made it."""

    @property
    def actor(self) -> bytes:
        """Whose signature it bears."""


_Record = TypeVar("_Record", bound=Acted)


class Signed(msgspec.Struct, frozen=True, array_like=True):
    """Encoded bytes of a record, and their signature."""

    record: bytes
    signature: bytes

    def is_by(self, actor: bytes, domain: bytes) -> bool:
        """Whether an actor has signed this as a record of a domain."""
        return verify_signature(ActorId(actor), self.signature, domain + self.record)


def sign_record(record: msgspec.Struct, identity: Identity, domain: bytes) -> bytes:
    """The signed bytes of a record; its `actor` must be the identity's."""
    plain = encode(record)
    return encode(Signed(plain, identity.sign(domain + plain)))


def open_record(data: bytes, kind: type[_Record], domain: bytes, what: str) -> _Record:
    """Inverse of `sign_record`.

    Raises:
        IntegrityError: it does not decode, or whom it names has not signed it.
    """
    signed = decode(data, Signed, what)
    record = decode(signed.record, kind, what)
    if not signed.is_by(record.actor, domain):
        raise IntegrityError(f"{what} has a bad signature")
    return record
