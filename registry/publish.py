"""Publishing a checkpoint: everything durable first, visible last.

Order: packs (the caller's) -> index piece -> component roots, body, reachability list -> log entry `commit`.
The entry is the line that publishes: before it nothing has changed for anybody, after it the checkpoint is complete.
"""

import msgspec
from msgspec.structs import replace

from cairn.core.canonical import encode
from cairn.core.ids import CheckpointId, ContentId, ModelId
from cairn.manifests.schema import Body, ComponentHash, ComponentRoot, Parent
from cairn.manifests.tiling import RULE
from cairn.registry.checkpoint import checkpoint_id
from cairn.registry.entries import Commit, ObjectRef, RefChange, RootRef
from cairn.registry.models import CommitMeta, check_expected, seal_meta
from cairn.registry.names import ref_tag
from cairn.registry.numbers import ranges
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import State
from cairn.registry.uploads import Uploads
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.objects import ObjectKind
from cairn.store.index import encode_piece, join_pieces, pack_table, sorted_ids
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
    keys = registry.model_keys(draft.model)

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
        pieces = (uploads.seal(secrets.k_index, ObjectKind.INDEX_PIECE, plain, "index"),)
    roots, hashes = [], []
    for component, root in sorted(draft.components.items()):
        pair = keys.pair(component)
        ref = uploads.put(pair.seal_root(encode(root), opened.entropy), "root")
        roots.append(RootRef(int(component), pair.generation, ref))
        hashes.append(ComponentHash(int(component), pair.generation, ref.hash))
    body = encode(Body(FORMAT, draft.model, RULE, tuple(hashes), draft.parents, draft.meta.step, draft.exactness))
    identifier = checkpoint_id(secrets.k_ckpt, body)
    body_ref = uploads.seal(secrets.k_ckpt, ObjectKind.BODY, body, "body")
    reach = uploads.seal(secrets.k_index, ObjectKind.REACHABILITY, sorted_ids(draft.reachable), "reach")
    envelope = None
    if draft.envelope is not None:
        envelope = uploads.put(keys.pair(ComponentClass.META).seal(draft.envelope, ENVELOPE), ENVELOPE)
    tag = ref_tag(secrets.k_log, draft.model, draft.branch)
    change = RefChange(tag, keys.seal_name(draft.branch), draft.expected)
    now = draft.meta.saved_at or opened.clock.wall_ns()
    meta = seal_meta(registry, draft.model, replace(draft.meta, saved_at=now, parent=draft.expected))

    def build(state: State) -> Commit:
        check_expected(state.models[draft.model], tag, draft.branch, draft.expected)
        return Commit(
            model=draft.model,
            checkpoint=identifier,
            sessions=(session.id, *draft.sessions),
            epoch=epoch,
            hit_position=hit_position,
            relied=ranges(written.relied),
            packs=packs,
            pieces=pieces,
            body=body_ref,
            roots=tuple(roots),
            reachability=reach,
            ref=change,
            meta=meta,
            run_epoch=draft.run_epoch,
            envelope=envelope,
        )

    registry.append(build)
    return identifier
