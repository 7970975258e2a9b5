"""`cairn delete` with whole models, `cairn hold` and `cairn receipt`: what they print, take and exit with."""

import json
from pathlib import Path
from random import Random

import pytest

from cairn.cli import receipt
from cairn.cli.app import run
from cairn.core.errors import StorageError
from tests.cli.conftest import Shell


@pytest.fixture
def models(shell: Shell) -> Shell:
    """`a` with two checkpoints, and `b`, which was made from it and shares a file with it."""
    for step in (1, 2):
        (shell.files / "own.bin").write_bytes(Random(step).randbytes(200_000))
        shell("commit", str(shell.files), "a", "--step", str(step))
    (shell.files / "own.bin").write_bytes(Random(3).randbytes(1000))
    shell("commit", str(shell.files), "b", "--parent", "a", "--relation", "finetune")
    return shell


def names(shell: Shell) -> list[str]:
    return [one["name"] for one in shell.json("ls")]


def key(shell: Shell) -> str:
    told: str = shell.json("audit", "head")["key"]
    return told


def test_a_plan_tells_all_that_it_is_to_be_judged_by(models: Shell) -> None:
    models("checkout", "a", str(models.folder / "read"))
    models("audit", "gather")
    text = models("delete", "plan", "a")
    for line in (
        "model a goes with its keys, all refs and 2 checkpoints", "stays, though made from it: b@",
        "needed by nothing else: ", "stays for b: ", "can read a: ", "(all)", "has read a: ", "1 time",
        "being read now: no",
    ):  # fmt: skip
        assert line in text, line
    told = models.json("delete", "plan", "a")
    assert [(part["name"], part["whole"], len(part["goes"])) for part in told["parts"]] == [("a", True, 2)]
    assert told["alone"]["stored_bytes"] > 400_000 and [one["model"] for one in told["shared"]] == ["b"]
    assert len(told["stays"]) == 1 and told["holds"] == [] and told["have_read"][0]["reads"] == 1
    assert len(models("delete", "plan", "a", "-q").split()) == 2
    assert names(models) == ["a", "b"]


def test_a_model_is_deleted_found_as_gone_and_restored(models: Shell) -> None:
    assert "--yes" in models("delete", "apply", "a", code=2)
    models("delete", "apply", "a", "--yes")
    assert names(models) == ["b"]
    for command in (("log", "a"), ("show", "a"), ("commit", str(models.files), "a"), ("tag", "a", "v1")):
        assert "'cairn delete restore a' brings it back" in models(*command, code=5)
    models("gc", "apply", "--yes")
    (told,) = models.json("delete", "status")
    assert (told["model"], told["checkpoint"], told["restorable"]) == ("a", None, True)
    assert "'cairn delete restore a'" in models("why-gone", "a")
    body = min((models.folder / ".cairn" / "objects").rglob("*.body"), key=lambda path: path.stat().st_mtime_ns)
    body.rename(body.with_suffix(".away"))
    models.capture.readouterr()
    assert run(["verify"]) == 6
    text = models.capture.readouterr().out
    assert "affects a@" in text and "(deleted)" in text and "'cairn delete restore' has brought it back" in text
    body.with_suffix(".away").rename(body)
    assert told["due_at_ns"] - told["deleted_at_ns"] == pytest.approx(86_400 * 10**9, abs=10**9)
    assert "until a gc apply after" in models("delete", "status", "a")
    assert models("delete", "restore", "a") == "restored model a\n"
    assert "nothing to restore" in models("delete", "restore", "a")
    assert names(models) == ["a", "b"]
    assert len(models.json("log", "a")) == 2


def test_gc_destroys_the_keys_once_the_time_is_over(models: Shell) -> None:
    models("delete", "apply", "a", "--yes", "--grace", "0")
    assert models.json("gc", "plan")["shred_models"] == 1
    done = models.json("gc", "apply", "--yes")
    assert len(done["models_shredded"]) == 1 and done["objects_deleted"] > 0
    assert models.json("gc", "apply", "--yes")["models_shredded"] == []
    assert "its keys are destroyed and it cannot be restored" in models("log", "a", code=5)
    assert "cannot be restored" in models("delete", "restore", "a", code=5)
    (told,) = models.json("delete", "status")
    assert told["model"] is None and told["destroyed_entry"] is not None
    assert "no: its keys are destroyed" in models("delete", "status")
    assert "intact" in models("verify", "--full") and "intact" in models("audit", "verify")
    models("commit", str(models.files), "a")
    assert sorted(names(models)) == ["a", "b"]


def test_with_a_receipt_all_of_it_is_done_at_once(models: Shell) -> None:
    target = str(models.folder / "r.json")
    assert "--grace keeps it restorable" in models(
        "delete", "apply", "a", "--yes", "--receipt", target, "--grace", "5", code=2
    )
    text = models("delete", "apply", "a", "--yes", "--receipt", target)
    assert "irrecoverable not claimed: see what is open" in text and "kept          " in text
    verified = models("receipt", "verify", target, "--key", key(models))
    assert verified.startswith("verified: signed by ")
    told = models.json("receipt", "verify", target, "--key", key(models))
    assert told["packs_left"] == [] and told["objects_left"] == [] and told["inaccessible_since_ns"]
    assert {one["of"] for one in told["open"]} == {"root-copies", "storage"}
    assert models("receipt", "verify", target, "--key", key(models), "-q") == ""
    assert "exists" in models("receipt", "create", "a", "-o", target, code=3)
    for of in ("root-copies", "storage"):
        assert "--yes" in models("delete", "confirm", "a", of, code=2)
        models("delete", "confirm", "a", of, "--yes")
    assert "is not open" in models("delete", "confirm", "a", "storage", "--yes", code=5)
    models("receipt", "create", told["model"][:12], "-o", f"{target}.2")
    told = models.json("receipt", "verify", f"{target}.2", "--key", key(models))
    assert told["open"] == [] and told["irrecoverable_since_ns"] > told["inaccessible_since_ns"]


def test_a_receipt_verifies_without_a_store(models: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "r.json"
    models("delete", "apply", "a", "--yes", "--receipt", str(target))
    public = key(models)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for variable in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(elsewhere / "nothing"))
    assert "verified" in models("receipt", "verify", str(target), "--key", public)
    assert list(elsewhere.iterdir()) == []
    fields = json.loads(target.read_text())
    fields["statement"]["checkpoints"] = 1
    target.write_text(json.dumps(fields))
    assert "signature is bad" in models("receipt", "verify", str(target), "--key", public, code=6)
    assert "no receipt" in models("receipt", "verify", __file__, "--key", public, code=3)
    assert "cannot be read" in models("receipt", "verify", str(elsewhere), "--key", public, code=5)
    assert "no public key" in models("receipt", "verify", str(target), "--key", "x", code=2)


def test_taint_and_tenant(models: Shell) -> None:
    text = models("delete", "plan", "a@step:2", "--taint")
    assert "branch main of a moves back to" in text and "model b goes with its keys" in text
    models("delete", "plan", "a@step:2", "--taint", "-o", "plan.json")
    assert "no model goes as a whole" in models("delete", "apply", "a@step:1", "--yes", "--receipt", "r.json", code=3)
    models("delete", "apply", "plan.json", "--yes")
    assert names(models) == ["a"] and len(models.json("log", "a")) == 1
    models("delete", "restore", "b")
    for wrong in ((), ("a", "--tenant"), ("a", "--with-tags"), ("plan.json", "--taint")):
        models("delete", "apply", *wrong, "--yes", code=2)
    (models.folder / "receipts").mkdir()
    assert "name a folder" in models("delete", "apply", "--tenant", "--yes", "--receipt", "r.json", code=2)
    models("delete", "apply", "--tenant", "--yes", "--receipt", str(models.folder / "receipts"))
    assert names(models) == [] and len(list((models.folder / "receipts").iterdir())) == 2
    assert "was deleted at" in models("delete", "apply", "a@step:1", "--yes", "--receipt", "r.json", code=5)


def test_holds(models: Shell) -> None:
    hold = models("hold", "add", "a@step:1", "-m", "case 17", "-q").strip()
    assert "keeps a" in models("hold", "add", "a", "-m", "case 18")
    assert [(one["model"], one["reason"]) for one in models.json("hold", "list")] == [
        ("a", "case 17"),
        ("a", "case 18"),
    ]
    assert "case 17" in models("hold", "list", "a") and len(models("hold", "list", "-q").split()) == 2
    assert models.json("hold", "list", "b") == []
    assert "kept by hold" in models("delete", "plan", "a")
    assert "cairn hold lift" in models("delete", "apply", "a", "--yes", code=3)
    assert "stays: hold" in models("delete", "apply", "a@step:1", "--yes", code=3)
    for one in models.json("hold", "list"):
        models("hold", "lift", one["hold"][:8])
    assert "no hold" in models("hold", "lift", hold, code=5)
    models("delete", "apply", "a", "--yes")
    models("hold", "add", "a", "-m", "too late? no")
    models("gc", "apply", "--yes")
    assert "as long as it is held" in models("delete", "status")
    assert "no model" in models("hold", "add", "never", "-m", "x", code=5)
    models("hold", "add", "b", code=2)


def test_a_second_owner_is_asked_for(models: Shell) -> None:
    models("audit", "policy", "--delete-approval", "descendants")
    models("delete", "plan", "a", "-o", "plan.json")
    told = models("delete", "apply", "plan.json", "--yes", code=3)
    assert "cairn delete approve" in told
    shown = models("delete", "approve", "plan.json", code=2)
    assert "this consents to plan " in shown
    models("delete", "approve", "plan.json", "--yes")
    assert "asks for a second owner" in models("delete", "apply", "plan.json", "--yes", code=3)
    assert "no plan" in models("delete", "approve", __file__, "--yes", code=3)


def test_a_name_that_is_empty_or_a_file_deletes_nothing(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset variable in a script must not stand for all models, nor a file for the model that is called like it."""
    for command in (("plan", ""), ("plan", "", "--taint"), ("apply", "", "--yes"), ("apply", "", "--taint", "--yes")):
        assert "cannot be empty" in models("delete", *command, code=2)
    monkeypatch.chdir(models.folder)
    (models.folder / "a").write_text("weights")
    assert "if a model is meant, run the command in another folder" in models("delete", "apply", "a", "--yes", code=3)
    (models.folder / "a").unlink()
    assert names(models) == ["a", "b"]
    (models.folder / "a").mkdir()
    models("delete", "apply", "a", "--yes")
    assert names(models) == ["b"]


def test_a_receipt_that_cannot_be_written_stops_it_before_anything_is_deleted(models: Shell) -> None:
    for place in ("/proc/receipt.json", str(models.folder / "none" / "r.json")):
        models("delete", "apply", "a", "--receipt", place, "--yes", code=1 if place.startswith("/proc") else 3)
    assert names(models) == ["a", "b"]


def test_a_receipt_that_is_not_written_in_the_end_can_be_made_later(
    models: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(output: Path, data: bytes) -> None:
        if data:
            raise StorageError("no space left")
        output.write_bytes(data)

    with monkeypatch.context() as patched:
        patched.setattr(receipt, "write_new", full)
        told = models("delete", "apply", "a", "--receipt", str(models.folder / "r.json"), "--yes", code=1)
    identifier = models.json("delete", "status")[0]["model_id"]
    assert f"'cairn receipt create {identifier} -o FILE' writes a receipt" in told
    models("receipt", "create", identifier, "-o", str(models.folder / "r.json"))
    models("receipt", "verify", str(models.folder / "r.json"), "--key", key(models))


def test_a_hold_has_a_reason(models: Shell) -> None:
    for reason in ("", "  "):
        assert "say why" in models("hold", "add", "a", "-m", reason, code=2)
