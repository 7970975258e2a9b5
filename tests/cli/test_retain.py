"""`cairn retain` and `cairn delete`: what they print, take and exit with."""

import json
from pathlib import Path

import pytest

from cairn.cli.app import run
from tests.cli.conftest import Shell


@pytest.fixture
def ids(shell: Shell) -> list[str]:
    """Checkpoints of steps 1 to 5, the third with the lowest loss."""
    made = []
    for step in range(1, 6):
        (shell.files / "sub" / "notes.txt").write_text(f"step {step}")
        told = ["--metric", f"loss={abs(step - 3)}", "--metric", "acc=0.5"]
        made.append(shell("commit", str(shell.files), "m", "--step", str(step), *told, "-q").strip())
    return made


def steps(shell: Shell) -> list[int]:
    return [line["step"] for line in shell.json("log", "m")]


def test_a_plan_says_of_each_checkpoint_what_keeps_it(shell: Shell, ids: list[str]) -> None:
    text = shell("retain", "plan", "m", "--last", "1", "--best", "loss:min:1")
    rows = [line.split() for line in text.splitlines()]
    assert [(row[0], row[1]) for row in rows[1:-1]] == [
        ("keep", ids[4][:12]),
        ("keep", ids[3][:12]),
        ("keep", ids[2][:12]),
        ("remove", ids[1][:12]),
        ("remove", ids[0][:12]),
    ]
    assert "second of main" in text and "best loss:min:1" in text and text.endswith("3 stay, 2 go\n")
    plan = shell.json("retain", "plan", "m@latest", "--last", "1", "--best", "loss:min:1")
    assert (plan["branch"], plan["removed"], len(plan["model"])) == ("main", 2, 32)
    assert [one["keep"] for one in plan["checkpoints"]] == [True, True, True, False, False]
    assert plan["checkpoints"][2] | {"saved_at_ns": 0} == {
        "checkpoint": ids[2], "step": 3, "saved_at_ns": 0, "keep": True, "rules": ["best loss:min:1"],
    }  # fmt: skip
    quiet = shell("retain", "plan", "m", "--last", "1", "-q").split()
    assert quiet == ids[2::-1] and steps(shell) == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("rules", "stay"),
    [
        (["--every", "2"], [5, 4, 2]),
        (["--hourly", "1"], [5, 4]),
        (["--daily", "1", "--weekly", "1", "--monthly", "1", "--yearly", "1"], [5, 4]),
        (["--best", "loss:max:2"], [5, 4, 1]),
        (["--min-age", "1h"], [5, 4, 3, 2, 1]),
        (["--last", "3"], [5, 4, 3]),
    ],
)
def test_each_rule_keeps_its_own(shell: Shell, ids: list[str], rules: list[str], stay: list[int]) -> None:
    plan = shell.json("retain", "plan", "m", *rules)
    assert [one["step"] for one in plan["checkpoints"] if one["keep"]] == stay


@pytest.mark.parametrize(
    "rules",
    [[], ["--last", "0"], ["--min-age", "7"], ["--min-age", "1y"], ["--best", "loss:3"], ["--best", "loss:min"]],
)
def test_rules_that_make_no_sense_are_wrong_usage(shell: Shell, ids: list[str], rules: list[str]) -> None:
    shell("retain", "plan", "m", *rules, code=2)


def test_a_plan_is_applied_from_its_file_once(shell: Shell, ids: list[str]) -> None:
    shell("retain", "plan", "m", "--last", "2", "-o", "plan.json")
    assert "exists" in shell("retain", "plan", "m", "--last", "2", "-o", "plan.json", code=3)
    assert json.loads(Path("plan.json").read_text())["rules"] == {"last": 2}
    error = shell("retain", "apply", "plan.json", code=2)
    assert "nothing was changed" in error and "--yes" in error and steps(shell) == [5, 4, 3, 2, 1]
    shell.capture.readouterr()
    assert shell("retain", "apply", "plan.json", "--yes", "-q").split() == ids[2::-1]
    assert steps(shell) == [5, 4]
    error = shell("retain", "apply", "plan.json", "--yes", code=4)
    assert "is void" in error and "plan again" in error


def test_a_plan_is_void_after_a_commit(shell: Shell, ids: list[str]) -> None:
    shell("retain", "plan", "m", "--last", "2", "-o", "plan.json")
    shell("commit", str(shell.files), "m", "--step", "6")
    shell("retain", "apply", "plan.json", "--yes", code=4)
    assert steps(shell) == [6, 5, 4, 3, 2, 1]


def test_rules_can_be_applied_at_once(shell: Shell, ids: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    shell("tag", f"m@{ids[0]}", "first")
    assert shell.json("retain", "apply", "m", "--last", "2", "--yes")["removed"] == 2
    assert steps(shell) == [5, 4, 1]
    shell("retain", "apply", "m", "--last", "1", "--yes")
    shell("tag", "m", "first", "--delete")
    capfd.readouterr()
    assert run(["retain", "apply", "m", "--last", "1", "--yes", "--grace", "3600"]) == 0
    told = capfd.readouterr().err
    assert "cairn delete restore MODEL@ID" in told and "the first 'cairn gc apply' after 3600 seconds" in told
    assert steps(shell) == [5, 4]


def test_what_is_no_plan_or_is_not_there(shell: Shell, ids: list[str]) -> None:
    Path("notes.json").write_text("{}")
    assert "no plan of retention" in shell("retain", "apply", "notes.json", "--yes", code=3)
    assert "name rules" in shell("retain", "apply", "m", "--yes", code=5)
    shell("retain", "plan", "other", "--last", "1", code=5)
    shell("retain", "plan", "m@side", "--last", "1", code=5)


def test_a_deleted_checkpoint_is_gone_and_comes_back(shell: Shell, ids: list[str]) -> None:
    shell("retain", "apply", "m", "--last", "2", "--yes")
    for arguments in (
        ["show", f"m@{ids[1]}"],
        ["checkout", "m@step:2", "out"],
        ["log", f"m@{ids[1][:8]}"],
        ["ls", f"m@{ids[1]}"],
        ["diff", "m", "m@step:2"],
        ["tag", f"m@{ids[1]}", "late"],
    ):
        error = shell(*arguments, code=5)
        assert "was deleted at 20" in error and "(retention)" in error, arguments
        assert f"cairn delete restore m@{ids[1][:12]}" in error
    text = shell("log", "m")
    assert text.splitlines()[-1] == "  (3 deleted)" and len(text.splitlines()) == 3
    assert [line["deleted_behind"] for line in shell.json("log", "m")] == [0, 3]
    assert shell("log", "m", "-q").split() == [ids[4], ids[3]]
    listed = shell.json("delete", "status", "m")
    assert {one["checkpoint"] for one in listed} == set(ids[:3])
    assert all(one["restorable"] and one["model"] == "m" and one["cause"] == "retention" for one in listed)
    assert set(shell("delete", "status", "-q").split()) == set(ids[:3])
    assert "until the next gc apply" in shell("delete", "status")
    assert "has and had no checkpoint" in shell("delete", "restore", f"m@{'ab' * 32}", code=5)
    shell("delete", "restore", "m@main", code=2)
    assert shell("delete", "restore", f"m@{ids[1]}", f"m@{ids[0][:12]}", f"m@{ids[1]}", "-q").split() == ids[1::-1]
    assert steps(shell) == [5, 4, 2, 1]
    assert "is there" in shell("delete", "restore", f"m@{ids[1]}")
    assert shell.json("delete", "restore", f"m@{ids[2]}")[0]["checkpoint"] == ids[2]
    shell("checkout", "m@step:2", "out")
    assert Path("out/sub/notes.txt").read_text() == "step 2"


def test_metrics_are_told(shell: Shell, ids: list[str]) -> None:
    assert [line["metrics"] for line in shell.json("log", "m", "-n", "1")] == [{"acc": 0.5, "loss": 2.0}]
    assert shell.json("show", "m@step:3")["metrics"] == {"acc": 0.5, "loss": 0.0}
    assert "metric     loss = 2\n" in shell("show", "m")
    for text in ("loss", "=3", "a:b=3", "loss=low", "x" * 65 + "=1"):
        shell("commit", str(shell.files), "m", "--metric", text, code=2)
    arguments = ["commit", str(shell.files), "m", "--step", "5", "--metric", "acc=0.5"]
    assert shell.json(*arguments, "--metric", "loss=2")["created"] is False
    assert shell.json(*arguments, "--metric", "loss=nan")["created"] is True
    assert shell.json("log", "m", "-n", "1")[0]["metrics"] == {"acc": 0.5, "loss": None}
