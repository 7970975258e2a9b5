"""How far the tensors of two checkpoints are from each other: read piece by piece, in bounded memory.

* **slab** - a box of a tensor, of both checkpoints.
* **window** - slabs that are read together. A tile that both have in common is read once.

Tensors that do not differ are not read; of one that does, all of it, since its norms are those of the whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from cairn.core.errors import NotFoundError
from cairn.core.limits import MEMORY_BUDGET_BYTES, MIB
from cairn.core.pool import Pool, threads_within_budget
from cairn.core.progress import Progress, Silent
from cairn.manifests.delta import Delta, joined
from cairn.manifests.diff import TensorChange
from cairn.manifests.elements import compare_elements, is_countable
from cairn.manifests.schema import Key, TensorEntry
from cairn.manifests.tiling import Box
from cairn.manifests.values import Container, decode_value
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.compare import Comparison, Place, compare_manifests, manifest_of
from cairn.registry.pins import pinned
from cairn.registry.registry import Registry
from cairn.store.crypto.components import ComponentClass
from cairn.store.fills import fill_of
from cairn.workspace.boxreads import Array, BoxRead, in_windows, read_boxes, slabs_of, width_of

# Where an optimizer's state stands (`docs/format/v1.md`, section 15, names in a training state).
STATE, MEMBERS = "state", "members"
# A quarter of the budget: what is read of both sides; workers have the rest.
WINDOW_BYTES = MEMORY_BUDGET_BYTES // 4
# Of each side, so that a window holds several.
_SLAB_BYTES = WINDOW_BYTES // 4
# One job of a worker, which holds a dozen blocks of 512 KiB meanwhile.
_JOB_ELEMENTS = 1 << 20
_JOB_BYTES = 8 * MIB


class Total(msgspec.Struct, frozen=True):
    """Several tensors as one.

    Args:
        scope: the top-level key of the training state, or the folder; None: all of the component.
        group: of the optimizer's parameter groups.
        kind: of optimizer state, such as `exp_avg`.
    """

    component: str
    scope: str | None
    group: int | None
    kind: str | None
    tensors: int
    delta: Delta


class Measured(msgspec.Struct, frozen=True):
    """A comparison with numbers.

    Args:
        comparison: what was cut differently and has no element that differs is left out, and counts as equal.
        totals: of the tensors that differ and were measured, by component, and then, where that says more, by what they
            belong to.
        unread: tensors whose content is not here.
    """

    comparison: Comparison
    totals: list[Total]
    unread: list[Key]


@dataclass(frozen=True, slots=True)
class _Slab:
    change: TensorChange
    box: Box
    nbytes: int


def compare_with_norms(registry: Registry, old: Place, new: Place, progress: Progress | None = None) -> Measured:
    """Compare two checkpoints, and measure the tensors that differ; a recorded read of both.

    Raises:
        as `compare`, and IntegrityError: content is damaged.
    """
    progress = progress or Silent()
    with pinned(registry, *old), pinned(registry, *new):
        before, after = manifest_of(registry, old), manifest_of(registry, new)
        found = compare_manifests(registry, before, after)
        wanted = [change for change in found.tensors if _is_measurable(change)]
        unread = [change.key for change in wanted if not _is_here(before, after, change)]
        missing = set(unread)
        deltas = _measure(before, after, [change for change in wanted if change.key not in missing], progress)
        groups = _group_of_parameters(before, after)
    kept = [
        msgspec.structs.replace(change, delta=deltas.get(change.key), recut=change.recut and change.key not in deltas)
        for change in found.tensors
        if change.key not in deltas or deltas[change.key].changed
    ]
    equal = found.tensors_equal + len(found.tensors) - len(kept)
    comparison = msgspec.structs.replace(found, tensors=kept, tensors_equal=equal)
    return Measured(comparison, _totals(comparison, groups), unread)


def _is_measurable(change: TensorChange) -> bool:
    return change.kind in ("changed", "recut") and change.new is not None and is_countable(change.new.dtype)


def _is_here(before: CheckpointManifest, after: CheckpointManifest, change: TensorChange) -> bool:
    """Whether all content of a tensor is in this store, which one that was brought in part need not be."""
    return all(
        entry is not None and (not manifest.state.partial or _has_content(manifest, entry))
        for manifest, entry in ((before, change.old), (after, change.new))
    )


def _measure(
    before: CheckpointManifest, after: CheckpointManifest, changes: Sequence[TensorChange], progress: Progress
) -> dict[Key, Delta]:
    parts: dict[Key, list[Delta]] = {change.key: [] for change in changes}
    slabs = [slab for change in changes for slab in _slabs(change)]
    progress.stage("compare", sum(slab.nbytes for slab in slabs))
    for window in in_windows(slabs, attrgetter("nbytes"), WINDOW_BYTES):
        for slab, delta in zip(window, _measure_window(before, after, window), strict=True):
            parts[slab.change.key].append(delta)
            progress.advance(slab.nbytes)
    return {key: joined(some) for key, some in parts.items()}


def _measure_window(before: CheckpointManifest, after: CheckpointManifest, window: Sequence[_Slab]) -> list[Delta]:
    """What is read is let go before the next window is."""
    reads = [
        BoxRead(manifest, entry, slab.box)
        for slab in window
        for manifest, entry in ((before, slab.change.old), (after, slab.change.new))
        if entry is not None
    ]
    return _compared(window, read_boxes(reads)[0])


def _slabs(change: TensorChange) -> Iterator[_Slab]:
    assert change.new is not None
    for box in slabs_of(change.new, _SLAB_BYTES):
        yield _Slab(change, box, 2 * box.volume * width_of(change.new))


def _compared(window: Sequence[_Slab], arrays: Sequence[Array]) -> list[Delta]:
    """Compare what was read, on several threads; parts are joined in their order, so that equal runs end in equal sums.

    Args:
        arrays: of each slab the old one, then the new one.
    """
    starts = [range(0, arrays[2 * number].size, _JOB_ELEMENTS) for number in range(len(window))]
    found: dict[tuple[int, int], Delta] = {}

    def work(jobs: Iterable[tuple[int, int]]) -> None:
        for number, at in jobs:
            entry = window[number].change.new
            assert entry is not None
            old, new = (one.reshape(-1)[at : at + _JOB_ELEMENTS] for one in arrays[2 * number : 2 * number + 2])
            found[number, at] = compare_elements(entry.dtype, old, new)

    jobs = [(number, at) for number, some in enumerate(starts) for at in some]
    Pool[tuple[int, int]](min(threads_within_budget(_JOB_BYTES), len(jobs)), work).run(jobs)
    return [joined([found[number, at] for at in some]) for number, some in enumerate(starts)]


def _has_content(manifest: CheckpointManifest, entry: TensorEntry) -> bool:
    index, keys = manifest.chunks.index, manifest.chunks.access.keys.chunk
    try:
        digests = manifest.chunk_digests(entry)
    except NotFoundError:
        return False
    return all(fill_of(digest) is not None or index.locations(keys.content_id(digest)) for digest in digests)


# --- Totals --------------------------------------------------------------------------------------

_Groups = dict[tuple[str, tuple[str | int, ...], str | int], int]


def _group_of_parameters(before: CheckpointManifest, after: CheckpointManifest) -> _Groups:
    """The group of each parameter of each optimizer: scope and path of the optimizer, then the parameter's name."""
    groups: _Groups = {}
    for manifest in (before, after):
        component = ComponentClass.OPTIMIZER
        if component not in manifest.components or component in manifest.absent():
            continue
        for entry in manifest.values(component):
            scope, path = entry.key.scope, entry.key.path
            if path[-2:-1] == (MEMBERS,) and isinstance(path[-1], int):
                names = decode_value(manifest.value_bytes(entry), f"value {entry.key}")
                keys = names.keys if isinstance(names, Container) else ()
                groups.update({(scope, path[:-2], name): path[-1] for name in keys})
    return groups


def _totals(comparison: Comparison, groups: _Groups) -> list[Total]:
    whole: dict[str, list[Delta]] = {}
    parts: dict[str, dict[tuple[str, int | None, str | None], list[Delta]]] = {}
    for change in comparison.tensors:
        if change.delta is not None:
            component = comparison.components[change.key]
            whole.setdefault(component, []).append(change.delta)
            part = _part_of(change.key, component, groups)
            parts.setdefault(component, {}).setdefault(part, []).append(change.delta)
    totals = []
    for component in sorted(whole, key=lambda name: ComponentClass[name.upper()]):
        kinds = {kind for _, _, kind in parts[component]}
        totals.append(_total(component, (None, None, None), whole[component], len(kinds) == 1))
        if len(parts[component]) == 1 and kinds == {None}:
            continue
        for part in sorted(parts[component], key=lambda part: [(one is not None, one) for one in part]):
            totals.append(_total(component, part, parts[component][part]))
    return totals


def _total(
    component: str, part: tuple[str | None, int | None, str | None], deltas: list[Delta], alike: bool = True
) -> Total:
    """The sum of some tensors; without norms if they are not alike: momentum and counts of steps have none together."""
    delta = joined(deltas)
    return Total(component, *part, len(deltas), delta if alike else msgspec.structs.replace(delta, norms=None))


def _part_of(key: Key, component: str, groups: _Groups) -> tuple[str, int | None, str | None]:
    """Scope; and of optimizer state the parameter group, if there is one, and the kind."""
    at = key.path.index(STATE) if STATE in key.path else len(key.path)
    if component != ComponentClass.OPTIMIZER.name.lower() or len(key.path) < at + 3:
        return key.scope, None, None
    name, kind = key.path[at + 1 : at + 3]
    return key.scope, groups.get((key.scope, key.path[:at], name)), str(kind)
