"""Comparing checkpoints of training runs: what the states say of data, random numbers, jobs and provenance."""

import random
from pathlib import Path
from typing import Any

import pytest

import cairn
from cairn.registry.compare import Comparison, compare
from cairn.registry.comparedvalues import ValueDifference
from cairn.registry.selectors import resolve
from cairn.training.cursor import GlobalCursor
from cairn.training.dataloader import LogicalShards, RankLocal
from cairn.training.provenance import capture_provenance
from tests.cases.training import MODEL, Runs
from tests.support.stores import tip
from tests.support.threads import Fleet


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "home")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "home")


def between(runs: Runs, old: str = f"{MODEL}@step:1", new: str = MODEL) -> Comparison:
    registry = runs.site.registry()
    try:
        return compare(registry, tip(registry, old), tip(registry, new))
    finally:
        registry.close()


def facts(found: Comparison) -> dict[tuple[Any, ...], tuple[Any, Any, str]]:
    return {(one.group, *one.item.path): (one.item.old, one.item.new, one.item.note) for one in found.facts}


def values(found: Comparison) -> dict[str, ValueDifference]:
    return {str(one.key): one for one in found.values}


def test_a_cursor_is_told_by_its_samples(runs: Runs) -> None:
    cursor = GlobalCursor(1000, global_batch=10, seed=3)
    for step in (1, 2):
        cursor.advance(5)
        runs.save({"data": cursor}, step)
    found = between(runs)
    assert facts(found) == {("data", "data:~", "samples"): ([0, 50], [0, 100], "the same 50, and 50 more")}
    assert values(found)["data:~"].form == "global_cursor" and {str(key) for key in found.told} >= {"data:~"}


def test_random_states_are_known_by_what_is_saved_of_them(runs: Runs) -> None:
    rng = cairn.RngState(generators={"mine": random.Random(1)})
    runs.save({"rng": rng, "x": 1}, 1)
    rng._given["mine"].random()
    runs.save({"rng": rng, "x": 1}, 2)
    (one,) = between(runs).values
    assert (str(one.key), one.form, one.kind) == ("rng:rank=0", "random", "changed")
    assert {item.path[:2] for item in one.items} == {("generators", "given:mine")}


def test_shards_are_compared_across_another_number_of_ranks(fleet: Fleet) -> None:
    names = [f"s{number}" for number in range(4)]

    def loaders(ranks: int) -> list[LogicalShards]:
        return [LogicalShards(names, rank=r, world_size=ranks, coordinates={"dp": r}) for r in range(ranks)]

    for step, ranks in ((1, 2), (2, 4)):
        states = loaders(ranks)
        for one in states:
            for shard in one._positions:
                one._positions[shard] = 10 if step == 1 else 10 + 5 * int(shard[1])
        fleet.save("m", [{"data": one, "step": step} for one in states], step)
    registry = fleet._site.registry()
    found = compare(registry, resolve(registry, "m@step:1"), resolve(registry, "m"))
    told = facts(found)
    assert told["data", "data:~", "positions", "s3"] == (10, 25, "15 further")
    assert ("data", "data:~", "positions", "s0") not in told
    assert told["topology", "ranks"] == (2, 4, "")


def test_a_state_of_a_rank_alone_is_no_position(runs: Runs) -> None:
    class Inner:
        at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: Any) -> None:
            self.at = state["at"]

    inner = Inner()
    loader = RankLocal(inner)
    runs.save({"data": loader}, 1)
    inner.at = 7
    runs.save({"data": loader}, 2)
    (one,) = between(runs).values
    assert (one.form, [(item.path, item.new) for item in one.items]) == ("rank_local", [(("state", "at"), 7)])


def test_what_a_run_was_made_from_is_compared_by_group(runs: Runs, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    for step, lr in ((1, 0.1), (2, 0.2)):
        tokenizer.write_text(f"{step}")
        record = capture_provenance(
            config={"lr": lr}, data={"set": "c4", "samples": [0, 100 * step]}, tokenizer_files=[tokenizer],
            argv=["train.py", "--lr", str(lr)], root=tmp_path, environment={"OMP_NUM_THREADS": str(step)},
        )  # fmt: skip
        runs.save({"x": 1}, step, provenance=record)
    found = between(runs)
    told = facts(found)
    digest = told.pop(("tokenizer", "tokenizer", "tokenizer.json", "blake3"))
    assert digest[0] != digest[1]
    assert told == {
        ("config", "argv", "--lr"): ("0.1", "0.2", ""),
        ("config", "config", "lr"): (0.1, 0.2, ""),
        ("environment", "environment", "OMP_NUM_THREADS"): ("1", "2", ""),
        ("data", "data", "samples"): ([0, 100], [0, 200], "the same 100, and 100 more"),
    }
    assert found.recorded == (("config", "code", "environment", "topology", "data", "tokenizer"),) * 2
    assert [str(one.key) for one in found.values] == ["provenance:~"]


def test_a_record_that_only_one_side_has_is_told_whole(runs: Runs) -> None:
    runs.save({"x": 1}, 1)
    runs.save({"x": 1}, 2, provenance={"config": {"lr": 0.1}, "mine": [1, 2]})
    found = between(runs)
    assert facts(found) == {("config", "config"): (None, {"lr": 0.1}, ""), ("other", "mine"): (None, [1, 2], "")}
    assert found.recorded == ((), ("config", "other"))


def test_a_value_that_is_too_long_is_named_and_not_decoded(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cairn.registry.comparedvalues.COMPARED_VALUE_BYTES_MAX", 30_000)
    for step in (1, 2):
        runs.save({"long": bytes([step]) * 40_000, "short": bytes([step]) * 20_000}, step)
    found = values(between(runs))
    assert found["long:~"].items == () and "too many" in found["long:~"].note
    assert len(found["short:~"].items) == 1 and found["short:~"].note == ""
