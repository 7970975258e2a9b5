"""Comparing two checkpoints: only pages that they do not share are read."""

import msgspec

from cairn.core.ids import CheckpointId, ContentId, Digest, ModelId
from cairn.manifests.diff import FileChange, TensorChange, diff_files, diff_tensors
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.store.crypto.components import ComponentClass


class Comparison(msgspec.Struct, frozen=True):
    """What differs between two checkpoints. `bytes_shared` are stored bytes of chunks and pages that both reach."""

    old: CheckpointId
    new: CheckpointId
    tensors: list[TensorChange]
    tensors_equal: int
    files: list[FileChange]
    bytes_shared: int


def compare(registry: Registry, old: tuple[ModelId, CheckpointId], new: tuple[ModelId, CheckpointId]) -> Comparison:
    """Compare two checkpoints of one store, of one model or of two."""
    before, after = CheckpointManifest(registry, *old), CheckpointManifest(registry, *new)
    old_pages, new_pages = _differing(before, after, ComponentClass.WEIGHTS)
    tensors = diff_tensors(before.tensors(old_pages), after.tensors(new_pages))
    total = after.root(ComponentClass.WEIGHTS).entries if ComponentClass.WEIGHTS in after.components else 0
    touched = sum(change.new is not None for change in tensors)
    old_pages, new_pages = _differing(before, after, ComponentClass.FILES)
    files = diff_files(before.files(old_pages), after.files(new_pages))
    shared = set(read_reachability(registry.opened, before.state)) & set(
        read_reachability(registry.opened, after.state)
    )
    return Comparison(old[1], new[1], tensors, total - touched, files, _stored_bytes(registry, shared))


def _differing(
    before: CheckpointManifest, after: CheckpointManifest, component: ComponentClass
) -> tuple[list[Digest], list[Digest]]:
    old, new = before.page_digests(component), after.page_digests(component)
    in_old, in_new = set(old), set(new)
    return [digest for digest in old if digest not in in_new], [digest for digest in new if digest not in in_old]


def _stored_bytes(registry: Registry, ids: set[ContentId]) -> int:
    index = registry.index()
    return sum(places[0].length for identifier in ids if (places := index.locations(identifier)))
