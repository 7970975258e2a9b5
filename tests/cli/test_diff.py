"""`cairn diff` as people and programs see it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cairn
from cairn.cli.app import run
from tests.cli.conftest import Shell
from tests.cli.test_members import identity_of, other_user
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

KEYS = {
    "old", "new", "sides", "kinship", "facts", "recorded", "tensors", "tensors_equal", "values", "files",
    "bytes_shared", "bytes_only_old", "bytes_only_new", "chunks_lost",
    "not_compared",
}  # fmt: skip


def train(model: str, step: int, lr: float, *, seed: int = 0, record: dict[str, Any] | None = None) -> None:
    """Save a model that took one step."""
    torch.manual_seed(seed)
    net = nn.Linear(40, 30)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net(torch.ones(2, 40)).square().mean().backward()
    optimizer.step()
    state = {"model": net, "optimizer": optimizer, "rng": cairn.RngState(), "step": step}
    with cairn.Checkpointer(".", model, provenance=record) as checkpointer:
        checkpointer.save(step, state, blocking=True)


@pytest.fixture
def trained(shell: Shell) -> Shell:
    """Two checkpoints of a run whose rate was changed."""
    for step, lr in ((100, 0.1), (200, 0.01)):
        samples = [0, step * 16]
        record = {"config": {"lr": lr, "dim": 40}, "data": {"set": "c4", "samples": samples}, "code": {"commit": "ab"}}
        train("run", step, lr, seed=step, record=record)
    return shell


def test_a_person_is_told_what_is_different(trained: Shell) -> None:
    lines = trained("diff", "run@step:100", "run").splitlines()
    assert re.fullmatch(r"old  [0-9a-f]{12}  run  step 100  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", lines[0])
    assert re.match(r"new  [0-9a-f]{12}  run  step 200  ", lines[1])
    assert lines[2] == "the new one was made from the old one (continue)"
    assert lines[3:] == [
        "changed   config     lr: 0.1 -> 0.01",
        "changed   data       samples: 0..1600 -> 0..3200 (the same 1600, and 1600 more)",
        "equal     provenance code",
        "changed   tensor     model:bias: 1 of 1 tiles",
        "changed   tensor     model:weight: 1 of 1 tiles",
        "changed   tensor     optimizer:state/bias/momentum_buffer: 1 of 1 tiles",
        "changed   tensor     optimizer:state/weight/momentum_buffer: 1 of 1 tiles",
        "changed   random     rng:~ of rank=0: torch",
        "changed   value      optimizer:groups/#0 lr: 0.1 -> 0.01",
        "changed   value      step:~: 100 -> 200",
        "4 tensors differ, 0 are equal; 4 values differ; 0 files differ",
        lines[-1],
    ]
    assert re.fullmatch(
        r"[\d.]+ \w+ stored for both, [\d.]+ \w+ for the old one alone, [\d.]+ \w+ for the new one alone", lines[-1]
    )


def test_a_program_is_told_everything(trained: Shell) -> None:
    told = trained.json("diff", "run@step:100", "run")
    assert told.keys() == KEYS
    assert told["facts"][0] == {
        "group": "config", "path": ["config", "lr"], "kind": "changed", "old": 0.1, "new": 0.01, "note": "",
    }  # fmt: skip
    assert told["recorded"] == {"old": ["config", "code", "data"], "new": ["config", "code", "data"]}
    assert told["sides"]["old"]["step"] == 100 and told["sides"]["new"]["job"]["ranks"] == 1
    assert told["kinship"] == {"ancestor": told["old"], "old": 0, "new": 1, "relation": "continue"}
    rows = {row["name"]: row for row in told["values"]}
    assert rows["optimizer:groups/#0"]["items"] == [
        {"path": ["lr"], "kind": "changed", "old": 0.1, "new": 0.01, "note": ""}
    ]
    assert (rows["rng:rank=0"]["form"], rows["rng:rank=0"]["component"]) == ("random", "training")
    assert rows["provenance:~"]["kind"] == "changed"
    assert {row["component"] for row in told["tensors"]} == {"weights", "optimizer"}
    assert trained("diff", "run@step:100", "run", "--json") == trained("diff", "run@step:100", "run", "--json")


def test_norms_come_as_tables_and_as_numbers(trained: Shell) -> None:
    lines = trained("diff", "run@step:100", "run", "--norms").splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("TENSOR ")]
    assert re.split(r"  +", lines[head]) == [
        "TENSOR", "CHANGED", "L2 OLD", "L2 NEW", "L2 DIFFERENCE", "RELATIVE", "LARGEST",
    ]  # fmt: skip
    assert re.match(r"model:weight +1200 of 1200 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ % +[\d.]+$", lines[head + 2])
    assert any(re.match(r"  optimizer group 0 momentum_buffer +2 +1230 of 1230 ", line) for line in lines)
    told = trained.json("diff", "run@step:100", "run", "--norms")
    assert told.keys() == KEYS | {"totals", "not_measured"} and told["not_measured"] == []
    old, new = (cairn.open(ref, ".") for ref in ("run@step:100", "run"))
    with old, new:
        a, b = np.float64(old["model/weight"][...]), np.float64(new["model/weight"][...])
    (row,) = [row["norms"] for row in told["tensors"] if row["name"] == "model:weight"]
    assert row["l2_difference"] == pytest.approx(np.linalg.norm(b - a))
    assert row["relative"] == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a))
    assert (row["elements"], row["elements_changed"], row["nan_old"]) == (1200, 1200, 0)
    assert [(row["component"], row["scope"], row["group"], row["kind"]) for row in told["totals"]] == [
        ("weights", None, None, None), ("optimizer", None, None, None),
        ("optimizer", "optimizer", 0, "momentum_buffer"),
    ]  # fmt: skip


def test_numbers_that_are_none_are_null_in_json_and_a_column_in_a_table(shell: Shell) -> None:
    for step, number in ((1, 0.0), (2, np.inf)):
        tensors = {"a": np.float32([number, np.nan]), "b": np.float32([0, step - 1])}
        tree = write_files(shell.folder / str(step), {"m.safetensors": safetensors(tensors)})
        shell("commit", str(tree), "m", "--step", str(step))
    told = shell.json("diff", "m@step:1", "m", "--norms")
    rows = {row["name"]: row["norms"] for row in told["tensors"]}
    assert (rows["a"]["nan_old"], rows["a"]["inf_new"], rows["a"]["relative"]) == (1, 1, None)
    assert (rows["b"]["l2_old"], rows["b"]["l2_difference"], rows["b"]["relative"]) == (0.0, 1.0, None)
    text = shell("diff", "m@step:1", "m", "--norms")
    assert "NOT FINITE" in text and "1 NaN -> 1 NaN, 1 inf" in text


def test_what_only_one_side_was_made_from_is_one_line(shell: Shell) -> None:
    train("run", 1, 0.1)
    train("run", 2, 0.1, record={"config": {"lr": 0.1}, "mine": 1})
    text = shell("diff", "run@step:1", "run")
    assert "added     provenance only the new one tells what it was made from: config, other\n" in text
    assert "lr" not in text
    assert {row["group"] for row in shell.json("diff", "run@step:1", "run")["facts"]} == {"config", "other"}


def test_files_have_no_section_for_what_nobody_recorded(shell: Shell) -> None:
    shell("commit", str(shell.files), "m", "--step", "1", "-m", "first")
    changed = {"w": weights(1, 64, 64), "b": weights(3, 8)}
    (shell.files / "model.safetensors").write_bytes(safetensors(changed))
    shell("commit", str(shell.files), "m", "--step", "2", "-m", "one\x1b[31m\ntwo")
    lines = shell("diff", "m@step:1", "m").splitlines()
    assert lines[3:-1] == [
        "changed   checkpoint message: first -> 2 lines",
        "changed   tensor     b: 1 of 1 tiles",
        "1 tensor differs, 1 is equal; 0 files differ",
    ]
    assert shell("diff", "m", "m").splitlines()[2:4] == [
        "one and the same checkpoint", "0 tensors differ, 2 are equal; 0 files differ",
    ]  # fmt: skip


def test_lists_without_end_are_cut_for_people(shell: Shell) -> None:
    for step in (1, 2):
        train("run", step, 0.1, record={"config": {f"option{n:02}": n * step for n in range(1, 40)}})
    lines = shell("diff", "run@step:1", "run").splitlines()
    assert sum("option" in line for line in lines) == 20
    assert (
        sum(re.fullmatch(r"\.\.\. +config +and 19 more, which --json lists", line) is not None for line in lines) == 1
    )
    assert len(shell.json("diff", "run@step:1", "run")["facts"]) == 39


def test_the_first_lines_tell_how_checkpoints_stand_to_each_other(shell: Shell) -> None:
    for step in ("1", "2", "3"):
        shell("commit", str(shell.files), "m", "--step", step)
    shell("branch", "m@step:1", "side")
    shell("commit", str(shell.files), "m@side", "--step", "4")
    shell("commit", str(shell.files), "other", "-m", "alone")

    def third(old: str, new: str) -> str:
        return shell("diff", old, new).splitlines()[2]

    assert third("m@step:1", "m") == "the new one comes 2 checkpoints after the old one"
    assert third("m", "m@step:2") == "the old one was made from the new one (continue)"
    base = shell.json("log", "m")[-1]["checkpoint"][:12]
    assert third("m", "m@side") == f"both come from {base}, the old one 2 checkpoints later, the new one 1"
    assert third("m", "other") == "added     checkpoint message: alone"


def test_a_member_is_told_what_it_may_not_compare(trained: Shell) -> None:
    line = identity_of(trained, "bob")
    trained("members", "add", line, "reader")
    trained("grant", "run", line, "--read", "weights")
    with other_user(trained, "bob"):
        text = trained("diff", "run@step:100", "run")
        err = error_of(trained, "diff", "run@step:100", "run")
        told = trained.json("diff", "run@step:100", "run")
    assert "2 tensors differ" in text and "not compared: optimizer, training, provenance\n" in text
    assert "lr" not in text and "momentum" not in text
    assert (
        "not compared: no right to read optimizer of the old and the new checkpoint; ask an owner to run: cairn grant"
        in err
    )
    assert {(row["component"], row["reason"]) for row in told["not_compared"]} == {
        (name, "not granted") for name in ("optimizer", "training", "provenance")
    }


def error_of(shell: Shell, *arguments: str) -> str:
    """What a command that succeeds says on standard error."""
    shell.capture.readouterr()
    assert run(list(arguments)) == 0
    return shell.capture.readouterr().err


def test_what_was_not_brought_is_named(trained: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained("remote", "add", "origin", str(tmp_path / "there"), "--create")
    trained("tag", "run@step:100", "before")
    for ref in ("run@before", "run"):
        trained("push", ref, "--only", "weights")
    monkeypatch.setenv("CAIRN_STORE", str(tmp_path / "there"))
    err = error_of(trained, "diff", "run@before", "run")
    assert "optimizer of the old and the new checkpoint is not here; 'cairn pull MODEL@REF' brings it" in err
    told = trained.json("diff", "run@before", "run", "--norms")
    assert {row["reason"] for row in told["not_compared"]} == {"not here"}
    assert [row["name"] for row in told["tensors"] if row["norms"]] == ["model:bias", "model:weight"]
