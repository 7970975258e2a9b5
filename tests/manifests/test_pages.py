"""Pages: the same entries give the same pages, and a small change rewrites few."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.canonical import encode
from cairn.core.errors import CairnError
from cairn.core.limits import PAGE_BYTES_MAX, PAGE_BYTES_TARGET
from cairn.manifests.pages import check_page_size, entry_key, paginate
from cairn.manifests.schema import FileEntry, Key, TensorEntry


def tensor(name: str, digests: int = 1) -> TensorEntry:
    return TensorEntry(Key("", (name,)), "float32", (2, 2), tiles=bytes(32 * digests))


def many(seed: int, number: int) -> list[TensorEntry]:
    draw = random.Random(seed)
    return [tensor(f"layers.{draw.randrange(1 << 60)}", draw.choice([1, 19])) for _ in range(number)]


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=50), st.randoms(use_true_random=False))
def test_pages_hold_all_entries_once_sorted_whatever_their_order(names: list[int], order: random.Random) -> None:
    entries = [tensor(str(name), 200) for name in names]
    shuffled = list(entries)
    order.shuffle(shuffled)
    pages = list(paginate(shuffled))
    assert pages == list(paginate(entries))
    joined = [entry for page in pages for entry in page]
    assert joined == sorted(entries, key=entry_key)
    assert all(pages)


def test_no_entries_no_pages() -> None:
    assert list(paginate(list[TensorEntry]())) == []


def test_pages_stay_within_a_factor_of_four_of_the_target() -> None:
    sizes = [sum(len(encode(entry)) for entry in page) for page in paginate(many(1, 12_000))]
    assert all(PAGE_BYTES_TARGET / 4 <= size <= PAGE_BYTES_TARGET * 4 for size in sizes[:-1])
    assert PAGE_BYTES_TARGET / 2 < sum(sizes) / len(sizes) < PAGE_BYTES_TARGET * 2


def changed_pages(old: Sequence[tuple[TensorEntry, ...]], entries: list[TensorEntry]) -> int:
    return len(set(paginate(entries)) - set(old))


def test_one_more_one_less_or_one_other_entry_rewrites_about_one_page() -> None:
    entries = many(2, 3_000)
    old = list(paginate(entries))
    assert len(old) > 10
    counts = []
    for number in range(30):
        at = number * 97
        counts.append(changed_pages(old, [*entries, tensor(f"layers.{number}.new", 5)]))
        counts.append(changed_pages(old, entries[:at] + entries[at + 1 :]))
        counts.append(changed_pages(old, [*entries[:at], tensor(str(entries[at].key), 19), *entries[at + 1 :]]))
    # A page that is cut for its size alone may move the next edges too, until a key says where to cut again.
    assert sum(count <= 2 for count in counts) >= 0.95 * len(counts)
    assert max(counts) <= 4


@pytest.mark.parametrize(
    "twins",
    [
        [tensor("a"), tensor("b"), tensor("a", 2)],
        [FileEntry(b"a", "file"), FileEntry(b"a", "folder")],
        [FileEntry(b"a", "file", part=3), FileEntry(b"a", "file", part=3)],
    ],
)
def test_two_entries_of_one_key_are_refused(twins: list[FileEntry]) -> None:
    with pytest.raises(ValueError, match="two entries"):
        list(paginate(twins))


def test_parts_of_a_file_follow_each_other() -> None:
    parts = [FileEntry(b"a", "file", part=number) for number in (256, 1, 255, 0)]
    other = [FileEntry(b"a.b", "file"), FileEntry(b"a\0b", "file"), FileEntry(b"A", "file")]
    (page,) = paginate([*other, *parts])
    assert [entry.part for entry in page if entry.path == b"a"] == [0, 1, 255, 256]
    first = [entry.path for entry in page].index(b"a")
    assert {entry.path for entry in page[first : first + 4]} == {b"a"}


def test_a_page_that_no_reader_accepts_is_not_written() -> None:
    assert check_page_size(bytes(PAGE_BYTES_MAX))
    with pytest.raises(CairnError, match="over the limit"):
        check_page_size(bytes(PAGE_BYTES_MAX + 1))
