"""Intervals of data and positions in it, compared in words."""

from typing import Any

import pytest

from cairn.manifests.plaindiff import ItemChange, diff_plain
from cairn.manifests.spans import Span, compare_spans, diff_cursors, diff_shards, is_span, span_of, with_span_notes

CURSOR = {
    "form": "global_cursor", "order": "blake3-v1", "dataset_size": 1000, "global_batch": 32, "seed": 0,
    "shuffle": True, "drop_last": True, "epoch": 0, "consumed": 320,
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "span"),
    [
        ([0, 4000], (0, 4000)),
        ((5, 5), (5, 5)),
        ({"start": 1, "end": 2}, (1, 2)),
        ({"from": 1, "to": 2}, (1, 2)),
        ([4000, 0], None),
        ([-1, 2], None),
        ([0, 1.0], None),
        ([True, 2], None),
        ([0, 1, 2], None),
        ({"start": 1, "end": 2, "of": 3}, None),
        ("ab", None),
        (None, None),
    ],
)
def test_what_is_an_interval(value: Any, span: Span | None) -> None:
    assert span_of(value) == span and is_span(value) == (span is not None)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ((0, 4000), (0, 8000), "the same 4000, and 4000 more"),
        ((0, 8000), (0, 4000), "4000 fewer"),
        ((0, 4000), (4000, 8000), "goes on where the old one ended"),
        ((0, 4000), (3000, 8000), "1000 in common"),
        ((3000, 8000), (0, 4000), "1000 in common"),
        ((0, 4000), (5000, 8000), "none in common, 1000 between them"),
        ((4000, 8000), (0, 4000), "none in common"),
    ],
)
def test_how_intervals_stand_to_each_other(old: Span, new: Span, words: str) -> None:
    assert compare_spans(old, new) == words


def test_nothing_is_said_of_intervals_beside_which_something_else_differs() -> None:
    old = {"sets": [{"name": "a", "samples": [0, 10]}, {"name": "b", "rev": "1", "samples": [0, 10]}]}
    new = {"sets": [{"name": "a", "samples": [0, 20]}, {"name": "b", "rev": "2", "samples": [0, 20]}]}
    notes = {one.path: one.note for one in with_span_notes(diff_plain(old, new, is_span))}
    assert notes == {
        ("sets", "a", "samples"): "the same 10, and 10 more",
        ("sets", "b", "rev"): "",
        ("sets", "b", "samples"): "",
    }


def test_a_cursor_is_told_by_samples_across_epochs() -> None:
    later = {**CURSOR, "epoch": 2, "consumed": 64}
    # 31 batches of 32 samples make an epoch of 992.
    assert diff_cursors(CURSOR, later) == [
        ItemChange(("samples",), "changed", [0, 320], [0, 2 * 992 + 64], "the same 320, and 1728 more")
    ]


@pytest.mark.parametrize("name", ["seed", "dataset_size", "shuffle", "order"])
def test_another_order_of_samples_is_no_continuation(name: str) -> None:
    other = {**CURSOR, "consumed": 640, name: 7}
    samples, rest = diff_cursors(CURSOR, other)
    assert samples.note == "of another order of samples" and rest.path == (name,)


def test_a_cursor_at_the_same_place_differs_in_the_rest_alone() -> None:
    assert [one.path for one in diff_cursors(CURSOR, {**CURSOR, "global_batch": 16, "drop_last": False})] == [
        ("drop_last",), ("global_batch",),
    ]  # fmt: skip


def test_a_cursor_that_does_not_count_is_compared_item_by_item() -> None:
    assert [one.path for one in diff_cursors(CURSOR, {**CURSOR, "consumed": "many"})] == [("consumed",)]
    assert [one.path for one in diff_cursors({**CURSOR, "global_batch": 0}, CURSOR)] == [("global_batch",)]


def test_shards_are_compared_whichever_ranks_held_them() -> None:
    def states(*positions: dict[str, int], epoch: int = 0) -> list[dict[str, Any]]:
        return [{"form": "logical_shards", "epoch": epoch, "positions": one} for one in positions]

    old, new = states({"a": 5, "b": 5}), states({"a": 9}, {"b": 5})
    assert diff_shards(old, new) == [ItemChange(("positions", "a"), "changed", 5, 9, "4 further")]
    assert diff_shards(new, old)[0].note == "4 back"
    assert diff_shards(old, old) == []
    epoch, added = diff_shards(old, states({"a": 5, "b": 5, "c": 1}, epoch=1))
    assert (epoch.path, added.path, added.kind) == (("epoch", 0), ("positions", "c"), "added")
