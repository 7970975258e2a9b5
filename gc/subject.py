"""What a question is about: a pack, another object, a chunk or page, a checkpoint, a deleted model; by name or id."""

from dataclasses import dataclass

from cairn.core.errors import BadName, NotFoundError, UsageError
from cairn.core.ids import HASH_BYTES, ID_PREFIX_HEX_MIN, ContentId, parse_object_name
from cairn.registry.indexing import locations_of
from cairn.registry.names import model_tag
from cairn.registry.registry import Registry
from cairn.registry.selectors import parse_selector, resolve_any
from cairn.registry.state import OBJECT_KINDS, State, pack_key

_HEX = set("0123456789abcdef")
_HINT = "name an object as 'cairn verify' does (objects/…/….pack), write hexadecimal digits of an id, or MODEL[@REF]"


@dataclass(frozen=True, slots=True)
class Subject:
    """Exactly one of these.

    Args:
        key: of a collectable object (see `state.object_key`); `pack` is its number, if it is a pack that has one.
        content: id of a chunk or page.
        checkpoint: its id.
        model: id of a deleted model.
    """

    name: str
    key: bytes = b""
    pack: int | None = None
    content: ContentId | None = None
    checkpoint: bytes = b""
    model: bytes = b""


def subject_of(registry: Registry, text: str) -> Subject:
    """What a text names. Names of models come before names of objects, and those before ids.

    Raises:
        UsageError: neither the name of a model, nor of an object, nor an id.
        NotFoundError: nothing has an id that begins so, or several do, or the model has no such ref.
    """
    selected = _selected(registry, text)
    if selected is not None:
        return selected
    if "/" in text:
        return _object(registry.state, text)
    prefix = text.lower()
    if len(prefix) < ID_PREFIX_HEX_MIN or len(prefix) > 2 * HASH_BYTES or not set(prefix) <= _HEX:
        raise UsageError(f"{text[:80]!r} is neither the name of an object or model nor an id", hint=_HINT)
    found = [Subject(f"checkpoint {one.hex()}", checkpoint=one) for one in _checkpoints(registry.state, prefix)]
    deleted = (one for one in registry.state.deleted if one.hex().startswith(prefix))
    found += [Subject(f"model {one.hex()}", model=one) for one in deleted]
    found = found or [Subject(f"chunk or page {one.hex()}", content=one) for one in _contents(registry, prefix)]
    if not found and len(prefix) == 2 * HASH_BYTES:
        return Subject(f"checkpoint {prefix}", checkpoint=bytes.fromhex(prefix))
    if len(found) != 1:
        many = f"fits {len(found)} ids" if found else "is the beginning of no id here"
        raise NotFoundError(f"{prefix} {many}", hint="write more digits, or all 64")
    return found[0]


def _selected(registry: Registry, text: str) -> Subject | None:
    """The checkpoint that a selector means, or its model if that was deleted; None if no model is called so."""
    state, name = registry.state, parse_selector(text).model
    tag = model_tag(registry.opened.secrets.k_log, name)
    if state.model_by_tag(tag):
        checkpoint = resolve_any(registry, text)[1]
        return Subject(f"checkpoint {checkpoint.hex()}", checkpoint=checkpoint)
    deleted = state.deleted_by_tag(tag)
    return Subject(f"model {name}", model=deleted[0]) if deleted else None


def _object(state: State, name: str) -> Subject:
    try:
        session, random, kind = parse_object_name(name)
        key = session + random + bytes((OBJECT_KINDS.index(kind),))
    except (BadName, ValueError):
        raise UsageError(f"{name[:120]!r} is not the name of an object that is ever collected", hint=_HINT) from None
    numbers = (number for number in range(state.pack_count) if pack_key(state.pack(number)) == key)
    return Subject(name, key=key, pack=next(numbers, None))


def _checkpoints(state: State, prefix: str) -> list[bytes]:
    known = {one for model in state.kept_models().values() for one in (*model.checkpoints, *model.gone)}
    return sorted(one for one in known if one.hex().startswith(prefix))


def _contents(registry: Registry, prefix: str) -> list[ContentId]:
    if len(prefix) == 2 * HASH_BYTES:
        identifier = ContentId(bytes.fromhex(prefix))
        return [identifier] if registry.index().locations(identifier, marked=True) else []
    found = set[ContentId]()
    for piece in registry.state.pieces:
        listed, _ = locations_of(registry.opened, registry.state, piece)
        found.update(one for one, _ in listed if one.hex().startswith(prefix))
    return sorted(found)
