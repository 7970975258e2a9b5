"""`cairn delete plan` and `apply`: what they print, take and exit with."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cairn
from cairn.cli.app import run
from tests.cli.conftest import Shell


@pytest.fixture
def ids(shell: Shell) -> dict[int, str]:
    """Checkpoints of steps 1 to 3 on `main`, and 4 and 5 on `side`, which leaves it at 2; each has its own bytes."""
    made = {}
    for step in range(1, 6):
        (shell.files / "own.bin").write_bytes(Random(step).randbytes(200_000))
        target = "m@side" if step > 3 else "m"
        made[step] = shell("commit", str(shell.files), target, "--step", str(step), "-q").strip()
        if step == 2:
            shell("branch", "m", "side")
    return made


def steps(shell: Shell, selector: str = "m") -> list[int]:
    return [line["step"] for line in shell.json("log", selector)]


def test_a_plan_says_what_goes_and_what_stays_by_name(shell: Shell, ids: dict[int, str]) -> None:
    text = shell("delete", "plan", "m@side")
    lines = text.splitlines()
    assert lines[0] == "branch side is removed"
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["remove", ids[5][:12], "5"],
        ["remove", ids[4][:12], "4"],
        ["keep", ids[2][:12], "2"],
    ]
    assert lines[4].endswith("branch main; so are 1 behind it") and lines[5] == "2 stay, 2 go"
    assert lines[6].startswith("needed by nothing else: ") and lines[7] == "being read now: no"
    plan = shell.json("delete", "plan", "m@side")
    assert (plan["kind"], plan["target"], plan["refs"]) == ("branch", "side", ["side"])
    assert plan["removed"] == [{"checkpoint": ids[5], "step": 5}, {"checkpoint": ids[4], "step": 4}]
    assert [(one["step"], one["reached_by"]) for one in plan["stays"]] == [(2, ["branch main"]), (1, ["branch main"])]
    assert shell("delete", "plan", "m@side", "-q").split() == [ids[5], ids[4]]
    assert steps(shell, "m@side") == [5, 4, 2, 1]


def test_a_plan_tells_the_space_that_a_collection_then_frees(shell: Shell, ids: dict[int, str]) -> None:
    told = shell.json("delete", "plan", "m@side")["bytes_alone"]
    before = stored(shell)
    shell("delete", "apply", "m@side", "--yes")
    shell("gc", "apply", "--yes", "--max-unused", "0")
    objects = before - stored(shell)
    assert told > 0 and abs(objects - told) < 0.1 * told + 4096
    assert shell.json("delete", "plan", f"m@{ids[1]}")["bytes_alone"] < told


def stored(shell: Shell) -> int:
    return sum(path.stat().st_size for path in (shell.folder / ".cairn" / "objects").rglob("*") if path.is_file())


def test_a_plan_tells_who_reads(shell: Shell, ids: dict[int, str]) -> None:
    with cairn.open(f"m@{ids[5]}"):
        plan = shell.json("delete", "plan", "m@side")
        assert len(plan["readers"]) == 1
        assert f"being read now: {plan['readers'][0][:12]}" in shell("delete", "plan", "m@side")
        assert shell.json("delete", "plan", "m@step:1")["readers"] == []


def test_a_plan_is_applied_from_its_file_once_and_taken_back(
    shell: Shell, ids: dict[int, str], capfd: pytest.CaptureFixture[str]
) -> None:
    shell("delete", "plan", "m@side", "-o", "plan.json")
    assert "exists" in shell("delete", "plan", "m@side", "-o", "plan.json", code=3)
    error = shell("delete", "apply", "plan.json", code=2)
    assert "nothing was changed" in error and "--yes" in error
    shell("delete", "apply", "plan.json", "--yes", "--with-tags", code=2)
    capfd.readouterr()
    assert run(["delete", "apply", "plan.json", "--yes", "--grace", "60"]) == 0
    told = capfd.readouterr().err
    assert "cairn delete restore MODEL@ID" in told and "the first 'cairn gc apply' after 60 seconds" in told
    assert "was deleted" in shell("show", f"m@{ids[5]}", code=5)
    shell("log", "m@side", code=5)
    assert "is void" in shell("delete", "apply", "plan.json", "--yes", code=4)
    shell("delete", "restore", f"m@{ids[5]}", f"m@{ids[4]}")
    shell("branch", f"m@{ids[5]}", "side")
    assert steps(shell, "m@side") == [5, 4, 2, 1]


def test_a_plan_is_void_after_its_branch_moved(shell: Shell, ids: dict[int, str]) -> None:
    shell("delete", "plan", "m@side", "-o", "plan.json")
    shell("commit", str(shell.files), "m@side", "--step", "6")
    error = shell("delete", "apply", "plan.json", "--yes", code=4)
    assert "nothing was deleted" in error and "cairn delete plan m@side" in error
    assert steps(shell, "m@side") == [6, 5, 4, 2, 1]


def test_a_checkpoint_is_deleted_by_step_or_id(shell: Shell, ids: dict[int, str]) -> None:
    assert shell.json("delete", "apply", "m@step:1", "--yes")["removed"] == [{"checkpoint": ids[1], "step": 1}]
    assert shell("delete", "apply", f"m@{ids[2][:10]}", "--yes", "-q").split() == [ids[2]]
    assert steps(shell) == [3]
    assert {one["cause"] for one in shell.json("delete", "status", "m")} == {"deleted"}
    shell("delete", "apply", f"m@{ids[2][:10]}", "--yes", code=5)


def test_a_tag_goes_with_its_checkpoint_or_alone(shell: Shell, ids: dict[int, str]) -> None:
    shell("tag", f"m@{ids[1]}", "first")
    assert "--with-tags" in shell("delete", "plan", "m@step:1", code=3)
    assert "tag first is removed" in shell("delete", "plan", "m@step:1", "--with-tags")
    text = shell("delete", "apply", "m@first", "--yes")
    assert "tag first is removed" in text and text.endswith("1 stay, 0 go\n")
    assert shell.json("tag", "m") == [] and steps(shell) == [3, 2, 1]
    shell("tag", f"m@{ids[1]}", "again")
    shell("delete", "apply", "m@step:1", "--with-tags", "--yes")
    assert shell.json("tag", "m") == [] and steps(shell) == [3, 2]


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [
        ("m@main", 3, "is the default branch"),
        ("m@latest", 3, "is the default branch"),
        ("m@step:3", 3, "move the branch first"),
        ("m@other", 5, "has no ref or checkpoint"),
        ("n@main", 5, "no model 'n'"),
        ("@side", 2, "is not a selector"),
    ],
)
def test_what_is_not_deleted_by_name(shell: Shell, ids: dict[int, str], target: str, code: int, told: str) -> None:
    assert told in shell("delete", "plan", target, code=code)
    assert told in shell("delete", "apply", target, "--yes", code=code)
    assert steps(shell) == [3, 2, 1]


def test_what_is_no_plan(shell: Shell, ids: dict[int, str]) -> None:
    Path("notes.json").write_text("{}")
    assert "no plan of deletion" in shell("delete", "apply", "notes.json", "--yes", code=3)
    shell("retain", "plan", "m", "--last", "1", "-o", "retain.json")
    assert "no plan of deletion" in shell("delete", "apply", "retain.json", "--yes", code=3)
    shell("delete", "plan", "m@side", "-o", "plan.json")
    plan: dict[str, Any] = json.loads(Path("plan.json").read_text())
    plan["goes"] = [{"checkpoint": ids[1], "step": 1}]
    Path("plan.json").write_text(json.dumps(plan))
    assert "is void" in shell("delete", "apply", "plan.json", "--yes", code=4)
