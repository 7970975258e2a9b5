"""Who stands behind an actor. The log names people by their keys alone, and holds a salted commitment to who they are.

The record itself lies apart, in `people/<id>`, sealed under a random key in `keys/person/<id>`; both are for owners.
Erasing deletes the two: what stays in the log then tells nobody anything, and whoever was shown the record before can
still prove that it was the one.

Wherever it is stopped, nothing about anybody lies around that no entry names, since nobody would find it to erase it:
the two go before the entry that no longer names them, and come after the one that does.
"""

import hmac
from contextlib import suppress

import msgspec
from blake3 import blake3

from cairn.core.canonical import decode, encode
from cairn.core.errors import (
    CairnError,
    ConflictError,
    GoneError,
    IntegrityError,
    NotFoundError,
    ObjectNotFound,
    UsageError,
)
from cairn.core.ids import HASH_BYTES, RANDOM_ID_BYTES, ActorId, short
from cairn.core.limits import PERSON_BYTES_MAX
from cairn.registry.deletion import check_is_owner
from cairn.registry.entries_rights import PersonSet
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.state import Person, State
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.tenant import derive

_RECORDS, _KEYS = "people", "keys/person"


class PersonRecord(msgspec.Struct, frozen=True):
    """Who an actor is; the salt keeps others from trying names against the commitment."""

    salt: bytes
    text: str

    def commitment(self) -> bytes:
        """What the log says of it."""
        return blake3(encode(self)).digest()

    def __repr__(self) -> str:
        return "PersonRecord(<personal>)"


def name_person(registry: Registry, actor: ActorId, text: str) -> None:
    """Record who an actor is, in the place of what was recorded before.

    Raises:
        UsageError: the text is empty or too long.
        NotAllowed: this user is no owner.
        ConflictError: another owner recorded it at the same time.
    """
    if not 0 < len(text.encode()) <= PERSON_BYTES_MAX:
        raise UsageError(
            f"a description of {len(text.encode())} bytes", hint=f"write a name, of {PERSON_BYTES_MAX} bytes at most"
        )
    opened, before = registry.opened, registry.refresh().people.get(actor)
    record = PersonRecord(opened.entropy.token(HASH_BYTES), text)
    name, key = opened.entropy.token(RANDOM_ID_BYTES), opened.entropy.token(HASH_BYTES)
    _replace(registry, before, PersonSet(actor, record.commitment(), name))
    sealed_key = seal_object(_class_key(opened), opened.store, ObjectKind.PERSON_KEY, key, opened.entropy)
    sealed = seal_object(key, opened.store, ObjectKind.PERSON, encode(record), opened.entropy)
    opened.backend.create(f"{_KEYS}/{name.hex()}", [sealed_key])
    opened.backend.create(f"{_RECORDS}/{name.hex()}", [sealed])


def forget_person(registry: Registry, actor: ActorId) -> None:
    """Erase who an actor is; what the log says of its deeds stays, under its key.

    Raises:
        NotFoundError: nothing is recorded.
        NotAllowed: this user is no owner.
        ConflictError: another owner recorded it anew at the same time.
    """
    before = registry.refresh().people.get(actor)
    if before is None:
        raise NotFoundError(f"nobody has recorded who {short(actor)} is")
    _replace(registry, before, PersonSet(actor))


def known_people(registry: Registry) -> dict[bytes, str]:
    """Who all actors are of whom that is recorded, as far as this user may know."""
    found = {}
    for actor in registry.state.people:
        with suppress(CairnError):
            found[actor] = person(registry, ActorId(actor)).text
    return found


def person(registry: Registry, actor: ActorId) -> PersonRecord:
    """Who an actor is.

    Raises:
        NotFoundError: nothing is recorded.
        GoneError: it was erased.
        NotAllowed: this user is no owner.
        IntegrityError: the record is not the one that the log speaks for.
    """
    held = registry.state.people.get(actor)
    if held is None:
        raise NotFoundError(
            f"nobody has recorded who {short(actor)} is", hint=f"cairn members person {short(actor)} --set NAME"
        )
    opened, name = registry.opened, held.name.hex()
    try:
        sealed_key, sealed = opened.backend.read(f"{_KEYS}/{name}"), opened.backend.read(f"{_RECORDS}/{name}")
    except ObjectNotFound:
        raise GoneError(f"who {short(actor)} is was erased, or its record is lost") from None
    key = open_object(_class_key(opened), opened.store, ObjectKind.PERSON_KEY, sealed_key, f"{_KEYS}/{name}")
    what = f"{_RECORDS}/{name}"
    record = decode(open_object(key, opened.store, ObjectKind.PERSON, sealed, what), PersonRecord, what)
    if not hmac.compare_digest(record.commitment(), held.commitment):
        raise IntegrityError(f"{what} is not the record that the log speaks for")
    return record


def _class_key(opened: OpenStore) -> bytes:
    return derive(opened.secrets.tenant_secret, "person-key")


def _replace(registry: Registry, before: Person | None, payload: PersonSet) -> None:
    """Erase what was recorded, and append the entry that says what is from here on."""
    check_is_owner(registry)
    registry.check_writable()
    if before is not None:
        # The key first: without it the record is noise.
        registry.opened.backend.delete(f"{_KEYS}/{before.name.hex()}")
        registry.opened.backend.delete(f"{_RECORDS}/{before.name.hex()}")

    def build(state: State) -> PersonSet:
        if state.people.get(payload.member) != before:
            raise ConflictError(
                f"who {short(ActorId(payload.member))} is was recorded or erased by another owner meanwhile",
                hint="run the command again",
            )
        return payload

    registry.append(build)
