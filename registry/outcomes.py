"""Asking the log what became of a commit that another process was to make."""

from cairn.core.errors import IntegrityError
from cairn.core.ids import CheckpointId, SessionId
from cairn.registry.entries import Commit, open_entry, payload_of
from cairn.registry.log import read_from
from cairn.registry.registry import Registry


def commit_of_session(registry: Registry, session: SessionId, since: int) -> CheckpointId | None:
    """The checkpoint, from log position `since` on, whose commit names a session and has taken effect."""
    opened = registry.opened
    state = registry.refresh()
    for n, (stored, _) in enumerate(read_from(opened, since), start=since):
        try:
            entry = open_entry(stored, n, opened.tenant, opened.store, opened.secrets.k_log)
            payload = payload_of(entry)
        except IntegrityError:
            continue
        if isinstance(payload, Commit) and session in payload.sessions:
            model = state.models.get(payload.model)
            # One that has been deleted since was committed all the same.
            if model is not None and (payload.checkpoint in model.checkpoints or payload.checkpoint in model.gone):
                return CheckpointId(payload.checkpoint)
    return None
