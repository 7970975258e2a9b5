"""What differs between two pieces of plain data (see `values.py`), item by item."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from cairn.manifests.values import Container, encode_value

Place = tuple[str | int, ...]


class ItemChange(msgspec.Struct, frozen=True):
    """One item that differs: where it stands, and what it was and is.

    Args:
        kind: `added`, `removed` or `changed`; of the first two, the side that lacks the item says None.
        note: how both stand to each other, where that can be told.
    """

    path: Place
    kind: str
    old: Any = None
    new: Any = None
    note: str = ""

    def below(self, key: str | int) -> "ItemChange":
        """The same, of an item of something larger."""
        return ItemChange((key, *self.path), self.kind, self.old, self.new, self.note)


def never(value: Any) -> bool:
    """No value is compared as a whole."""
    return False


def diff_plain(old: Any, new: Any, whole: Callable[[Any], bool] = never) -> list[ItemChange]:
    """Differences in the order of their paths; none if both have one encoding.

    Dicts are compared by key. Lists and tuples are compared by name if each item is a dict with a `name` of its own,
    else by position if both have one length, else as a whole. 1, 1.0 and true are three values.

    Args:
        whole: says of a value that it is one item, whatever it holds.
    """
    return list(_differences((), old, new, whole))


def change(path: Place, old: Any, new: Any, note: str = "") -> ItemChange:
    """A change of an item that both sides have."""
    return ItemChange(path, "changed", old, new, note)


def _differences(path: Place, old: Any, new: Any, whole: Callable[[Any], bool]) -> Iterator[ItemChange]:
    if _same(old, new):
        return
    before, after = _items(old), _items(new)
    if before is None or after is None or whole(old) or whole(new):
        yield change(path, old, new)
        return
    by_position = 0 in before or 0 in after
    if by_position and before.keys() != after.keys() and not (isinstance(old, dict) and isinstance(new, dict)):
        yield change(path, old, new)
        return
    found = False
    for key in sorted(before.keys() | after.keys(), key=lambda key: (isinstance(key, str), key)):
        below = (*path, key)
        if key not in after:
            changes: Iterator[ItemChange] = iter([ItemChange(below, "removed", old=before[key])])
        elif key not in before:
            changes = iter([ItemChange(below, "added", new=after[key])])
        else:
            changes = _differences(below, before[key], after[key], whole)
        for one in changes:
            found = True
            yield one
    if not found:
        yield change(path, old, new, "the same items in another order or kind of container")


def _items(value: Any) -> dict[Any, Any] | None:
    """Items by key; None for what is compared as a whole."""
    if isinstance(value, dict):
        return value if all(type(key) in (str, int) for key in value) else None
    if not isinstance(value, list | tuple):
        return None
    names = [item.get("name") if isinstance(item, dict) else None for item in value]
    if names and all(type(name) is str for name in names) and len(set(names)) == len(names):
        return dict(zip(names, value, strict=True))
    return dict(enumerate(value))


def _same(old: Any, new: Any) -> bool:
    if type(old) is not type(new):
        return False
    return old == new if isinstance(old, Container) else encode_value(old, "old") == encode_value(new, "new")
