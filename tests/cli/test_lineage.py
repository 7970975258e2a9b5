"""Lineage from the command line: declared on commit, shown as a tree, a graph or JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from cairn.cli import memo
from tests.cli.conftest import Shell
from tests.cli.test_members import identity_of, other_user
from tests.cli.test_memo import Settle, commit
from tests.support.trees import write_files


def tree(shell: Shell, name: str) -> str:
    return str(write_files(shell.folder.parent / name, {"a": name.encode() * 100}))


@pytest.fixture
def ids(shell: Shell) -> dict[str, str]:
    """`llama` at steps 1 and 2, `code` tuned from step 1, `chat` merged of both."""
    made = {}
    for step in ("1", "2"):
        made[f"llama {step}"] = shell("commit", str(shell.files), "llama", "--step", step, "-q").strip()
    tuned = ("--parent", "llama@step:1", "--relation", "finetune")
    made["code"] = shell("commit", tree(shell, "tuned"), "code", *tuned, "-q").strip()
    merged = ("--parent", "llama", "--parent", "code", "--relation", "merge")
    made["chat"] = shell("commit", tree(shell, "merged"), "chat", *merged, "-q").strip()
    return made


def lineage(shell: Shell, *arguments: str) -> Any:
    return json.loads(shell("lineage", *arguments, "--format", "json"))


def test_a_tree_up_and_down(shell: Shell, ids: dict[str, str]) -> None:
    short = {name: identifier[:12] for name, identifier in ids.items()}
    assert shell("lineage", "chat").splitlines() == [
        f"{short['chat']}  chat",
        f"|- {short['llama 2']}  llama  step 2  (merge)",
        f"|  {short['llama 1']}  llama  step 1  (continue)",
        f"`- {short['code']}  code  (merge)",
        f"   {short['llama 1']}  llama  step 1  (finetune)",
    ]
    assert shell("lineage", "chat") == shell("lineage", "chat", "--up")
    assert shell("lineage", "llama@step:1", "--down").splitlines() == [
        f"{short['llama 1']}  llama  step 1",
        f"|- {short['llama 2']}  llama  step 2  (continue)",
        f"|  {short['chat']}  chat  (merge)",
        f"`- {short['code']}  code  (finetune)",
        f"   {short['chat']}  chat  (merge)",
    ]
    shell("commit", tree(shell, "small"), "small", "--parent", "chat", "--relation", "quantize")
    down = shell("lineage", "llama@step:1", "--down").splitlines()
    assert down[3].endswith("  small  (quantize)") and down[-1].endswith("  chat  (merge)  (see above)")
    assert len(down) == 6
    assert len(shell("lineage", "chat", "--depth", "1").splitlines()) == 3
    assert "exclude" in shell("lineage", "chat", "--up", "--down", code=2)
    shell("lineage", "nothing", code=5)


def test_json_and_a_graph(shell: Shell, ids: dict[str, str]) -> None:
    told = lineage(shell, "code")
    assert (told["start"], told["direction"], told["complete"]) == (ids["code"], "up", True)
    assert told["links"] == [{"child": ids["code"], "parent": ids["llama 1"], "relation": "finetune"}]
    rows = [(row["checkpoint"], row["name"], row["step"], row["standing"]) for row in told["checkpoints"]]
    assert rows == [(ids["code"], "code", None, "here"), (ids["llama 1"], "llama", 1, "here")]
    assert lineage(shell, "llama@step:1", "--down")["direction"] == "down"
    odd = 'a"b\\c'
    shell("commit", tree(shell, "odd"), odd, "--parent", "code", "--relation", "distill")
    graph = shell("lineage", odd, "--format", "dot").splitlines()
    assert (graph[0], graph[-1]) == ("digraph lineage {", "}")
    assert graph[1].endswith('a\\"b\\\\c"];')
    assert f'  "{ids["llama 1"]}" -> "{ids["code"]}" [label="finetune"];' in graph


def test_deleted_ones_are_marked_and_may_be_asked_for(shell: Shell, ids: dict[str, str], tmp_path: Path) -> None:
    newest = shell("commit", str(shell.files), "llama", "--step", "3", "-q").strip()
    plan = str(tmp_path / "plan")
    shell("retain", "plan", "llama", "--last", "1", "-o", plan)
    shell("retain", "apply", plan, "--yes")
    assert f"{ids['llama 1'][:12]}  llama  step 1  [deleted]  (finetune)" in shell("lineage", "code")
    assert "style=dashed" in shell("lineage", "code", "--format", "dot")
    down = lineage(shell, f"llama@{ids['llama 1'][:8]}", "--down")
    assert {row["checkpoint"] for row in down["checkpoints"]} == {*ids.values(), newest}


def test_models_without_a_grant_are_shown_by_id(shell: Shell, ids: dict[str, str]) -> None:
    line = identity_of(shell, "bob")
    shell("members", "add", line, "reader")
    shell("grant", "code", line, "--read", "weights")
    model = lineage(shell, "llama")["checkpoints"][0]["model"]
    with other_user(shell, "bob"):
        told = lineage(shell, "code")["checkpoints"][1]
        assert (told["model"], told["name"], told["step"]) == (model, None, None)
        assert shell("lineage", "code").splitlines()[1] == f"{ids['llama 1'][:12]}  {model}  (finetune)"
    shell("members", "role", line, "auditor")
    with other_user(shell, "bob"):
        shell("lineage", "code", code=7)


def test_parents_are_declared_with_their_relations(shell: Shell, ids: dict[str, str]) -> None:
    here = tree(shell, "merged")
    assert lineage(shell, "chat", "--depth", "1")["links"] == [
        {"child": ids["chat"], "parent": ids[parent], "relation": "merge"} for parent in ("llama 2", "code")
    ]
    both = ("--parent", "llama", "--relation", "fork", "--parent", "code", "--relation", "distill")
    made = shell("commit", here, "other", *both, "-q").strip()
    assert shell.json("show", f"other@{made[:8]}")["parents"] == [
        {"relation": "fork", "checkpoint": ids["llama 2"]},
        {"relation": "distill", "checkpoint": ids["code"]},
    ]
    for wrong in (("--parent", "llama"), ("--relation", "merge"), (*both, "--relation", "merge")):
        assert "do not fit together" in shell("commit", here, "other", *wrong, code=2)
    shell("commit", here, "other", "--parent", "llama", "--relation", "continue", code=2)
    shell("commit", here, "other", "--parent", "nothing", "--relation", "merge", code=5)


def test_no_answer_is_remembered_that_a_moved_parent_makes_wrong(
    shell: Shell, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(shell.files)
    plain = ["commit", str(shell.files), "llama", "--json"]
    commit(shell, plain, monkeypatch)
    assert memo.recall(plain) == 0
    declared = [*plain, "--parent", "llama", "--relation", "distill"]
    commit(shell, declared, monkeypatch)
    tip = shell.json("log", "llama")[0]["checkpoint"]
    assert memo.recall(declared) is None
    assert json.loads(shell(*declared))["created"]
    assert {parent["checkpoint"] for parent in shell.json("show", "llama")["parents"]} == {tip}
