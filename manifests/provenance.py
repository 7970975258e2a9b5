"""What a run was made from, as its checkpoints record it, compared by meaning.

The record is what `training.provenance.capture_provenance` gives, or any plain data: what is not known here is compared
too, as `other`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cairn.manifests.plaindiff import ItemChange, diff_plain
from cairn.manifests.schema import Key
from cairn.manifests.spans import is_span, with_span_notes

# Where a checkpoint holds the record.
PROVENANCE = Key("provenance", ())
# Groups in the order in which people ask for them. The first is what a checkpoint says of itself, without any record.
CHECKPOINT = "checkpoint"
CONFIG, CODE, ENVIRONMENT, TOPOLOGY, DATA, TOKENIZER = "config", "code", "environment", "topology", "data", "tokenizer"
OTHER = "other"
_GROUP_OF = {
    "config": CONFIG, "argv": CONFIG, "code": CODE, "versions": ENVIRONMENT, "environment": ENVIRONMENT,
    "determinism": ENVIRONMENT, "topology": TOPOLOGY, "data": DATA, "tokenizer": TOKENIZER,
}  # fmt: skip
GROUPS = (CHECKPOINT, *dict.fromkeys(_GROUP_OF.values()), OTHER)
_NEGATIVE = re.compile(r"-\.?\d")


class GroupChange(msgspec.Struct, frozen=True):
    """One difference and what it is of: one of `GROUPS`."""

    group: str
    item: ItemChange

    def order(self) -> tuple[int, str]:
        """Where it stands among others: by group, then by the record's key; items of one are in order already."""
        return GROUPS.index(self.group), str(self.item.path[:1])


def diff_provenance(old: Any, new: Any) -> list[GroupChange]:
    """Differences by group, and by path within one; the path begins with the record's own key."""
    found: list[GroupChange] = []
    before, after = _parts(old), _parts(new)
    for key in sorted(before.keys() | after.keys(), key=str):
        one, other = ({key: side[key]} if key in side else {} for side in (before, after))
        # What says the same by its options may still be another command.
        changes = diff_plain(_readable(one), _readable(other), is_span) or diff_plain(one, other)
        group = group_of(key)
        found += [GroupChange(group, change) for change in (with_span_notes(changes) if group == DATA else changes)]
    if not found:
        found = [GroupChange(OTHER, change.below("record")) for change in diff_plain(before, after)]
    return sorted(found, key=GroupChange.order)


def recorded_groups(record: Any) -> tuple[str, ...]:
    """Groups of which a record tells something."""
    told = {group_of(key) for key, value in _parts(record).items() if not _is_empty(value)}
    return tuple(group for group in GROUPS if group in told)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple | dict | str) and not value)


def group_of(key: Any) -> str:
    """The group of one of a record's keys."""
    return _GROUP_OF.get(key, OTHER) if isinstance(key, str) else OTHER


def options_of(words: Sequence[str]) -> dict[str, str]:
    """The words of a command by option: `--lr 0.1`, `--lr=0.1` and `lr=0.1`; what stands before the first by number.

    An option that stands there several times has all its values, behind each other.
    """
    found: dict[str, list[str]] = {}
    name = ""
    for number, word in enumerate(words):
        option = word.startswith("-") and word.strip("-") and not _NEGATIVE.match(word)
        key, equals, value = word.partition("=")
        if option or (equals and key.replace(".", "").replace("_", "").isalnum()):
            found.setdefault(key, []).extend([value] if equals else [])
            name = "" if equals else key
        else:
            found.setdefault(name or f"word {number}", []).append(word)
    return {name: " ".join(values) for name, values in found.items()}


def _parts(record: Any) -> dict[Any, Any]:
    if record is None:
        return {}
    return dict(record) if isinstance(record, Mapping) else {"record": record}


def _readable(part: dict[Any, Any]) -> dict[Any, Any]:
    """A part of a record; a command by its options."""
    words = part.get("argv")
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        return part
    return {"argv": options_of(words)}
