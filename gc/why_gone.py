"""Why something is no longer here: what the log says of it, entry by entry. Reads the whole log, and nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass

from cairn.core.errors import CairnError, NotFoundError, ObjectNotFound
from cairn.core.ids import ModelId, short
from cairn.gc.subject import Subject
from cairn.registry.entries import (
    Commit,
    Condemn,
    Entry,
    ModelCreate,
    Payload,
    Quarantine,
    Supply,
    Swept,
    Uncondemn,
    Upload,
    Verified,
    open_entry,
    payload_of,
)
from cairn.registry.entries_deletion import (
    Confirm,
    Destroyed,
    Drop,
    ModelDelete,
    ModelRestore,
    Restore,
    Shred,
    Tombstone,
)
from cairn.registry.log import read_from
from cairn.registry.models import name_or_id
from cairn.registry.numbers import within
from cairn.registry.registry import Registry
from cairn.registry.state import OBJECT_KEY_BYTES, object_key, pack_keys


@dataclass(frozen=True, slots=True)
class Event:
    """One entry that says something of what was asked for.

    Args:
        claimed_at: by its writer's clock (ns).
    """

    n: int
    type: str
    actor: bytes
    claimed_at: int
    text: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The answer: whether it is here, in a sentence, and the entries that tell of it."""

    here: bool
    text: str
    events: tuple[Event, ...]


def why_gone(registry: Registry, subject: Subject) -> Gone:
    """What became of a checkpoint, an object or a deleted model.

    Raises:
        NotFoundError: the log never named it.
    """
    state = registry.refresh()
    log = _Events(registry, subject)
    events = tuple(log.run())
    deleted = log.models & state.deleted.keys()
    if deleted:
        here, text = False, _deleted_model(registry, ModelId(deleted.pop()), "it" if subject.model else "its model")
    elif subject.checkpoint:
        here, text = _checkpoint(registry, subject)
    elif subject.content is not None:
        here, text = True, "it is in the index; 'cairn why-kept' tells who needs it"
    else:
        here = _is_stored(registry, subject.name)
        swept = subject.pack is not None and within(state.swept, subject.pack)
        named = not swept and (subject.pack is not None or bool(events))
        text = "it is here; 'cairn why-kept' tells why" if here else "it was deleted by collection"
        if not here and named and not any(one.type in ("gc.swept", "gc.condemn") for one in events):
            text = "it is missing: no entry lets it go, so it was lost; run 'cairn verify'"
    if not events and not here:
        raise NotFoundError(
            f"{subject.name}: no entry of this store's log ever named it",
            hint="it belongs to another store, or an interrupted writer made it and a collector removed it",
        )
    return Gone(here, text, events)


def _checkpoint(registry: Registry, subject: Subject) -> tuple[bool, str]:
    for identifier, model in registry.state.kept_models().items():
        if subject.checkpoint in model.checkpoints:
            return True, "it is here; 'cairn why-kept' tells why"
        gone = model.gone.get(subject.checkpoint)
        if gone is not None and gone.checkpoint is not None:
            name = f"{name_or_id(registry, ModelId(identifier))}@{short(subject.checkpoint)}"
            return False, f"it was deleted ({gone.cause}) and can be restored: 'cairn delete restore {name}'"
        if gone is not None:
            return False, f"it was deleted ({gone.cause}) and can no longer be restored"
    return False, "the log does not know it any more"


def _deleted_model(registry: Registry, model: ModelId, what: str) -> str:
    gone = registry.state.deleted[model]
    if gone.model is not None:
        hint = f"'cairn delete restore {name_or_id(registry, model)}'; 'cairn delete status' tells until when"
        return f"{what} was deleted ({gone.cause}) and can be restored: {hint}"
    text = f"{what} was deleted ({gone.cause}) and can no longer be restored"
    if gone.destroyed_n is None:
        return f"{text}: 'cairn gc apply --yes' destroys its keys"
    return f"{text}, its keys are destroyed: 'cairn receipt create {model.hex()} -o FILE' accounts for it"


def _is_stored(registry: Registry, name: str) -> bool:
    try:
        registry.opened.backend.size(name)
    except ObjectNotFound:
        return False
    return True


class _Events:
    def __init__(self, registry: Registry, subject: Subject) -> None:
        self._registry, self._subject = registry, subject
        self._void = {void.n for void in registry.state.voids}
        # A checkpoint's own objects, once its commit was met: its body goes with it.
        self._keys = {subject.key} if subject.key else set[bytes]()
        # The one that was asked for, and those that a checkpoint was committed to: it goes with its model.
        self.models = {subject.model} if subject.model else set[bytes]()

    def run(self) -> Iterator[Event]:
        opened = self._registry.opened
        for n, (stored, _) in enumerate(read_from(opened, 0)):
            if n in self._void:
                continue
            try:
                entry = open_entry(stored, n, opened.tenant, opened.store, opened.secrets.k_log)
                payload = payload_of(entry)
            except CairnError:
                continue  # damage is another matter
            text = self._about(entry, payload) if payload is not None else ""
            if text:
                yield Event(n, entry.type, entry.actor, entry.claimed_at, text)

    def _about(self, entry: Entry, payload: Payload) -> str:
        checkpoint = self._subject.checkpoint
        if isinstance(payload, ModelCreate | ModelDelete | ModelRestore | Shred | Confirm | Destroyed):
            named = payload.models if isinstance(payload, Destroyed) else (payload.model,)
            return _of_model(payload) if self.models.intersection(named) else ""
        if checkpoint and isinstance(payload, Commit | Supply | Quarantine) and payload.checkpoint == checkpoint:
            return self._of_checkpoint(payload)
        if checkpoint and isinstance(payload, Tombstone | Restore | Drop | Verified):
            return _of_list(payload) if checkpoint in payload.checkpoints else ""
        if isinstance(payload, Condemn) and self._names(payload.condemned, payload.objects):
            return "condemned it: nobody needed it"
        if isinstance(payload, Swept) and self._names(payload.packs, payload.objects):
            return "deleted it"
        if isinstance(payload, Uncondemn) and self._names(payload.packs, payload.objects):
            return "took it back"
        if isinstance(payload, Upload) and self._subject.key and self._brings(payload):
            return "stored it"
        return ""

    def _of_checkpoint(self, payload: Commit | Supply | Quarantine) -> str:
        if isinstance(payload, Quarantine):
            return "let collection go on without its list, which was damaged"
        self.models.add(payload.model)
        if payload.body is not None:
            self._keys = {object_key(payload.body, "body")}
        return "committed it" if isinstance(payload, Commit) else "brought content of it"

    def _names(self, packs: tuple[tuple[int, int], ...], objects: bytes) -> bool:
        number = self._subject.pack
        if number is not None and any(low <= number <= high for low, high in packs):
            return True
        keys = (objects[at : at + OBJECT_KEY_BYTES] for at in range(0, len(objects), OBJECT_KEY_BYTES))
        return any(key in self._keys for key in keys)

    def _brings(self, payload: Upload) -> bool:
        named = [*pack_keys(payload.packs), *(object_key(piece, "index") for piece in payload.pieces)]
        if isinstance(payload, Commit | Supply):
            named += [object_key(one, "body") for one in (payload.body,) if one is not None]
            named += [object_key(one, "envelope") for one in (payload.envelope,) if one is not None]
            named += [object_key(root.object, "root") for root in payload.roots]
            named.append(object_key(payload.reachability, "reach"))
        return self._subject.key in named


def _of_model(payload: ModelCreate | ModelDelete | ModelRestore | Shred | Confirm | Destroyed) -> str:
    match payload:
        case ModelCreate():
            return "made the model"
        case ModelDelete():
            return f"deleted the model ({payload.cause or 'no cause given'})"
        case ModelRestore():
            return "restored the model"
        case Shred():
            return "decided to destroy the model's keys: from here on it cannot be restored"
        case Confirm():
            return f"said that what could open it elsewhere is gone: {payload.of}"
        case Destroyed():
            return "destroyed the model's keys"


def _of_list(payload: Tombstone | Restore | Drop | Verified) -> str:
    if isinstance(payload, Tombstone):
        return f"deleted it ({payload.cause or 'no cause given'}); until a drop it can be restored"
    if isinstance(payload, Verified):
        return f"found it whole ({payload.depth})"
    return "restored it" if isinstance(payload, Restore) else "dropped it: from here on nothing keeps what it needed"
