"""What a collector sees, in the one order that is safe: objects, then sessions, then the fold; pins after the floor.

A writer whose session had ended when sessions were listed has its commit in the fold that is read after; one whose
session was not there yet has uploaded nothing that is in the listing of objects.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cairn.core.errors import BadName, IntegrityError, ObjectNotFound
from cairn.core.ids import RANDOM_ID_BYTES, SessionId, parse_object_name
from cairn.gc.silence import Silence
from cairn.registry import pins, session
from cairn.registry.opened import OpenStore
from cairn.registry.pins import PinRecord, pins_named, read_pin
from cairn.registry.registry import Registry
from cairn.registry.session import SessionRecord, read_session, sessions_named
from cairn.registry.state import OBJECT_KINDS, State, named_keys


@dataclass(frozen=True, slots=True)
class SeenSession:
    """A session whose object exists; `record` is None where it cannot be read, `dead` if it counts as given up."""

    id: SessionId
    record: SessionRecord | None
    dead: bool
    seconds_left: float

    @property
    def epoch(self) -> int:
        """The epoch that it protects from; an unreadable one protects all."""
        return -1 if self.record is None else self.record.epoch


@dataclass(frozen=True, slots=True)
class SeenPin:
    """A pin whose object exists; `record` is None where it cannot be read."""

    name: str
    record: PinRecord | None
    dead: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """Args:
    objects: stored bytes by object key (see `state.object_key`), of the known kinds.
    """

    objects: dict[bytes, int]
    sessions: list[SeenSession]
    state: State


def observe(registry: Registry, silence: Silence, dead: Collection[SessionId] = ()) -> Observed:
    """Look at the store.

    Args:
        dead: sessions that an operator declares dead.
    """
    opened = registry.opened
    objects = list_objects(opened)
    sessions = list_sessions(opened, silence, dead)
    return Observed(objects, sessions, registry.refresh().copy())


def list_objects(opened: OpenStore) -> dict[bytes, int]:
    """Stored bytes of all collectable objects of the known kinds, by key."""
    found = {}
    for listed in opened.backend.list("objects"):
        try:
            owner, random, kind = parse_object_name(listed.name)
        except BadName:
            continue  # nothing of ours
        if kind in OBJECT_KINDS:
            found[owner + random + bytes((OBJECT_KINDS.index(kind),))] = listed.size
    return found


def left_over(
    objects: Iterable[bytes],
    state: State,
    sessions: Iterable[SeenSession],
    dropped: Collection[tuple[bytes, bytes]] = (),
) -> list[bytes]:
    """Keys, ascending, of objects that nobody needs and no live writer has uploaded, and that are not condemned yet.

    Args:
        dropped: see `named_keys`.
    """
    needed, owners = named_keys(state, dropped), {seen.id for seen in sessions if not seen.dead}
    return sorted(
        key
        for key in objects
        if key not in needed and key not in state.condemned_objects and key[:RANDOM_ID_BYTES] not in owners
    )


def list_sessions(opened: OpenStore, silence: Silence, dead: Collection[SessionId] = ()) -> list[SeenSession]:
    """All sessions, and which of them count as dead."""
    names = [listed.name for listed in opened.backend.list(session.FOLDER)]
    stems = {one: f"{session.FOLDER}/{one.hex()}" for one in sessions_named(names)}
    silence.look(session.FOLDER, stems.values(), names)
    found = []
    for one, stem in stems.items():
        record = None
        try:
            record = read_session(opened, one, names)
        except ObjectNotFound:
            continue  # its writer has ended, or advanced since: what it says now is newer, and seen by the next look
        except IntegrityError:
            pass
        process = record.process if record else None
        gone = one in dead or silence.given_up(stem, process)
        found.append(SeenSession(one, record, gone, silence.seconds_left(stem, process)))
    return found


def list_pins(opened: OpenStore, silence: Silence) -> list[SeenPin]:
    """All pins, and which of them count as dead."""
    names = [listed.name for listed in opened.backend.list(pins.FOLDER)]
    stems = {name: name.removesuffix(pins.PIN) for name in pins_named(names)}
    silence.look(pins.FOLDER, stems.values(), names)
    found = []
    for name, stem in stems.items():
        record = None
        try:
            record = read_pin(opened, name)
        except ObjectNotFound:
            continue
        except IntegrityError:
            pass
        found.append(SeenPin(name, record, silence.given_up(stem, record.process if record else None)))
    return found
