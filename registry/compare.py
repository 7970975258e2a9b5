"""Comparing two checkpoints: only pages that they do not share are read."""

import msgspec

from cairn.core.ids import CheckpointId, ContentId, Digest, ModelId
from cairn.manifests.diff import FileChange, TensorChange, ValueChange, diff_files, diff_tensors, diff_values
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
    values: list[ValueChange]
    files: list[FileChange]
    bytes_shared: int


def compare(registry: Registry, old: tuple[ModelId, CheckpointId], new: tuple[ModelId, CheckpointId]) -> Comparison:
    """Compare two checkpoints of one store, of one model or of two."""
    before, after = CheckpointManifest(registry, *old), CheckpointManifest(registry, *new)
    common = _page_set(before) & _page_set(after)
    tensors = diff_tensors(before.tensors(skip=common), after.tensors(skip=common), before.boxes, after.boxes)
    differing = sum(change.new is not None for change in tensors)
    values = diff_values(before.values(skip=common), after.values(skip=common))
    files = diff_files(before.files(common), after.files(common))
    shared = set(read_reachability(registry.opened, before.state)) & set(
        read_reachability(registry.opened, after.state)
    )
    return Comparison(
        old[1], new[1], tensors, _tensor_count(after) - differing, values, files,
        _stored_bytes(registry, shared),
    )  # fmt: skip


def _page_set(manifest: CheckpointManifest) -> set[Digest]:
    return {digest for component in manifest.components for digest in manifest.page_digests(component)}


def _tensor_count(manifest: CheckpointManifest) -> int:
    roots = [manifest.root(one) for one in manifest.components if one is not ComponentClass.FILES]
    return sum(root.entries - root.values for root in roots)


def _stored_bytes(registry: Registry, ids: set[ContentId]) -> int:
    index = registry.index()
    return sum(places[0].length for identifier in ids if (places := index.locations(identifier)))
