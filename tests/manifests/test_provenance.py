"""Provenance compared by meaning."""

from typing import Any

import pytest

from cairn.manifests.provenance import diff_provenance, options_of, recorded_groups

RECORD = {
    "code": {"git": "present", "commit": "a" * 40, "dirty": False, "patch": ""},
    "versions": {"python": "3.11.7", "torch": "2.8.0"},
    "argv": ["train.py", "--lr", "0.1", "--compile"],
    "environment": {"OMP_NUM_THREADS": "4"},
    "config": {"lr": 0.1, "model": {"dim": 64}},
    "tokenizer": [{"name": "tokenizer.json", "size": 10, "blake3": "00"}],
    "data": {"dataset": "c4", "samples": [0, 4000]},
    "topology": {"world_size": 2},
    "determinism": {"cudnn_benchmark": False},
    "extra": None,
}


def found(old: Any, new: Any) -> list[tuple[Any, ...]]:
    return [(one.group, one.item.path, one.item.kind, one.item.old, one.item.new) for one in diff_provenance(old, new)]


def test_everything_is_told_by_group_and_key() -> None:
    new = {
        "code": {"git": "present", "commit": "b" * 40, "dirty": True, "patch": "a\nb\n"},
        "versions": {"python": "3.11.7", "torch": "2.9.0"},
        "argv": ["train.py", "--lr=0.2", "--compile"],
        "environment": {"OMP_NUM_THREADS": "8"},
        "config": {"lr": 0.2, "model": {"dim": 64}},
        "tokenizer": [{"name": "tokenizer.json", "size": 10, "blake3": "11"}],
        "data": {"dataset": "c4", "samples": [0, 8000]},
        "topology": {"world_size": 4},
        "determinism": {"cudnn_benchmark": True},
        "extra": {"note": "x"},
        "mine": 1,
    }
    assert found(RECORD, new) == [
        ("config", ("argv", "--lr"), "changed", "0.1", "0.2"),
        ("config", ("config", "lr"), "changed", 0.1, 0.2),
        ("code", ("code", "commit"), "changed", "a" * 40, "b" * 40),
        ("code", ("code", "dirty"), "changed", False, True),
        ("code", ("code", "patch"), "changed", "", "a\nb\n"),
        ("environment", ("determinism", "cudnn_benchmark"), "changed", False, True),
        ("environment", ("environment", "OMP_NUM_THREADS"), "changed", "4", "8"),
        ("environment", ("versions", "torch"), "changed", "2.8.0", "2.9.0"),
        ("topology", ("topology", "world_size"), "changed", 2, 4),
        ("data", ("data", "samples"), "changed", [0, 4000], [0, 8000]),
        ("tokenizer", ("tokenizer", "tokenizer.json", "blake3"), "changed", "00", "11"),
        ("other", ("extra",), "changed", None, {"note": "x"}),
        ("other", ("mine",), "added", None, 1),
    ]
    (samples,) = [one.item for one in diff_provenance(RECORD, new) if one.group == "data"]
    assert samples.note == "the same 4000, and 4000 more"
    assert recorded_groups(RECORD) == ("config", "code", "environment", "topology", "data", "tokenizer")
    assert diff_provenance(RECORD, dict(RECORD)) == []


def test_a_record_on_one_side_alone_is_added_or_removed() -> None:
    assert {(kind, group) for group, _, kind, _, _ in found(None, RECORD)} == {
        ("added", group) for group in ("config", "code", "environment", "topology", "data", "tokenizer", "other")
    }
    assert {kind for _, _, kind, _, _ in found(RECORD, None)} == {"removed"}
    assert found(None, None) == [] and recorded_groups(None) == ()


def test_a_record_of_any_other_form_is_compared_too() -> None:
    assert found("one", "two") == [("other", ("record",), "changed", "one", "two")]
    assert found({1: "a"}, {1: "b"}) == [("other", (1,), "changed", "a", "b")]
    assert found({"argv": "a b"}, {"argv": "a c"}) == [("config", ("argv",), "changed", "a b", "a c")]


def test_nothing_that_differs_is_passed_over() -> None:
    assert found({"argv": ["a", "-x", "1", "-y", "2"]}, {"argv": ["a", "-y", "2", "-x", "1"]})
    assert found({"argv": ["a", "-x", "1"]}, {"argv": ["a", "-x=1"]})
    assert found({"a": 1, "b": 2}, {"b": 2, "a": 1}) == [
        ("other", ("record",), "changed", {"a": 1, "b": 2}, {"b": 2, "a": 1})
    ]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("train.py --lr 0.1", {"word 0": "train.py", "--lr": "0.1"}),
        ("train.py --lr=0.1 --flag -v", {"word 0": "train.py", "--lr": "0.1", "--flag": "", "-v": ""}),
        ("train.py --mesh 2 4 --offset -1", {"word 0": "train.py", "--mesh": "2 4", "--offset": "-1"}),
        ("train.py model.dim=64 lr=1e-3", {"word 0": "train.py", "model.dim": "64", "lr": "1e-3"}),
        ("train.py --set a --set b", {"word 0": "train.py", "--set": "a b"}),
        ("-m pkg one", {"-m": "pkg one"}),
        ("a b - --", {"word 0": "a", "word 1": "b", "word 2": "-", "word 3": "--"}),
    ],
)
def test_a_command_is_told_by_its_options(words: str, options: dict[str, str]) -> None:
    assert options_of(words.split()) == options
