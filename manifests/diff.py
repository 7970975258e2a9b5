"""What changed between two checkpoints, by meaning."""

from collections.abc import Iterable

import msgspec

from cairn.manifests.schema import FileEntry, Key, TensorEntry


class TensorChange(msgspec.Struct, frozen=True):
    """One tensor that differs: what it was and is; `tiles_changed` of `tiles` where the grid is the same."""

    key: Key
    old: TensorEntry | None
    new: TensorEntry | None
    tiles_changed: int | None = None
    tiles: int | None = None

    @property
    def kind(self) -> str:
        """`added`, `removed`, `reshaped` (dtype or shape differ) or `changed`."""
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        same_form = (self.old.dtype, self.old.shape) == (self.new.dtype, self.new.shape)
        return "changed" if same_form else "reshaped"


class FileChange(msgspec.Struct, frozen=True):
    """One path that differs; `kind` is `added`, `removed`, `changed` (content) or `mode`."""

    path: bytes
    kind: str


def diff_tensors(old: Iterable[TensorEntry], new: Iterable[TensorEntry]) -> list[TensorChange]:
    """Differences by key, sorted; entries that both sides share by page may be left out of both."""
    before, after = {e.key: e for e in old}, {e.key: e for e in new}
    changes = []
    for key in sorted(before.keys() | after.keys(), key=str):
        a, b = before.get(key), after.get(key)
        if a is None or b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
            changes.append(TensorChange(key, a, b))
        elif (a.inline, a.tiles, a.tile_pages) != (b.inline, b.tiles, b.tile_pages):
            changes.append(TensorChange(key, a, b, *_tiles_changed(a, b)))
    return changes


def _tiles_changed(a: TensorEntry, b: TensorEntry) -> tuple[int | None, int | None]:
    if a.tiles is None or b.tiles is None or len(a.tiles) != len(b.tiles):
        return None, None
    count = len(a.tiles) // 32
    differing = sum(a.tiles[i * 32 : i * 32 + 32] != b.tiles[i * 32 : i * 32 + 32] for i in range(count))
    return differing, count


def diff_files(old: Iterable[FileEntry], new: Iterable[FileEntry]) -> list[FileChange]:
    """Differences by path, sorted. A file of tensors may change through them alone: see `diff_tensors`."""
    before, after = _by_path(old), _by_path(new)
    changes = []
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        if a is None or b is None:
            changes.append(FileChange(path, "added" if a is None else "removed"))
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
