"""What changed between two checkpoints, by meaning."""

from collections.abc import Iterable

import pytest

from cairn.manifests.diff import FileChange, TensorChange, diff_files, diff_values
from cairn.manifests.diff import diff_tensors as diff_with_boxes
from cairn.manifests.schema import FileEntry, Inline, Key, Literal, Region, TensorEntry, ValueEntry
from cairn.manifests.tiling import Box

A, B, C = bytes(32), b"\1" * 32, b"\2" * 32


def tensor(name: str, tiles: bytes = A, shape: tuple[int, ...] = (4,), dtype: str = "float32") -> TensorEntry:
    return TensorEntry(Key("", (name,)), dtype, shape, tiles=tiles)


def boxes(entry: TensorEntry) -> dict[Box, bytes]:
    """What a manifest says of an entry's stored boxes, each tile a box of its own along the first axis."""
    if entry.regions:
        return {Box(region.offsets, region.lengths): region.digest for region in entry.regions}
    data = entry.inline or entry.tiles or entry.tile_pages or b""
    step = 32 if entry.inline is None else len(data)
    return {Box((at,), (1,)): data[at : at + step] for at in range(0, len(data), step)}


def diff_tensors(old: Iterable[TensorEntry], new: Iterable[TensorEntry]) -> list[TensorChange]:
    return diff_with_boxes(old, new, boxes, boxes)


def test_equal_sides_do_not_differ() -> None:
    entries = [tensor("a"), tensor("b", B)]
    assert diff_tensors(entries, reversed(entries)) == []
    files = [FileEntry(b"a", "file"), FileEntry(b"b", "folder")]
    assert diff_files(files, reversed(files)) == []


def test_tensors_are_added_removed_reshaped_and_changed() -> None:
    old = [tensor("removed"), tensor("shape"), tensor("dtype"), tensor("same"), tensor("tiles", A + B + C)]
    new = [
        tensor("added"), tensor("shape", shape=(2, 2)), tensor("dtype", dtype="int32"), tensor("same"),
        tensor("tiles", A + A + A),
    ]  # fmt: skip
    changes = {str(change.key): (change.kind, change.tiles_changed, change.tiles) for change in diff_tensors(old, new)}
    assert changes == {
        "added": ("added", None, None),
        "removed": ("removed", None, None),
        "shape": ("reshaped", None, None),
        "dtype": ("reshaped", None, None),
        "tiles": ("changed", 2, 3),
    }
    assert [str(change.key) for change in diff_tensors(old, new)] == sorted(changes)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            TensorEntry(Key("", ("a",)), "int8", (1,), inline=b"x"),
            TensorEntry(Key("", ("a",)), "int8", (1,), inline=b"y"),
        ),
        (TensorEntry(Key("", ("a",)), "int8", (1,), inline=b"x"), TensorEntry(Key("", ("a",)), "int8", (1,), tiles=A)),
        (
            TensorEntry(Key("", ("a",)), "int8", (1,), tile_pages=A),
            TensorEntry(Key("", ("a",)), "int8", (1,), tile_pages=B),
        ),
    ],
)
def test_change_is_seen_in_each_form_of_a_tensor(old: TensorEntry, new: TensorEntry) -> None:
    (change,) = diff_tensors([old], [new])
    assert (change.kind, change.tiles_changed, change.tiles) == ("changed", 1, 1)


def test_another_cut_is_told_from_another_content() -> None:
    def cut(*regions: Region) -> TensorEntry:
        return TensorEntry(Key("", ("a",)), "float32", (4,), regions=regions)

    halves = cut(Region((0,), (2,), A), Region((2,), (2,), B))
    thirds = cut(Region((0,), (2,), A), Region((2,), (1,), B), Region((3,), (1,), C))
    other = cut(Region((0,), (2,), C), Region((2,), (1,), B), Region((3,), (1,), C))
    assert [change.kind for change in diff_tensors([halves], [thirds])] == ["recut"]
    (change,) = diff_tensors([halves], [other])
    assert (change.kind, change.tiles_changed, change.tiles) == ("changed", None, None)
    assert diff_tensors([halves], [halves]) == []


def test_boxes_that_are_not_here_leave_their_number_open() -> None:
    (change,) = diff_with_boxes([tensor("a", A + B)], [tensor("a", A + C)], boxes, lambda entry: None)
    assert (change.kind, change.tiles_changed, change.tiles) == ("changed", None, None)


def test_a_tie_alone_is_no_change_of_content() -> None:
    tied = TensorEntry(Key("", ("a",)), "float32", (4,), tiles=A, tied_to=Key("", ("b",)))
    assert diff_tensors([tensor("a")], [tied]) == []


def file(path: bytes, data: bytes = b"x", mode: int = 0o644, part: int = 0) -> FileEntry:
    return FileEntry(path, "file", mode, len(data), (Inline(data),), part=part)


def test_files_are_added_removed_changed_and_change_mode() -> None:
    old = [file(b"removed"), file(b"content"), file(b"mode"), file(b"same"), FileEntry(b"kind", "folder")]
    old += [FileEntry(b"link", "link", target=b"a"), file(b"parts"), file(b"parts", b"tail", part=1)]
    new = [file(b"added"), file(b"content", b"y"), file(b"mode", mode=0o755), file(b"same"), file(b"kind")]
    new += [FileEntry(b"link", "link", target=b"b"), file(b"parts", b"liat", part=1), file(b"parts")]
    assert diff_files(old, new) == [
        FileChange(b"added", "added"),
        FileChange(b"content", "changed"),
        FileChange(b"kind", "changed"),
        FileChange(b"link", "changed"),
        FileChange(b"mode", "mode"),
        FileChange(b"parts", "changed"),
        FileChange(b"removed", "removed"),
    ]


def test_the_same_bytes_in_other_segments_are_another_recipe() -> None:
    whole = FileEntry(b"a", "file", size=2, segments=(Inline(b"ab"),))
    cut = FileEntry(b"a", "file", size=2, segments=(Inline(b"a"), Literal(1, A)))
    assert diff_files([whole], [cut]) == [FileChange(b"a", "changed")]


def test_values_are_added_removed_and_changed() -> None:
    def value(name: str, data: bytes = b"x") -> ValueEntry:
        return ValueEntry(Key("", (name,)), data)

    old = [value("removed"), value("same"), value("changed"), ValueEntry(Key("", ("blocks",)), length=1, digests=A)]
    new = [value("added"), value("same"), value("changed", b"y"), ValueEntry(Key("", ("blocks",)), length=1, digests=B)]
    changes = {str(change.key): (change.kind, change.old, change.new) for change in diff_values(old, new)}
    assert changes == {
        "added": ("added", None, new[0]),
        "blocks": ("changed", old[3], new[3]),
        "changed": ("changed", old[2], new[2]),
        "removed": ("removed", old[0], None),
    }
