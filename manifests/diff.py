"""What changed between two checkpoints, by meaning."""

from collections.abc import Callable, Iterable

import msgspec

from cairn.manifests.delta import Delta
from cairn.manifests.schema import FileEntry, Key, TensorEntry, ValueEntry
from cairn.manifests.tiling import Box

Boxes = Callable[[TensorEntry], dict[Box, bytes] | None]


class TensorChange(msgspec.Struct, frozen=True):
    """One tensor that differs: what it was and is.

    Args:
        tiles_changed: of `tiles` (boxes), where both are cut alike; None where they are not, or that is not known.
        recut: whether the values differ is not known, see `kind`.
        delta: how far they differ, once they have been read.
    """

    key: Key
    old: TensorEntry | None
    new: TensorEntry | None
    tiles_changed: int | None = None
    tiles: int | None = None
    recut: bool = False
    delta: Delta | None = None

    @property
    def kind(self) -> str:
        """What happened: `added`, `removed`, `reshaped` (dtype or shape differ), `changed`, or `recut`.

        `recut` says that both were saved from layouts that cut the tensor differently and that no box which both
        have differs: whether the values do, only reading them would tell.
        """
        if self.old is None or self.new is None:
            return kind_of(self.old, self.new)
        if (self.old.dtype, self.old.shape) != (self.new.dtype, self.new.shape):
            return "reshaped"
        return "recut" if self.recut else "changed"


class ValueChange(msgspec.Struct, frozen=True):
    """One plain value that differs: what it was and is; `kind` is `added`, `removed` or `changed`."""

    key: Key
    old: ValueEntry | None
    new: ValueEntry | None

    @property
    def kind(self) -> str:
        """What happened."""
        return kind_of(self.old, self.new)


class FileChange(msgspec.Struct, frozen=True):
    """One path that differs; `kind` is `added`, `removed`, `changed` (content) or `mode`."""

    path: bytes
    kind: str


def kind_of(old: object | None, new: object | None) -> str:
    """What became of something that is None on the side that lacks it."""
    return "added" if old is None else "removed" if new is None else "changed"


def diff_tensors(
    old: Iterable[TensorEntry], new: Iterable[TensorEntry], old_boxes: Boxes, new_boxes: Boxes
) -> list[TensorChange]:
    """Differences by key, sorted; entries that both sides share by page may be left out of both.

    Args:
        old_boxes, new_boxes: give the digests of an entry's stored boxes; None where those are not here.
    """
    before, after = {e.key: e for e in old}, {e.key: e for e in new}
    changes = []
    for key in sorted(before.keys() | after.keys(), key=str):
        a, b = before.get(key), after.get(key)
        if a is None or b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
            changes.append(TensorChange(key, a, b))
        elif _stored(a) != _stored(b):
            changes.append(_by_boxes(key, a, b, old_boxes(a), new_boxes(b)))
    return changes


def _by_boxes(
    key: Key, old: TensorEntry, new: TensorEntry, was: dict[Box, bytes] | None, now: dict[Box, bytes] | None
) -> TensorChange:
    if was is None or now is None:
        return TensorChange(key, old, new)
    differing = sum(was[box] != now[box] for box in was.keys() & now.keys())
    if was.keys() == now.keys():
        return TensorChange(key, old, new, differing, len(now))
    return TensorChange(key, old, new, recut=not differing)


def _stored(entry: TensorEntry) -> tuple[object, ...]:
    return entry.inline, entry.tiles, entry.tile_pages, entry.regions, entry.region_pages


def diff_values(old: Iterable[ValueEntry], new: Iterable[ValueEntry]) -> list[ValueChange]:
    """Differences by key, sorted; entries that both sides share by page may be left out of both."""
    before, after = {e.key: e for e in old}, {e.key: e for e in new}
    changes = []
    for key in sorted(before.keys() | after.keys(), key=str):
        a, b = before.get(key), after.get(key)
        if a is None or b is None or (a.inline, a.digests) != (b.inline, b.digests):
            changes.append(ValueChange(key, a, b))
    return changes


def diff_files(old: Iterable[FileEntry], new: Iterable[FileEntry]) -> list[FileChange]:
    """Differences by path, sorted. A file of tensors may change through them alone: see `diff_tensors`."""
    before, after = _by_path(old), _by_path(new)
    changes = []
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        if a is None or b is None:
            changes.append(FileChange(path, kind_of(a, b)))
        elif [_content(e) for e in a] != [_content(e) for e in b]:
            changes.append(FileChange(path, "changed"))
        elif a[0].mode != b[0].mode:
            changes.append(FileChange(path, "mode"))
    return changes


def _by_path(entries: Iterable[FileEntry]) -> dict[bytes, list[FileEntry]]:
    by_path: dict[bytes, list[FileEntry]] = {}
    for entry in entries:
        by_path.setdefault(entry.path, []).append(entry)
    return {path: sorted(parts, key=lambda part: part.part) for path, parts in by_path.items()}


def _content(entry: FileEntry) -> tuple[object, ...]:
    return entry.kind, entry.size, entry.segments, entry.target
