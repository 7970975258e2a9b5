"""Publishing a checkpoint: everything durable first, visible last.

Order: packs (the caller's) -> index piece -> component roots, body, reachability list -> log entry `commit`.
The entry is the line that publishes: before it nothing has changed for anybody, after it the checkpoint is complete.
If the model's keys are rotated before the entry is written, what was sealed to the old ones is sealed anew.
"""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from cairn.core.canonical import encode
from cairn.core.ids import CheckpointId, ContentId, ModelId
from cairn.manifests.schema import Body, ComponentHash, ComponentRoot, Parent
from cairn.manifests.tiling import RULE
from cairn.registry.checkpoint import checkpoint_id
from cairn.registry.entries import Commit, ObjectRef, RefChange, RootRef
from cairn.registry.modelkeys import ModelKeys
from cairn.registry.models import CommitMeta, check_expected, seal_meta
from cairn.registry.names import ref_tag
from cairn.registry.numbers import ranges
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import State
from cairn.registry.uploads import Uploads
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.objects import ObjectKind
from cairn.store.index import encode_piece, join_pieces, pack_table
from cairn.store.written import Written

FORMAT = 1
ENVELOPE = "envelope"


class Draft(msgspec.Struct, frozen=True):
    """A checkpoint that is about to be published.

    Args:
        branch: branch to move; `expected` is what it pointed to when the work began.
        components: opened roots by class.
        reachable: ids of all chunks and pages.
        written: what the save put into packs and relies on.
        sessions: of other writers that uploaded for it.
        good: the lowest epoch and hit position among them (see `Session.settle`).
        exactness: see `Body`.
        run_epoch: of the training run, if one writes.
        envelope: times and places of the save, encoded.
        beside: index pieces of what these have uploaded; they have passed `check_piece`.
    """

    model: ModelId
    branch: str
    expected: CheckpointId | None
    components: dict[ComponentClass, ComponentRoot]
    reachable: set[ContentId]
    parents: tuple[Parent, ...]
    meta: CommitMeta
    written: Written
    sessions: tuple[bytes, ...] = ()
    good: tuple[int, int] | None = None
    exactness: str = ""
    run_epoch: int | None = None
    envelope: bytes | None = None
    beside: tuple[bytes, ...] = ()


def publish(registry: Registry, session: Session, draft: Draft) -> CheckpointId:
    """Upload the manifest and commit.

    Raises:
        RefMoved: the branch was moved meanwhile; nothing was changed.
        ConflictError: the commit rule refuses; nothing was changed.
    """
    opened, secrets = registry.opened, registry.opened.secrets
    epoch, hit_position = session.settle()
    if draft.good is not None:
        epoch, hit_position = min(epoch, draft.good[0]), min(hit_position, draft.good[1])
    uploads = Uploads(opened, session)
    written = draft.written
    pieces: tuple[ObjectRef, ...] = ()
    plain = encode_piece(written.packs, written.entries)
    if draft.beside:
        plain = join_pieces([plain, *draft.beside])
    packs = pack_table(plain)
    if packs:
        pieces = (uploads.index_piece(plain),)
    reach = uploads.reachability(draft.reachable)
    tag = ref_tag(secrets.k_log, draft.model, draft.branch)
    draft = replace(draft, meta=replace(draft.meta, saved_at=draft.meta.saved_at or opened.clock.wall_ns()))
    sealed = _Sealed.by(registry.model_keys(draft.model), draft, uploads)

    def build(state: State) -> Commit:
        nonlocal sealed
        check_expected(state.live_model(draft.model), tag, draft.branch, draft.expected)
        keys = registry.model_keys(draft.model)
        if keys.generations() != sealed.generations:
            # The model's keys were rotated since. What is sealed to them is small, so it is sealed anew.
            sealed = _Sealed.by(keys, draft, uploads)
        return Commit(
            model=draft.model,
            checkpoint=sealed.checkpoint,
            sessions=(session.id, *draft.sessions),
            epoch=epoch,
            hit_position=hit_position,
            relied=ranges(written.relied),
            packs=packs,
            pieces=pieces,
            body=sealed.body,
            roots=sealed.roots,
            reachability=reach,
            ref=RefChange(tag, sealed.branch, draft.expected),
            meta=sealed.meta,
            run_epoch=draft.run_epoch,
            envelope=sealed.envelope,
        )

    registry.append(build)
    return sealed.checkpoint


@dataclass(frozen=True, slots=True)
class _Sealed:
    """What of a checkpoint is sealed to its model's keys, or follows from that."""

    generations: dict[ComponentClass, int]
    checkpoint: CheckpointId
    body: ObjectRef
    roots: tuple[RootRef, ...]
    envelope: ObjectRef | None
    branch: bytes
    meta: bytes

    @staticmethod
    def by(keys: ModelKeys, draft: Draft, uploads: Uploads) -> "_Sealed":
        """Seal and upload."""
        opened, secrets = uploads.opened, uploads.opened.secrets
        roots, hashes = [], []
        for component, root in sorted(draft.components.items()):
            pair = keys.pair(component)
            ref = uploads.put(pair.seal_root(encode(root), opened.entropy), "root")
            roots.append(RootRef(int(component), pair.generation, ref))
            hashes.append(ComponentHash(int(component), pair.generation, ref.hash))
        body = encode(Body(FORMAT, draft.model, RULE, tuple(hashes), draft.parents, draft.meta.step, draft.exactness))
        envelope = None
        if draft.envelope is not None:
            envelope = uploads.put(keys.seal_meta(draft.envelope, ENVELOPE), ENVELOPE)
        return _Sealed(
            keys.generations(), checkpoint_id(secrets.k_ckpt, body),
            uploads.seal(secrets.k_ckpt, ObjectKind.BODY, body, "body"), tuple(roots), envelope,
            keys.seal_name(draft.branch), seal_meta(keys, replace(draft.meta, parent=draft.expected)),
        )  # fmt: skip
