"""Deleted models, as those meet them who ask for one."""

from datetime import UTC, datetime

from cairn.core.errors import CairnError, GoneError
from cairn.core.ids import short
from cairn.registry.entries import open_entry
from cairn.registry.log import read_entry
from cairn.registry.registry import Registry
from cairn.registry.state import DeletedModel


def gone_model_error(registry: Registry, name: str, deleted: DeletedModel) -> GoneError:
    """What to raise where a deleted model is asked for: when, by whom and why it was deleted, what to do."""
    text = f"model {name!r} {was_deleted(registry, deleted.n, deleted.actor, deleted.cause)}"
    if deleted.model is None:
        return GoneError(
            f"{text}; its keys are destroyed and it cannot be restored", hint="'cairn delete status' tells more"
        )
    return GoneError(text, hint=f"'cairn delete restore {name}' brings it back")


def was_deleted(registry: Registry, n: int, actor: bytes, cause: str) -> str:
    """When, by whom and why something was deleted by entry `n`."""
    at = claimed_at(registry, n)
    when = "" if at is None else datetime.fromtimestamp(at / 1e9, UTC).strftime(" at %F %T UTC")
    return f"was deleted{when} by {short(actor)} ({cause})"


def claimed_at(registry: Registry, n: int) -> int | None:
    """When an entry was written, by its writer's clock (ns); None if it cannot be read."""
    opened = registry.opened
    try:
        stored, _ = read_entry(opened, n)
        return open_entry(stored, n, opened.tenant, opened.store, opened.secrets.k_log).claimed_at
    except CairnError:
        return None
