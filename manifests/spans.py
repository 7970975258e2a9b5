"""How far two runs are in their data: intervals of samples, and positions of the data loaders of `training/`.

* **span** - samples (tokens, documents) from a first one up to, and without, a last one.
* **position** - the saved state of a data loader that counts: a global cursor or logical shards.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cairn.manifests.plaindiff import ItemChange, change, diff_plain

_ENDS = (("start", "end"), ("start", "stop"), ("begin", "end"), ("first", "last"), ("from", "to"))
# What of a cursor decides which samples come one after the other.
_ORDER = ("order", "dataset_size", "seed", "shuffle", "drop_last")

Span = tuple[int, int]


def span_of(value: Any) -> Span | None:
    """The interval that plain data tells: an ascending pair of whole numbers, or a dict such as `{"start", "end"}`."""
    pair: Sequence[Any] = ()
    if isinstance(value, list | tuple):
        pair = value
    elif isinstance(value, dict):
        pair = next(([value[a], value[b]] for a, b in _ENDS if value.keys() == {a, b}), ())
    if len(pair) != 2 or not all(type(end) is int for end in pair) or not 0 <= pair[0] <= pair[1]:
        return None
    return pair[0], pair[1]


def is_span(value: Any) -> bool:
    """Whether plain data tells an interval."""
    return span_of(value) is not None


def compare_spans(old: Span, new: Span) -> str:
    """How a new interval stands to an old one, in words."""
    if new[0] == old[1] and new != old:
        return "goes on where the old one ended"
    if new[0] == old[0]:
        further = new[1] - old[1]
        return f"the same {min(old[1], new[1]) - old[0]}, and {further} more" if further > 0 else f"{-further} fewer"
    common = min(old[1], new[1]) - max(old[0], new[0])
    if common > 0:
        return f"{common} in common"
    return f"none in common, {-common} between them" if common else "none in common"


def with_span_notes(changes: Sequence[ItemChange]) -> list[ItemChange]:
    """The same changes; those of one interval to another say how they stand to each other.

    Where something beside the interval differs too, such as the name of the dataset, nothing is said: the numbers may
    count other samples.
    """
    others = [one.path for one in changes if not (is_span(one.old) and is_span(one.new))]
    noted = []
    for one in changes:
        old, new = span_of(one.old), span_of(one.new)
        beside = any(other[: len(one.path) - 1] == one.path[:-1] for other in others)
        noted.append(change(one.path, one.old, one.new, compare_spans(old, new)) if old and new and not beside else one)
    return noted


def epoch_samples(dataset_size: int, global_batch: int, drop_last: bool) -> int:
    """Samples that an epoch of a global cursor consumes."""
    return dataset_size - dataset_size % global_batch if drop_last else dataset_size


def diff_cursors(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ItemChange]:
    """Differences of two global cursors: what each has consumed as `samples`, and all else item by item."""
    before, after = _consumed(old), _consumed(new)
    if before is None or after is None:
        return diff_plain(dict(old), dict(new))
    changes = []
    if before != after:
        same_order = all(old.get(key) == new.get(key) for key in _ORDER)
        note = compare_spans(before, after) if same_order else "of another order of samples"
        changes.append(change(("samples",), list(before), list(after), note))
    return changes + diff_plain(_without_position(old), _without_position(new))


def _without_position(cursor: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in cursor.items() if key not in ("epoch", "consumed")}


def _consumed(cursor: Mapping[str, Any]) -> Span | None:
    """Samples that a cursor has consumed since the beginning of its first epoch; None if it does not tell."""
    numbers = [cursor.get(key) for key in ("dataset_size", "global_batch", "epoch", "consumed")]
    if not all(type(number) is int and number >= 0 for number in numbers) or not cursor["global_batch"]:
        return None
    size = epoch_samples(cursor["dataset_size"], cursor["global_batch"], bool(cursor.get("drop_last")))
    return 0, cursor["epoch"] * size + cursor["consumed"]


def diff_shards(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[ItemChange]:
    """Differences of logical shards, whichever ranks held them: of the epoch, and of the positions in each shard."""
    before, after = _positions(old), _positions(new)
    changes = diff_plain({"epoch": _epochs(old), "positions": before}, {"epoch": _epochs(new), "positions": after})
    return [_shard_noted(one) for one in changes]


def _shard_noted(one: ItemChange) -> ItemChange:
    if one.kind != "changed" or one.path[:1] != ("positions",) or type(one.old) is not int or type(one.new) is not int:
        return one
    return change(one.path, one.old, one.new, f"{abs(one.new - one.old)} {'further' if one.new > one.old else 'back'}")


def _positions(states: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
    return {shard: at for state in states for shard, at in dict(state.get("positions") or {}).items()}


def _epochs(states: Sequence[Mapping[str, Any]]) -> list[Any]:
    return sorted({state.get("epoch") for state in states}, key=str)
