"""Checkpoints that no commit of ours would make: a writer of the tenant may be faulty or hostile."""

from collections.abc import Sequence

from cairn.core.canonical import encode
from cairn.core.ids import CheckpointId, ModelId
from cairn.manifests.schema import ComponentRoot, FileEntry, FilePage, Page, TensorEntry, TensorPage
from cairn.registry.models import CommitMeta, ensure_model, ref_value
from cairn.registry.names import MAIN
from cairn.registry.publish import Draft, publish
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.tenant import ContentType


def publish_entries(
    registry: Registry, files: Sequence[FileEntry], tensors: Sequence[TensorEntry] = (), *, model: str = "m"
) -> tuple[ModelId, CheckpointId]:
    """Publish a checkpoint with exactly these entries, whatever they say."""
    pages: dict[ComponentClass, list[Page]] = {ComponentClass.FILES: [FilePage(tuple(files))]}
    if tensors:
        pages[ComponentClass.WEIGHTS] = [TensorPage(tuple(tensors))]
    return publish_pages(registry, pages, model=model)


def publish_pages(
    registry: Registry, pages: dict[ComponentClass, list[Page]], *, model: str = "m", chunks: Sequence[bytes] = ()
) -> tuple[ModelId, CheckpointId]:
    """Publish a checkpoint of given pages, and store chunks that they may name."""
    identifier = ensure_model(registry, model)
    registry.refresh()
    keys = registry.opened.keys.page
    with Session(registry) as session:
        save = session.save()
        components, reachable = {}, set()
        with save.writer() as writer:
            for chunk in chunks:
                writer.put(ContentType.CHUNK, chunk)
            for component, own in pages.items():
                digests = [writer.put(ContentType.PAGE, encode(page)) for page in own]
                reachable.update(keys.content_id(digest) for digest in digests)
                components[component] = ComponentRoot(b"".join(digests), len(own), 0)
        draft = Draft(
            identifier, MAIN, ref_value(registry, identifier, MAIN), components, reachable, (), CommitMeta("", None),
            save.written,
        )  # fmt: skip
        return identifier, publish(registry, session, draft)
