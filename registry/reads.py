"""Records of reads: signed by the reader when a pin is made, kept as an object when the read ends, gathered by entries.

    pin  ->  pins/<id>.ended (when the read ends)  ->  a `reads` entry (whoever collects, or `cairn audit gather`)

An ended pin protects nothing. That of a reader who died is taken from the pin itself, which holds the same bytes.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from cairn.core.errors import IntegrityError, ObjectExists, ObjectNotFound
from cairn.core.ids import StoreId
from cairn.core.limits import READ_RECORD_BYTES_MAX, READS_PER_ENTRY
from cairn.registry.entries_audit import Reads
from cairn.registry.fold_policy import AuditReads, audit_reads
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.signedrecord import open_record, sign_record
from cairn.registry.state import State
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.signing import Identity

FOLDER = "pins"
ENDED = ".ended"
_SIGNED = b"cairn/1/read\0"


class ReadRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a reader says of a read. Nobody is named but by a key, and no machine at all.

    Args:
        read: id of the read, which is that of its pin.
        at: when it began, by the reader's clock (ns).
    """

    read: bytes
    store: bytes
    model: bytes
    checkpoint: bytes
    actor: bytes
    at: int


class Gathered(NamedTuple):
    """What became of ended reads.

    Args:
        reads: how many the log tells of now.
        entries: in how many entries.
        unreadable: names of objects that hold no read, and stay.
    """

    reads: int = 0
    entries: int = 0
    unreadable: tuple[str, ...] = ()


def sign_read(record: ReadRecord, identity: Identity) -> bytes:
    """What goes into a pin, and from there into the log; `record.actor` must be the identity's."""
    return sign_record(record, identity, _SIGNED)


def open_read(signed: bytes, store: StoreId, what: str) -> ReadRecord:
    """What a read's signed bytes say.

    Raises:
        IntegrityError: they do not decode, whom they name has not signed them, or they tell of a read of another store.
    """
    if len(signed) > READ_RECORD_BYTES_MAX:
        raise IntegrityError(f"{what} is too long to be one")
    record = open_record(signed, ReadRecord, _SIGNED, what)
    if record.store != store:
        raise IntegrityError(f"{what} is of another store")
    return record


def keep_ended(opened: OpenStore, stem: str, signed: bytes) -> None:
    """Leave the record of a read that has ended.

    Raises:
        StorageError, NotAllowed: it cannot be written.
    """
    sealed = seal_object(opened.secrets.k_log, opened.store, ObjectKind.PIN, signed, opened.entropy)
    with suppress(ObjectExists):
        opened.backend.create(f"{stem}{ENDED}", [sealed])


def ended_reads(opened: OpenStore) -> tuple[dict[str, bytes], list[str]]:
    """Signed bytes of the reads that have ended and wait to be gathered, by object; and names of what holds none."""
    found, unreadable = dict[str, bytes](), list[str]()
    for listed in opened.backend.list(FOLDER):
        if not listed.name.endswith(ENDED):
            continue
        what = f"record {listed.name}"
        try:
            sealed = opened.backend.read(listed.name, 0, 2 * READ_RECORD_BYTES_MAX)
            signed = open_object(opened.secrets.k_log, opened.store, ObjectKind.PIN, sealed, what)
            record = open_read(signed, opened.store, what)
            if listed.name != f"{FOLDER}/{record.read.hex()}{ENDED}":
                raise IntegrityError(f"{what} is of another read")
        except ObjectNotFound:
            continue  # gathered by somebody else
        except IntegrityError:
            unreadable.append(listed.name)
        else:
            found[listed.name] = signed
    return found, unreadable


def gather(registry: Registry, dead: Iterable[bytes] = ()) -> Gathered:
    """Let the log tell of all reads that have ended, and remove their objects.

    It may stop anywhere, and several may do it at once: a read may then stand in two entries, under one id.

    Args:
        dead: signed bytes out of the pins of readers that were given up; empty ones tell nothing.
    """
    opened = registry.opened
    found, unreadable = ended_reads(opened)
    known = set(found.values())
    if audit_reads(registry.state) is not AuditReads.OFF:
        known.update(filter(None, dead))
    reads, entries = sorted(known), 0
    for first in range(0, len(reads), READS_PER_ENTRY):
        some = tuple(reads[first : first + READS_PER_ENTRY])
        registry.append(partial(_telling, Reads(some)))
        entries += 1
        told = set(some)
        for name in [name for name, signed in found.items() if signed in told]:
            opened.backend.delete(name)
    return Gathered(len(reads), entries, tuple(unreadable))


def _telling(payload: Reads, state: State) -> Reads:
    """The entry is the same whatever the state is."""
    return payload
