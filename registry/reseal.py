"""Between tenants: a checkpoint is read in one store and written anew in the other, under that tenant's keys.

Nothing sealed travels, no id stays: digests follow from a tenant's secret. The new checkpoint belongs to the target's
model of the same name, and names the one that it was made from.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from cairn.core.errors import RefusedError
from cairn.core.ids import CheckpointId, Digest, ModelId
from cairn.core.limits import CHUNK_BYTES_MAX, PACK_BYTES_TARGET, TRANSFERS_AT_ONCE
from cairn.core.pool import Pool, threads_within_budget
from cairn.core.progress import Progress
from cairn.manifests.relations import CONTINUE, RESEAL
from cairn.manifests.schema import ComponentRoot, FileEntry, Literal, Parent, Region, TensorEntry, ValueEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.contents import contents
from cairn.registry.manifestwriter import ManifestWriter
from cairn.registry.models import ensure_model, model_name, open_meta, ref_value, saved_at
from cairn.registry.publish import Draft, publish
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.chunkstore import ChunkSave
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType
from cairn.store.fills import fill_of
from cairn.store.written import WriteCounts

_New = Callable[[bytes], bytes]
_WORKER_BYTES = PACK_BYTES_TARGET + 2 * CHUNK_BYTES_MAX


class Resealed(msgspec.Struct, frozen=True):
    """A checkpoint written anew."""

    model: ModelId
    checkpoint: CheckpointId
    before: CheckpointId | None
    counts: WriteCounts


def reseal(
    source: Registry, target: Registry, manifest: CheckpointManifest, branch: str, progress: Progress
) -> Resealed:
    """Write a checkpoint of another tenant's store as the new tip of a branch.

    Raises:
        RefusedError: the source has it in part only.
        RefMoved: the branch was moved meanwhile; nothing was changed.
        IntegrityError: the source lacks something, or holds it damaged.
    """
    if manifest.state.partial:
        raise RefusedError(
            f"{manifest.what} is in {source.opened.backend.url} in part only", hint="bring the rest there first"
        )
    target.refresh()
    model = ensure_model(target, model_name(source, manifest.model))
    before = ref_value(target, model, branch)
    with Session(target) as session:
        save = session.save()
        progress.stage("send")
        digests = _bring(manifest, save, progress)
        components = {}
        with save.writer() as writer:
            pages = ManifestWriter(writer, target.opened.keys)
            for component in manifest.components:
                components[component] = _component(manifest, component, pages, digests)
        progress.stage("publish")
        parents = [Parent(RESEAL, manifest.id)]
        parents += [Parent(CONTINUE, before)] if before else []
        meta = open_meta(source, manifest.model, manifest.state)
        meta = msgspec.structs.replace(meta, saved_at=saved_at(manifest.state, meta))
        draft = Draft(
            model, branch, before, components, pages.reachable, tuple(parents), meta, save.written,
            exactness=manifest.body.exactness,
        )  # fmt: skip
        checkpoint = publish(target, session, draft)
    return Resealed(model, checkpoint, before, save.written.counts)


def _bring(manifest: CheckpointManifest, save: ChunkSave, progress: Progress) -> dict[bytes, Digest]:
    """Store all chunks; returns the new digest of each."""
    digests: dict[bytes, Digest] = {}

    def chunks() -> Iterator[Digest]:
        seen = set[bytes]()
        for component in manifest.components:
            for kind, digest in contents(manifest, component):
                if kind is ContentType.CHUNK and digest not in seen:
                    seen.add(digest)
                    yield digest

    def work(jobs: Iterable[Digest]) -> None:
        with save.writer() as writer:
            for digest in jobs:
                data = manifest.chunks.read(ContentType.CHUNK, digest)
                digests[digest] = writer.put(ContentType.CHUNK, data)
                progress.advance(len(data))

    Pool[Digest](threads_within_budget(_WORKER_BYTES, TRANSFERS_AT_ONCE), work).run(chunks())
    return digests


def _component(
    manifest: CheckpointManifest, component: ComponentClass, pages: ManifestWriter, digests: dict[bytes, Digest]
) -> ComponentRoot:
    """Pages of a component, with every digest replaced."""

    def new(joined: bytes) -> bytes:
        found = [digest if fill_of(digest) is not None else digests[digest] for digest in manifest.split(joined)]
        pages.reach(found)
        return b"".join(found)

    root = manifest.root(component)
    if component is ComponentClass.FILES:
        files = map(partial(_file, new=new), manifest.files())
        return pages.component(files=files, bytes_logical=root.bytes_logical)
    tensors = [_tensor(manifest, entry, new) for entry in manifest.tensors(component)]
    values = [_value(entry, new) for entry in manifest.values(component)]
    return pages.component(tensors, values=values, bytes_logical=root.bytes_logical)


def _tensor(manifest: CheckpointManifest, entry: TensorEntry, new: _New) -> TensorEntry:
    bare = msgspec.structs.replace(
        entry, tiles=None, tile_pages=None, tiles_per_page=0, regions=(), region_pages=None, region_bounds=()
    )
    if entry.inline is not None:
        return bare
    regions = manifest.regions(entry)
    if regions:
        return msgspec.structs.replace(
            bare, regions=tuple(Region(one.offsets, one.lengths, new(one.digest)) for one in regions)
        )
    return msgspec.structs.replace(bare, tiles=new(b"".join(manifest.tiles(entry))))


def _value(entry: ValueEntry, new: _New) -> ValueEntry:
    return msgspec.structs.replace(entry, digests=new(entry.digests))


def _file(entry: FileEntry, new: _New) -> FileEntry:
    segments = tuple(
        Literal(segment.length, new(segment.digests)) if isinstance(segment, Literal) else segment
        for segment in entry.segments
    )
    return msgspec.structs.replace(entry, segments=segments)
