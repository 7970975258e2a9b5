"""Push and pull: one checkpoint from a store to another of the same tenant, and a ref there.

The two directions are one operation. Sealed chunks, component roots and everything sealed to the model's keys travel
untouched, so a checkpoint has the same id in every store of its tenant.
"""

import msgspec

from cairn.core.errors import ConflictError, NotAllowed, RefMoved, UsageError
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.core.progress import Progress, Silent
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.delivery import Delivery, Selection
from cairn.registry.entries import ModelCreate
from cairn.registry.fold import BRANCH
from cairn.registry.fullness import telling_usage
from cairn.registry.modelkeys import import_model_keys
from cairn.registry.models import model_name, move_ref, ref_kind, ref_value
from cairn.registry.names import LATEST, MAIN, check_ref_name, model_tag
from cairn.registry.registry import Registry
from cairn.registry.reseal import reseal
from cairn.registry.selectors import parse_selector, resolve
from cairn.registry.state import State
from cairn.store.written import WriteCounts

# A commit that the rule refuses (a collector was at work) is tried again with what is missing by then.
_TRIES = 3


class SendOptions(msgspec.Struct, frozen=True):
    """How to send.

    Args:
        to: name of the branch in the target; by default the ref that was selected.
        selection: what to send of the checkpoint.
        reseal: between stores of different tenants: read all, and write it anew under the other's keys.
        rebase: append to the target's branch even if it holds something that the source does not know.
        repair: read all of it in the target, and send again what cannot be read there.
    """

    to: str = ""
    selection: Selection = Selection()
    rebase: bool = False
    repair: bool = False
    reseal: bool = False


class Sent(msgspec.Struct, frozen=True):
    """What a transfer did.

    Args:
        ref, kind: the ref in the target that points to the checkpoint now; `before` is what it pointed to.
        created: whether the target had no such checkpoint.
        counts: chunks and pages that travelled (new), and that were there (reused).
        bytes_resumed: stored bytes that an interrupted run had sent.
        partial: the target's checkpoint lacks something still.
    """

    model: ModelId
    checkpoint: CheckpointId
    ref: str
    kind: str
    before: CheckpointId | None
    created: bool
    counts: WriteCounts = msgspec.field(default_factory=WriteCounts)
    bytes_resumed: int = 0
    partial: bool = False


class _Known(Exception):
    """Another writer brought the model first."""


def send(
    source: Registry, target: Registry, selector: str, options: SendOptions, progress: Progress | None = None
) -> Sent:
    """Bring a checkpoint to the target and move a ref there.

    Raises:
        NotAllowed: the stores belong to different tenants.
        RefMoved: the target's ref has something that the source does not know; nothing was changed.
        ConflictError: the target has another model of this name.
        IntegrityError: the source lacks something, or holds it damaged.
        StorageFull: the target has no room; what was sent is kept for the next try.
    """
    with telling_usage(target):
        return _send(source, target, selector, options, progress)


def _send(source: Registry, target: Registry, selector: str, options: SendOptions, progress: Progress | None) -> Sent:
    if not options.reseal:
        check_same_tenant(source, target)
    source.refresh()
    target.refresh()
    model, checkpoint = resolve(source, selector)
    name, kind = _ref_to_move(source, model, selector, options.to)
    target.check_writable()
    if options.reseal:
        if kind != BRANCH:
            raise UsageError(f"{name!r} is a tag", hint="name the branch that is to get it with --to")
        return _reseal(source, target, CheckpointManifest(source, model, checkpoint), name, options, progress)
    bring_model(source, target, model)
    for left in reversed(range(_TRIES)):
        before = ref_value(target, model, name)
        _check_moves_forward(source, target, (model, name, kind), before, checkpoint, options.rebase)
        delivery = Delivery(source, target, model, checkpoint, progress or Silent())
        try:
            if not delivery.needed(options.selection, options.repair):
                delivery.forget()
                _check_keeps_history(target, (model, name), before, checkpoint)
                if before != checkpoint:
                    move_ref(target, model, name, kind, before, checkpoint)
                return Sent(model, checkpoint, name, kind, before, False, partial=delivery.partial)
            created = delivery.run(options.selection, options.repair, (name, kind, before))
            if not created and before != checkpoint:
                move_ref(target, model, name, kind, before, checkpoint)
        except ConflictError as error:
            if isinstance(error, RefMoved) or not left:
                raise
            target.refresh()
        else:
            return Sent(
                model, checkpoint, name, kind, before, created, delivery.counts, delivery.bytes_resumed,
                delivery.partial,
            )  # fmt: skip
    raise AssertionError("unreachable")


def _reseal(
    source: Registry,
    target: Registry,
    manifest: CheckpointManifest,
    branch: str,
    options: SendOptions,
    progress: Progress | None,
) -> Sent:
    if not options.selection.whole or options.repair or options.rebase:
        raise UsageError("between tenants a checkpoint goes whole, as a new one", hint="name --reseal alone")
    made = reseal(source, target, manifest, branch, progress or Silent())
    return Sent(made.model, made.checkpoint, branch, BRANCH, made.before, True, made.counts)


def check_same_tenant(source: Registry, target: Registry) -> None:
    """Raise unless sealed content can travel between two stores as it is.

    Raises:
        NotAllowed: it cannot.
    """
    one, other = source.opened, target.opened
    if one.store == other.store:
        raise UsageError(f"{one.backend.url} and {other.backend.url} are the same store", hint="name another remote")
    if one.tenant != other.tenant or one.secrets.k_ckpt != other.secrets.k_ckpt:
        raise NotAllowed(
            f"{other.backend.url} belongs to another tenant than {one.backend.url}: sealed content cannot travel there",
            hint="'cairn remote add NAME URL --create' makes a store of this tenant; --reseal writes a checkpoint anew",
        )


def bring_model(source: Registry, target: Registry, model: ModelId) -> None:
    """Make a model known in the target, with the keys that it has.

    Raises:
        ConflictError: the target has another model of this name.
    """
    if model in target.state.models:
        return
    name = model_name(source, model)
    if target.state.model_by_tag(model_tag(target.opened.secrets.k_log, name)):
        raise ConflictError(
            f"{target.opened.backend.url} has another model of the name {name!r}, which was made there",
            hint="a model keeps its identity when it travels: commit one of the two under another name",
        )
    payload = import_model_keys(target.opened, name, source.model_keys(model))

    def build(state: State) -> ModelCreate:
        if model in state.models:
            raise _Known
        return payload

    try:
        target.append(build)
    except (_Known, ConflictError) as error:
        target.opened.backend.delete(payload.wrap)
        if isinstance(error, ConflictError):
            raise


def _ref_to_move(source: Registry, model: ModelId, selector: str, to: str) -> tuple[str, str]:
    """Name and kind of the ref in the target."""
    if to:
        return check_ref_name(to), BRANCH
    selected = parse_selector(selector).revision
    selected = MAIN if selected == LATEST else selected
    kind = ref_kind(source, model, selected)
    if kind is None:
        raise UsageError(
            f"{selector!r} names no branch or tag, and a checkpoint without a name is not sent",
            hint="name the branch that is to point to it on the other side with --to",
        )
    return selected, kind


def _check_moves_forward(
    source: Registry,
    target: Registry,
    ref: tuple[ModelId, str, str],
    before: CheckpointId | None,
    checkpoint: CheckpointId,
    rebase: bool,
) -> None:
    model, name, kind = ref
    held = ref_kind(target, model, name)
    where = target.opened.backend.url
    if held is not None and held != kind:
        raise ConflictError(f"{name!r} is a {held} in {where}", hint="name another ref with --to")
    if before is None or before == checkpoint:
        return
    heads = f"{short(before)} there, {short(checkpoint)} in {source.opened.backend.url}"
    if kind != BRANCH:
        raise RefMoved(
            f"tag {name!r} exists in {where} and is another ({heads})", hint="tags do not move: name another"
        )
    if _is_ancestor(source, model, before, checkpoint):
        return
    if _is_ancestor(target, model, checkpoint, before):
        raise RefMoved(f"{kind} {name!r} of {where} is ahead ({heads})", hint="nothing needs to be sent")
    if not rebase:
        raise RefMoved(
            f"{kind} {name!r} of {where} has moved to something unknown here ({heads})",
            hint="send to another branch with --to and compare, or append to what is there with --rebase",
        )


def _check_keeps_history(
    target: Registry, ref: tuple[ModelId, str], before: CheckpointId | None, checkpoint: CheckpointId
) -> None:
    """A checkpoint that the target has stands where it stands: moving a branch to it must not cut others off."""
    model, name = ref
    if before is None or before == checkpoint or _is_ancestor(target, model, before, checkpoint):
        return
    raise RefMoved(
        f"{short(checkpoint)} is in {target.opened.backend.url} already, on another line than branch {name!r} "
        f"({short(before)}), which would lose its history",
        hint="commit the content again on top (--always) and send that, or move the branch there with 'cairn branch'",
    )


def _is_ancestor(registry: Registry, model: ModelId, old: CheckpointId, new: CheckpointId) -> bool:
    """Whether a checkpoint stands in another's history, as a store knows it."""
    known = registry.state.models.get(model)
    at: bytes | None = new
    while known is not None and at is not None and at in known.checkpoints:
        at = known.checkpoints[at].parent
        if at == old:
            return True
    return False
