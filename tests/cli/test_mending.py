"""`cairn verify` in its depths, going on, recording and mending; `doctor`, `why-kept` and `why-gone`."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from cairn.cli.app import run
from cairn.gc import scrub_chunks
from cairn.store import chunkstore
from tests.cli.conftest import Shell


@pytest.fixture
def packs(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A commit of several packs."""
    monkeypatch.setattr(chunkstore, "PACK_BYTES_TARGET", 1 << 20)
    (shell.files / "big").write_bytes(random.Random(1).randbytes(6 << 20))
    shell("commit", str(shell.files), "m", "--step", "1")
    return sorted((shell.folder / ".cairn").rglob("*.pack"))


def harm(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def test_a_sample_is_told_with_its_seed_which_gives_the_same_again(shell: Shell, packs: list[Path]) -> None:
    report = shell.json("verify", "--sampled")
    assert (report["ok"], report["depth"], report["full"]) == (True, "sampled", False)
    assert len(packs) <= report["chunks_opened"] and len(report["seed"]) == 12
    again = shell.json("verify", "--sampled", "5", "--seed", report["seed"])
    assert (again["chunks_opened"], again["bytes_read"]) == (report["chunks_opened"], report["bytes_read"])
    assert f"a sample of seed {report['seed']}" in shell("verify", "--sampled=5", "--seed", report["seed"])


@pytest.mark.parametrize(
    "arguments", [["--sampled", "0"], ["--sampled", "101"], ["--full", "--sampled"], ["--from", "origin"]]
)
def test_what_makes_no_sense_is_refused(shell: Shell, arguments: list[str]) -> None:
    shell("verify", *arguments, code=2)


def test_an_interrupted_run_goes_on(shell: Shell, packs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_chunks, "threads_within_budget", lambda size: 1)
    left = [4]
    whole = scrub_chunks.ChunkScrub._check_batch

    def interrupted(self: scrub_chunks.ChunkScrub, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        whole(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(scrub_chunks.ChunkScrub, "_check_batch", interrupted)
        assert "goes on where this one was" in shell("verify", "--full", code=130)
    report = shell.json("verify", "--full")
    assert report["ok"] and 0 < report["packs_remembered"] < len(packs)
    assert shell.json("verify", "--full")["packs_remembered"] == 0, "the run had come to its end"
    with monkeypatch.context() as patched:
        left[0] = 4
        patched.setattr(scrub_chunks.ChunkScrub, "_check_batch", interrupted)
        shell("verify", "--full", code=130)
    assert shell.json("verify", "--full", "--restart")["packs_remembered"] == 0


def test_damage_is_told_when_it_is_found(shell: Shell, packs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    harm(packs[0])
    name = packs[0].relative_to(shell.folder / ".cairn").as_posix()

    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cairn.gc.scrub.Blame", stopped)
    assert f"found: {name}: 1 chunk or page is damaged" in shell("verify", "--full", code=130)


def test_what_is_whole_is_recorded_on_request_only(shell: Shell, packs: list[Path]) -> None:
    entries = shell.json("stats")["log_entries"]
    shell("verify", "--full")
    assert shell.json("stats")["log_entries"] == entries
    assert shell.json("verify", "--full", "--record")["recorded"] == 1
    assert shell.json("stats")["log_entries"] == entries + 1
    doctor = {one["topic"]: one for one in shell.json("doctor")["remarks"]}
    assert "1 of 1 checkpoint were read and found whole" in doctor["verified"]["text"]


def test_damage_is_mended_from_a_remote_and_goes_by_collection(shell: Shell, packs: list[Path]) -> None:
    shell("remote", "add", "origin", "there", "--create")
    shell("push", "m")
    harm(packs[0])
    packs[1].unlink()
    lost = shell("verify", "--full", "--repair", "--from", str(shell.folder / "empty"), code=3)
    assert "no" in lost
    report = shell.json("verify", "--full", "--repair", "--from", "origin")
    assert report["ok"] and {one["source"] for one in report["mended"]} <= {"origin", "this store"}
    names = {one["object"] for one in report["superseded"]}
    assert names == {path.relative_to(shell.folder / ".cairn").as_posix() for path in packs[:2]}
    shell("gc", "apply", "--yes")
    assert not packs[0].exists()
    report = shell.json("verify", "--full")
    assert report["ok"] and not report["superseded"]
    shell("checkout", "m", "out")
    assert (shell.folder / "out" / "big").read_bytes() == (shell.files / "big").read_bytes()


def test_what_no_remote_has_stays_named(shell: Shell, packs: list[Path]) -> None:
    harm(packs[0])
    report = shell_json(shell, 6, "verify", "--full", "--repair")
    name = packs[0].relative_to(shell.folder / ".cairn").as_posix()
    assert not report["ok"] and {one["object"] for one in report["errors"]} == {name}
    assert "is in no store that was asked" in printed(shell, 6, "verify", "--full", "--repair")


def test_remotes_that_cannot_be_reached_are_left_out(shell: Shell, packs: list[Path]) -> None:
    shell("remote", "add", "gone", "nowhere", "--create")
    shutil.rmtree(shell.folder / "nowhere")
    assert shell.json("verify", "--repair")["ok"]
    shell("verify", "--repair", "--from", "gone", code=3)
    remarks = shell_json(shell, 3, "doctor", "--remotes")["remarks"]
    assert [one for one in remarks if one["topic"] == "remotes" and one["level"] == "act"]
    assert shell.json("doctor")["ok"], "they are not asked without being told to"


def printed(shell: Shell, code: int, *arguments: str) -> str:
    """What a command prints that exits with a code."""
    shell.capture.readouterr()
    assert run(list(arguments)) == code
    return shell.capture.readouterr().out


def shell_json(shell: Shell, code: int, *arguments: str) -> Any:
    return json.loads(printed(shell, code, *arguments, "--json"))


def test_doctor_of_a_store_that_is_well_and_of_one_that_is_not(shell: Shell, packs: list[Path]) -> None:
    out = shell("doctor")
    assert "is reachable: 1 checkpoint of 1 model" in out and "!!" not in out
    assert shell("doctor", "-q") == ""
    assert shell.json("doctor")["ok"] is True
    (key,) = (Path(os.environ["XDG_DATA_HOME"]) / "cairn" / "keys").iterdir()
    key.chmod(0o640)
    assert not shell_json(shell, 3, "doctor")["ok"]
    key.chmod(0o600)
    init = shell.folder / ".cairn" / "log" / "00000000" / "000000000000"
    harm(init)
    (remark,) = shell_json(shell, 3, "doctor")["remarks"]
    assert (remark["topic"], remark["level"]) == ("store", "act") and "does not open" in remark["text"]


def test_why_kept_and_why_gone(shell: Shell, packs: list[Path]) -> None:
    checkpoint = shell.json("log", "m")[0]["checkpoint"]
    name = packs[0].relative_to(shell.folder / ".cairn").as_posix()
    assert shell("why-kept", name, "-q").split() == [checkpoint]
    assert f"checkpoint {checkpoint[:12]} of m (branch main)" in shell("why-kept", name)
    assert shell.json("why-kept", checkpoint[:8])["reasons"][0]["kind"] == "checkpoint"
    told = shell.json("why-gone", name)
    assert told["here"] and [one["type"] for one in told["entries"]] == ["commit"]
    assert "stored it" in shell("why-gone", name)
    assert shell("why-gone", name, "-q") == "2\n"
    shell("why-gone", f"objects/{'ab' * 16}/{'cd' * 12}.pack", code=5)
    shell("why-kept", "nonsense", code=2)
