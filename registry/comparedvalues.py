"""Plain values of two checkpoints: decoded and compared item by item, and what of them are positions in the data."""

from typing import Any

import msgspec

from cairn.core.errors import NotFoundError
from cairn.core.limits import COMPARED_VALUE_BYTES_MAX
from cairn.manifests.diff import ValueChange
from cairn.manifests.forms import GLOBAL_CURSOR, LOGICAL_SHARDS, form_of
from cairn.manifests.plaindiff import ItemChange, diff_plain
from cairn.manifests.provenance import DATA, PROVENANCE, GroupChange
from cairn.manifests.schema import Key, ValueEntry
from cairn.manifests.spans import diff_cursors, diff_shards
from cairn.manifests.values import decode_value
from cairn.registry.checkpoint import CheckpointManifest


class ValueDifference(msgspec.Struct, frozen=True):
    """One plain value that differs.

    Args:
        form: what it is the state of, see `manifests/forms.py`; empty for any other value.
        old, new: the values; None on a side that has none, or where they were not read.
        items: what of it differs; empty where they were not read.
        note: why they were not read.
    """

    key: Key
    kind: str
    form: str = ""
    old: Any = None
    new: Any = None
    items: tuple[ItemChange, ...] = ()
    note: str = ""


def compare_values(
    before: CheckpointManifest, after: CheckpointManifest, changes: list[ValueChange]
) -> list[ValueDifference]:
    """Read and compare values that differ, in their order. The provenance is not read here.

    Raises:
        IntegrityError: one is damaged.
    """
    return [_compared(before, after, change) for change in changes]


def diff_positions(values: list[ValueDifference]) -> tuple[list[GroupChange], set[Key]]:
    """Positions in the data that differ, of cursors and of shards whichever ranks held them; and the values meant."""
    found: list[tuple[Key, list[ItemChange]]] = []
    told: set[Key] = set()
    shards: dict[Key, list[ValueDifference]] = {}
    for one in values:
        if one.form == GLOBAL_CURSOR and form_of(one.old) == form_of(one.new):
            found.append((one.key, diff_cursors(one.old, one.new)))
            told.add(one.key)
        elif one.form == LOGICAL_SHARDS:
            shards.setdefault(owner_of(one.key), []).append(one)
            told.add(one.key)
    for owner, some in shards.items():
        old, new = [one.old for one in some if one.old], [one.new for one in some if one.new]
        found.append((owner, diff_shards(old, new)))
    return [GroupChange(DATA, item.below(str(key))) for key, items in found for item in items], told


def owner_of(key: Key) -> Key:
    """Of the state of one rank, the object that it is a state of."""
    return Key(key.scope, key.path[:-1])


def _compared(before: CheckpointManifest, after: CheckpointManifest, change: ValueChange) -> ValueDifference:
    if change.key == PROVENANCE:
        return ValueDifference(change.key, change.kind)
    longest = max(entry.length for entry in (change.old, change.new) if entry is not None)
    if longest > COMPARED_VALUE_BYTES_MAX:
        return ValueDifference(change.key, change.kind, note=f"{longest} bytes are too many to compare item by item")
    try:
        old, new = _decoded(before, change.old), _decoded(after, change.new)
    except NotFoundError:  # it was brought in part; what is missing otherwise is damage
        return ValueDifference(change.key, change.kind, note="it is not here")
    form = form_of(new) or form_of(old)
    if change.kind != "changed":
        return ValueDifference(change.key, change.kind, form, old, new, (ItemChange((), change.kind, old, new),))
    return ValueDifference(change.key, change.kind, form, old, new, tuple(diff_plain(old, new)))


def _decoded(manifest: CheckpointManifest, entry: ValueEntry | None) -> Any:
    if entry is None:
        return None
    with manifest.explained():
        data = manifest.value_bytes(entry)
    return decode_value(data, f"value {entry.key} of {manifest.what}")
