"""Push and pull: a checkpoint from a store to another of the same tenant, and a ref there.

The two directions are one operation. Sealed chunks, component roots and everything sealed to the model's keys travel
untouched, so a checkpoint has the same id in every store of its tenant.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile

import msgspec
from msgspec.structs import replace

from cairn.core.errors import ConflictError, GoneError, NotAllowed, NotFoundError, RefMoved, RefusedError, UsageError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.progress import Progress, Silent
from cairn.core.shown import Shown
from cairn.registry.attestations import carry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.delivery import Delivery, Selection
from cairn.registry.fold import BRANCH
from cairn.registry.forward import check_keeps_history, check_moves_forward, is_ancestor
from cairn.registry.fullness import telling_usage
from cairn.registry.gone import check_may_return
from cairn.registry.gonemodels import gone_model_error
from cairn.registry.modelkeys import check_complete
from cairn.registry.models import delete_ref, model_name, move_ref, ref_kind, ref_value, walk_history
from cairn.registry.names import LATEST, MAIN, check_ref_name, model_tag
from cairn.registry.newmodels import add_model
from cairn.registry.pins import pinned
from cairn.registry.registry import Registry
from cairn.registry.requirement import Vouched, check_linked, check_signed
from cairn.registry.reseal import reseal
from cairn.registry.rotation import adopt_keys
from cairn.registry.selectors import parse_selector, resolve
from cairn.registry.trust import Trust
from cairn.store.written import WriteCounts

# A commit that the rule refuses (a collector was at work) is tried again with what is missing by then.
_TRIES = 3
# Name and kind of a ref in the target.
_Ref = tuple[str, str]


class SendOptions(msgspec.Struct, frozen=True):
    """How to send.

    Args:
        to: name of the branch in the target; by default the ref that was selected.
        selection: what to send of the checkpoint.
        reseal: between stores of different tenants: read all, and write it anew under the other's keys.
        rebase: append to the target's branch even if it holds something that the source does not know.
        repair: read all of it in the target, and send again what cannot be read there.
        history: bring the checkpoints behind it too, oldest first.
        trust: nothing is changed unless one of these signers says that the selector means the checkpoint.
    """

    to: str = ""
    selection: Selection = Selection()
    rebase: bool = False
    repair: bool = False
    reseal: bool = False
    history: bool = False
    trust: Trust | None = None


class Sent(Shown, frozen=True):
    """What a transfer did.

    Args:
        ref, kind: the ref in the target that points to the checkpoint now; `before` is what it pointed to.
        created: whether the target had no such checkpoint.
        counts: chunks and pages that travelled (new), and that were there (reused).
        bytes_resumed: stored bytes that an interrupted run had sent.
        partial: the target's checkpoint lacks something still.
        appended_to: what the ref pointed to, if the source does not know it; the newest, if there are several.
        ahead: the ref was beyond the checkpoint, and stays; only what is behind it was wanted.
        older_brought: checkpoints behind it that the target had not.
        older_left: those that it still has not, down to the nearest one that it has.
        signatures: signed statements that came along; `vouched`, who vouches for it, if that was asked for.
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
    appended_to: CheckpointId | None = None
    ahead: bool = False
    older_brought: int = 0
    older_left: int = 0
    signatures: int = 0
    vouched: Vouched | None = None


def send(
    source: Registry, target: Registry, selector: str, options: SendOptions, progress: Progress | None = None
) -> Sent:
    """Bring a checkpoint to the target and move a ref there.

    Raises:
        NotAllowed: the stores belong to different tenants.
        RefMoved: the target's ref has something that the source does not know; nothing was changed.
        ConflictError: the target has another model of this name.
        GoneError: it was deleted there.
        GoneError: the checkpoint was deleted in the target, and can be restored there.
        IntegrityError: the source lacks something, or holds it damaged.
        StorageFull: the target has no room; what was sent is kept for the next try.
        RefusedError: nobody of `options.trust` vouches for it; nothing was changed.
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
    vouched = None
    if options.trust is not None:
        vouched = check_signed(source, model, checkpoint, selector, options.trust, target)
        if options.history:
            check_linked(source, model, _down_to_lacking(source, target, model, checkpoint))
    target.check_writable()
    if options.reseal:
        if kind != BRANCH:
            raise UsageError(f"{name!r} is a tag", hint="name the branch that is to get it with --to")
        with pinned(source, model, checkpoint):
            manifest = CheckpointManifest(source, model, checkpoint)
            return replace(_reseal(source, target, manifest, name, options, progress), vouched=vouched)
    bring_model(source, target, model)
    check_may_return(target, model, checkpoint)
    known = target.state.live_model(model)
    behind: Iterator[CheckpointId] = (line.id for line in islice(walk_history(source, model, checkpoint), 1, None))
    if not options.history:
        behind = takewhile(lambda one: one not in known.checkpoints, behind)
    older = [one for one in behind if one not in known.gone]  # what was deleted there does not come back unasked
    way = _Way(source, target, model, options, progress or Silent())
    before = ref_value(target, model, name)
    ahead = options.history and before != checkpoint and is_ancestor(target, model, checkpoint, before)
    if not ahead:
        way.check_forward((name, kind), before, checkpoint)
    lacking = way.count_lacking(older)
    earlier = way.bring_older([*reversed(older), checkpoint], (name, kind)) if options.history else []
    sent = way.bring(checkpoint, (name, kind), stays=ahead)
    for one in earlier:
        sent.counts.add(one.counts)
    signatures = sum(carry(source, target, model, one.checkpoint) for one in [*earlier, sent])
    left = way.count_lacking(older)
    return replace(
        sent,
        before=before,
        bytes_resumed=sent.bytes_resumed + sum(one.bytes_resumed for one in earlier),
        appended_to=None if ahead else way.unknown_behind(before, [*earlier, sent]),
        ahead=ahead,
        older_brought=lacking - left,
        older_left=left,
        signatures=signatures,
        vouched=vouched,
    )


@dataclass(frozen=True, slots=True)
class _Way:
    """From one store to another: what checkpoints of a model travel on."""

    source: Registry
    target: Registry
    model: ModelId
    options: SendOptions
    progress: Progress

    def bring(self, checkpoint: CheckpointId, ref: _Ref, stays: bool = False) -> Sent:
        """Bring one checkpoint and move a ref to it, unless it stays: what is there already is then completed alone."""
        target, model, options, (name, kind) = self.target, self.model, self.options, ref
        for left in reversed(range(_TRIES)):
            before = ref_value(target, model, name)
            if not stays:
                self.check_forward(ref, before, checkpoint)
            moves = not stays and before != checkpoint
            delivery = Delivery(self.source, target, model, checkpoint, self.progress)
            created = False
            try:
                if delivery.needed(options.selection, options.repair):
                    created = delivery.run(options.selection, options.repair, (name, kind, before))
                else:
                    delivery.forget()
                    if moves:
                        check_keeps_history(target, (model, name), before, checkpoint)
                if moves and not created:
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

    def bring_older(self, chain: Sequence[CheckpointId], ref: _Ref) -> list[Sent]:
        """Bring all but the last of a chain, oldest first.

        Those that are newer than all that is there go to the branch, as if each had been sent in its time. The others,
        and those behind a tag, come on a branch of their own, which goes when they are there.

        Raises:
            RefusedError: all is wanted of what the source has in part; nothing was changed.
        """
        here, there = (one.state.live_model(self.model).checkpoints for one in (self.source, self.target))
        if self.options.selection.whole and any(here[one].partial for one in chain):
            raise RefusedError(
                f"{self.source.opened.backend.url} has some of these checkpoints in part only",
                hint="bring the rest there first, or name what is to travel with --only or --tensors",
            )
        held = max((at for at, one in enumerate(chain) if one in there), default=-1)
        aside, sent = f"history-of-{chain[-1].hex()}", []
        for at, one in enumerate(chain[:-1]):
            if one in self.target.state.live_model(self.model).checkpoints:
                sent.append(self.bring(one, (aside, BRANCH), stays=True))
            elif at > held and ref[1] == BRANCH:
                sent.append(self.bring(one, ref))
            else:
                if ref_value(self.target, self.model, aside) not in (None, chain[at - 1]):
                    self._drop(aside)
                sent.append(self.bring(one, (aside, BRANCH)))
        self._drop(aside)
        return sent

    def count_lacking(self, checkpoints: Iterable[CheckpointId]) -> int:
        """How many of them the target does not have."""
        known = self.target.state.live_model(self.model).checkpoints
        return sum(one not in known for one in checkpoints)

    def unknown_behind(self, before: CheckpointId | None, sent: Iterable[Sent]) -> CheckpointId | None:
        """What was brought has been put on top of, and the source does not know."""
        here, there = (one.state.live_model(self.model).checkpoints for one in (self.source, self.target))
        behind = [before, *(there[one.checkpoint].parent for one in sent if one.created)]
        unknown = [one for one in behind if one is not None and one not in here]
        return CheckpointId(unknown[-1]) if unknown else None

    def check_forward(self, ref: _Ref, before: CheckpointId | None, checkpoint: CheckpointId) -> None:
        """Raise unless a ref of the target may move to the checkpoint."""
        check_moves_forward(self.source, self.target, (self.model, *ref), before, checkpoint, self.options.rebase)

    def _drop(self, branch: str) -> None:
        if ref_value(self.target, self.model, branch) is not None:
            with suppress(NotFoundError, RefMoved):  # another run brings the same, and was first
                delete_ref(self.target, self.model, branch, BRANCH)


def _down_to_lacking(
    source: Registry, target: Registry, model: ModelId, checkpoint: CheckpointId
) -> list[CheckpointId]:
    """A history, newest first, down to the last that the target does not have."""
    chain = [line.id for line in walk_history(source, model, checkpoint)]
    held = target.state.models.get(model)
    while held is not None and chain and chain[-1] in held.checkpoints:
        chain.pop()
    return chain


def _reseal(
    source: Registry,
    target: Registry,
    manifest: CheckpointManifest,
    branch: str,
    options: SendOptions,
    progress: Progress | None,
) -> Sent:
    if not options.selection.whole or options.repair or options.rebase or options.history:
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
    """Make a model, and the newest of its keys, known in the target.

    Raises:
        ConflictError: the target has another model of this name.
        GoneError: it was deleted there.
    """
    if model in target.state.models:
        adopt_keys(target, source.model_keys(model))
        return
    deleted = target.state.deleted.get(model)
    if deleted is not None:
        error = gone_model_error(target, model_name(source, model), deleted)
        raise GoneError(f"in {target.opened.backend.url}, {error.message}", hint=error.hint)
    name = model_name(source, model)
    if target.state.model_by_tag(model_tag(target.opened.secrets.k_log, name)):
        raise ConflictError(
            f"{target.opened.backend.url} has another model of the name {name!r}, which was made there",
            hint="a model keeps its identity when it travels: commit one of the two under another name",
        )
    keys = source.model_keys(model)
    check_complete(keys)
    add_model(target, name, keys, lambda state: model in state.models)


def _ref_to_move(source: Registry, model: ModelId, selector: str, to: str) -> tuple[str, str]:
    """Name and kind of the ref in the target."""
    if to:
        return check_ref_name(to), BRANCH
    selected = parse_selector(selector).revision
    selected = MAIN if selected == LATEST else selected
    kind = ref_kind(source, model, selected)
    if kind is None:
        raise UsageError(
            f"{selector!r} names no branch or tag: a checkpoint that travels needs a name where it goes",
            hint="name the branch that is to point to it there with --to",
        )
    return selected, kind
