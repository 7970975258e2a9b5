"""Comparing two checkpoints: only pages that they do not share are read, and no content of tensors and files."""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

import msgspec

from cairn.core.errors import NotFoundError
from cairn.core.ids import CheckpointId, ContentId, Digest, ModelId
from cairn.manifests.diff import Boxes, FileChange, TensorChange, diff_files, diff_tensors, diff_values
from cairn.manifests.plaindiff import diff_plain
from cairn.manifests.provenance import CHECKPOINT, PROVENANCE, TOPOLOGY, GroupChange, diff_provenance, recorded_groups
from cairn.manifests.schema import Key, TensorEntry, ValueEntry
from cairn.manifests.tiling import Box
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.comparedfacts import Kinship, Side, kinship_of, side_of
from cairn.registry.comparedvalues import ValueDifference, compare_values, diff_positions, read_record
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.store.crypto.components import ComponentClass

# Ids whose places are looked up together.
_BATCH = 8192

Place = tuple[ModelId, CheckpointId]
Entry = TypeVar("Entry", TensorEntry, ValueEntry)


class Omission(msgspec.Struct, frozen=True):
    """A component that was not compared.

    Args:
        side: of which checkpoint it cannot be read, `old` or `new`.
        granted: whether this user may read it; if so, its pages are not in this store.
    """

    component: str
    side: str
    granted: bool


class Comparison(msgspec.Struct, frozen=True):
    """What differs between two checkpoints.

    Args:
        sides: what the checkpoints say of themselves, old and new.
        kinship: how they stand to each other.
        facts: how these and the provenance differ, and the positions in the data.
        recorded: groups of provenance that each side tells of.
        told: values that the facts tell of.
        components: of all tensors and values that differ.
        omissions: what was not compared; all the rest was.
        bytes_shared: stored bytes of chunks and pages that both reach; then what one of them alone does. Of checkpoints
            that are here in part, what is here.
        chunks_lost: of checkpoints that are here whole, chunks and pages that the index has no place for.
    """

    old: CheckpointId
    new: CheckpointId
    tensors: list[TensorChange]
    tensors_equal: int
    values: list[ValueDifference]
    files: list[FileChange]
    bytes_shared: int
    bytes_only_old: int
    bytes_only_new: int
    chunks_lost: int
    sides: tuple[Side, Side]
    kinship: Kinship
    facts: list[GroupChange]
    recorded: tuple[tuple[str, ...], tuple[str, ...]]
    told: set[Key]
    components: dict[Key, str]
    omissions: list[Omission]


def compare(registry: Registry, old: Place, new: Place) -> Comparison:
    """Compare two checkpoints of one store, of one model or of two, as far as this user may read them.

    Raises:
        GoneError: one was deleted.
        NotAllowed: this user may read no component of one of them.
        IntegrityError: one is damaged.
    """
    return compare_manifests(registry, manifest_of(registry, old), manifest_of(registry, new))


def manifest_of(registry: Registry, place: Place) -> CheckpointManifest:
    """The manifest of a checkpoint, without what this user may not read."""
    return CheckpointManifest(registry, *place, readable_only=True)


def compare_manifests(registry: Registry, before: CheckpointManifest, after: CheckpointManifest) -> Comparison:
    """See `compare`."""
    omissions = [*_omissions(before, "old"), *_omissions(after, "new")]
    left_out = {ComponentClass[one.component.upper()] for one in omissions}
    common = _page_set(before) & _page_set(after)
    components: dict[Key, str] = {}

    def tensors(manifest: CheckpointManifest) -> Iterator[TensorEntry]:
        return _entries(manifest, manifest.tensors, left_out, common, components)

    def values(manifest: CheckpointManifest) -> Iterator[ValueEntry]:
        return _entries(manifest, manifest.values, left_out, common, components)

    changed = diff_tensors(tensors(before), tensors(after), _boxes_of(before), _boxes_of(after))
    valued = compare_values(before, after, diff_values(values(before), values(after)))
    with_files = ComponentClass.FILES not in left_out
    sides = side_of(registry, before), side_of(registry, after)
    old, new = (None if ComponentClass.PROVENANCE in left_out else read_record(one) for one in (before, after))
    positions, told = diff_positions(valued)
    shared, only_old, only_new, lost = _reached(registry, before, after)
    keys = {change.key for change in changed} | {value.key for value in valued}
    return Comparison(
        old=before.id,
        new=after.id,
        tensors=changed,
        tensors_equal=_tensor_count(after, left_out) - sum(change.new is not None for change in changed),
        values=valued,
        files=diff_files(before.files(common), after.files(common)) if with_files else [],
        bytes_shared=shared,
        bytes_only_old=only_old,
        bytes_only_new=only_new,
        chunks_lost=lost,
        sides=sides,
        kinship=kinship_of(registry, *sides),
        facts=sorted((*_facts(*sides), *diff_provenance(old, new), *positions), key=GroupChange.order),
        recorded=(recorded_groups(old), recorded_groups(new)),
        told=told | {PROVENANCE},
        components={key: component for key, component in components.items() if key in keys},
        omissions=omissions,
    )


def _omissions(manifest: CheckpointManifest, side: str) -> Iterator[Omission]:
    for component in manifest.hidden:
        yield Omission(component.name.lower(), side, False)
    for component in manifest.absent():
        yield Omission(component.name.lower(), side, True)


def _page_set(manifest: CheckpointManifest) -> set[Digest]:
    return {digest for component in manifest.components for digest in manifest.page_digests(component)}


def _entries(
    manifest: CheckpointManifest,
    read: Callable[[ComponentClass, Collection[Digest]], Iterator[Entry]],
    left_out: Collection[ComponentClass],
    skip: Collection[Digest],
    components: dict[Key, str],
) -> Iterator[Entry]:
    """Entries of all components of state that are compared; notes which is of which."""
    for component in manifest.components:
        if component is not ComponentClass.FILES and component not in left_out:
            for entry in read(component, skip):
                components[entry.key] = component.name.lower()
                yield entry


def _boxes_of(manifest: CheckpointManifest) -> Boxes:
    def boxes(entry: TensorEntry) -> dict[Box, bytes] | None:
        try:
            return manifest.boxes(entry)
        except NotFoundError:  # a page of digests that was not brought
            return None

    return boxes


def _facts(old: Side, new: Side) -> list[GroupChange]:
    told = [GroupChange(CHECKPOINT, one) for one in diff_plain(old.facts, new.facts)]
    return told + [GroupChange(TOPOLOGY, one) for one in diff_plain(old.job, new.job)]


def _tensor_count(manifest: CheckpointManifest, left_out: Collection[ComponentClass]) -> int:
    counted = [one for one in manifest.components if one is not ComponentClass.FILES and one not in left_out]
    return sum(root.entries - root.values for root in map(manifest.root, counted))


def _reached(registry: Registry, before: CheckpointManifest, after: CheckpointManifest) -> tuple[int, int, int, int]:
    """Stored bytes that both reach, that the old one alone reaches, and the new one alone; and what was not found."""
    old, new = (set(read_reachability(registry.opened, one.state)) for one in (before, after))
    whole = set[ContentId]().union(*(ids for ids, one in ((old, before), (new, after)) if not one.state.partial))
    sums, lost = [], 0
    for ids in (old & new, old - new, new - old):
        stored, missing = _stored_bytes(registry, ids)
        sums.append(stored)
        lost += len(missing & whole)
    shared, only_old, only_new = sums
    return shared, only_old, only_new, lost


def _stored_bytes(registry: Registry, ids: set[ContentId]) -> tuple[int, set[ContentId]]:
    """Stored bytes of some ids, and those of them that the index has no place for."""
    index, wanted, stored, missing = registry.index(), sorted(ids), 0, set[ContentId]()
    for at in range(0, len(wanted), _BATCH):
        some = wanted[at : at + _BATCH]
        for identifier, places in zip(some, index.locations_of(some), strict=True):
            if places:
                stored += places[0].length
            else:
                missing.add(identifier)
    return stored, missing
