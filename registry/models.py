"""Models and refs by the names that people give them."""

from collections.abc import Callable, Iterator

import msgspec

from cairn.core.canonical import decode, encode
from cairn.core.errors import CairnError, NotAllowed, NotFoundError, RefMoved
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.registry.entries import RefDelete, RefMove
from cairn.registry.gonemodels import gone_model_error
from cairn.registry.modelkeys import ModelKeys, new_model_keys
from cairn.registry.names import LATEST, MAIN, check_model_name, check_ref_name, model_tag, ref_tag
from cairn.registry.newmodels import add_model
from cairn.registry.registry import Registry
from cairn.registry.state import Checkpoint, Model, State

_META = "commit-meta"


class CommitMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What listings show of a commit; sealed to the model's meta key, and as it is in every store that gets it.

    Args:
        saved_at: the writer's clock (ns) when it committed; 0: not told.
        parent: what its branch pointed to then.
        metrics: numbers that the checkpoint is told by, such as a loss; retention can keep the best.
    """

    message: str
    step: int | None
    saved_at: int = 0
    parent: bytes | None = None
    metrics: dict[str, float] = {}


class NamedRef(msgspec.Struct, frozen=True):
    """A ref with its opened name."""

    name: str
    kind: str
    checkpoint: CheckpointId


class LogLine(msgspec.Struct, frozen=True):
    """One checkpoint of a history, and the one behind it, which may be deleted.

    Args:
        deleted_behind: how many were deleted between it and the next one that is there; told by `history` alone.
    """

    id: CheckpointId
    state: Checkpoint
    meta: CommitMeta
    parent: CheckpointId | None
    deleted_behind: int = 0

    @property
    def saved_at(self) -> int:
        """When it was saved (ns); what came from elsewhere entered this store's log later."""
        return saved_at(self.state, self.meta)


class Past(msgspec.Struct, frozen=True):
    """One checkpoint of a history and the one behind it; of one that was deleted there is no line."""

    id: CheckpointId
    parent: CheckpointId | None
    line: LogLine | None


def find_model(registry: Registry, name: str) -> ModelId:
    """Id of a model by name.

    Raises:
        NotFoundError: the store has no such model.
        GoneError: it was deleted.
    """
    tag = model_tag(registry.opened.secrets.k_log, check_model_name(name))
    found = registry.state.model_by_tag(tag)
    if found is None:
        deleted = registry.state.deleted_by_tag(tag)
        if deleted is not None:
            raise gone_model_error(registry, name, deleted[1])
        raise NotFoundError(f"no model {name!r} in {registry.opened.backend.url}", hint="'cairn ls' lists the models")
    return ModelId(found[0])


def ensure_model(registry: Registry, name: str) -> ModelId:
    """Id of a model by name, created if the store has none.

    Raises:
        GoneError: it was deleted and can be restored, so that its name is taken.
    """
    tag = model_tag(registry.opened.secrets.k_log, check_model_name(name))
    found = registry.state.model_by_tag(tag)
    if found is None:
        deleted = registry.state.deleted_by_tag(tag)
        if deleted is not None and deleted[1].model is not None:
            raise gone_model_error(registry, name, deleted[1])
        check_may_make_model(registry, name)
        add_model(registry, name, new_model_keys(registry.opened), lambda state: state.model_by_tag(tag) is not None)
        found = registry.state.model_by_tag(tag)
    assert found is not None
    return ModelId(found[0])


def check_may_make_model(registry: Registry, name: str) -> None:
    """Raise unless this user may make a model; to be called before anything is uploaded.

    Raises:
        NotAllowed: only owners may.
        NewerFormat, IntegrityError: the store cannot be written to.
    """
    registry.check_writable()
    if registry.signer().actor not in registry.state.owners:
        who = short(registry.opened.identity.actor)
        raise NotAllowed(
            f"there is no model {name!r}, and only an owner makes one; nothing was changed",
            hint=f"ask an owner to run: cairn grant {name} {who} --write --create",
        )


def model_name(registry: Registry, model: ModelId) -> str:
    """The name that a model was given, also if it is deleted.

    Raises:
        GoneError: its keys are destroyed, and its name with them.
    """
    state = registry.state
    sealed = (state.kept_model(model) or state.live_model(model)).sealed_name
    return registry.model_keys(model).open_name(sealed, f"name of model {model.hex()}")


def name_or_id(registry: Registry, model: ModelId) -> str:
    """The name of a model; its id in hexadecimal where that cannot be read."""
    try:
        return model_name(registry, model)
    except CairnError:
        return model.hex()


def list_refs(registry: Registry, model: ModelId) -> list[NamedRef]:
    """All refs of a model, by name."""
    keys = registry.model_keys(model)
    refs = registry.state.live_model(model).refs.values()
    named = [
        NamedRef(keys.open_name(ref.sealed_name, "name of a ref"), ref.kind, CheckpointId(ref.checkpoint))
        for ref in refs
    ]
    return sorted(named, key=lambda ref: ref.name)


def ref_value(registry: Registry, model: ModelId, name: str) -> CheckpointId | None:
    """What a ref points to; None if there is no such ref."""
    name = MAIN if name == LATEST else name
    ref = registry.state.live_model(model).refs.get(ref_tag(registry.opened.secrets.k_log, model, name))
    return CheckpointId(ref.checkpoint) if ref else None


def move_ref(
    registry: Registry, model: ModelId, name: str, kind: str, expected: CheckpointId | None, target: CheckpointId
) -> None:
    """Create (`expected` None) or move a branch or tag.

    Raises:
        RefMoved: the ref does not have the expected value.
    """
    tag = ref_tag(registry.opened.secrets.k_log, model, check_ref_name(name))

    def build(state: State) -> RefMove:
        check_expected(state.live_model(model), tag, name, expected)
        sealed = registry.model_keys(model).seal_name(name)
        return RefMove(model, tag, kind, sealed, expected, target)

    registry.append(build)


def delete_ref(
    registry: Registry, model: ModelId, name: str, kind: str, check: Callable[[State], None] | None = None
) -> CheckpointId:
    """Remove a branch or tag; returns what it pointed to. The checkpoints stay.

    Args:
        check: raises if the state is not the one that the choice was made by.

    Raises:
        NotFoundError: there is no such branch or tag.
    """
    if check is not None:
        check(registry.state)
    tag = ref_tag(registry.opened.secrets.k_log, model, name)
    ref = registry.state.live_model(model).refs.get(tag)
    if ref is None or ref.kind != kind:
        raise NotFoundError(f"no {kind} {name!r} in this model", hint=f"'cairn {kind} MODEL' lists them")
    expected = CheckpointId(ref.checkpoint)

    def build(state: State) -> RefDelete:
        if check is not None:
            check(state)
        check_expected(state.live_model(model), tag, name, expected)
        return RefDelete(model, tag, expected)

    registry.append(build)
    return expected


def check_expected(model: Model, tag: bytes, name: str, expected: CheckpointId | None) -> None:
    """Raise `RefMoved` unless a ref has the expected value."""
    ref = model.refs.get(tag)
    actual = ref.checkpoint if ref else None
    if actual != expected:
        raise RefMoved(
            f"ref {name!r} points to {short(actual) if actual else 'nothing'}, not to "
            f"{short(expected) if expected else 'nothing'} as expected",
            hint="another writer was first: look at 'cairn log' and repeat the command",
        )


def seal_meta(keys: ModelKeys, meta: CommitMeta) -> bytes:
    """Seal the listing facts of a commit."""
    return keys.seal_meta(encode(meta), _META)


def open_meta(registry: Registry, model: ModelId, checkpoint: Checkpoint) -> CommitMeta:
    """Open the listing facts of a commit."""
    return open_commit_meta(registry.model_keys(model), checkpoint.meta, f"facts of commit entry {checkpoint.n}")


def open_commit_meta(keys: ModelKeys, sealed: bytes, what: str) -> CommitMeta:
    """Open the listing facts of a commit, as its entry holds them."""
    return decode(keys.open_meta(sealed, _META, what), CommitMeta, what)


def saved_at(checkpoint: Checkpoint, meta: CommitMeta) -> int:
    """When a checkpoint was saved (ns), by the clock of whoever saved it."""
    return meta.saved_at or checkpoint.claimed_at


def history(registry: Registry, model: ModelId, tip: CheckpointId | None, number: int | None = None) -> list[LogLine]:
    """Checkpoints from a tip back, newest first, at most `number` of them; deleted ones are counted."""
    lines: list[LogLine] = []
    for past in walk(registry, model, tip):
        if past.line is not None:
            if len(lines) == number:
                break
            lines.append(past.line)
        elif lines:
            lines[-1] = msgspec.structs.replace(lines[-1], deleted_behind=lines[-1].deleted_behind + 1)
    return lines


def walk_history(registry: Registry, model: ModelId, tip: CheckpointId | None) -> Iterator[LogLine]:
    """Checkpoints from a tip back, newest first; deleted ones are passed over."""
    return (past.line for past in walk(registry, model, tip) if past.line is not None)


def walk(registry: Registry, model: ModelId, tip: CheckpointId | None) -> Iterator[Past]:
    """Checkpoints from a tip back, newest first, deleted ones too.

    What is behind a checkpoint is what its ref pointed to when it came here. A push that left some out may be made up
    for later: where the writers' own account leads to the same place, or on from an end, it is the fuller one.
    """
    seen: set[bytes] = set()
    known = registry.state.live_model(model)
    while tip is not None and tip not in seen:
        seen.add(tip)
        behind, line, state = known.parent_of(tip), None, known.checkpoints.get(tip)
        if state is not None:
            meta = open_meta(registry, model, state)
            behind = meta.parent if _is_fuller(registry, model, state, meta.parent) else behind
            line = LogLine(tip, state, meta, CheckpointId(behind) if behind else None)
        elif tip not in known.gone:
            return
        yield Past(tip, CheckpointId(behind) if behind else None, line)
        tip = CheckpointId(behind) if behind else None


def _is_fuller(registry: Registry, model: ModelId, state: Checkpoint, claimed: bytes | None) -> bool:
    """Whether what a writer says was behind a checkpoint is here, and leads to all that this store has behind it."""
    known, seen = registry.state.live_model(model), set[bytes]()
    if state.parent is None:
        return claimed in known.checkpoints or claimed in known.gone
    while claimed is not None and claimed != state.parent and claimed not in seen:
        seen.add(claimed)
        found = known.checkpoints.get(claimed) or known.gone.get(claimed)
        if found is None:
            return False
        claimed = open_meta(registry, model, found).parent if isinstance(found, Checkpoint) else found.parent
        if found.parent not in (None, state.parent, claimed):
            return False
    return claimed == state.parent


def ref_kind(registry: Registry, model: ModelId, name: str) -> str | None:
    """What a name is in a model: `branch`, `tag`, or None if it is free."""
    ref = registry.state.live_model(model).refs.get(ref_tag(registry.opened.secrets.k_log, model, name))
    return ref.kind if ref else None
