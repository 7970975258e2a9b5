"""What push, pull, clone and the commands around them say."""

import json
import os
import re
from pathlib import Path

import pytest

import cairn
from cairn.core.errors import CairnError, TensorNotFound
from cairn.registry.stores import open_store
from cairn.workspace.commit import CommitOptions
from tests.cli.conftest import Shell
from tests.support.tensors import safetensors, weights


@pytest.fixture
def travelled(shell: Shell) -> Shell:
    """Three commits here, and an empty remote in `there`."""
    for step in (1, 2, 3):
        (shell.files / "sub" / "notes.txt").write_text(f"notes of {step}")
        shell("commit", str(shell.files), "m", "--step", str(step), "-m", f"message {step}")
    shell("remote", "add", "origin", "there", "--create")
    return shell


def steps(shell: Shell, *arguments: str) -> list[int]:
    return [line["step"] for line in shell.json("log", "m", *arguments)]


def said(shell: Shell, *arguments: str) -> tuple[str, str]:
    """What a command that succeeds prints on either stream."""
    from cairn.cli.app import run

    shell.capture.readouterr()
    assert run(list(arguments)) == 0
    out, err = shell.capture.readouterr()
    return out, err


def test_a_push_says_what_it_left_and_history_brings_it(travelled: Shell) -> None:
    shell = travelled
    assert "  2 older checkpoints left out: --history brings them" in shell("push", "m")
    assert steps(shell, "--store", "there") == [3]
    facts = shell.json("push", "m", "--history")
    assert (facts["older_brought"], facts["older_left"], facts["created"]) == (2, 0, False)
    assert steps(shell, "--store", "there") == [3, 2, 1]
    assert shell("push", "m", "--history").splitlines()[0].endswith("already")


def test_a_clone_brings_tips_or_all(travelled: Shell) -> None:
    shell = travelled
    shell("tag", "m@step:2", "two")
    shell("push", "m", "--history")
    shell("push", "m@two")
    out = shell("clone", "there", "tips")
    assert "2 branches and tags" in out and "1 older checkpoint left out: 'cairn pull MODEL@REF --history'" in out
    assert steps(shell, "--store", "tips") == [3, 2]
    assert "1 older checkpoint left out" in shell("--store", "tips", "pull", "m@two")
    assert "1 older checkpoint came along" in shell("--store", "tips", "pull", "m", "--history")
    assert steps(shell, "--store", "tips") == [3, 2, 1]
    facts = shell.json("clone", "there", "all", "--history")
    assert facts["older_left"] == 0 and len(facts["refs"]) == 2
    assert steps(shell, "--store", "all") == [3, 2, 1]
    assert {ref["name"] for ref in shell.json("branch", "m", "--store", "all")} == {"main"}
    for store in ("tips", "all"):
        assert shell.json("--store", store, "verify", "--full")["ok"]


def test_a_copy_shows_when_it_was_saved(travelled: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = travelled
    saved = [line["saved_at_ns"] for line in shell.json("log", "m")]
    assert saved == sorted(saved, reverse=True)
    later = 86_400 * 10**9
    from cairn.core import clock

    now = clock.SystemClock.wall_ns
    monkeypatch.setattr(clock.SystemClock, "wall_ns", lambda self: now(self) + later)
    shell("push", "m", "--history")
    lines = shell.json("log", "m", "--store", "there")
    assert [line["saved_at_ns"] for line in lines] == saved
    assert all(line["claimed_at_ns"] > line["saved_at_ns"] + later // 2 for line in lines)
    shown = shell.json("show", "m", "--store", "there")
    assert shown["saved_at_ns"] == saved[0] and shown["claimed_at_ns"] == lines[0]["claimed_at_ns"]

    def dated(line: str) -> list[str]:
        return re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line)

    assert dated(shell("log", "m", "--store", "there")) == dated(shell("log", "m"))
    (first, second) = dated(shell("show", "m", "--store", "there"))
    assert first == dated(shell("log", "m"))[0] and second > first


def test_what_is_here_in_part_is_marked(travelled: Shell) -> None:
    shell = travelled
    shell("push", "m", "--tensors", "nothing*")
    there = ("--store", "there")
    assert "  in part: the rest was left out" in shell("push", "m", "--tensors", "nothing*")
    assert "step 3  (main)  [partial]" in shell("log", "m", *there)
    assert shell.json("log", "m", *there)[0]["partial"] is True
    assert "[partial]" in shell("ls", *there) and "[partial]" in shell("ls", "m", *there)
    assert shell.json("ls", *there)[0]["partial"] and all(row["partial"] for row in shell.json("ls", "m", *there))
    assert "partial    here in part: 'cairn pull MODEL@REF' brings the rest" in shell("show", "m", *there)
    facts = shell.json("show", "m", "--tensors", *there)
    assert facts["partial"] and facts["absent"] == [] and len(facts["tensors"]) == 2
    with cairn.open("m", "there") as checkpoint, pytest.raises(TensorNotFound) as error:
        checkpoint["w"][:1]
    assert "'w'" in str(error.value) and facts["checkpoint"][:12] in str(error.value)
    assert "cairn pull m" in error.value.hint
    shell("push", "m")
    for arguments in (("log", "m"), ("ls",), ("ls", "m"), ("show", "m")):
        assert "partial" not in shell(*arguments, *there)
    assert shell.json("show", "m", *there)["partial"] is False


def test_a_tensor_that_is_not_there_is_a_key_that_is_not_there(shell: Shell) -> None:
    shell("commit", str(shell.files), "m")
    with cairn.open("m") as checkpoint:
        assert checkpoint.get("other") is None and "other" not in checkpoint
        with pytest.raises(KeyError) as error:
            checkpoint["other"]
    assert isinstance(error.value, CairnError) and "has no tensor 'other'" in str(error.value)
    assert "cairn show m --tensors" in error.value.hint


def test_after_an_appended_push_the_other_line_is_named(travelled: Shell) -> None:
    shell = travelled
    shell("push", "m", "--history")
    shell("clone", "there", "rival")
    theirs = shell("--store", "rival", "commit", str(shell.files), "m", "--step", "9", "-q").strip()
    shell("--store", "rival", "push", "m")
    shell("commit", str(shell.files), "m", "--step", "4")
    refusal = shell("push", "m", code=4)
    assert f"{os.path.abspath('there')} has something that" in refusal and theirs[:12] in refusal
    out, err = said(shell, "push", "m", "--rebase")
    assert "is now" in out
    assert f"note: it was appended to {theirs[:12]}, which this store does not have" in err
    assert f"next: cairn pull m@{theirs[:12]} --to BRANCH" in err
    shell("pull", f"m@{theirs[:12]}", "--to", "theirs")
    assert steps(shell, "--store", "there") == [4, 9, 3, 2, 1]
    assert [line["step"] for line in shell.json("log", "m@theirs")] == [9, 3, 2, 1]
    shell("commit", str(shell.files), "m", "--step", "5")
    shell("push", "m")
    assert steps(shell, "--store", "there") == [5, 4, 9, 3, 2, 1]


def test_a_place_without_a_store_names_create(shell: Shell, tmp_path: Path) -> None:
    shell("commit", str(shell.files), "m")
    nowhere = str(tmp_path / "nowhere")
    for arguments in (
        ("remote", "add", "origin", nowhere),
        ("push", "m", nowhere),
        ("pull", "m", nowhere),
    ):
        error = shell(*arguments, code=3)
        assert "holds no Cairn store" in error and "cairn remote add NAME URL --create" in error
        assert "cairn init" not in error
    assert "check the address" in shell("clone", nowhere, "x", code=3)
    assert "cairn init" in shell("--store", nowhere, "ls", code=3)
    for arguments in (("push", "m"), ("push", "m", "nowhere")):
        error = shell(*arguments, code=5)
        assert "--create makes the store too" in error and "./folder" in error


def test_refusals_read_right_from_either_side(travelled: Shell) -> None:
    shell = travelled
    shell("push", "m", "--tensors", "nothing*")
    there, here = os.path.abspath("there"), os.path.abspath(".cairn")
    error = shell("clone", "there", "copy", code=3)
    assert f"is in {there} in part only" in error and "pull" not in error
    shell("push", "m")
    shell("commit", str(shell.files), "m", "--step", "7")
    assert f"branch 'main' of {here} is ahead" in shell("pull", "m", code=4)
    assert "names no branch or tag" in shell("pull", "m@step:3", code=2)


def test_places_are_shown_and_noted_plainly(shell: Shell, tmp_path: Path) -> None:
    shell("commit", str(shell.files), "m")
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    assert shell("remote", "add", "one", "../other/", "--create").strip() == f"remote one is {tmp_path / 'other'}"
    shell("remote", "add", "two", "../link/../two//", "--create")
    assert (tmp_path / "real" / "two" / ".cairn" / "format").is_file()
    remotes = shell.json("remote", "list")
    assert [one["url"] for one in remotes.values()] == [str(tmp_path / "other"), str(tmp_path / "real" / "two")]
    assert shell("push", "m", "../other/").splitlines()[0].endswith(f" in {tmp_path / 'other'}")
    assert Path(shell.json("init", "../fresh/../new/")["location"]) == tmp_path / "new" / ".cairn"
    url = (tmp_path / "by-url").as_uri()
    shell("init", url)
    assert shell.json("clone", url + "/", "c")["location"] == str(shell.folder / "c" / ".cairn")
    assert shell.json("remote", "list", "--store", "c")["origin"]["url"] == url


def test_a_store_is_not_made_inside_a_store(bare_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = bare_shell
    assert Path(shell.json("init", "a/.cairn")["location"]) == shell.folder / "a" / ".cairn"
    assert not (shell.folder / "a" / ".cairn" / ".cairn").exists()
    assert "holds a store already" in shell("init", "a/.cairn", code=4)
    assert "holds a store already" in shell("init", "a", code=4)
    monkeypatch.chdir(shell.folder / "a" / ".cairn")
    assert "holds a store already" in shell("init", code=4)
    for place in ("sub", "sub/.cairn", ".cairn", (shell.folder / "a" / ".cairn" / "x").as_uri()):
        assert "lies inside the store" in shell("init", place, code=3)
    monkeypatch.chdir(shell.folder)
    assert shell.json("clone", "a", "b/.cairn/")["location"] == str(shell.folder / "b" / ".cairn")
    assert "exists" in shell("clone", "a", "b/.cairn", code=3)


def test_empty_listings_say_so_and_only_to_people(shell: Shell) -> None:
    for arguments, text in (
        (("ls",), "no models"),
        (("remote", "list"), "no remotes"),
        (("tag", "m"), "no tags"),
        (("hold", "list"), "'cairn hold add"),
        (("delete", "status"), "'cairn delete plan"),
        (("trust", "list"), "'cairn trust add"),
        (("attest", "show", "m"), "'cairn sign"),
        (("audit", "log", "--type", "drop"), "no entry fits"),
        (("ls", "m"), "no files"),
    ):
        if arguments[-1] == "m" and not shell.json("ls"):
            (shell.folder / "empty").mkdir()
            shell("commit", "empty", "m")
        out, err = said(shell, *arguments)
        assert text in err and text not in out, arguments
        out, err = said(shell, *arguments, "--json")
        assert not json.loads(out) and not err, arguments
    out, err = said(shell, "ls", "m", "-q")
    assert (out, err) == ("", "")


def test_one_is_not_many(shell: Shell) -> None:
    one = shell.folder / "one"
    one.mkdir()
    (one / "m.safetensors").write_bytes(safetensors({"w": weights(1, 64, 64)}))
    outputs = [shell("commit", str(one), "m"), shell("checkout", "m", "out"), shell("verify", "--full")]
    (one / "m.safetensors").write_bytes(safetensors({"w": weights(2, 64, 64)}))
    outputs += [shell("commit", str(one), "m", "--step", "1"), shell("diff", "m", "m@main"), shell("show", "m")]
    first = shell.json("log", "m")[1]["checkpoint"]
    outputs += [shell("diff", f"m@{first}", "m"), shell("stats")]
    shell("remote", "add", "origin", "there", "--create")
    outputs += [shell("push", "m"), shell("clone", "there", "copy")]
    for output in outputs:
        assert not re.search(
            r"(?<![\d.])1 (files|tensors|chunks|checkpoints|objects|entries|branches|values)\b", output
        )
    assert "1 file, 1 tensor" in outputs[0] and "1 tensor differs" in outputs[6] and "1 older checkpoint" in outputs[8]


@pytest.mark.parametrize("name", ["origin", "backup"])
def test_verify_mends_from_any_remote(travelled: Shell, name: str) -> None:
    shell = travelled
    shell("push", "m", "--history")
    if name != "origin":
        shell("remote", "remove", "origin")
        shell("remote", "add", name, "there")
    pack = max((shell.folder / ".cairn").rglob("*.pack"), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[100] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    assert "'cairn verify --repair'" in shell_out(shell, "verify", "--full")
    out = shell("verify", "--full", "--repair")
    assert out.startswith("intact: ") and f"from {name}" in out
    shell("checkout", "m@step:1", "out")
    assert shell.json("verify", "--full")["superseded"]
    shell("gc", "apply", "--yes")
    report = shell.json("verify", "--full")
    assert report["ok"] and not report["superseded"] and not pack.exists()


def shell_out(shell: Shell, *arguments: str) -> str:
    """What a command that finds damage prints."""
    from cairn.cli.app import run

    shell.capture.readouterr()
    assert run(list(arguments)) == 6
    return shell.capture.readouterr().out


def test_results_spell_ids(shell: Shell) -> None:
    registry = open_store(shell.folder)
    try:
        result = cairn.commit(registry, shell.files, "m", CommitOptions())
    finally:
        registry.close()
    assert f"CommitResult(checkpoint='{result.checkpoint.hex()}', model='{result.model.hex()}'" in repr(result)
    report = cairn.LoadReport(result.checkpoint, 3, 1, 2, 2, 1, {})
    assert repr(report).startswith(f"LoadReport(checkpoint='{result.checkpoint.hex()}', step=3, tensors=1")
