"""What people do by hand: plan files that were edited, collections that are to be taken back, figures to go by."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cairn.cli.app import run
from tests.support.fixtures import be_new_user
from tests.support.trees import write_files

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """A store with three checkpoints, the first of which is deleted and can be restored; returns its folder."""
    be_new_user(monkeypatch, tmp_path)
    monkeypatch.chdir(write_files(tmp_path / "work", {}))
    assert run(["init"]) == 0
    for step in (1, 2, 3):
        tree = write_files(tmp_path / f"tree-{step}", {"own": bytes((step,)) * 50_000 + bytes(range(256)) * 8 * step})
        assert run(["commit", str(tree), "net", "--step", str(step)]) == 0
    assert run(["retain", "apply", "net", "--last", "2", "--yes"]) == 0
    capfd.readouterr()
    return tmp_path / "work" / ".cairn"


def _deleted(capfd: pytest.CaptureFixture[str]) -> str:
    assert run(["delete", "status", "--json"]) == 0
    (one,) = json.loads(capfd.readouterr().out)
    return str(one["checkpoint"])


@pytest.mark.parametrize(
    ("edit", "code", "says"),
    [
        (lambda plan: plan.update(condemn_packs=[[0, 10**12]]), 3, "is not a collection plan"),
        (lambda plan: plan.update(repack_packs=[[-(10**12), 0]]), 3, "is not a collection plan"),
        (lambda plan: plan.update(condemn_packs=[[1, 0]]), 3, "is not a collection plan"),
        (lambda plan: plan.update(kind="another/1"), 3, "is of kind 'another/1'"),
        (lambda plan: plan.update(log_length=-1), 4, "came after the plan"),
        (lambda plan: plan.update(log_length=10**30), 0, ""),
        (lambda plan: plan.update(drop=[["ab" * 16, "cd" * 32], ["ab", "cd"]]), 0, ""),
        (lambda plan: plan.update(condemn_packs=[[0, 2]], condemn_objects=["ab" * 28 + "00"]), 0, ""),
    ],
)
def test_an_edited_plan_does_nothing_that_the_store_does_not_allow(
    store: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, edit: Edit, code: int, says: str
) -> None:
    path = tmp_path / "plan.json"
    assert run(["gc", "plan", "-o", str(path)]) == 0
    plan = json.loads(path.read_text())
    edit(plan)
    path.write_text(json.dumps(plan))
    assert run(["gc", "apply", str(path), "--yes"]) == code
    assert says in capfd.readouterr().err
    assert run(["verify", "--full"]) == 0
    for step in (2, 3):
        assert run(["checkout", f"net@step:{step}", str(tmp_path / f"out-{step}")]) == 0


@pytest.mark.parametrize("from_file", [False, True])
def test_what_is_only_condemned_can_all_be_taken_back(
    store: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, from_file: bool
) -> None:
    plan = tmp_path / "plan.json"
    assert run(["gc", "plan", "-o", str(plan)]) == 0
    capfd.readouterr()
    deleted = _deleted(capfd)
    assert run(["gc", "apply", *([str(plan)] if from_file else []), "--yes", "--condemn-only"]) == 0
    assert "can no longer be restored" not in capfd.readouterr().out
    run(["gc", "cancel", "--yes"])
    assert run(["delete", "restore", f"net@{deleted}"]) == 0
    assert run(["checkout", f"net@{deleted}", str(tmp_path / "out")]) == 0


def test_stats_does_not_call_reclaimable_what_a_checkpoint_with_a_lost_list_needs(
    store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in store.rglob("*.reach"):
        path.unlink()
    assert run(["stats"]) == 0
    said = capfd.readouterr()
    assert "reclaimable     unknown" in said.out
    assert "gc apply" not in said.err and "cairn verify" in said.err


def test_a_metric_that_no_checkpoint_has_is_told(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in (["plan"], ["apply", "--yes"]):
        assert run(["retain", *command, "net", "--best", "lost:min:1"]) == 0
        assert "no checkpoint has the metric of --best lost:min:1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["gc", "apply", "--yes", "--wait", "nan"], "no time to wait"),
        (["gc", "apply", "--yes", "--wait=-1"], "no time to wait"),
        (["verify", "--seed", "abc"], "draws a sample"),
        (["verify", "--full", "--max-age", "nan"], "is no age"),
    ],
)
def test_options_that_say_nothing_are_refused(
    store: Path, capfd: pytest.CaptureFixture[str], command: list[str], says: str
) -> None:
    assert run(command) == 2
    assert says in capfd.readouterr().err


def test_giving_up_a_session_that_is_not_there_is_told(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["gc", "apply", "--yes", "--give-up", "ab" * 16]) == 0
    assert f"there is no session {'ab' * 16}" in capfd.readouterr().err


def test_a_checkpoint_that_was_given_up_takes_nobodys_place(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Retention keeps two that can be read; nobody is told less than what is wrong and what is next."""
    assert run(["delete", "restore", f"net@{_deleted(capfd)}"]) == 0
    for ending in ("reach", "body"):
        for path in store.rglob(f"*.{ending}"):
            kept = path.with_name(f"{path.name}.kept")
            path.rename(kept)
            damaged = run(["checkout", "net@step:2", str(store.parent / f"out-{path.name}"), "-q"]) == 6
            if not damaged and ending == "reach":
                damaged = run(["gc", "quarantine", "net@step:2", "--yes"]) == 0
            if not damaged:
                kept.rename(path)
    assert "verify --full" in capfd.readouterr().err
    assert run(["verify"]) == 6
    capfd.readouterr()
    assert run(["doctor"]) == 0
    out = capfd.readouterr().out
    assert "1 checkpoint was given up by 'gc quarantine'" in out and "was interrupted" not in out
    assert run(["retain", "plan", "net", "--last", "2", "--json"]) == 0
    verdicts = json.loads(capfd.readouterr().out)["checkpoints"]
    assert [(one["step"], one["keep"]) for one in verdicts] == [(3, True), (2, False), (1, True)]
