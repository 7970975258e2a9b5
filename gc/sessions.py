"""Sessions that writers hold open, or that dead writers left."""

from dataclasses import dataclass

from cairn.core.canonical import decode
from cairn.core.errors import IntegrityError
from cairn.core.ids import SessionId
from cairn.registry.opened import OpenStore
from cairn.registry.session import FOLDER, OPEN, SessionRecord
from cairn.store.crypto.objects import ObjectKind, open_object


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session whose object exists; `epoch` is None where the object is damaged."""

    id: str
    epoch: int | None


def session_object(session: SessionId) -> str:
    """Name of a session's object."""
    return f"{FOLDER}/{session.hex()}{OPEN}"


def read_session(opened: OpenStore, session: SessionId) -> SessionRecord:
    """What a session's object says.

    Raises:
        ObjectNotFound: its writer ended meanwhile.
        IntegrityError: damaged, or another session's.
    """
    name = session_object(session)
    sealed = opened.backend.read(name)
    plain = open_object(opened.secrets.k_log, opened.store, ObjectKind.SESSION, sealed, f"session object {name}")
    record = decode(plain, SessionRecord, f"session object {name}")
    if record.session != session:
        raise IntegrityError(f"session object {name} is another session's")
    return record
